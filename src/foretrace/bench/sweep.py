"""A sweep: every case is run and becomes a row, whatever happens to it; the next one goes on."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from foretrace.bench.benchmark import CPU_CLOCK, ERROR, GPU_CLOCK, OK, OOM, TIMEOUT, Benchmark
from foretrace.bench.clocks import Function, clock_for
from foretrace.bench.engine import measure
from foretrace.bench.measurement import Measurement
from foretrace.bench.memory import peak_of
from foretrace.bench.timing import Timing
from foretrace.bench.watch import Seen, Watch, look_once, uuid_of
from foretrace.errors import UsageError
from foretrace.nvidia import NOT_KNOWN
from foretrace.units import counted

Case = dict[str, Any]
Row = dict[str, Any]
Progress = Callable[[str], None]
Finish = Callable[[Sequence[Row]], Sequence[str]]  # adds to finished rows what takes several, and makes notes

_REASON_LETTERS = 300
_STARTING_S = 120.0  # that a process of its own may take to import torch, beyond the case's own time
_GRACE_S, _POLL_S = 1.0, 0.02  # to end by itself; between two looks at a process
_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


class CaseTimeoutError(Exception):
    """A case took longer than it may."""


class RunCase(Protocol):
    """What a kind gives: times one case, and fills its row as it goes, so that what was measured before a failure stays."""

    def __call__(self, case: Case, trial: Trial) -> None:
        """Fills `trial.row`."""


class Trial:
    """One case being run: its device, its row, and the clock that times it."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.device = torch_device(timing.device)
        self.row: Row = {}
        self._watch = Watch(uuid_of(self.device))
        self.allow(timing.timeout_s)

    def allow(self, seconds: float | None) -> None:
        """From now on so much time is left."""
        self._until_s = None if seconds is None else time.monotonic() + seconds

    def time(self, function: Function, *, timing: Timing | None = None) -> Measurement:
        """Samples of a function, by the rules of the sweep."""
        timing = timing or self.timing
        return measure(function, clock_for(self.device, timing.how), timing, between=self.check)

    def time_and_peak(self, function: Function) -> tuple[Measurement, dict[str, float | None]]:
        """Samples of a function and its peak of memory; the memory first, unless the first calls are to be timed."""
        if self.timing.cold:
            measured = self.time(function)
            return measured, peak_of(function, self.device)
        peak = peak_of(function, self.device)
        return self.time(function), peak

    def check(self) -> None:
        """Looks at the device's clock; raises CaseTimeoutError where time is up."""
        self._watch.look()
        if self._until_s is not None and time.monotonic() > self._until_s:
            raise CaseTimeoutError(f"took longer than {self.timing.timeout_s:g} s")

    def end(self) -> None:
        """Adds what was seen of the device's clock, where it was watched."""
        seen = self._watch.seen
        if seen.low_mhz is not None:
            self.row |= {"clock_mhz": seen.low_mhz, "slowed_by": ", ".join(sorted(seen.slowed_by)) or None}


def import_torch() -> Any:
    """torch, or a UsageError that says how to get it."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(f"bench needs torch: pip install torch ({error})") from error
    return torch


def torch_device(name: str) -> Any:
    """The torch.device of a name; "auto" is a GPU where there is one."""
    torch = import_torch()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and not torch.cuda.is_available():
        raise UsageError(f"device {name}: torch sees no GPU here; `foretrace doctor` says more")
    device = torch.device(name)
    if device.type == "cuda":
        if device.index is not None:
            if device.index >= torch.cuda.device_count():
                raise UsageError(f"device {name}: there are {torch.cuda.device_count()}, counted from 0")
            torch.cuda.set_device(device)
        device = torch.device("cuda", torch.cuda.current_device())
    return device


def sweep(
    kind: str,
    run_case: RunCase,
    cases: Sequence[Case],
    timing: Timing,
    *,
    progress: Progress | None = None,
    finish: Finish | None = None,
) -> Benchmark:
    """All cases as rows, each run after the other."""

    def rows_of(cases: Sequence[Case]) -> Iterator[Row]:
        for case in cases:
            yield (run_isolated if timing.apart else run_here)(kind, run_case, case, timing)

    return collect(kind, rows_of, cases, timing, progress=progress, finish=finish)


def collect(
    kind: str,
    rows_of: Callable[[Sequence[Case]], Iterator[Row]],
    cases: Sequence[Case],
    timing: Timing,
    *,
    progress: Progress | None = None,
    finish: Finish | None = None,
) -> Benchmark:
    """The Benchmark of these rows; the device's clock is watched around them."""
    if not cases:
        raise UsageError("no cases: give at least one value of each option")
    device = torch_device(timing.device)
    began = datetime.now(UTC).isoformat(timespec="seconds")
    uuid = uuid_of(device)
    seen = Watch(uuid).seen
    if uuid is not None and seen.by is None:
        look_once(uuid, seen)
    rows: list[Row] = []
    coming = rows_of(cases)
    for number, case in enumerate(cases, 1):
        if progress:
            progress(f"{number}/{len(cases)} {' '.join(str(value) for value in case.values())}")
        rows.append(next(coming))
        if progress:
            progress(f"    {_told(rows[-1])}")
    if uuid is not None and seen.by == "nvidia-smi":
        look_once(uuid, seen)
    names = tuple(dict.fromkeys(name for case in cases for name in case))
    notes = (*(finish(rows) if finish else ()), *_clock_notes(rows, seen, device))
    return Benchmark(
        kind, device_name(device), str(import_torch().__version__), names, tuple(rows), notes, timing.to_dict(), seen.to_dict(),
        began,
    )  # fmt: skip


