"""The Case: one recording with what rules ask of it, each worked out once."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import analyze, intervals
from foretrace.analyze.concepts.device import device_roles, device_time
from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
from foretrace.analyze.concepts.host.runtime_calls import HostSpans
from foretrace.analyze.concepts.names.named_spans import ids_where, of_kind
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.analyze.result import Result, Value, require_timeline
from foretrace.analyze.steps import recorded_step_ns
from foretrace.diagnose import replayable
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.excerpt import Excerpt, chosen_steps, excerpt
from foretrace.diagnose.finding import Place
from foretrace.diagnose.promises import guarded
from foretrace.diagnose.seen import Seen
from foretrace.diagnose.source_lines import SourceLines
from foretrace.errors import ForetraceError, MissingDataError
from foretrace.hardware import Device
from foretrace.ingest import totals
from foretrace.ingest.timed import Timed
from foretrace.predict.builder import build
from foretrace.predict.calibrate import Calibration, calibrate, calibrate_pair
from foretrace.predict.changes import Change
from foretrace.predict.costs import clock
from foretrace.predict.costs.measured_on import model_for
from foretrace.predict.loading import Loaded, calibrate_loaded
from foretrace.predict.matrix_products import product_kernels
from foretrace.predict.numbers import Calls, ProgramTime
from foretrace.predict.prediction import Prediction, predict
from foretrace.predict.program import Program
from foretrace.predict.tasks import device_of, task_table
from foretrace.sourced import JUDGEMENT, Factor
from foretrace.trace import Trace
from foretrace.urls import is_url

Kept = TypeVar("Kept")

REPLAYED_LONGER = Factor(
    1.02, "times the recorded step, from which a replayed one is fitted to it", JUDGEMENT
)
LONGEST_WALK = 64  # operators around an operator
_ARGUMENTS = ("shapes", "dtypes", "strides", "inputs")
_NO_CODE = 2**32 - 1  # more than there are texts
# About the recording as it began, or at its fullest: not to be told from some of its steps.
_OF_THE_WHOLE = ("cold-start", "memory", "memory-fit", "saved-activations")


def _give_memory_back() -> None:
    """Lets the system have what was freed, which glibc keeps for later; other systems have no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class _Texts:
    """The texts of a column, one by one: of many rows there are few, and each is made once. Empty where there is none."""

    def __init__(self, column: pl.Series) -> None:
        self._column = column
        self._codes = column.to_physical().fill_null(_NO_CODE).to_numpy()
        self._known: dict[int, str] = {_NO_CODE: ""}

    def __getitem__(self, row: int) -> str:
        code = int(self._codes[row])
        text = self._known.get(code)
        if text is None:
            text = self._known[code] = str(self._column[row])
        return text


