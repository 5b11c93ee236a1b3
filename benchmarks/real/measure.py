"""Times real programs with the changes people try, and records each as it is: run on a machine with a GPU.

    python benchmarks/real/measure.py --set looked_at --out DIR [--only NAME,...] [--budget 560] [--no-recordings]

SET.toml lists the programs: `file`, `tick` (see time_steps.py; default optimizer), `ticks_per_step`, `warm_n` (steps of
warming up, default 12), `preload` (packages to import before its turn), `changes` (FIX and what it is) and the `rule` that
speaks of each (see judge.py). First every compiled variant runs a few steps, many at once, to fill the compiler's caches.
Then, program by program: the program as it is, with each change, as it is again (time_steps.py, no profiler), and one run
under `foretrace run` with its defaults. One process at a time has the GPU; the next one imports its packages meanwhile.
DIR gets truth.json, after every program anew, and recordings-N.tar, each of NAME.tar.xz. Packages that the machine lacks
come from wheels in benchmarks/real/wheels (pure Python, not in the repository).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packing import pack
from truth import BASE, truth_of

HERE = Path(__file__).resolve().parent
RECORD = "record"
AT_ONCE = 12  # processes that fill caches
COMPILE_S, TIMING_S, RECORD_S, IMPORT_S = 150, 90, 120, 90  # the longest that a process may take


def main() -> int:
    """Measures the set, program by program, as long as the budget lasts."""
    options = _options()
    began = time.monotonic()
    programs = load_set(HERE / f"{options.set}.toml", options.only)
    options.out.mkdir(parents=True, exist_ok=True)
    place = Place(Path(tempfile.mkdtemp(prefix="realset-")), options.caches, time.monotonic)
    place.unpack(HERE / "wheels")
    device = _device()
    print(f"{device}; {len(programs)} programs", flush=True)
    if not options.no_warm:
        fill_caches(place, programs)
    runs = Runs(programs, options, began)
    with Turns(place, options.ahead) as turns:
        for job, problem in turns.run(runs.plan()):
            runs.take(job, problem, device)
    left = runs.left
    if left:
        print(f"left out, the budget is spent: --only {','.join(left)}", flush=True)
    if not options.no_recordings:
        pack(place.scratch, [name for name in programs if name not in left], options.out, options.rich)
    print(f"all took {time.monotonic() - began:.1f} s", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names: dict[str, Any] = {
        "type": lambda text: [name for name in text.split(",") if name],
        "default": [],
        "metavar": "NAME,...",
    }
    parser.add_argument(
        "--set", default="looked_at", help="the programs: SET.toml beside this file (default: looked_at)"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where truth.json and the recordings go"
    )
    parser.add_argument("--only", **names, help="these programs alone")
    parser.add_argument("--changes", **names, help="these changes alone")
    parser.add_argument("--rich", **names, help="programs whose rich recording is kept too")
    parser.add_argument(
        "--budget", type=float, default=560, metavar="S", help="start no program that would end later"
    )
    parser.add_argument(
        "--ahead",
        type=int,
        default=2,
        metavar="N",
        help="processes that import while one has the GPU (default: 2)",
    )
    parser.add_argument("--no-recordings", action="store_true", help="only time")
    parser.add_argument("--no-warm", action="store_true", help="leave the compiler's caches as they are")
    caches = Path(tempfile.gettempdir()) / "realset-caches"
    parser.add_argument(
        "--caches", type=Path, default=caches, help=f"the compiler's caches (default: {caches})"
    )
    return parser.parse_args()


def load_set(path: Path, only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The programs of a set by name, in its order."""
    programs = tomllib.loads(path.read_text())
    if unknown := set(only) - set(programs):
        sys.exit(f"{path.name} has no {', '.join(sorted(unknown))}")
    return {name: entry for name, entry in programs.items() if not only or name in only}


