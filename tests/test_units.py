from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.units import cells, format_value, heading, shorten, visible


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("dur_ns", 0, "0"),
        ("dur_ns", 1, "1 ns"),
        ("dur_ns", 999, "999 ns"),
        ("dur_ns", 1_000, "1.00 µs"),
        ("dur_ns", 12_345, "12.3 µs"),
        ("dur_ns", 999_499, "999 µs"),
        ("dur_ns", 999_600, "1.00 ms"),
        ("dur_ns", 51_110_192, "51.1 ms"),
        ("dur_ns", 99_960_000, "100 ms"),
        ("dur_ns", 9_996_000, "10.0 ms"),
        ("dur_ns", -2_500_000, "-2.50 ms"),
        ("dur_ns", 3_600 * 10**9, "3,600 s"),
        ("mean_ns", 0.25, "0.25 ns"),
        ("size_bytes", 1023, "1,023 B"),
        ("size_bytes", 1024, "1.00 KiB"),
        ("size_bytes", 3 * 1024**3, "3.00 GiB"),
        ("work_flops", 2.5e12, "2.50 TFLOP"),
        ("flops_per_s", 9.89e14, "989 T/s"),
        ("copied_bytes_per_s", 3 * 1024**3, "3.00 GiB/s"),
        ("intensity_flops_per_byte", 319.3, "319 FLOP/B"),
        ("intensity_flops_per_byte", 0.0, "0"),
        ("busy_pct", 93.8301, "93.8 %"),
        ("calls_count", 1_234_567, "1,234,567"),
        ("launches_per_step_count", 523.5, "524"),
        ("launches_per_step_count", 2.5, "2.50"),
        ("thread", 123456, "123456"),
        ("busy_pct", float("nan"), "–"),
        ("dur_ns", float("inf"), "–"),
        ("dur_ns", None, "–"),
        ("whole", True, "yes"),
        ("name", "plain", "plain"),
        ("list", [1, "a"], "1, a"),
    ],
)
def test_values_show_in_their_unit(name: str, value: object, expected: str) -> None:
    assert format_value(name, value) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("total_ns", "total"),
        ("gpu_busy_pct", "GPU busy"),
        ("step_count", "step count"),
        ("calls_count", "calls"),
        ("launches_per_step_count", "launches per step"),
        ("items_per_s", "items/s"),
        ("intensity_flops_per_byte", "intensity"),
        ("name", "name"),
        ("_ns", "_ns"),
        ("", ""),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_headings_are_words(name: str, expected: str) -> None:
    assert heading(name) == expected


def test_what_acts_on_a_terminal_is_spelled_out() -> None:
    assert visible("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    assert visible("a\u202eb\u200bc\x85\r\n") == "a\\u202eb\\u200bc\\x85\\x0d\\x0a"
    assert visible("日本語 µs é") == "日本語 µs é"
    assert visible("[red]x[/red]") == "[red]x[/red]"


@given(st.text())
def test_nothing_unseen_is_left(text: str) -> None:
    assert not {unicodedata.category(each) for each in visible(text)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(st.text(), st.integers(1, 200))
def test_short_is_never_wider_than_asked(text: str, width: int) -> None:
    assert cells(shorten(text, width)) <= width


def test_kernel_names_lose_noise_before_substance() -> None:
    name = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>(float*, int)"
    assert shorten(name, 100) == name
    assert shorten(name, 80) == "at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>"
    assert shorten(name, 40) == "cunn_SoftMaxForward<4, float>"
    assert shorten(name, 20) == "cunn_SoftMaxF…float>"


@pytest.mark.parametrize("name", ["x" * 10_000, "e\u0301" * 10_000, "\u0301" * 10_000, "語" * 10_000])
def test_very_long_names_end(name: str) -> None:
    short = shorten(name, 40)
    assert cells(short) <= 40
    assert len(short) <= 80
