"""Times real programs with the changes people try, and records each as it is: run on a machine with a GPU.

    python benchmarks/real/measure.py --set looked_at --out DIR [--only NAME,...] [--budget 560] [--no-recordings]

SET.toml lists the programs. First every compiled variant runs a few steps, many at once, to fill the compiler's caches.
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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truth import BASE, truth_of

HERE = Path(__file__).resolve().parent
RECORD = "record"
AT_ONCE = 12  # processes that fill caches
COMPILE_S, TIMING_S, RECORD_S, IMPORT_S = 150, 90, 120, 90  # the longest that a process may take
MOST_BYTES = 15 << 20  # of one file that is brought back


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
    truths: dict[str, Any] = {}
    left, longest = list(programs), 0.0
    with Turns(place) as turns:
        for name in programs:
            started = time.monotonic()
            if started - began + longest > options.budget:
                break
            left.remove(name)
            runs, errors = measure(turns, name, programs[name], options)
            truths[name] = truth_of(programs[name], device, runs)
            if errors:
                truths[name]["errors"] = errors
            (options.out / "truth.json").write_text(json.dumps(truths, indent=1) + "\n")
            longest = max(longest, time.monotonic() - started)
            print(
                f"[{time.monotonic() - began:6.1f} s] {name} took {time.monotonic() - started:.1f} s",
                flush=True,
            )
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
    names = {
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
    script = [sys.executable, str(HERE / entry["file"])]
    return [
        sys.executable,
        "-m",
        "foretrace",
        "run",
        "--stop-after-capture",
        "-o",
        str(out),
        "--",
        "env",
        *turn,
        *script,
    ]


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
    out: Path
    log: Path
    got: Path
    process: subprocess.Popen[bytes]
    began: float
    limit_s: float


class Turns:
    """Starts processes so that one has the GPU while the next imports its packages."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._count = 0
        self._alive: list[Job] = []

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._alive:
            kill(job.process)

    def start(self, name: str, variant: str, entry: Mapping[str, Any]) -> Job:
        """Starts a process that waits for its turn."""
        self._count += 1
        scratch, label = self.place.scratch, f"{self._count:03d}.{name}.{variant}"
        got, log = scratch / f"{label}.got", scratch / f"{label}.log"
        preload = ",".join(["torch", *entry.get("preload", ())])
        hold = {"HOLD_LOCK": str(scratch / "lock"), "HOLD_GOT": str(got), "HOLD_PRELOAD": preload}
        if variant == RECORD:
            out, limit = scratch / name, RECORD_S
            command, environment = record_command(entry, out, hold), self.place.environment("")
        else:
            out, limit = scratch / f"{label}.json", TIMING_S
            per_step = str(entry.get("ticks_per_step", 1))
            fix = "" if variant == BASE else variant
            command = timing_command(entry, out)
            environment = self.place.environment(fix, TICKS_PER_STEP=per_step, **hold)
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, cwd=scratch, start_new_session=True
            )
        job = Job(name, variant, out, log, got, process, self.place.clock(), limit)
        self._alive.append(job)
        return job

    def wait_for_turn(self, job: Job) -> None:
        """Until it has the GPU, or has failed."""
        end = self.place.clock() + IMPORT_S
        while not job.got.exists() and job.process.poll() is None and self.place.clock() < end:
            time.sleep(0.02)
        job.began = self.place.clock()

    def finish(self, job: Job) -> str:
        """Waits for its end and says what it took; returns what went wrong, if anything."""
        problem = ""
        try:
            code = job.process.wait(max(job.began + job.limit_s - self.place.clock(), 0.1))
            done = job.out.is_file() or (job.out / "rank0" / "light.json").is_file()
            if not done or (code and job.variant != RECORD):
                problem = f"exit code {code}: {last_line(job.log)}"
        except subprocess.TimeoutExpired:
            problem = f"stopped after {job.limit_s:.0f} s: {last_line(job.log)}"
        kill(job.process)
        self._alive.remove(job)
        took = self.place.clock() - job.began
        print(f"  {job.name} {job.variant}: {took:.1f} s{_said(job)}{problem and ', ' + problem}", flush=True)
        return problem

    def run(self, name: str, entry: Mapping[str, Any], variants: Sequence[str]) -> Iterator[tuple[Job, str]]:
        """Every variant in turn, the next one started as soon as the one before has the GPU."""
        waiting = self.start(name, variants[0], entry)
        for following in [*variants[1:], None]:
            job = waiting
            self.wait_for_turn(job)
            if following is not None:
                waiting = self.start(name, following, entry)
            yield job, self.finish(job)


def _said(job: Job) -> str:
    if job.variant != RECORD and job.out.is_file():
        figures = json.loads(job.out.read_text())
        return f", step {figures['step_ms']:.3f} ms ({figures['lo']:.3f} to {figures['hi']:.3f})"
    return ""


def measure(
    turns: Turns, name: str, entry: Mapping[str, Any], options: argparse.Namespace
) -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    """The runs of each variant of one program, and what went wrong."""
    changes = [change for change in entry["changes"] if not options.changes or change in options.changes]
    variants = [BASE, *changes, BASE, *([] if options.no_recordings else [RECORD])]
    runs: dict[str, list[dict[str, float]]] = {}
    errors: dict[str, str] = {}
    for job, problem in turns.run(name, entry, variants):
        if problem:
            errors[job.variant] = problem
        elif job.variant != RECORD:
            runs.setdefault(job.variant, []).append(json.loads(job.out.read_text()))
    return runs, errors


# --- recordings ----------------------------------------------------------------------------------------------


def pack(scratch: Path, names: Sequence[str], out: Path, rich: Sequence[str]) -> None:
    """NAME.tar.xz of every recording, gathered into a few tars that are small enough to bring back."""

    def squeeze(name: str) -> Path | None:
        parts = [
            "run.json",
            "rank0/rank.json",
            "rank0/light.json",
            *(["rank0/rich.json"] if name in rich else []),
        ]
        files = [f"{name}/{part}" for part in parts if (scratch / name / part).is_file()]
        if not files:
            return None
        packed = scratch / f"{name}.tar.xz"
        subprocess.run(["tar", "-I", "xz -T2 -3", "-cf", packed, *files], cwd=scratch, check=True)
        return packed

    with ThreadPoolExecutor(8) as pool:
        packed = [path for path in pool.map(squeeze, names) if path]
    for number, group in enumerate(groups({path.name: path.stat().st_size for path in packed}), 1):
        file = out / f"recordings-{number}.tar"
        subprocess.run(["tar", "-cf", file, *group], cwd=scratch, check=True)
        print(f"{file.name}: {file.stat().st_size / 2**20:.1f} MiB, {' '.join(group)}", flush=True)
    shutil.rmtree(scratch, ignore_errors=True)


def groups(sizes: Mapping[str, int], most: int = MOST_BYTES) -> list[list[str]]:
    """Files in as few groups as first-fit finds, none over `most` bytes; one that is larger itself stands alone."""
    found: list[tuple[int, list[str]]] = []
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        for place, (taken, members) in enumerate(found):
            if taken + sizes[name] <= most:
                found[place] = (taken + sizes[name], [*members, name])
                break
        else:
            found.append((sizes[name], [name]))
    return [members for _, members in found]


if __name__ == "__main__":
    sys.exit(main())
