"""What the optimizer keeps, where it is more than an optimizer usually keeps for the parameters that it trains."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots.origins import ACTIVATION, OLD, PARAMETER, STATE, UNKNOWN, Origins
from foretrace.sourced import JUDGEMENT, Bytes, Factor

USUAL = Factor(2.5, "times the parameters' bytes: Adam keeps twice as much, in their type", JUDGEMENT)
LEAST_BYTES = Bytes(64 << 20, "kept by the optimizer: less is no matter", JUDGEMENT)
_WIDER = 2  # fp32 beside bf16 or fp16
_ROUNDED = 512  # bytes, to which torch rounds small blocks


@dataclass(frozen=True)
class OptimizerState:
    """State and wider copies of the parameters, at one moment."""

    size_bytes: int
    parameters_bytes: int
    lines: tuple[tuple[str, int], ...]  # where it was allocated, the most first


def find(origins: Origins, event: int) -> OptimizerState | None:
    """What the optimizer kept after an event; `None` where that is usual, or the parameters are not known."""
    lives = origins.memory.lives
    held = lives.allocated_after(event)
    categories = origins.categories
    parameters = np.sort(lives.size[held & (categories == PARAMETER).to_numpy()])
    state = np.flatnonzero(held & (categories == STATE).to_numpy())
    if not len(state) or not len(parameters):
        return None
    others = np.flatnonzero(held & categories.is_in([OLD, UNKNOWN, ACTIVATION]).to_numpy())
    rows = np.concatenate((state, _wider_copies(origins, others, parameters)))
    size = int(lives.size[rows].sum())
    if size < max(USUAL * int(parameters.sum()), LEAST_BYTES):
        return None
    by_line: dict[str, int] = {}
    for line, each in zip(origins.lines.gather(rows), lives.size[rows].tolist(), strict=True):
        by_line[line] = by_line.get(line, 0) + each
    lines = sorted(by_line.items(), key=lambda item: -item[1])
    return OptimizerState(size, int(parameters.sum()), tuple(lines))


def _wider_copies(origins: Origins, rows: Array, parameters: Array) -> Array:
    """The blocks of lines that hold one block for each parameter, of twice its size: copies of them in fp32."""
    found: list[Array] = [np.zeros(0, np.int64)]
    lines = origins.lines.gather(rows).to_numpy()
    sizes = origins.memory.lives.size
    for line in np.unique(lines[lines != OLD]):
        of_line = rows[lines == line]
        if len(of_line) == len(parameters):
            apart = np.abs(np.sort(sizes[of_line]) - _WIDER * parameters)
            if (apart <= _WIDER * _ROUNDED).all():
                found.append(of_line)
    return np.concatenate(found)