def _device() -> str:
    code = (
        "import torch, importlib.metadata as m\n"
        "name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'CPU'\n"
        "has = {d.metadata['Name'] for d in m.distributions()}\n"
        "print(name, *(f'{p} {m.version(p)}' for p in ('torch', 'transformers', 'torchvision') if p in has), sep=', ')"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


# --- processes -----------------------------------------------------------------------------------------------


@dataclass
class Place:
    """Where things lie on this machine, and what every process finds in its environment."""

    scratch: Path
    caches: Path
    clock: Any
    packages: Path = field(init=False)

    def __post_init__(self) -> None:
        self.packages = self.scratch / "packages"

    def unpack(self, wheels: Path) -> None:
        """Wheels of pure Python become importable."""
        self.packages.mkdir()
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(self.packages)

    def environment(self, fix: str, **more: str) -> dict[str, str]:
        """The environment of a process with this change made."""
        paths = [HERE / "hold", self.packages, HERE.parents[1] / "src"]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "FIX": fix, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore",
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"), "TRITON_CACHE_DIR": str(self.caches / "triton"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1", **more,
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


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process of ours with the children it left, such as loader workers."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(path: Path) -> str:
    """The last line that says something."""
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was said"


def compiles(name: str, what: str) -> bool:
    """Whether a change compiles, so that its caches are worth filling."""
    return "compile" in name or "torch.compile" in what


def fill_caches(place: Place, programs: Mapping[str, Mapping[str, Any]]) -> None:
    """Runs every compiled variant for a few steps, many at once; what fails is said here and fails again later."""
    jobs = [
        (name, change)
        for name, entry in programs.items()
        for change, what in entry["changes"].items()
        if compiles(change, what)
    ]

    def fill(job: tuple[str, str]) -> None:
        name, change = job
        began, log = place.clock(), place.scratch / f"{name}.{change}.fill.log"
        per_step = str(programs[name].get("ticks_per_step", 1))
        environment = place.environment(
            change, ONLY_STEPS="3", TICKS_PER_STEP=per_step, TORCHINDUCTOR_COMPILE_THREADS="4"
        )
        command = timing_command(programs[name], place.scratch / f"{name}.{change}.fill.json")
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, cwd=place.scratch, start_new_session=True
            )
            try:
                code = process.wait(COMPILE_S)
                end = "" if code == 0 else f", exit code {code}: {last_line(log)}"
            except subprocess.TimeoutExpired:
                end = ", stopped: too long"
            kill(process)
        print(f"  {name} {change}: caches {place.clock() - began:.1f} s{end}", flush=True)

    began = place.clock()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(fill, jobs))
    print(f"caches of {len(jobs)} variants took {place.clock() - began:.1f} s", flush=True)


@dataclass
class Job:
    """A process of one program: timing a variant, or the recording."""

    name: str
    variant: str
    last: bool
    out: Path
    log: Path
    ready: Path
    go: Path
    process: subprocess.Popen[bytes]
    limit_s: float


Planned = tuple[
    str, str, bool, Mapping[str, Any]
]  # program, variant, whether it is the program's last, its entry


