"""The lenient reader equals the strict one on JSON, and times are exact to the nanosecond."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from foretrace.ingest import json_values, kineto_native, kineto_python, lenient
from tests.ingest.comparison import needs_native

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
layouts = st.sampled_from(({}, {"separators": (",", ":")}, {"indent": 1}, {"separators": ("\t ,\n", " : ")}))
digits = st.text("0123456789", min_size=1, max_size=22)
decimals = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(("", "-")),
    digits,
    st.just("") | digits.map(".".__add__) | st.just("."),
    st.just("") | st.builds(lambda e, n: f"{e}{n}", st.sampled_from(("e", "E", "e+")), st.integers(-30, 30))
    .filter(lambda text: "+-" not in text),
)  # fmt: skip


@given(documents, layouts, st.booleans())
def test_equals_json(document: Any, layout: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii_only, **layout)
    notes: list[str] = []
    expected = json.loads(text, parse_float=lenient.Number)
    # What stands behind a value says where it ends.
    assert lenient.value(text + ",", 0, notes.append) == (expected, len(text))
    assert notes == []


@given(st.text(), st.booleans())
def test_unescapes_like_json(text: str, ascii_only: bool) -> None:
    quoted = json.dumps(text, ensure_ascii=ascii_only)
    assert lenient.unescape(quoted[1:-1]) == text


@given(documents.filter(lambda document: isinstance(document, (dict, list))), layouts)
def test_decode_is_value(document: Any, layout: dict[str, Any]) -> None:
    text = json.dumps(document, **layout)
    assert lenient.decode(text, 0) == lenient.value(text, 0)


@given(documents)
def test_one_spelling_whatever_the_layout(document: Any) -> None:
    spellings = {
        lenient.canonical(lenient.value(json.dumps(document, **layout) + ",", 0)[0])
        for layout in ({}, {"indent": 3}, {"separators": (",", ":")})
    }
    assert len(spellings) == 1
    assert json.loads(spellings.pop()) == document


@pytest.mark.parametrize(
    ("text", "read", "noted"),
    [
        (r'"a\qb",', r"a\qb", "bad-escape"),
        (r'"a\u12",', r"a\u12", "bad-escape"),
        ('"a\tb",', "a\tb", "control-character"),
        ('"a"b",', 'a"b', "raw-quote"),
        ('"f(\\"x\\")",', 'f("x")', None),
        ("NaN,", "NaN", "bare-word"),
        ("-inf}", "-inf", "bare-word"),
        ("N/A]", "N/A", "bare-word"),
        ("007,", 7, None),
        ("1.,", "1.", None),
        (r'"\ud83d\ude00",', "\U0001f600", None),
        (r'"\ud83d",', "\ud83d", None),
    ],
)
def test_not_quite_json(text: str, read: Any, noted: str | None) -> None:
    notes: list[str] = []
    assert lenient.value(text, 0, notes.append) == (read, len(text) - 1)
    assert notes == ([noted] if noted else [])


@pytest.mark.parametrize("text", ['"a', '"a"', "{", '{"a"', '{"a":', '{"a":1', "[1,", "12", "tru", '"a\\'])
def test_what_is_cut_says_so(text: str) -> None:
    with pytest.raises(lenient.TruncatedError):
        lenient.value(text, 0)


@pytest.mark.parametrize("text", ["{1:2}", '{"a", 1}', '{"a":1 "b":2}', "[1 2]", "[)]", "{]", "," + "1"])
def test_what_is_damaged_says_so(text: str) -> None:
    with pytest.raises(lenient.DamagedError) as raised:
        lenient.value(text, 0)
    assert not isinstance(raised.value, lenient.TruncatedError)


def test_depth_is_limited_alike() -> None:
    for depth, sound in ((lenient.MAX_DEPTH, True), (lenient.MAX_DEPTH + 1, False), (100_000, False)):
        text = "[" * depth + "]" * depth
        for read in (lenient.value, lenient.decode):
            if sound:
                assert read(text, 0)[1] == len(text)
            else:
                with pytest.raises(lenient.DamagedError):
                    read(text, 0)


def reference(text: str) -> int | None:
    """Whole nanoseconds by decimal arithmetic."""
    with localcontext(prec=200):
        exact = (Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_UP)
    return int(exact) if abs(exact) < 2**61 else None


@given(decimals)
@example("1790857026000123.4565")
@example("0.0005")
@example("-0.0005")
@example("0.00049999999999999999999")
@example("9.9995e3")
def test_times_are_exact(text: str) -> None:
    assert json_values.nanoseconds(lenient.Number(text)) == reference(text)


@needs_native
@given(decimals, st.booleans())
@example("1790857026000123.4565", False)
@example("99999999999999999", False)
@example("2305843009213693.951", False)
@example("2305843009213693.952", False)
@example("2305843009213693.9515", False)
def test_both_readers_agree_on_times(text: str, quoted: bool) -> None:
    time = f'"{text}"' if quoted else text
    data = f'[{{"ph":"X","name":"a","ts":{time},"dur":{time}}}]'.encode()
    from foretrace._scan import Scanner

    scanner = Scanner()
    scanner.push(data)
    native, python = kineto_native.linked(scanner), kineto_python.scan([data])
    expected = reference(text)
    assert native.origin_ns == python.origin_ns == (expected or 0)
    assert native.repairs == python.repairs
    assert native.groups["spans"]["dur"].tolist() == python.groups["spans"]["dur"].tolist()
    assert native.counts["events"] == 1
    assert len(native.groups["spans"]["dur"]) == (0 if expected is None else 1)


@pytest.mark.parametrize(
    "value", [None, True, "", "abc", "1e", "1e31", "--1", "1" * 65, [], {}, "0x10", " 1"]
)
def test_no_time(value: Any) -> None:
    assert json_values.nanoseconds(value) == (1000 if value is True else None)


def test_absurdly_large_integers() -> None:
    text = "9" * 10_000
    number, end = lenient.value(text + ",", 0)
    assert end == len(text)
    assert number > 2**64
    assert json_values.real(number) is None
    assert json_values.nanoseconds(number) is None
    assert lenient.decode(f"[{text}]", 0)[0] == [number]
