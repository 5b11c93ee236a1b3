"""A mistyped name: which one is meant, in one line."""

from __future__ import annotations

import pytest

from foretrace.errors import near_names, unknown

COLUMNS = ("name", "calls_count", "total_ns", "total_pct", "dur_ns", "self_bytes")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("naem", ["name"]),
        ("NAME", ["name"]),
        ("total", ["total_ns", "total_pct"]),
        ("total_pcnt", ["total_pct"]),
        ("dur", ["dur_ns"]),
        ("cals", ["calls_count"]),
        ("self bytes", ["self_bytes"]),
        ("colour", []),
        ("", []),
        ("x" * 1_000_000, []),
    ],
)
def test_near_names(typed: str, meant: list[str]) -> None:
    assert near_names(typed, COLUMNS) == meant


def test_a_hyphen_is_an_underscore_and_a_part_is_near() -> None:
    rules = ("unfused-attention", "host-sync", "cold-start")
    assert near_names("host_sync", rules) == ["host-sync"]
    assert near_names("attention", rules) == ["unfused-attention"]
    assert near_names("colour", rules) == []


def test_an_unknown_name_is_answered_by_the_near_ones_or_by_all() -> None:
    assert str(unknown("no column 'dur'", "dur", COLUMNS)) == "no column 'dur'; did you mean dur_ns?"
    assert str(unknown("no rule 'q'", "q", ("a", "b"))) == "no rule 'q'; there are: a, b"
    assert str(unknown("no option 'q'", "q", (), listed="its options")) == "no option 'q'; its options: none"
    assert unknown("x", "q", ()).exit_code == 2
