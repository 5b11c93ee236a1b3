"""Recordings that are damaged, cut, absurd or no recordings: what is sound is read, what is not is counted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace.commands import main
from foretrace.errors import FormatError, InputError
from tests.builders import Recording
from tests.ingest import samples
from tests.ingest.comparison import READERS, assert_says_which_file

Open = Callable[[bytes], foretrace.Trace]
HEAD = b'{"schemaVersion": 1, "traceEvents": ['
GUARD_S = (
    60  # CPU time of this process, which other work does not add to: against a hang, not a measure of speed
)


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens bytes with the reader under test."""

    def open_with(data: bytes) -> foretrace.Trace:
        path = tmp_path / "trace.json"
        path.write_bytes(data)
        return foretrace.open(path, reader=request.param)

    return open_with


def event(name: str = "a", ts: str = "1", dur: str = "2", more: str = "") -> bytes:
    text = f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}{more}}}'
    return text.encode("utf-8", "surrogateescape")


def document(*events: bytes) -> bytes:
    return HEAD + b",\n".join(events) + b"]}"


def names(trace: foretrace.Trace) -> list[str]:
    return trace.spans["name"].cast(pl.String).to_list()


def repairs(trace: foretrace.Trace) -> dict[str, tuple[int, int | None]]:
    return {repair.code: (repair.count, repair.offset) for repair in trace.repairs}


FIRST = event("first", "0", "1")
OFFSET = len(HEAD) + len(FIRST) + 2  # of the event that follows


@pytest.mark.parametrize(
    ("name", "read_as", "code"),
    [
        ("tab\there", "tab\there", "control-character"),
        ("nul\x00", "nul\x00", "control-character"),
        ("line\nfeed", "line\nfeed", "control-character"),
        (r"C:\path\to", "C:\\path\to", "bad-escape"),
        (r"\u00zz", r"\u00zz", "bad-escape"),
        ('gemm<"x">', 'gemm<"x">', "raw-quote"),
        ('"quoted" twice', '"quoted" twice', "raw-quote"),
    ],
)
def test_names_that_are_not_json(name: str, read_as: str, code: str, read: Open) -> None:
    trace = read(document(FIRST, event(name), event(name, "5")))
    assert names(trace) == ["first", read_as, read_as]
    assert repairs(trace) == {code: (2, OFFSET)}


def test_names_that_are_not_utf8(read: Open) -> None:
    trace = read(
        document(FIRST, event("caf\udce9"), event("caf\udce9", "5"), event("é", "7"), event("\\ud800", "9"))
    )
    assert names(trace) == ["first", "caf\ufffd", "caf\ufffd", "é", "\ufffd"]
    assert repairs(trace) == {"not-utf8": (2, None)}  # of distinct texts, not of events


@pytest.mark.parametrize(
    "argument", ['"n\udce9": null, "x": 1', '"flops": ["\udce9"]', '"Sequence number": {"\\ud800": 1}']
)
def test_what_is_not_kept_needs_no_repair(argument: str, read: Open) -> None:
    odd = event(more=f', "args": {{{argument}}}')
    trace = read(
        document(FIRST, odd, odd, event("last", "5"))
    )  # what the first teaches is used for the second
    assert names(trace) == ["first", "a", "a", "last"]
    assert repairs(trace) == {}


@pytest.mark.parametrize("word", ["NaN", "inf", "-inf", "Infinity", "N/A", "nan"])
def test_bare_words_are_absent(word: str, read: Open) -> None:
    data = document(FIRST, event(more=f', "args": {{"flops": {word}, "x": [1, {word}]}}'))
    trace = read(data)
    assert names(trace) == ["first", "a"]
    assert repairs(trace) == {"bare-word": (1, OFFSET)}
    assert trace.ops["flops"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("dur", "code"),
    [
        ("-1", "negative-duration"),
        ("-0.001", "negative-duration"),
        ("604800000000.001", "absurd-duration"),
        ("1e14", "absurd-duration"),
        ('"soon"', "no-duration"),
        ("null", "no-duration"),
        ("[]", "no-duration"),
        ("9e99", "no-duration"),
    ],
)
def test_impossible_durations(dur: str, code: str, read: Open) -> None:
    trace = read(document(FIRST, event(dur=dur), event("b", "4", dur)))
    assert trace.spans["dur_ns"].to_list() == [1000, None, None]
    assert repairs(trace) == {code: (2, OFFSET)}


