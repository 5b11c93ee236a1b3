"""Processes that import their packages all at once, and then have the machine one at a time.

Each is started so that hold/sitecustomize.py lets it import its packages and wait. Meanwhile every variant that compiles
runs a few steps in a process of its own, to fill the compiler's caches. Then all are stopped (SIGSTOP), so that a waiting
process costs nothing; one is let go on when its turn comes, and ended before the next.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truth import BASE

HERE = Path(__file__).resolve().parent
RECORD = "record"
IMPORT_AT_ONCE, FILL_AT_ONCE = 14, 12  # processes
READY_S, FILL_S = (
    150,
    220,
)  # all imports before the first turn, all caches: what takes longer is not waited for
TIMING_S, RECORD_S, IMPORT_S = 90, 120, 90  # the longest that a process may take in its turn


def is_recording(variant: str) -> bool:
    """Whether a variant is the recording of a program, as it is or with a change."""
    return variant.partition(".")[0] == RECORD


def change_of(variant: str) -> str:
    """The change with which a variant runs; none for the program as it is."""
    if is_recording(variant):
        return variant.removeprefix(RECORD).removeprefix(".")
    return "" if variant == BASE else variant


def name_with(name: str, change: str) -> str:
    """What the recording of a program with a change is called."""
    return f"{name}.{change}" if change else name


def compiles(entry: Mapping[str, Any], change: str) -> bool:
    """Whether a program compiles with this change, so that its caches are worth filling."""
    if entry.get("compiled", "compiled" in entry["what"]):
        return True
    named = (change, entry.get("rule", {}).get(change, ""), entry["changes"].get(change, ""))
    return any("compile" in text for text in named)


@dataclass
class Place:
    """Where things lie on this machine, and what every process finds in its environment."""

    scratch: Path
    caches: Path
    packages: Path = field(init=False)

    def __post_init__(self) -> None:
        self.packages = self.scratch / "packages"

    def unpack(self, wheels: Path) -> None:
        """Wheels of pure Python become importable."""
        self.packages.mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(self.packages)

    def environment(self, entry: Mapping[str, Any], fix: str, **more: str) -> dict[str, str]:
        """The environment of a process of this program with this change made."""
        paths = [HERE / "hold", self.packages, HERE.parents[1] / "src"]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "FIX": fix, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore",
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"), "TRITON_CACHE_DIR": str(self.caches / "triton"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "TICKS_PER_STEP": str(entry.get("ticks_per_step", 1)), "WARM_N": str(entry.get("warm_n", 12)), **more,
        }  # fmt: skip


def timing_command(entry: Mapping[str, Any], out: Path) -> list[str]:
    """Times the program's steps."""
    tick = entry.get("tick", "optimizer")
    return [sys.executable, str(HERE / "time_steps.py"), str(out), tick, str(HERE / entry["file"])]


def record_command(entry: Mapping[str, Any], out: Path, hold: Mapping[str, str]) -> list[str]:
    """Records the program with the defaults; the turn is the program's, not Foretrace's."""
    turn = [f"{name}={value}" for name, value in hold.items()]
    foretrace = [sys.executable, "-m", "foretrace", "run", "-q", "--stop-after-capture", "-o", str(out)]
    script = [sys.executable, str(HERE / entry["file"])]
    return [*foretrace, "--", "env", *turn, *script]


def last_line(path: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was said"


class Process:
    """A command in a session of its own, with the children it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log, self.began = log, time.monotonic()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, cwd=log.parent, start_new_session=True
            )

    @property
    def code(self) -> int | None:
        """Its exit code; None while it lives."""
        return self._process.poll()

    def wait(self, limit_s: float) -> int:
        """Its exit code; subprocess.TimeoutExpired where it takes longer."""
        return self._process.wait(limit_s)

    def signal(self, number: int) -> None:
        """To it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """Stops it until SIGCONT, and returns when it is stopped, or has ended."""
        if self.code is None:
            self.signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self) -> None:
        """Ends it with the children it left, such as loader workers."""
        self.signal(signal.SIGKILL)
        self._process.wait()


