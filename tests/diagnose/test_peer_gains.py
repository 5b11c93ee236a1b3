"""docs/peers.md lists and defends every gain that is promised on recordings of others: no more, and no fewer."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.corpus import CORPUS, needs_corpus

ROOT = Path(__file__).parents[2]
PEERS = CORPUS / "peers"
ROW = re.compile(
    r"^\| (?P<path>[^`| ]+) \| `(?P<fix>[^`|]+)` \| × (?P<point>[0-9.]+) \([^|]*\) \| (?P<defence>[^|]+) \|$"
)


def load() -> Any:
    spec = importlib.util.spec_from_file_location("peer_gains", ROOT / "benchmarks" / "peer_gains.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_gains"] = module
    spec.loader.exec_module(module)
    return module


peer_gains = load()


def listed() -> dict[tuple[str, str], re.Match[str]]:
    """The rows of the page: the recording and the fix, with the line."""
    lines = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(ROW.match, lines) if row]
    found = {(row["path"], row["fix"]): row for row in rows}
    assert len(found) == len(rows)
    return found


def test_every_line_has_a_defence() -> None:
    assert listed()
    assert all(len(row["defence"].split()) >= 8 for row in listed().values())


@needs_corpus
def test_all_that_is_listed_is_still_there() -> None:
    there = {path.relative_to(PEERS).as_posix() for path in peer_gains.recordings(PEERS)}
    assert {path for path, _ in listed()} <= there


@needs_corpus
@pytest.mark.parametrize(
    "path", [path.relative_to(PEERS).as_posix() for path in peer_gains.recordings(PEERS)] or ["none"]
)
def test_every_gain_is_listed_with_its_worth(path: str) -> None:
    """Run `python benchmarks/peer_gains.py` for the rows as they are now."""
    promised = peer_gains.gains(PEERS / path)
    rows = {fix: row for (of, fix), row in listed().items() if of == path}
    assert set(promised) == set(rows)
    for fix, predicted in promised.items():
        assert float(rows[fix]["point"]) == pytest.approx(predicted.speedup.point, rel=0.03)