def test_a_missing_duration(read: Open) -> None:
    trace = read(document(FIRST, b'{"ph": "X", "name": "a", "ts": 1}'))
    assert trace.spans["dur_ns"].to_list() == [1000, None]
    assert repairs(trace) == {"no-duration": (1, OFFSET)}


def test_the_longest_duration_and_odd_numbers(read: Open) -> None:
    trace = read(
        document(
            event("week", "0", "604800000000"), event("text", '"1.5"', '"2.25"'), event("e", "2e0", "1.")
        )
    )
    assert trace.spans["dur_ns"].to_list() == [604_800_000_000_000, 2250, 1000]
    assert trace.spans["start_ns"].to_list() == [0, 1500, 2000]
    assert trace.repairs == ()


def test_impossible_starts(read: Open) -> None:
    events = [event(f"e{i}", str(1_700_000_000_000_000 + i)) for i in range(5)]
    trace = read(document(event("zero", "0"), *events, event("far", "1800000000000000")))
    assert names(trace) == ["e0", "e1", "e2", "e3", "e4"]
    assert repairs(trace) == {"impossible-start": (2, None)}
    assert trace.spans["start_ns"].to_list() == [0, 1000, 2000, 3000, 4000]


def test_entries_that_are_no_events(read: Open) -> None:
    bad = [
        b"{}",
        b'{"ph": 5}',
        b'{"ph": "XX"}',
        b'{"ph": "X", "name": "n"}',
        b'{"ph": "X", "ts": "x"}',
        b'{"ph": "Q"}',
    ]
    trace = read(document(FIRST, *bad, event()))
    assert names(trace) == ["first", "a"]
    third = OFFSET + sum(len(each) + 2 for each in bad[:3])
    assert repairs(trace) == {"not-an-event": (3, OFFSET), "no-time": (2, third)}
    assert trace.meta["skipped_events"] == 1
    assert trace.meta["events"] == 8


def test_truncated(read: Open) -> None:
    trace = read(document(FIRST, event())[:-8])
    assert names(trace) == ["first"]
    assert repairs(trace) == {"truncated": (1, OFFSET)}
    assert trace.meta["lost_bytes"] == len(event()) - 6


def test_cut_between_two_events(read: Open) -> None:
    data = HEAD + FIRST + b",\n"
    assert repairs(read(data)) == {"truncated": (1, len(data))}


@pytest.mark.parametrize(
    "damage",
    [
        b'{"ph": "X", "na": ',
        b"garbage",
        b"}}}}",
        b']{"x"',
        b'{"ph": "X", "ts": }',
        b"\x00" * 100,
        b'{"a": [1, 2}',
        b'"',
    ],
)
def test_what_follows_damage_survives(damage: bytes, read: Open) -> None:
    if damage.startswith(b"]"):
        damage = b"x" + damage  # else it ends the list
    trace = read(document(FIRST, damage, event("b", "3"), event("c", "4")))
    assert names(trace) == ["first", "b", "c"]
    assert repairs(trace)["damaged"] == (1, OFFSET)
    assert trace.meta["lost_bytes"] == len(damage) + 2


def test_an_event_cut_in_a_key_runs_on_into_the_next(read: Open) -> None:
    trace = read(document(FIRST, b'{"ph": "X", "na', event("b", "3")))
    assert names(trace) == ["first", "b"]
    assert repairs(trace) == {"control-character": (1, OFFSET), "raw-quote": (1, OFFSET)}


def test_damage_in_arguments_that_others_replace(read: Open) -> None:
    """Of two sets of arguments the last counts; the event is damaged all the same."""
    for replaced_by in ("{}", "[]"):
        twice = event("twice", more=f', "args": {{"x": [, 2]}}, "args": {replaced_by}')
        trace = read(document(FIRST, twice, event("last", "9")))
        assert names(trace) == ["first", "last"]
        assert repairs(trace) == {"damaged": (1, OFFSET)}


