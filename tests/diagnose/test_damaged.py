"""Rules over recordings with damage that a reader lets through: they say less, and never fail."""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.errors import ForetraceError
from foretrace.ingest.source import open_source

pytestmark = pytest.mark.slow
RECORDINGS = Path(__file__).parents[1] / "accuracy" / "j"
PROGRAMS = (
    "card_payments",
    "cloudy_strips",
    "hand_joints",
    "inflow_ensemble",
    "prompt_store",
    "coil_scans",
)
DIMS: tuple[object, ...] = (
    [],
    [[]],
    [[0, 0]],
    [[-1, 5]],
    "x",
    [[1, [2]]],
    [[10**12, 10**12]],
    None,
    [[3], [4], [5], [6]],
    [True],
)
TYPES: tuple[object, ...] = ([], ["float"], ["c10::BFloat16"] * 9, [""], None, ["Scalar", "int"], [["float"]])
NAMES = (
    "", "aten::copy_", "aten::mm", "aten::_softmax", "aten::item", "aten::cat", "aten::bmm", "aten::index",
    "aten::convolution", "Optimizer.step#X.step", "cudaStreamSynchronize", "Memcpy HtoD (Pageable -> Device)",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
)  # fmt: skip


def damage(events: list[dict[str, Any]], chance: random.Random) -> None:
    """One sort of damage, in one to five hundred places."""
    sort = chance.choice(("drop", "shapes", "types", "name", "time", "link", "stream", "repeat"))
    for _ in range(chance.choice((1, 5, 50, 500))):
        place = chance.randrange(len(events))
        event = events[place]
        args = event.get("args") or {}
        if sort == "drop" and len(events) > 5:
            events[place] = events.pop()
        elif sort == "shapes" and "Input Dims" in args:
            args["Input Dims"] = chance.choice(DIMS)
        elif sort == "types" and "Input type" in args:
            args["Input type"] = chance.choice(TYPES)
        elif sort == "name":
            event["name"] = chance.choice(NAMES)
        elif sort == "time" and "dur" in event:
            event["dur"] = chance.choice((0, 1e-3, 1e9, -5, event["dur"] * 1000))
        elif sort == "link" and "correlation" in args:
            args["correlation"] = chance.choice((0, 1, -1, 10**9))
        elif sort == "stream" and "stream" in args:
            args["stream"] = chance.choice((0, 7, 13, 99))
        elif sort == "repeat":
            events.append(copy.deepcopy(event))


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_rule_fails_on_damage(tmp_path: Path, program: str) -> None:
    text = b"".join(open_source(RECORDINGS / f"{program}.slow.lite.json.zst").chunks())
    looked = 0
    for seed in range(3):
        recording = json.loads(text)
        damage(recording["traceEvents"], random.Random(f"{program} {seed}"))
        path = tmp_path / f"{seed}.json"
        path.write_text(json.dumps(recording))
        with suppress(ForetraceError):  # where nothing is left to diagnose
            case = Case(foretrace.open(path, cache=False))
            case.require_replay()
            found = diagnose(case, RULES)
            told = {row.rule for rows in (found.findings, found.unchecked, found.seen) for row in rows} | set(
                found.checked
            )
            assert told == {each.name for each in RULES if each.fits(case)}
            looked += 1
    assert looked >= 2