class Turns:
    """Starts processes so that one has the GPU while the next ones import their packages."""

    def __init__(self, place: Place, ahead: int) -> None:
        self.place, self.ahead = place, ahead
        self._count = 0
        self._alive: deque[Job] = deque()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._alive:
            kill(job.process)

    def start(self, name: str, variant: str, last: bool, entry: Mapping[str, Any]) -> None:
        """Starts a process that waits for its turn."""
        self._count += 1
        scratch, label = self.place.scratch, f"{self._count:03d}.{name}.{variant}"
        ready, go, log = (scratch / f"{label}.{kind}" for kind in ("ready", "go", "log"))
        compiled = (
            ["torch._inductor.compile_fx"] if compiles(variant, entry["changes"].get(variant, "")) else []
        )
        # Making an optimizer imports the compiler's front end.
        preload = ",".join(["torch", "torch._dynamo", *compiled, *entry.get("preload", ())])
        hold = {"HOLD": f"{ready},{go}", "HOLD_PRELOAD": preload}
        if variant == RECORD:
            out, limit = scratch / name, RECORD_S
            command, environment = record_command(entry, out, hold), self.place.environment("")
        else:
            out, limit = scratch / f"{label}.json", TIMING_S
            per_step = str(entry.get("ticks_per_step", 1))
            fix = "" if variant == BASE else variant
            command = timing_command(entry, out)
            warm = str(entry.get("warm_n", 12))
            environment = self.place.environment(fix, TICKS_PER_STEP=per_step, WARM_N=warm, **hold)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, cwd=scratch, start_new_session=True
            )
        self._alive.append(Job(name, variant, last, out, log, ready, go, process, limit))

    def run(self, planned: Iterator[Planned]) -> Iterator[tuple[Job, str]]:
        """Every process in turn, with what went wrong."""
        while True:
            while len(self._alive) <= self.ahead and (following := next(planned, None)):
                self.start(*following)
            if not self._alive:
                return
            job = self._alive[0]
            problem = self._have_turn(job)
            kill(job.process)
            self._alive.popleft()
            yield job, problem

    def _have_turn(self, job: Job) -> str:
        """Waits for its imports, lets it run to its end and says what both took."""
        asked = self.place.clock()
        while not job.ready.exists() and job.process.poll() is None and self.place.clock() < asked + IMPORT_S:
            time.sleep(0.01)
        began, problem = self.place.clock(), ""
        job.go.touch()
        try:
            code = job.process.wait(job.limit_s)
            done = job.out.is_file() or (job.out / "rank0" / "light.json").is_file()
            if not done or (code and job.variant != RECORD):
                problem = f"exit code {code}: {last_line(job.log)}"
        except subprocess.TimeoutExpired:
            problem = f"stopped after {job.limit_s:.0f} s: {last_line(job.log)}"
        times = f"{self.place.clock() - began:.1f} s (imports awaited {began - asked:.1f} s)"
        print(f"  {job.name} {job.variant}: {times}{_said(job)}{problem and ', ' + problem}", flush=True)
        return problem


def _said(job: Job) -> str:
    if job.variant != RECORD and job.out.is_file():
        figures = json.loads(job.out.read_text())
        return f", step {figures['step_ms']:.3f} ms ({figures['lo']:.3f} to {figures['hi']:.3f})"
    facts = job.out / "rank0" / "rank.json"
    if job.variant == RECORD and facts.is_file():
        rank = json.loads(facts.read_text())
        step = (rank.get("unprofiled") or {}).get("median_ns", 0) / 1e6
        return f", step {step:.3f} ms, ends at {rank.get('step_source')}"
    return ""


class Runs:
    """What is to be run as long as the budget lasts, and what has been."""

    def __init__(
        self, programs: Mapping[str, Mapping[str, Any]], options: argparse.Namespace, began: float
    ) -> None:
        self.programs, self.options, self.began = programs, options, began
        self.left = list(programs)
        self.truths: dict[str, Any] = {}
        self._done, self._longest, self._ended = 0, 0.0, time.monotonic()
        self._times: dict[str, dict[str, list[dict[str, float]]]] = {}
        self._errors: dict[str, dict[str, str]] = {}

    def plan(self) -> Iterator[Planned]:
        """Every process to be, asked for as places come free; none of a program that would end too late."""
        for name, entry in self.programs.items():
            ahead = len(self.programs) - len(self.left) - self._done  # programs that are not yet done
            if time.monotonic() - self.began + self._longest * (1 + ahead / 2) > self.options.budget:
                return
            self.left.remove(name)
            wanted = [
                each for each in entry["changes"] if not self.options.changes or each in self.options.changes
            ]
            variants = [BASE, *wanted, BASE, *([] if self.options.no_recordings else [RECORD])]
            for place, variant in enumerate(variants, 1):
                yield name, variant, place == len(variants), entry

    def take(self, job: Job, problem: str, device: str) -> None:
        """Keeps what a process brought; after a program's last, truth.json is written anew."""
        times, errors = self._times.setdefault(job.name, {}), self._errors.setdefault(job.name, {})
        if problem:
            errors[job.variant] = problem
        elif job.variant != RECORD:
            times.setdefault(job.variant, []).append(json.loads(job.out.read_text()))
        if not job.last:
            return
        self.truths[job.name] = truth_of(self.programs[job.name], device, times)
        if errors:
            self.truths[job.name]["errors"] = errors
        (self.options.out / "truth.json").write_text(json.dumps(self.truths, indent=1) + "\n")
        now = time.monotonic()
        took, self._ended, self._done = now - self._ended, now, self._done + 1
        self._longest = max(self._longest, took)
        print(f"[{now - self.began:6.1f} s] {job.name} took {took:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