def test_a_quarter_of_the_file_overwritten(read: Open) -> None:
    data = bytearray(document(*(event(f"e{i}", str(i)) for i in range(100))))
    quarter = len(data) // 4
    data[quarter : 2 * quarter] = bytes(range(256)) * (quarter // 256) + b"\xff" * (quarter % 256)
    trace = read(bytes(data))
    assert 70 <= trace.spans.height <= 76
    assert names(trace)[0] == "e0"
    assert names(trace)[-1] == "e99"
    assert repairs(trace)["damaged"][0] == 1


@pytest.mark.parametrize("header", [b'"a": {"b": [1, }, ', b'"a" 1, ', b"???, "])
def test_damage_before_the_events(header: bytes, read: Open) -> None:
    before = b'{"schemaVersion": 1, '
    trace = read(before + header + b'"traceEvents": [' + event() + b"]}")
    assert names(trace) == ["a"]
    assert repairs(trace) == {"damaged": (1, len(before))}


def test_deep_nesting(read: Open) -> None:
    deep = event("deep", more=', "args": {"x": ' + "[" * 60 + "]" * 60 + "}")
    assert names(read(document(deep))) == ["deep"]
    for depth in (62, 63, 64, 65, 1000, 100_000):
        too_deep = event("deep", more=', "args": {"x": ' + "[" * depth + "]" * depth + "}")
        trace = read(document(FIRST, too_deep, event("b", "5")))
        sound = depth <= 62  # an event and its arguments are two of the 64
        assert names(trace) == (["first", "deep", "b"] if sound else ["first", "b"]), depth
        assert repairs(trace) == ({} if sound else {"damaged": (1, OFFSET)})


def test_long_strings(read: Open) -> None:
    trace = read(document(FIRST, event("x" * 1_000_000, "3"), event("y" * 1_100_000, "4"), event("b", "5")))
    assert [len(name) for name in names(trace)] == [5, 1_000_000, 1]
    assert repairs(trace)["damaged"][0] == 1


def test_an_unclosed_quote_costs_one_event(read: Open) -> None:
    trace = read(document(FIRST, b'{"ph": "X", "name": "open, "ts": 1, "dur": 1}', event("b", "3")))
    assert names(trace)[0] == "first"
    assert names(trace)[-1] == "b"


def test_no_events(read: Open) -> None:
    trace = read(document())
    assert trace.spans.height == 0
    assert trace.repairs == ()
    assert trace.duration_ns == 0


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000, "-" + "9" * 5000, "1e400", "0." + "1" * 5000])
def test_absurd_numbers(number: str, read: Open) -> None:
    more = f', "args": {{"flops": {number}, "x": {number}, "Input Dims": [{number}]}}'
    counter = f'{{"ph": "C", "name": "c", "ts": 1, "pid": {number}, "args": {{"v": {number}}}}}'.encode()
    trace = read(document(event(more=more), event("b", number), event("c", "3", number), counter))
    assert names(trace) == ["a", "c"]
    assert trace.ops["flops"].to_list() == [None, None]


# --- what cannot be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(100), b"a,b,c\n1,2,3\n", b'{"rows": [1, 2]}', b"[1, 2, 3]", b"null", b'"text"',
        b"{", b"[", b"   ", b"\xff\xfe{\x00}", b'{"schemaVersion": 1}', b'{"schemaVersion": 1, "traceEvents": 5}',
        b'{"schemaVersion": 1, "other": [',
    ],
)  # fmt: skip
def test_other_formats(data: bytes, read: Open) -> None:
    with pytest.raises(FormatError, match=r"trace\.json"):
        read(data)


@pytest.mark.parametrize("data", [HEAD, HEAD + b"{", HEAD + event()[:-1], HEAD + b"xyz", b'[{"ph": "X", "na'])
def test_cut_before_the_first_event_ends(data: bytes, read: Open) -> None:
    with pytest.raises(InputError, match=r"trace\.json: no event can be read: .*\(byte [0-9]+\)"):
        read(data)


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contents = {
        "empty.json": b"", "cut.json": HEAD + event()[:20], "image.png": b"\x89PNG\r\n\x1a\n", "table.csv": b"a,b\n",
        "other.json": b'{"a": 1}', "broken.gz": b"\x1f\x8b\x08\x00broken", "broken.zip": b"PK\x03\x04broken",
    }  # fmt: skip
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder").mkdir()
    for name in (*contents, "missing.json", "folder"):
        assert main(["show", "overview", str(tmp_path / name), "--no-cache"]) == 3, name
        printed = capsys.readouterr()
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert name in line
        assert "Traceback" not in line