def _same(some: tuple[Change, ...], others: tuple[Change, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


class Case:
    """A trace, its analyses, and its steps ready to be replayed. Of a long recording, a Case takes enough steps.

    `open_rich` opens a recording of the same program with stacks, where there is one: times are not taken from it.
    `open_ranks` opens the recordings of the other ranks of the same job; it may find that there are none. `read_in_part` says
    how many of them were read, where it is not all.
    `of_sums` lets tables of `nsys stats` be one, of which there is no diagnosis: the page shows what they tell.
    """

    def __init__(
        self,
        trace: Trace,
        *,
        step_ns: float | None = None,
        timed: Timed | None = None,
        open_rich: Callable[[], Trace] | None = None,
        open_ranks: Callable[[], Sequence[Trace]] | None = None,
        read_in_part: Callable[[], str] | None = None,
        of_sums: bool = False,
    ) -> None:
        if not (of_sums and totals.stats(trace)):
            require_timeline(trace, "a diagnosis")
        self.whole = trace
        if step_ns != trace.meta.get("stated_step_ns"):  # the trust report compares it with the recorded ones
            trace.meta = {**trace.meta, "stated_step_ns": step_ns}
        self.measured_step_ns, self.timed = step_ns, timed
        self.processor = timed.processor if timed is not None else None
        self.core_use = timed.core_use if timed is not None else None
        self._open_rich, self._open_ranks = open_rich, open_ranks
        self.read_in_part = read_in_part or str
        self._results: dict[str, Result] = {}
        self._kept: dict[str, Any] = {}
        self._callers: dict[int, list[int]] = {}
        self._claimed: set[int] = set()
        self._predicted: tuple[tuple[Change, ...], Prediction] | None = None  # the last one
        self.seen: list[Seen] = []  # by the rule at work
        self.lost_calls = False  # whether the rule at work asked for calls that another's finding explains

    @cached_property
    def _excerpt(self) -> Excerpt | None:
        steps = chosen_steps(self.whole)
        return None if len(steps) == len(self.whole.steps) else excerpt(self.whole, steps)

    @property
    def trace(self) -> Trace:
        """What rules look at: the recording, or some steps of a long one, with span ids of their own."""
        return self.whole if self._excerpt is None else self._excerpt.trace

    def whole_ids(self, span_ids: NDArray[Any]) -> NDArray[np.int64]:
        """Ids of spans of `trace` as those of the whole recording."""
        found = span_ids if self._excerpt is None else self._excerpt.span_ids[span_ids.astype(np.int64)]
        return found.astype(np.int64)

    @property
    def looked_at(self) -> str | None:
        """Which steps of a long recording are diagnosed; None where all are."""
        steps, every = chosen_steps(self.whole), self.whole.steps
        if len(steps) == len(every):
            return None
        kind = f"{steps[0].kind} " if len({step.kind for step in every}) > 1 and steps[0].kind else ""
        return f"{kind}steps {steps[0].number} to {steps[-1].number}, {len(steps)} of the {len(every):,} recorded"

    @cached_property
    def names(self) -> pl.Series:
        """The names of all spans, as text."""
        return self.trace.spans["name"].cast(pl.String)

    def name(self, span: int) -> str:
        """The name of a span."""
        return self.keep("texts of names", lambda: _Texts(self.trace.spans["name"]))[span]

    @cached_property
    def _op_rows(self) -> NDArray[np.int32]:
        ids = self.trace.ops["span_id"].to_numpy()
        rows = np.full(self.trace.spans.height, -1, np.int32)
        rows[ids] = np.arange(len(ids), dtype=np.int32)
        return rows

    def argument(self, op_id: int, column: str) -> str:
        """What is recorded of an operator's arguments, such as its `shapes`; empty where nothing is."""
        row = int(self._op_rows[op_id])
        return "" if row < 0 else self.keep(f"texts of {column}", lambda: _Texts(self.trace.ops[column]))[row]

    @property
    def copies(self) -> pl.DataFrame:
        """Copies between memories; none is an answer too, if the device was recorded."""
        if not self.trace.has_device:
            self.trace.require("copies", "no copies recorded; record with ProfilerActivity.CUDA")
        return self.trace.copies

    def result(self, name: str, **options: Any) -> Result:
        """One analysis."""
        key = name + repr(sorted(options.items()))
        if key not in self._results:
            self._results[key] = self._analysed(name, **options)
        return self._results[key]

    def values(self, name: str, **options: Any) -> Mapping[str, Value]:
        """The values of one analysis, whose table nobody needs: it may be large, and is not kept."""
        return self.keep(
            f"values of {name} {sorted(options.items())}", lambda: self._analysed(name, **options).values
        )

    def _analysed(self, name: str, **options: Any) -> Result:
        if name not in _OF_THE_WHOLE or self.whole is self.trace:
            return analyze.run(self.trace, name, **options)
        result = analyze.run(self.whole, name, **options)
        # Rules look at the device's work in the excerpt: that of the whole recording is large, and only such an analysis asks for it.
        self.whole.forget_device_spans()
        self.whole.forget(device_time.device_work)
        _give_memory_back()
        return result

    @cached_property
    def rich(self) -> Case | None:
        """The rich recording of the same program, at the same step time."""
        if self._open_rich is None:
            return None
        rich = Case(self._open_rich(), step_ns=self.measured_step_ns)
        rich.processor, rich.core_use = self.processor, self.core_use
        return rich

    def other_ranks(self, *, timed: bool = False) -> tuple[Case, ...]:
        """The other ranks, with the same steps, and `timed` the same step time, not kept: they may be many."""
        try:
            others = self._open_ranks() if self._open_ranks else ()
        except ForetraceError as error:
            raise MissingDataError(str(error)) from error
        step_ns = self.measured_step_ns if timed else None
        return tuple(Case(self._same_steps(other), step_ns=step_ns) for other in others)

    def _same_steps(self, other: Trace) -> Trace:
        """Of another rank's recording the steps that are looked at in this one."""
        if self._excerpt is None:
            return other
        numbers = {step.number for step in self.trace.steps}
        steps = tuple(step for step in other.steps if step.number in numbers)
        return excerpt(other, steps).trace if steps else other

    @cached_property
    def loaded(self) -> Loaded | None:
        """The recorded steps with the waits for data of unprofiled ones; None where no more is known of them."""
        program = self.keep("built", lambda: build(self.trace))
        return calibrate_loaded(self.trace, program, self.measured_step_ns, self.timed)

    @cached_property
    def calibration(self) -> Calibration:
        """The recorded steps on an unprofiled host."""
        program, timed = self.keep("built", lambda: build(self.trace)), self.timed or Timed(())
        if self.loaded is not None:
            made = self.loaded.calibration
        elif self.measured_step_ns is None and self.rich is not None:
            made = calibrate_pair((self.trace, program), (self.rich.trace, build(self.rich.trace)))
        else:
            made = calibrate(
                self.trace,
                program,
                step_ns=self.measured_step_ns,
                host_ns=timed.loading_host_ns,
                device=timed.device,
            )
        made = self._within_recorded(made)
        basis = f"{made.basis}; looked at: {self.looked_at}" if self.looked_at else made.basis
        return replace(made, basis=basis, scatter=timed.scatter)

    def _within_recorded(self, made: Calibration) -> Calibration:
        """The calibration, at no longer a step than was recorded: without a profiler no step takes longer."""
        recorded_ns = self.recorded_ns or self.keep("built", lambda: build(self.trace)).measured_ns
        if made.known or made.step_ns <= recorded_ns:
            return made
        if made.step_ns > REPLAYED_LONGER * recorded_ns:
            fitted = calibrate(self.trace, self.keep("built", lambda: build(self.trace)), step_ns=recorded_ns)
            made = replace(fitted, known=False, basis=f"{fitted.basis}, as recorded")
        return replace(made, step_ns=recorded_ns)

    @cached_property
    def recorded_ns(self) -> float | None:
        """The recorded step: the median of the settled ones, and of waits for input, which come in bursts, the mean."""
        return recorded_step_ns(self.whole)

    @cached_property
    def on_cpu(self) -> bool:
        """Whether the program computes on the processor alone: its operators are its work."""
        return computes_on_cpu(self.whole)

    @property
    def contended(self) -> bool:
        """Whether other programs took the cores on which this one computes, while its steps were timed or recorded."""
        return self.on_cpu and self.core_use is not None and self.core_use.contended

    def require_replay(self) -> None:
        """Raises MissingDataError where the recording holds nothing that could be replayed."""
        require_timeline(self.whole, "a diagnosis")
        replayable.require(self)

    @property
    def program(self) -> Program:
        """The calibrated program, which changes edit."""
        return self.calibration.program

    @property
    def step_ns(self) -> float:
        """The step time without a profiler, measured or estimated."""
        return self.calibration.step_ns

    @property
    def step_count(self) -> int:
        """How many steps the program holds."""
        return max(len(self.trace.steps), 1)

    @cached_property
    def device(self) -> Device | None:
        """The GPU that the recording names, with its peaks."""
        return device_of(self.whole)

    @property
    def known_device(self) -> Device:
        """The same; raises MissingDataError where its peaks are not known."""
        if self.device is None:
            raise MissingDataError(f"{self.trace.path.name}: the peaks of this device are not known")
        return self.device

    @cached_property
    def tasks(self) -> pl.DataFrame:
        """The program's device work: `task` and its span's name, kind, op, stream and duration."""
        return task_table(self.trace, self.program)

    @cached_property
    def products(self) -> pl.DataFrame:
        """The kernels that multiply matrices or convolve, with what their operators computed."""
        return product_kernels(self.trace, self.tasks)

    @cached_property
    def _at_peak_ns(self) -> dict[int, float]:
        return clock.times_at_peak_ns(self.device, self.products)

    def with_clock(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """The changes, and what they do to the clock of a GPU that is left with little but products."""
        return self._clocked(changes).changes

    def _clocked(self, changes: tuple[Change, ...]) -> clock.Clocked:
        return clock.with_clock(
            self.program,
            changes,
            at_peak_ns=self._at_peak_ns,
            step_ns=self.step_ns,
            step_count=self.step_count,
        )

    def predict(self, changes: tuple[Change, ...]) -> Prediction:
        """What the changes, made together, would make of the step: all predictions are made here."""
        if self._predicted is None or not _same(self._predicted[0], changes):
            made, after_ns = self._clocked(changes)
            predicted = predict(self.calibration, made, model_for(self.device), after_ns)
            predicted = self.loaded.limited(predicted, changes) if self.loaded else predicted
            self._predicted = changes, guarded(self, predicted)
        return self._predicted[1]

    @cached_property
    def roles(self) -> pl.DataFrame:
        """The device work that was launched in the recording, with what it is for."""
        return device_roles.classified(self.trace)

    def tasks_with(self, *columns: str) -> pl.DataFrame:
        """`tasks` with columns of `roles`; null for those that were not launched in the recording."""
        return self.tasks.hstack(self.roles.select(pl.col(columns).gather(self._role_rows)))

    @cached_property
    def _role_rows(self) -> pl.Series:
        """For each task, its row in `roles`; null where it has none."""
        place = np.full(self.trace.spans.height, -1, np.int32)
        place[self.roles["id"].to_numpy()] = np.arange(self.roles.height, dtype=np.int32)
        rows = place[self.tasks["id"].to_numpy()]
        return pl.Series(rows).set(pl.Series(rows < 0), None)

    @cached_property
    def host(self) -> HostSpans:
        """The host's spans, with who called them."""
        return HostSpans(self.trace)

    def during(self, spans: pl.DataFrame) -> ProgramTime:
        """When these spans ran."""
        start = (spans["start_ns"] - self.program.start_ns).to_numpy()
        return ProgramTime(intervals.union(start, start + spans["dur_ns"].fill_null(0).to_numpy()))

    def forget_claims(self) -> None:
        """Makes all calls free to be explained, for a diagnosis that begins anew."""
        self._claimed.clear()

    def claim(self, calls: Calls) -> None:
        """Marks calls as explained by a finding."""
        self._claimed.update(calls.tolist())

    def unclaimed(self, calls: Calls) -> Calls:
        """Those of the calls that no finding explains yet."""
        left = Calls(calls[~np.isin(calls, list(self._claimed))]) if self._claimed else calls
        self.lost_calls |= len(left) < len(calls)
        return left

    @cached_property
    def device_ns(self) -> int:
        """How long the GPU works in the recorded steps; at least 1, so that shares of it can be taken."""
        return max(int(self.program.task_dur_ns.sum()), 1)

    @cached_property
    def trains(self) -> bool:
        """Whether the recording holds a backward pass."""
        return bool(self.trace.ops["forward_thread"].fill_null(0).gt(0).any())

    @cached_property
    def arguments(self) -> pl.DataFrame:
        """What is recorded of the operators' arguments, as text: `op_id`, shapes, dtypes, strides and inputs."""
        return self.trace.ops.select(pl.col("span_id").alias("op_id"), pl.col(*_ARGUMENTS).cast(pl.String))

    def with_arguments(self, rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
        """The rows with what is recorded of the arguments of their `op_id`, as text; null where nothing is."""
        given = self.trace.ops.select(*(columns or _ARGUMENTS))
        return rows.hstack(given.select(pl.all().gather(self._rows_of(rows["op_id"])).cast(pl.String)))

    def _rows_of(self, op_ids: pl.Series) -> pl.Series:
        """Where these operators are in `trace.ops`; null where they are not."""
        place = np.append(self._op_rows, -1)[op_ids.cast(pl.Int64).fill_null(-1).to_numpy()]
        return pl.Series(place).set(pl.Series(place < 0), None)

    def numbers(self, spans: NDArray[np.int64], *, shapes: bool) -> NDArray[np.int64]:
        """For each of these spans a number, the same for those of the same name, and on the same `shapes` if that counts."""
        key = self.trace.spans["name"].to_physical().to_numpy()[spans].astype(np.int64)
        if shapes and self.trace.ops.height:
            codes = self.trace.ops["shapes"].to_physical().fill_null(_NO_CODE).to_numpy()
            rows = self._op_rows[spans]
            key = key << 32 | np.where(rows < 0, _NO_CODE, codes[rows])
        numbers: NDArray[np.int64] = np.unique(key, return_inverse=True)[1]
        return numbers

    def calls_named(self, *names: str) -> pl.DataFrame:
        """The operators of these names, in order, with `op_id`, `name` and their arguments."""
        ids = ids_where(self.trace, "op", lambda texts: texts.is_in(names).to_numpy())
        ids = ids[self._op_rows[ids] >= 0]
        calls = pl.DataFrame({"op_id": pl.Series(ids, dtype=pl.UInt32)})
        return self.with_arguments(calls.with_columns(name=self.op_names(ids)))

    def op_names(self, op_ids: pl.Series | list[int] | NDArray[Any]) -> pl.Series:
        """The names of operators, or other spans; null where there is none."""
        return self.trace.spans["name"].gather(op_ids).cast(pl.String)

    def device_work(self, *predicates: pl.Expr | pl.Series) -> DeviceWork:
        """The program's device work, or what of it these predicates choose."""
        return DeviceWork(self, self.tasks.filter(*predicates) if predicates else self.tasks)

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """What `make` gives, made once: for what several rules need."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: Kept = self._kept[name]
        return kept

    @cached_property
    def calling_op(self) -> NDArray[np.int64]:
        """For each span, the operator that called it; -1 where none did."""
        parent = attribution.parents(self.trace)
        by_op = np.append(of_kind(self.trace, "op"), False)  # nobody is the last
        return np.where(by_op[parent], parent, np.int32(NOBODY)).astype(np.int64)

    def callers(self, op: int) -> list[int]:
        """The operator and those around it, innermost first; not to be changed."""
        found = self._callers.get(op)
        if found is None:
            found, calling = [op], self.calling_op
            while (parent := calling.item(found[-1])) >= 0 and len(found) < LONGEST_WALK:
                found.append(parent)
            self._callers[op] = found
        return found

    def places(self, op_ids: Sequence[int], *, limit: int = 3) -> tuple[Place, ...]:
        """The source lines behind operators, most frequent first; their names where no stack was recorded."""
        if not len(op_ids):
            return ()
        ids = np.unique(np.fromiter(op_ids, np.int64))
        places = self._places_of(ids[self._op_rows[ids] >= 0], limit)
        if places:
            return places
        counted = self.op_names(list(op_ids)).value_counts(sort=True)
        return tuple(Place(None, None, name) for name in counted["name"].head(limit))

    def places_of_calls(self, spans: NDArray[np.int64], *, limit: int = 3) -> tuple[Place, ...]:
        """The source lines behind calls of any kind; empty where no stack was recorded."""
        return self._places_of(spans, limit)

    def _places_of(self, spans: NDArray[np.int64], limit: int) -> tuple[Place, ...]:
        if self.trace.stacks.is_empty() and self.trace.callers.is_empty():
            return ()
        return self.source_lines.places(
            spans, lambda span: self.name(self.callers(span)[-1]), by_time=self.on_cpu, limit=limit
        )

    @cached_property
    def source_lines(self) -> SourceLines:
        """The user's lines behind the spans of `trace`, with the source beside the recording or here."""
        return SourceLines(self.trace, self.source_folders)

    @property
    def source_folders(self) -> tuple[Path, ...]:
        """Where the program's source may lie."""
        # A server is not asked for files that a recording names.
        beside = () if is_url(self.whole.path) else (self.whole.path.parent,)
        return (Path.cwd(), *beside)

    def user_frame(self, stack: int) -> Place:
        """The user's innermost function of a stack, else the innermost with a file."""
        return self.source_lines.of_stack(stack)

    @cached_property
    def _python(self) -> pl.DataFrame:
        frames = self.trace.python.select(pl.col("span_id").alias("id"), "stack_id")
        return self.trace.spans.filter(pl.col("kind") == "python").join(
            frames, on="id", maintain_order="left"
        )

    def frame_at(self, at_ns: int) -> Place | None:
        """The user's innermost Python frame at a moment of the recording; None where none was recorded."""
        around = self._python.filter(
            (pl.col("start_ns") <= at_ns) & (pl.col("start_ns") + pl.col("dur_ns") > at_ns)
        ).sort("depth")
        return self.source_lines.of_span(int(around["id"][-1])) if around.height else None