class Job:
    """A process of one program: timing a variant, or a recording."""

    def __init__(self, place: Place, name: str, variant: str, entry: Mapping[str, Any], label: str) -> None:
        self.place, self.name, self.variant, self.entry = place, name, variant, entry
        self.ready, self.go, self.log = (place.scratch / f"{label}.{kind}" for kind in ("ready", "go", "log"))
        self.change = change_of(variant)
        self.recording, self.compiles = is_recording(variant), compiles(entry, self.change)
        self.out = place.scratch / (name_with(name, self.change) if self.recording else f"{label}.json")
        self.process: Process | None = None

    def start(self) -> None:
        """Starts it; it imports its packages and waits."""
        # Making an optimizer imports the compiler's front end.
        compiler = ["torch._inductor.compile_fx"] if self.compiles else []
        preload = ",".join(["torch", "torch._dynamo", *compiler, *self.entry.get("preload", ())])
        hold = {"HOLD": f"{self.ready},{self.go}", "HOLD_PRELOAD": preload}
        # The caches are there: no pool of compiling processes beside the one that is timed.
        alone = {"TORCH_WARM_POOL": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if self.recording:
            command = record_command(self.entry, self.out, hold)
            environment = self.place.environment(self.entry, self.change, **alone)
        else:
            command = timing_command(self.entry, self.out)
            environment = self.place.environment(self.entry, self.change, **alone, **hold)
        self.process = Process(command, environment, self.log)

    @property
    def importing(self) -> bool:
        """Whether it is started and has yet to come to its turn, or to its end."""
        return self.process is not None and not self.ready.exists() and self.process.code is None

    @property
    def is_done(self) -> bool:
        """Whether what it is for is there."""
        return (self.out / "rank0" / "light.json").is_file() if self.recording else self.out.is_file()


class Fill:
    """A process that fills the compiler's caches for a program with a change."""

    def __init__(self, place: Place, job: Job) -> None:
        self.what = f"{job.name} {job.change or BASE}"
        label = f"{job.name}.{job.change or BASE}.fill"
        environment = place.environment(
            job.entry, job.change, ONLY_STEPS="3", TORCHINDUCTOR_COMPILE_THREADS="4"
        )
        command = timing_command(job.entry, place.scratch / f"{label}.json")
        self.process = Process(command, environment, place.scratch / f"{label}.log")

    def over(self) -> bool:
        """Says so once it has ended; what failed here fails again in its turn."""
        code = self.process.code
        if code is None:
            return False
        self.process.end()
        problem = f", exit code {code}: {last_line(self.process.log)}" if code else ""
        self.say(problem)
        return True

    def stop(self) -> None:
        """Ends it too early."""
        self.process.end()
        self.say(", stopped: too long")

    def say(self, problem: str) -> None:
        """What it took."""
        print(f"  {self.what}: caches {time.monotonic() - self.process.began:.1f} s{problem}", flush=True)


class Turns:
    """All processes of a measurement, in the order of their turns."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.jobs: list[Job] = []
        self._fills: list[Fill] = []

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for fill in self._fills:
            fill.process.end()
        for job in self.jobs:
            if job.process:
                job.process.end()

    def add(self, name: str, variant: str, entry: Mapping[str, Any]) -> Job:
        """One more process; it is not started yet."""
        job = Job(self.place, name, variant, entry, f"{len(self.jobs) + 1:03d}.{name}.{variant}")
        self.jobs.append(job)
        return job

    def prepare(self, *, fill: bool) -> None:
        """Starts all, fills the caches meanwhile, and returns when nothing of ours runs any more."""
        began = time.monotonic()
        waiting = list(self.jobs)
        to_fill = (
            list({(job.name, job.change): job for job in self.jobs if job.compiles}.values()) if fill else []
        )
        while True:
            self._fills = [each for each in self._fills if not each.over()]
            while to_fill and len(self._fills) < FILL_AT_ONCE:
                self._fills.append(Fill(self.place, to_fill.pop(0)))
            importing = sum(job.importing for job in self.jobs)
            for job in waiting[: max(IMPORT_AT_ONCE - importing, 0)]:
                job.start()
                waiting.remove(job)
                importing += 1
            took = time.monotonic() - began
            filling = (self._fills or to_fill) and took < FILL_S
            if not filling and (not (waiting or importing) or took >= READY_S):
                break
            time.sleep(0.05)
        self._freeze(to_fill)
        print(f"imports and caches took {time.monotonic() - began:.1f} s", flush=True)

    def _freeze(self, to_fill: Sequence[Job]) -> None:
        """Nothing runs beside the one whose turn it is; what was not prepared is said."""
        while self._fills:
            self._fills.pop().stop()
        for job in to_fill:
            print(f"  {job.name} {job.change or BASE}: no time to fill its caches", flush=True)
        for job in self.jobs:
            if job.importing or job.process is None:
                print(f"  {job.name} {job.variant}: not ready, goes on importing in its turn", flush=True)
            if job.process:
                job.process.stop()

    def give(self, job: Job) -> tuple[str, str]:
        """Lets a process run to its end, the only one that does: what went wrong, and what was taken."""
        asked = time.monotonic()
        if job.process is None:
            job.start()
        assert job.process is not None
        job.process.signal(signal.SIGCONT)
        while job.importing and time.monotonic() < asked + IMPORT_S:
            time.sleep(0.01)
        began, problem = time.monotonic(), ""
        limit_s = RECORD_S if job.recording else TIMING_S
        job.go.touch()
        try:
            code = job.process.wait(limit_s)
            if not job.is_done or (code and not job.recording):
                problem = f"exit code {code}: {last_line(job.log)}"
        except subprocess.TimeoutExpired:
            problem = f"stopped after {limit_s} s: {last_line(job.log)}"
        job.process.end()
        took, imports = time.monotonic() - began, began - asked
        return problem, f"{took:.1f} s" + (f" (imports {imports:.1f} s)" if imports > 0.2 else "")