def test_the_command_reads_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(Recording().step(1, 0, 100).op("a", 5, 20).launch(10, "k", 30, 60).to_bytes()[:-10])
    assert main(["show", "trust", str(path), "--no-cache"]) == 0, capsys.readouterr().err


# --- nothing hangs ------------------------------------------------------------------------------------------


def many(count: int, text: str) -> bytes:
    return b"[" + b",".join((text % i).encode() for i in range(count)) + b"]"


PATHOLOGICAL: dict[str, Callable[[int], bytes]] = {
    "nested candidates": lambda times: HEAD + b'{"ph":' * 350 * times,
    "brackets": lambda times: HEAD + b"[" * 5_000 * times,
    "braces": lambda times: HEAD + b"{" * 2_000 * times,
    "quotes": lambda times: HEAD + b'"' * 3_000 * times,
    "candidates without a colon": lambda times: HEAD + b'{"ph" ' * 350 * times,
    "candidates in keys": lambda times: HEAD + b'{"ph":1,"x' * 200 * times,
    "candidates in strings": lambda times: HEAD + b'{"ph":"X' * 250 * times,
    "candidates in lists": lambda times: HEAD + b'{"ph":[1,' * 250 * times,
    "backslashes": lambda times: HEAD + b'{"ph":"' + b"\\" * 2_000 * times,
    "header": lambda times: b'{"schemaVersion":1,"a":' + b'{"a":' * 400 * times,
    "header keys": lambda times: b'{"schemaVersion":1,' + b'"traceEvents" ' * 200 * times,
    "one id": lambda times: many(60 * times, '{"ph":"X","cat":"cuda_runtime","name":"r","ts":%d,"dur":1,"args":{"correlation":5}}')[:-1]
    + b","
    + many(60 * times, '{"ph":"X","cat":"kernel","name":"k","ts":9%d,"dur":1,"args":{"correlation":5}}')[1:],
    "arguments": lambda times: b'[{"ph":"X","name":"a","ts":1,"dur":1,"args":{'
    + b",".join(b'"k%d":%d' % (i, i) for i in range(200 * times))
    + b"}}]",
    "repairs": lambda times: many(150 * times, '{"ph":"X","name":"a","ts":%d,"dur":-1}'),
    "notes": lambda times: many(50 * times, '{"ph":"X","name":"a","ts":%d,"dur":1,"args":{"x":NaN}}'),
    "damage": lambda times: many(50 * times, '{"ph":"X","name":"a","ts":%d,"dur":1,"args":{}{}}'),
    "threads": lambda times: many(50 * times, '{"ph":"X","name":"a","pid":1,"tid":"%d","ts":1,"dur":1}'),
    "devices": lambda times: many(
        30 * times, '{"ph":"i","name":"[memory]","ts":1,"args":{"Bytes":1,"Device Type":1,"Device Id":%d,"Total Allocated":1}}'
    ),
    "same time": lambda times: many(50 * times, '{"ph":"X","cat":"python_function","name":"f%d","ts":1,"dur":1}'),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", PATHOLOGICAL)
@pytest.mark.parametrize("reader", READERS)
def test_nothing_hangs(case: str, reader: str, tmp_path: Path) -> None:
    """What took time in the square of these sizes would take minutes; the Python reader gets a sixteenth of them."""
    path = tmp_path / "trace.json"
    path.write_bytes(PATHOLOGICAL[case](1_000 if reader == "native" else 60))
    began = time.process_time()
    try:
        trace = foretrace.open(path, reader=reader)
    except InputError as error:
        assert_says_which_file(error, "trace.json")
    else:
        assert trace.meta["events"] > 0
    assert time.process_time() - began < GUARD_S


@pytest.mark.exhaustive
def test_a_sample_with_every_byte_doubled(read: Open) -> None:
    for at in range(0, len(samples.COMPACT), 13):
        data = samples.COMPACT[:at] + samples.COMPACT[at : at + 1] + samples.COMPACT[at:]
        try:
            trace = read(data)
        except InputError:
            continue
        json.dumps(trace.meta)
