"""Compiling: what torch.compile would make of the recorded steps, and what stands in its way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import graph_origins
from foretrace.analyze.concepts.device.phases import OPTIMIZER, PHASES
from foretrace.analyze.concepts.names.named_spans import any_like
from foretrace.analyze.concepts.names.per_name import matching
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.predict import graph_capture
from foretrace.predict.compiler.levels import Compilation
from foretrace.predict.compiler.steps import CompiledStep, compiled_steps
from foretrace.sourced import JUDGEMENT, Count, Share

FEWER = Share(0.9, "the operators that launch work, left after compiling", JUDGEMENT)
LEAST_SAVED = Share(0.03, "the step, saved on the GPU", JUDGEMENT)
FILLED = Share(0.9, "the compiled step, that the GPU works at most where it follows the host", JUDGEMENT)
COMPILED = Share(0.1, "the kernels, made by the compiler: such a program is compiled already", JUDGEMENT)
LEAST_BETWEEN = Count(
    30,
    "operators between two breaks of the compiler's graph, on average: it breaks where a value is read or a size depends on "
    "values",
    JUDGEMENT,
)
# Their results' sizes depend on values: the compiler breaks its graph there, and compiles anew for other sizes.
_SIZES = r"^(aten::(nonzero|masked_select|unique\w*|_unique\w*)|torchvision::nms)$"
_READS = "aten::_local_scalar_dense"
_RECURRENT = r"_cudnn_rnn|_thnn_fused_(lstm|gru)|miopen_rnn"  # torch._dynamo.config.allow_rnn is off
_LOSS = r"_loss|log_softmax"
# transformers looks whether a mask is needed, but never while it is traced: compiled, it always makes one.
_MASK_LEFT_OUT = r"transformers[/\\]masking_utils\.py\(\d+\): _ignore_\w+_mask_sdpa$"
_SHOWN = Count(20, "operators named as evidence", JUDGEMENT)
_SPANS = Count(5, "kernels named as evidence", JUDGEMENT)
MOST = Share(0.5, "the operators of a loss, in the module that holds most others", JUDGEMENT)


@dataclass(frozen=True)
class Compiling:
    """The steps of a case, compiled."""

    case: Case
    steps: list[CompiledStep]

    @cached_property
    def loss_inside(self) -> bool | None:
        """Whether the model computes its loss itself; None where no recording tells."""
        rich = self.case.rich or self.case
        return _loss_inside(rich)

    @cached_property
    def likely(self) -> Compilation:
        """As far as is known: a loss of unknown place is taken to be the model's own."""
        return Compilation(self.case.program, self.steps, loss=0.0 if self.loss_inside is False else 1.0)

    @property
    def less(self) -> tuple[Compilation, ...]:
        """With less of the loss in it, where its place is not known."""
        if self.loss_inside is not None:
            return ()
        return (Compilation(self.case.program, self.steps, loss=1 / 2),)

    @property
    def saved_share(self) -> float:
        """The part of the step, or of GPU time where that is longer, that fusing saves."""
        longest_ns = max(self.case.device_ns, self.case.step_ns * self.case.step_count)
        return (self.likely.recorded_ns - self.likely.fused_ns - self.likely.masking_ns) / longest_ns

    def follows_host(self, step_ns: float) -> bool:
        """Whether the host, not the GPU, sets the pace of compiled steps that take so long."""
        dur = self.case.program.task_dur_ns
        converting = sum(int(dur[list(step.converting)].sum()) for step in self.steps)
        saved = self.likely.recorded_ns - self.likely.fused_ns - self.likely.masking_ns + converting
        return (self.case.device_ns - saved) / self.case.step_count < FILLED * step_ns

    @property
    def pays(self) -> bool:
        """Whether there is anything to save."""
        before, after = self.likely.operators
        return self.saved_share >= LEAST_SAVED or after <= FEWER * before

    @cached_property
    def doubt(self) -> str:
        """What stands in the compiler's way; empty where nothing is seen."""
        if self.case.tasks.select(graph_origins.has_capture().any()).item():
            return "the operators are replayed as a CUDA graph, and what its launches cost beside fused kernels is not known here"
        forward = _launching(self.case)
        if forward.str.contains(_RECURRENT).any():
            return "the compiler leaves recurrent layers (LSTM, GRU) as they are, and breaks its graph there"
        breaks = forward.filter(forward.str.contains(_SIZES) | (forward == _READS))
        if LEAST_BETWEEN * len(breaks) > len(forward):
            often = Counter(breaks.to_list()).most_common(1)[0][0]
            return (
                f"the compiler breaks its graph {len(breaks) / self.case.step_count:.0f} times a step, where values are read "
                f"or sizes depend on them ({often})"
            )
        if graph_capture.shapes_differ(self.case.trace, self.case.program):
            return "shapes differ from step to step, so that it may be compiled again and again"
        return ""

    def says(self) -> str:
        """What compiling would change."""
        before, after = self.likely.operators
        recorded, fused = (
            100 * part / self.case.device_ns for part in (self.likely.recorded_ns, self.likely.fused_ns)
        )
        return (
            f"{before:,.0f} operators a step launch work. Compiled, {after:,.0f} would, and what can be fused, "
            f"{recorded:.0f} % of GPU time, would take {fused:.0f} %.{self._masks()}"
        )

    def _masks(self) -> str:
        """What becomes of attention without a mask, where the model would make one."""
        longer_ns = self.likely.masking_ns / self.case.step_count
        if not longer_ns:
            return ""
        return (
            f" Attention would take {longer_ns / 1e6:.3g} ms longer: transformers leaves out its mask only where it is not "
            "compiled."
        )

    def evidence(self) -> dict[str, Any]:
        """The same in numbers, and the kernel that saves most."""
        before, after = self.likely.operators
        tasks = list(self._most_saving[0][1]) if self._most_saving else []
        work = self.case.tasks[tasks]
        return {
            "operators_before_count": before,
            "operators_after_count": after,
            "fusable_ns": self.likely.recorded_ns // self.case.step_count,
            "fused_ns": self.likely.fused_ns // self.case.step_count,
            "fusable_pct": 100 * self.likely.recorded_ns / self.case.device_ns,
            "most_saving": self.case.op_names(work["op_id"])[:_SHOWN].to_list(),
            "spans": work["id"].to_list()[:_SPANS],
        } | ({} if self.loss_inside is None else {"loss_in_model": self.loss_inside})

    @cached_property
    def _most_saving(self) -> list[tuple[int, tuple[int, ...]]]:
        kernels, dur = self.likely.kernels, self.case.program.task_dur_ns.tolist()
        saved = [(sum(map(dur.__getitem__, fused.tasks)) - fused.dur_ns, fused.tasks) for fused in kernels]
        return sorted(saved, key=lambda one: -one[0])

    def places(self) -> tuple[Place, ...]:
        """The source lines of those that save most."""
        most = self._most_saving[0][0] if self._most_saving else 0
        tasks = [task for saved, tasks in self._most_saving if 2 * saved >= most for task in tasks]
        return self.case.places(self.case.tasks["op_id"].gather(tasks).drop_nulls().to_list())


