"""A step compiled, as edits: as torch.compile does by default, replayed as CUDA graphs, or all of it one graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.predict import fusion, graph_capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.compiler.steps import CompiledStep, Fused
from foretrace.predict.costs import compiled, graph
from foretrace.predict.edits import Edit, emptied_calls
from foretrace.predict.numbers import ProgramTime, Tasks
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program


@dataclass(frozen=True)
class Compilation:
    """All steps of a program, compiled."""

    program: Program
    steps: list[CompiledStep]
    loss: (
        float  # how much of the loss is in the compiled model: 1 all of it, 0 none; between, it is not known
    )

    @cached_property
    def kernels(self) -> list[Fused]:
        """Kernels of all steps in place of operators; those of a loss outside the model stay as they are."""
        found = []
        for step in self.steps:
            for kernel in step.kernels:
                if not kernel.of_loss or self.loss == 1:
                    found.append(kernel)
                elif self.loss > 0:
                    recorded = int(self.program.task_dur_ns[list(kernel.tasks)].sum())
                    between = round(self.loss * kernel.dur_ns + (1 - self.loss) * recorded)
                    found.append(replace(kernel, dur_ns=between, launches=max(kernel.launches, 1)))
        return found

    @cached_property
    def recorded_ns(self) -> int:
        """What the kernels' tasks take as they are, in all steps."""
        tasks = np.array([task for kernel in self.kernels for task in kernel.tasks], np.int64)
        return int(self.program.task_dur_ns[tasks].sum())

    @property
    def fused_ns(self) -> int:
        """What the kernels take."""
        return sum(kernel.dur_ns for kernel in self.kernels)

    @cached_property
    def masking_ns(self) -> float:
        """How much longer attention takes in all steps, because it gets masks."""
        dur = self.program.task_dur_ns
        return sum(
            (factor - 1) * float(dur[task]) for step in self.steps for task, factor in step.masking.items()
        )

    @property
    def operators(self) -> tuple[float, float]:
        """Operators a step that launch work, before and after."""
        before = sum(step.operators for step in self.steps)
        after = sum(len(step.kept) for step in self.steps) + sum(kernel.launches for kernel in self.kernels)
        return before / max(len(self.steps), 1), after / max(len(self.steps), 1)

    @cached_property
    def _device(self) -> Edit:
        runs = [kernel for kernel in self.kernels if kernel.computes]
        edit = fusion.edit(fusion.Fused(list(run.tasks), run.dur_ns, modelled=True) for run in runs)
        constants = [task for kernel in self.kernels if not kernel.computes for task in kernel.tasks]
        converting = [task for step in self.steps for task in step.converting]
        gone = np.array([*constants, *converting], np.int64)
        masking = {task: factor for step in self.steps for task, factor in step.masking.items()}
        return replace(
            edit,
            removed_tasks=Tasks(np.concatenate((edit.removed_tasks, gone))),
            stretched=edit.stretched | masking,
            modelled=edit.modelled | masking.keys(),
        )

    @cached_property
    def _calls(self) -> NDArray[np.bool_]:
        """Calls of the compiled part: those that launch, and those that lead to them."""
        owner = self.program.task_call
        kept = [task for step in self.steps for tasks in step.kept for task in tasks]
        return self._leading_to(np.union1d(owner[kept], owner[self._replaced]))

    @cached_property
    def _dispatched(self) -> NDArray[np.bool_]:
        """Those of them that torch, not a library such as cuDNN, leads to: of an operator that stays, only the first."""
        owner = self.program.task_call
        first = [tasks[0] for step in self.steps for tasks in step.kept]
        return self._leading_to(np.union1d(owner[first], owner[self._replaced]))

    @cached_property
    def _replaced(self) -> list[int]:
        """Tasks of operators that are fused, or that go."""
        fused = [task for kernel in self.kernels for task in kernel.tasks]
        return fused + [task for step in self.steps for task in step.converting]

    def _leading_to(self, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The calls, with those before each that launch nothing and wait for nothing."""
        chosen = np.zeros(len(self.program.kind) + 1, bool)
        chosen[calls] = True
        starts = np.diff(self.program.task_from) > 0
        following = np.where(starts, np.arange(len(starts)), len(starts))  # the next call that launches
        following = np.minimum.accumulate(following[::-1])[::-1]
        leading: NDArray[np.bool_] = chosen[following]
        return leading & ~np.isin(self.program.kind, (SYNC, BLOCKING_COPY))

    @cached_property
    def _launching(self) -> NDArray[np.int64]:
        """Calls that still launch something, or never did: host work is not added at others."""
        return np.flatnonzero(~emptied_calls(self.program, self._device))

    def _launching_from(self, call: int) -> int:
        """The first of them from this call on."""
        place = int(np.searchsorted(self._launching, call))
        return int(self._launching[place]) if place < len(self._launching) else call

    @cached_property
    def _launched_at(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Calls at which operators of compiled code are launched, and how many: fused ones, then those that stay."""
        computing = [kernel for kernel in self.kernels if kernel.computes]
        first = [tasks[0] for step in self.steps for tasks in step.kept]
        tasks = np.array([*(kernel.tasks[-1] for kernel in computing), *first], np.int64)
        launches = [*(kernel.launches for kernel in computing), *[1] * len(first)]
        return self.program.task_call[tasks], np.array(launches, np.int64)

    def default(self, cost: float = compiled.OPERATOR_COST) -> Edit:
        """Fewer operators for the host, each at `cost` times what one takes now."""
        program, inside = self.program, self._dispatched
        dense = dense_ns(program)
        begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
        recorded = np.maximum(program.call_start_ns - begin, 0)
        part = np.divide(dense, program.gap_ns, out=np.zeros(len(dense)), where=program.gap_ns > 0)
        removed = intervals.union(
            begin[inside], (begin + recorded * np.minimum(part, 1))[inside].astype(np.int64)
        )
        each_ns = cost * self.operator_ns
        calls, launches = self._launched_at
        added = np.bincount(calls, weights=launches * each_ns, minlength=len(program.kind))
        there = np.bincount(calls, minlength=len(program.kind)) > 0
        graphs = max((step.graphs for step in self.steps), default=0)
        for call in program.step_calls:
            if call < len(program.kind):
                entered = self._launching_from(int(call))
                added[entered] = added[entered] + graphs * compiled.GRAPH_NS + self._guards_ns
                there[entered] = True
        calls = np.flatnonzero(there)
        added_ns = np.rint(added[calls]).astype(np.int64)
        return replace(
            self._device,
            removed_host=ProgramTime(removed),
            added_host_ns=dict(zip(calls.tolist(), added_ns.tolist(), strict=True)),
        )

    @cached_property
    def _guards_ns(self) -> float:
        """What the guards of a step take: parameters of the forward pass's operators that stay are checked."""
        checked = sum(step.kept_forward for step in self.steps) / max(len(self.steps), 1)
        return compiled.GUARDS * self.operator_ns * checked

    @cached_property
    def operator_ns(self) -> float:
        """What an operator of the compiled part costs the host now."""
        before = sum(step.operators for step in self.steps)
        return float(dense_ns(self.program)[self._dispatched].sum()) / max(before, 1)

    def default_range(self) -> tuple[Edit, ...]:
        """The same where an operator of compiled code costs the host less, or more."""
        return self.default(compiled.CHEAPEST), self.default(compiled.DEAREST)

    @property
    def split_by_waits(self) -> bool:
        """Whether the host waits in the midst of the compiled part, not only near its ends."""
        launches = np.flatnonzero(self._calls & (np.diff(self.program.task_from) > 0))
        waiting = np.flatnonzero(np.isin(self.program.kind, (SYNC, BLOCKING_COPY)))
        return graph_capture.splits(self.program, launches, waiting)

    def graphs(self, capturable: NDArray[np.bool_], *, whole: bool) -> Edit:
        """Compiled, and replayed as CUDA graphs: the compiled part, whose guards are checked first, or every step as a whole."""
        captured = capturable if whole else capturable & self._calls
        replayed = graph_capture.edit(self.program, captured)
        heads = graph.LAUNCH_NS if whole else graph.GUARDED_LAUNCH_NS
        added = dict.fromkeys(map(self._launching_from, replayed.added_host_ns), int(heads))
        for call in () if whole else self.program.step_calls:
            if call < len(self.program.kind):
                entered = self._launching_from(int(call))
                added[entered] = added.get(entered, 0) + round(self._guards_ns)
        return replace(self._device, captured_calls=replayed.captured_calls, added_host_ns=added)
