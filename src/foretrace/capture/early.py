"""The EarlyPasses: a few steps recorded at once, so that a program which soon ends leaves something.

How long a program will run is not known. One that uses a GPU must be timed before any profiler has run, since that may
leave its host slower; without a GPU it does not, and a few early steps cost little. The passes that follow once the program
has settled take their place.
"""

from __future__ import annotations

from collections.abc import Callable

from foretrace.capture.first_timing import FirstTiming
from foretrace.capture.kept_passes import KeptPasses
from foretrace.capture.options import LIGHT, RICH, CaptureOptions
from foretrace.capture.plan import early_plan
from foretrace.capture.recording import Recording, has_cuda
from foretrace.capture.timing import StepTimes

FROM_STEP = 8  # steps before: the first ones are slower, and some are needed to time them


class EarlyPasses:
    """Of one rank; `step` at boundaries from `due` on, until it says that nothing is left."""

    def __init__(
        self,
        options: CaptureOptions,
        kept: KeptPasses,
        *,
        notes: list[str],
        facts: Callable[[], str],
        save: Callable[[], None],
    ) -> None:
        self.times: StepTimes | None = None  # what the steps before took
        self._options, self._kept, self._notes = options, kept, notes
        self._facts, self._save = facts, save
        self._recording: Recording | None = None

    @property
    def open_kind(self) -> str | None:
        """Of the pass that warms up or records."""
        return self._recording.open_kind if self._recording is not None else None

    def due(self, count: int, timing: FirstTiming) -> bool:
        """Whether to begin at this boundary: the program has no GPU, and is not timed yet."""
        options = self._options
        given = options.wait is not None or options.warmup is not None or options.active is not None
        wanted = {LIGHT, RICH} & set(options.passes) and options.repeat == 1
        if self._recording is not None or count != FROM_STEP or given or not wanted:
            return False
        return timing.settling and not has_cuda()

    def begin(self, count: int, timing: FirstTiming) -> bool:
        """At a boundary: whether the first pass opened."""
        self.times = timing.first()
        self._recording = Recording(
            self._options,
            self._kept,
            ranks=1,
            silent=False,
            notes=self._notes,
            facts=self._facts,
            save=self._save,
        )
        self._recording.plan = early_plan(self._options, at=count)
        self._recording.timings.begin(self.times)
        return self.step(count)

    def step(self, count: int) -> bool:
        """At a boundary: whether something is left to record."""
        assert self._recording is not None
        try:
            self._recording.step(count)
        except Exception as error:  # the passes that follow are the ones that matter, and say what is wrong
            self._recording.abandon()
            self._notes.append(f"no early pass: {type(error).__name__}: {error}")
            return False
        return bool(self._recording.left)

    def interrupt(self, why: str, *, own_thread: bool) -> None:
        """The program ends, or starts its own profiler: what an open pass holds is kept."""
        if self._recording is not None:
            self._recording.interrupt(why, own_thread=own_thread)

    def forget(self) -> None:
        """Steps are of another kind from here on: what was recorded is dropped, and may be recorded again."""
        if self._recording is None:
            return
        self._recording.abandon()
        self._kept.forget()
        self._recording = self.times = None