def find(case: Case) -> Compiling | None:
    """What compiling would do; None where the program is compiled already.

    Raises MissingDataError if the recording does not tell what operators move.
    """
    kernels = case.tasks.filter(pl.col("kind") == "kernel")["name"].cast(pl.String)
    if not len(kernels) or kernels.str.starts_with("triton_").sum() > COMPILED * len(kernels):
        return None
    return case.keep("compiling", lambda: _compiled(case))


def _compiled(case: Case) -> Compiling:
    masks = _leaves_masks_out(case.rich or case)
    steps = compiled_steps(case.trace, case.tasks_with("phase"), case.known_device, masks=masks)
    return Compiling(case, steps)


def _leaves_masks_out(case: Case) -> bool:
    """Whether transformers looks if attention needs a mask."""
    return any_like(case.trace, _MASK_LEFT_OUT)


def _launching(case: Case) -> pl.Series:
    """The operators that launched work, outside of the optimizer: once for each call."""
    work = case.tasks_with("phase")
    work = work.filter(pl.col("phase").fill_null(0) != PHASES.index(OPTIMIZER)).unique(
        "op_id", maintain_order=True
    )
    return case.op_names(work["op_id"].drop_nulls())


def _loss_inside(case: Case) -> bool | None:
    """Whether operators of a loss lie in the module that holds most of the others; None where modules were not recorded."""
    modules, ops = case.trace.modules, case.trace.ops
    if modules.is_empty() or "module_id" not in ops.columns:
        return None
    root: dict[int, int] = {}
    for number, parent in modules.select("id", "parent_id").iter_rows():  # parents come before children
        root[number] = number if parent is None else root[parent]
    called = case.trace.spans["name"].gather(ops["span_id"])
    forward = ~matching(called, "backward|Backward|autograd")
    losses = ops["module_id"].filter(forward & matching(called, _LOSS))
    within = ops["module_id"].filter(forward).drop_nulls()
    if losses.is_empty() or within.is_empty():
        return None
    names = dict(modules.select("id", "name").iter_rows())
    counted: Counter[str] = Counter()
    for module, count in within.to_frame().group_by("module_id", maintain_order=True).len().iter_rows():
        counted[str(names[root[module]])] += count
    main = counted.most_common(1)[0][0]
    inside = [module is not None and names[root[module]] == main for module in losses.to_list()]
    return bool(np.mean(inside) >= MOST)
