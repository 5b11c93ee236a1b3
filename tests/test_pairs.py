"""The programs of `benchmarks/pairs`: both variants run and, made small, give the same results."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[1] / "benchmarks" / "pairs"
STEPS = 2


def load() -> dict[str, Any]:
    """The small programs, by name."""
    before = os.environ.get("PAIRS_TINY")
    os.environ["PAIRS_TINY"] = "1"  # read on import
    sys.path.insert(0, str(FOLDER))
    try:
        for each in (*sorted(FOLDER.glob("set_*.py")), FOLDER / "promises.py"):
            importlib.import_module(each.stem)
        return dict(importlib.import_module("programs").PAIRS)
    finally:
        sys.path.remove(str(FOLDER))
        os.environ.pop("PAIRS_TINY")
        if before is not None:
            os.environ["PAIRS_TINY"] = before


PAIRS = load()


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Puts back what some programs set for the whole process."""
    backends = torch.backends
    before = (
        backends.cudnn.allow_tf32,
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.benchmark,
        torch.get_rng_state(),
    )
    yield
    backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32, backends.cudnn.benchmark = before[:3]
    torch.set_rng_state(before[3])


def numbers(value: Any) -> list[Any]:
    """What a step returned, as fp32 tensors; nothing where it returns nothing."""
    if value is None:
        return []
    if isinstance(value, tuple):
        return [each for part in value for each in numbers(part)]
    return [torch.as_tensor(value).detach().cpu().float()]


def outcome(name: str, fixed: bool) -> list[list[Any]]:
    torch.manual_seed(0)
    step = PAIRS[name].make(fixed)
    return [numbers(step()) for _ in range(STEPS)]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(PAIRS))
def test_variants_agree(name: str) -> None:
    """A pair is worth measuring only if its fix computes what the slow program computes."""
    slow, fixed = outcome(name, False), outcome(name, True)
    for before, after in zip(slow, fixed, strict=True):
        if PAIRS[name].half in ("c", "d", "e", "f", "g", "h", "i", "j", "p", "t"):
            assert before
            assert after
        for one, other in zip(before, after, strict=False):
            assert torch.isfinite(one).all()
            torch.testing.assert_close(other, one, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("half", "count"), [("c", 22), ("d", 26), ("e", 26), ("f", 24), ("g", 26), ("h", 24), ("i", 24)]
)
def test_enough_programs(half: str, count: int) -> None:
    unseen = [pair for pair in PAIRS.values() if pair.half == half]
    assert len(unseen) >= count
    assert sum(pair.label == "healthy" for pair in unseen) >= 6
    assert len({pair.name for pair in PAIRS.values()}) == len(PAIRS)
