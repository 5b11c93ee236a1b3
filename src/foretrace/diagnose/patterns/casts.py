"""Casts within the device, who asks for them, and which of them undo each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns.device_copies import device_copies
from foretrace.diagnose.patterns.remade_weights import remade_weights
from foretrace.predict.edits import Edit

ASKED = ("aten::to", "aten::_to_copy", "aten::type_as", "aten::float", "aten::half", "aten::bfloat16")
BACKWARD = "ToCopyBackward"  # in the name of autograd's node for a cast
# Operators that compute in fp32 inside, whatever their input's type: a cast before and one back after it change nothing.
_WIDE_INSIDE = re.compile(
    r"aten::(?:native_layer_norm|native_group_norm|native_batch_norm|cudnn_batch_norm|_fused_rms_norm|_?(?:log_)?softmax|"
    r"gelu|silu|mish|relu|elu|leaky_relu|hardswish|sigmoid|tanh|softplus|clamp_min)_?(?:_backward)?(?:_data)?$"
)


def passing_copies(case: Case) -> DeviceWork:
    """Copies within the device, without those of weights, and those into a tensor of the program's own, which stay."""
    return case.keep("passing copies", lambda: _passing_copies(case))


def _passing_copies(case: Case) -> DeviceWork:
    copies = device_copies(case)
    kept = [op for op in copies.ops if len(case.callers(op)) == 1]
    of_weights = pl.col("task").is_in(remade_weights(case).rows["task"].implode())
    return copies.where(~of_weights & ~pl.col("op_id").is_in(kept))


def time_share(case: Case, edit: Edit, gpu_share: float) -> float:
    """The share of GPU time, or of the host's where the step follows the host, whichever is larger."""
    host_share = edit.removed_host.total_ns / max(case.program.measured_host_ns, 1)
    return max(gpu_share, host_share) if case.calibration.host_bound else gpu_share


@dataclass(frozen=True)
class ThereAndBack:
    """Tasks of casts that undo each other: one right after the other, or `around` an operator that is fp32 inside."""

    direct: list[int]
    around: dict[int, list[int]]  # with the tasks of that operator

    @property
    def casts(self) -> list[int]:
        """All of them."""
        return [*self.direct, *self.around]

    @property
    def between(self) -> list[int]:
        """The tasks of the operators that they are around, in order."""
        return sorted({task for tasks in self.around.values() for task in tasks})


def there_and_back(case: Case) -> ThereAndBack:
    """Casts to another type and back, of equally many elements."""
    return case.keep("casts there and back", lambda: _there_and_back(case))


def _there_and_back(case: Case) -> ThereAndBack:
    copies = passing_copies(case).rows
    direct = _round_trips(copies)
    others = copies.filter(~pl.col("task").is_in(direct))
    return ThereAndBack(direct, _around_one(case, others, set(direct)))


class _Cast(NamedTuple):
    task: int
    source: str
    target: str
    elements: int
    stream: int
    op: int


def _round_trips(copies: pl.DataFrame) -> list[int]:
    """Tasks of casts that return within a step to the type they began with, nothing else on the stream between."""
    trips: list[int] = []
    run: list[_Cast] = []
    previous = (-1, -1, -1)
    columns = ("task", "source", "target", "count", "stream", "op_id", "program_step", "place")
    for *row, step, place in copies.select(columns).iter_rows():
        cast = _Cast(*row)
        at = (cast.stream, step, place)
        right_after = at == (*previous[:2], previous[2] + 1)
        if not (run and right_after and (cast.source, cast.elements) == (run[-1].target, run[-1].elements)):
            run = []
        previous = at
        if cast.source == cast.target:
            run = []
            continue
        run.append(cast)
        back = [start for start, earlier in enumerate(run) if earlier.source == cast.target]
        if back:
            trips += [earlier.task for earlier in run[back[-1] :]]
            run = run[: back[-1]]
    return trips


def _around_one(case: Case, copies: pl.DataFrame, gone: set[int]) -> dict[int, list[int]]:
    """Tasks of casts up and back with one operator that computes in fp32 inside between them, with the tasks of that."""
    casts = {
        row[0]: _Cast(*row)
        for row in copies.select("task", "source", "target", "count", "stream", "op_id").iter_rows()
    }
    ops, streams = case.tasks["op_id"].to_list(), case.tasks["stream"].to_list()
    forward: dict[int, list[int]] = {}
    backward: dict[int, tuple[int, list[int]]] = {}
    counts = set()
    for task, cast in casts.items():
        end = task + 1
        while end < len(ops) and ops[end] == ops[task + 1] and streams[end] == cast.stream:
            end += 1
        between = list(range(task + 1, end))
        while end in gone:
            end += 1
        back = casts.get(end)
        if back is None or not between or not _is_back(cast, back) or ops[task + 1] is None:
            continue
        if not _WIDE_INSIDE.match(case.name(ops[task + 1])):
            continue
        outer = [case.name(case.callers(op)[-1]) for op in (cast.op, back.op)]
        if all(name in ASKED for name in outer):
            counts.add(cast.elements)
            forward |= {task: between, end: between}
        elif all(BACKWARD in name for name in outer):
            backward |= {task: (cast.elements, between), end: (cast.elements, between)}
    # What autograd casts may be autocast's doing: only where the program asked for the same in the forward pass.
    return forward | {task: between for task, (count, between) in backward.items() if count in counts}


def _is_back(cast: _Cast, back: _Cast) -> bool:
    """Whether one casts to fp32, and the other the same elements back."""
    same = (back.source, back.target, back.elements) == (cast.target, cast.source, cast.elements)
    return same and cast.target == "fp32"