def run_here(kind: str, run_case: RunCase, case: Case, timing: Timing) -> Row:
    """The row of one case, run in this process."""
    torch = import_torch()
    torch.manual_seed(timing.seed)
    trial = Trial(timing)
    status, reason = outcome(lambda: run_case(case, trial))
    trial.end()
    gc.collect()  # what failed may hold tensors in a circle of frames
    if trial.device.type == "cuda":
        torch.cuda.empty_cache()
    return {**case, "status": status, "reason": reason, **trial.row}


def outcome(action: Callable[[], None]) -> tuple[str, str | None]:
    """How it went, and why it failed; a wrong call is raised."""
    try:
        action()
    except UsageError:
        raise
    except CaseTimeoutError as error:
        return TIMEOUT, str(error)
    except Exception as error:
        return failure(error)
    return OK, None


def run_isolated(kind: str, run_case: RunCase, case: Case, timing: Timing) -> Row:
    """The row of one case, run in a process of its own: what it breaks, or leaves, stays there."""
    with tempfile.TemporaryDirectory(prefix="foretrace-bench-") as folder:
        asked, answer = Path(folder, "case.json"), Path(folder, "row.json")
        asked.write_text(
            json.dumps({"kind": kind, "case": case, "timing": timing.to_dict()}), encoding="utf-8"
        )
        command = [sys.executable, "-P", "-m", "foretrace.bench.isolated", str(asked), str(answer)]
        with open(Path(folder, "stderr"), "w+b") as errors:
            process = subprocess.Popen(
                command, env=child_environment(), stdout=subprocess.DEVNULL, stderr=errors
            )
            try:
                in_time = _ended_in_time(process, started_mark(answer), timing.timeout_s)
            finally:
                process.kill()
                process.wait()
            errors.seek(0)
            said = errors.read()
        if not in_time:
            reason = f"took longer than {timing.timeout_s or _STARTING_S:g} s, and was ended"
            return {**case, "status": TIMEOUT, "reason": reason}
        if answer.exists():
            row: Row = json.loads(answer.read_text(encoding="utf-8"))
            return row
        return {**case, "status": ERROR, "reason": death(process.returncode, said)}


def started_mark(answer: Path) -> Path:
    """The file that says that a case has begun, and its process is no longer importing."""
    return answer.with_suffix(".started")


def _ended_in_time(process: subprocess.Popen[bytes], started: Path, timeout_s: float | None) -> bool:
    """Waits for a process; a case that gives no answer for its time and a little more is not waited for."""
    began_s, running_s = time.monotonic(), None
    while process.poll() is None:
        now_s = time.monotonic()
        if running_s is None and started.exists():
            running_s = now_s
        if running_s is None and now_s - began_s > _STARTING_S:
            return False
        if running_s is not None and timeout_s is not None and now_s - running_s > timeout_s + _GRACE_S:
            return False
        time.sleep(_POLL_S)
    return True


def child_environment() -> dict[str, str]:
    """The environment of a process that is to import this very package."""
    package = str(Path(__file__).parents[2])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH")))),
    }


def death(code: int, stderr: bytes) -> str:
    """How a process ended that left no answer."""
    how = f"ended with code {code}"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    lines = stderr.decode(errors="replace").strip().splitlines()
    return f"its process {how}" + (f": {lines[-1][:_REASON_LETTERS]}" if lines else "")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the device or the host."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _NO_MEMORY)


def device_name(device: Any) -> str:
    """The name that the device reports; of a CPU, torch's threads."""
    torch = import_torch()
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {counted(torch.get_num_threads(), 'thread')}"


def failure(error: BaseException) -> tuple[str, str]:
    """Status and reason of a row whose case raised this."""
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:_REASON_LETTERS] if text else type(error).__name__
    return (OOM if is_out_of_memory(error) else ERROR), reason


def _told(row: Row) -> str:
    if row["status"] != OK:
        return f"{row['status']}: {row.get('reason')}"
    return f"{row['median_ms']:.4g} ms" if row.get("median_ms") is not None else "done"


def _clock_notes(rows: Sequence[Row], seen: Seen, device: Any) -> list[str]:
    if device.type != "cuda":
        return [f"{CPU_CLOCK} is not watched: other programs and the clock may have slowed some rows."]
    slowed = [row for row in rows if row.get("slowed_by")]
    if slowed:
        why = sorted({text for row in slowed for text in row["slowed_by"].split(", ")})
        return [f"{GPU_CLOCK} was held back in {len(slowed)} of {len(rows)} rows: {', '.join(why)}."]
    if seen.by is None:
        return [f"{GPU_CLOCK} is {NOT_KNOWN}."]
    if seen.slowed_by:
        return [f"{GPU_CLOCK} was held back before or after the sweep: {', '.join(sorted(seen.slowed_by))}."]
    return []
