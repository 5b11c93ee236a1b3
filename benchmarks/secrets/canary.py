"""Do secrets reach a file? Programs with a secret of their own are recorded and ended in every way; all that was written is searched.

    python benchmarks/secrets/canary.py --runs 200        "200 runs, 0 secrets", and exit code 0
    python benchmarks/secrets/canary.py --source CHECKOUT/src --runs 10   of another version: the canary must be able to fail

Each run has a folder of its own, with HOME, TMPDIR, the cache and the Run in it. Every secret of a run holds 24 random
letters of its own: the search looks for these bytes, as they are and in base64, in every file and every name of a file, and in
what files hold compressed. It knows neither names of variables nor formats, so it shares no mistake with what it checks.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import gzip
import io
import os
import pickle
import random
import re
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.secrets import warm

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
QUICK = ("--settle-s", "0.5", "--time-s", "0.3", "--warm-s", "0.05", "-q")
# The steps after which a program is interrupted: before it is timed, in the early passes, while it settles and is timed, in the
# passes, and behind them.
POINTS = (1, 6, 9, 11, 14, 20, 60, 150, 250, 400)
ENDINGS = ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL of foretrace")
CALM = ("ends early", "settles", "raises", "fork", "spawn", "late", "try", "foreign", "bench", "path")
LONG = ("try", "foreign", "bench", "spawn")
SCENARIOS = (*CALM, *(f"{ending} at {point}" for point in POINTS for ending in ENDINGS))
LIMIT_S = 300.0
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{64,}={0,2}")


@dataclass(frozen=True)
class Canary:
    """A run's secrets: random letters for each place where a program may hold one."""

    password: str
    address: str
    token: str
    argument: str
    query: str
    path: str
    late: str

    @classmethod
    def hatch(cls) -> Canary:
        """One that never was."""
        letters = string.ascii_letters + string.digits
        source = random.SystemRandom()
        return cls(*("".join(source.choice(letters) for _ in range(24)) for _ in fields(cls)))

    @property
    def environment(self) -> dict[str, str]:
        """Variables: by name, with characters that JSON and addresses escape; inside an address; of a known format."""
        return {
            "DB_PASSWORD": f'pa"ss\\{self.password}/é',
            "DATABASE_URL": f"postgres://admin:{self.address}@db.example/x",
            "NOTE": f"ghp_{self.token}0123456789ab",
            "DATA_KEY": f"data-{self.path}",
            "MY_SETTING": "$",
        }

    @property
    def arguments(self) -> list[str]:
        """Of a command line."""
        query = f"https://example.org/d?access_token={self.query}&x=1"
        return ["--api-key", self.argument, f"wandb.api_key={self.argument}", query]

    def kinds_in(self, content: bytes) -> list[str]:
        """Which of them a file holds: as they are, in UTF-16 or in base64."""
        texts = (
            (field.name, text) for field in fields(self) for text in _in_bytes(getattr(self, field.name))
        )
        return sorted({kind for kind, text in texts if text in content})


def _in_bytes(letters: str) -> Iterator[bytes]:
    raw = letters.encode()
    yield raw
    yield letters.encode("utf-16-le")
    for shift, first in enumerate((0, 2, 3)):
        yield base64.b64encode(b"\0" * shift + raw)[first : (shift + len(raw)) * 8 // 6]


def leaks(root: Path, canary: Canary) -> list[str]:
    """The files below a folder whose name or content holds a secret, and which."""
    leaking = []
    for path in sorted(root.rglob("*")):
        kinds = canary.kinds_in(os.fsencode(path.name))
        if path.is_symlink():
            kinds += canary.kinds_in(os.fsencode(os.readlink(path)))
        elif path.is_file():
            kinds += [kind for content in unpacked(path.read_bytes()) for kind in canary.kinds_in(content)]
        if kinds:
            leaking.append(f"{', '.join(sorted(set(kinds)))} in {path.relative_to(root)}")
    return leaking


def unpacked(content: bytes, depth: int = 4) -> Iterator[bytes]:
    """The bytes, and what they hold compressed: gzip, zstd, Arrow IPC, and gzip in base64, inside one another."""
    yield content
    if not depth:
        return
    for inner in (*_compressed(content), *_in_base64(content)):
        yield from unpacked(inner, depth - 1)


def _compressed(content: bytes) -> Iterator[bytes]:
    if content[:2] == b"\x1f\x8b":
        yield zlib.decompressobj(31).decompress(
            content
        )  # as far as it goes: a killed program's may break off
    elif content[:4] == b"\x28\xb5\x2f\xfd":
        from foretrace import zstd

        yield zstd.decompress(content)
    at = content.find(b"ARROW1")
    if at >= 0:  # also inside a summary of a rank
        import polars

        end = content.find(b"ARROW1", at + 6)
        while end >= 0:
            try:
                yield polars.read_ipc(io.BytesIO(content[at : end + 6])).write_json().encode()
                return
            except Exception:
                end = content.find(b"ARROW1", end + 6)


def _in_base64(content: bytes) -> Iterator[bytes]:
    for match in _BASE64.finditer(content):
        try:
            decoded = base64.b64decode(match[0] + b"=" * (-len(match[0]) % 4), altchars=None)
        except ValueError:
            continue
        if decoded[:2] == b"\x1f\x8b":
            yield gzip.decompress(decoded)


@dataclass(frozen=True)
class Outcome:
    """What one run left."""

    scenario: str
    files: int
    recordings: int
    leaking: list[str]
    problem: str = ""


class Run:
    """One program, recorded and ended as a scenario says."""

    def __init__(self, scenario: str, root: Path, *, source: Path = SOURCE, is_warm: bool = False) -> None:
        self.scenario, self.root, self.source = scenario, root, source
        self.warm, self._killed = is_warm, False
        self.canary = Canary.hatch()
        self.ending, _, point = scenario.partition(" at ")
        self.point = int(point or 0)
        # The program's own folder is the user's: it is not searched.
        self.inputs = root / "inputs"
        self.written = root / "written"
        secret = self.inputs / (f"data-{self.canary.path}" if scenario == "path" else "code")
        for folder in (secret, *(self.written / name for name in ("home", "tmp", "work"))):
            folder.mkdir(parents=True)
        self.script = Path(shutil.copy(HERE / "program.py", secret / "train.py"))

    def go(self, *, opened: bool = True) -> Outcome:
        """Records, ends, opens what there is with every command, and searches."""
        problem = ""
        try:
            if self.ending not in ("try", "foreign", "bench"):
                self._record()
                if not (self.written / "work" / "run" / "run.json").exists():
                    problem = "no Run was begun"
            if opened or self.ending in LONG:
                self._outputs()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        files = [path for path in self.written.rglob("*") if path.is_file()]
        recordings = [path for path in files if path.name in ("light.json", "rich.json")]
        return Outcome(self.scenario, len(files), len(recordings), leaks(self.written, self.canary), problem)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
        return {
            **kept,
            **self.canary.environment,
            "CANARY_LATE": base64.b32encode(
                self.canary.late.encode()
            ).decode(),  # no spelling that is searched for
            "HOME": str(self.written / "home"),
            "TMPDIR": str(self.written / "tmp"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(
                [str(self.source), *filter(None, [os.environ.get("CANARY_PACKAGES")])]
            ),
        }

    def program(self) -> list[str]:
        """The command, with secrets in its arguments."""
        return [sys.executable, str(self.script), self.ending, *self.canary.arguments]

    def _record(self) -> None:
        words = ["run", *QUICK, "-o", "run"]
        words += (
            ["--stop-after-capture"] if self.ending in ("settles", "late", "fork", "spawn", "path") else []
        )
        words += ["--", *self.program()]
        place, environment = self.written / "work", self._environment()
        reading, writing = os.pipe()
        started: subprocess.Popen[bytes] | warm.Forked
        if self.warm:
            started = warm.launcher(words, env=environment, cwd=place, stdout=writing)
        else:
            started = subprocess.Popen(
                [sys.executable, "-m", "foretrace", *words],
                cwd=place, env=environment, stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        os.close(writing)
        try:
            with open(reading, encoding="utf-8") as printed:
                self._interrupt(started.pid, printed)
            if self._killed:
                time.sleep(random.uniform(0, 0.3))  # the program may go on for a while
            else:
                started.wait(LIMIT_S)
        finally:
            # What kill -9 of the launcher leaves running.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()

    def _interrupt(self, launcher: int, printed: IO[str]) -> None:
        """Ends the program once it says that it took so many steps, or a moment later: within a pass, or a file."""
        program, until = 0, time.monotonic() + LIMIT_S
        for line in printed:
            program = int(line.partition("pid ")[2] or program)
            if time.monotonic() > until:
                raise TimeoutError(f"no step {self.point}")
            if self.point and line.startswith("step ") and int(line.split()[1]) >= self.point:
                time.sleep(random.uniform(0, 0.05))
                of_launcher = self.ending.endswith("foretrace")
                os.kill(launcher if of_launcher else program, getattr(signal, self.ending.split()[0]))
                self.point, self._killed = 0, of_launcher
                if of_launcher:
                    return

    def _outputs(self) -> None:
        place, log = self.written / "work", self.written / "work" / "outputs.log"
        arguments = [self.ending, *self.program()]
        with log.open("wb") as file:
            if self.warm:
                outputs = HERE / "outputs.py"
                code = warm.script(
                    outputs, arguments, env=self._environment(), cwd=place, stdout=file.fileno()
                ).wait()
            else:
                code = subprocess.run(
                    [sys.executable, str(HERE / "outputs.py"), *arguments],
                    cwd=place, env=self._environment(), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                    timeout=2 * LIMIT_S, check=False,
                ).returncode  # fmt: skip
        if code:
            raise RuntimeError(f"outputs.py ended with {code}: {log.read_bytes()[-300:]!r}")


def run_one(scenario: str, *, source: Path, keep: Path | None, is_warm: bool, opened: bool) -> Outcome:
    """One run in a folder of its own, which stays only where it leaks and `keep` names a place."""
    folder = Path(tempfile.mkdtemp(prefix="canary-"))  # not one that forks of this process remove as they end
    try:
        outcome = Run(scenario, folder, source=source, is_warm=is_warm).go(opened=opened)
        if keep is not None and (outcome.leaking or outcome.problem):
            shutil.copytree(folder, keep / folder.name, symlinks=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def outcomes(
    turns: Sequence[tuple[str, bool]], jobs: int, run: Callable[[str, bool], Outcome]
) -> Iterator[Outcome]:
    """Of all runs, so many at a time, each in a fork of this process."""
    left = list(turns)
    running: dict[int, tuple[IO[bytes], str]] = {}
    while left or running:
        while left and len(running) < jobs:
            scenario, opened = left.pop(0)
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                with open(writing, "wb") as pipe:
                    pickle.dump(run(scenario, opened), pipe)
                os._exit(0)
            os.close(writing)
            running[pid] = open(reading, "rb"), scenario  # noqa: SIM115  # read when the fork has ended
        pid, _ = os.wait()
        if pid in running:
            answer, scenario = running.pop(pid)
            with answer:
                content = answer.read()
            yield (
                pickle.loads(content) if content else Outcome(scenario, 0, 0, [], "the run itself broke off")
            )


def main() -> int:
    """Runs all scenarios in turn until there are enough; exit code 1 where a secret was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=len(SCENARIOS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", help="scenarios whose name holds this")
    parser.add_argument("--source", type=Path, default=SOURCE, help="the src folder of the version to check")
    parser.add_argument("--keep", type=Path, help="where folders that leak stay")
    parser.add_argument("--brief", action="store_true", help="search Runs alone, and no command's output")
    parser.add_argument(
        "--warm", action="store_true", help="fork a process that has torch imported: a tenth of the time"
    )
    args = parser.parse_args()
    scenarios = [scenario for scenario in SCENARIOS if not args.only or args.only in scenario]
    # Once with all commands, then without them and the long scenarios: what a Run does not hold, no command prints.
    again = [scenario for scenario in scenarios if scenario not in LONG] or scenarios
    first = [] if args.brief else scenarios[: args.runs]
    more = (again[number % len(again)] for number in range(args.runs - len(first)))
    turns = [*((scenario, True) for scenario in first), *((scenario, False) for scenario in more)]
    if args.warm:
        sys.path.insert(0, str(args.source.resolve()))
        warm.load()
    began = time.monotonic()

    def run(scenario: str, opened: bool) -> Outcome:
        is_warm = args.warm and scenario != "spawn"
        return run_one(scenario, source=args.source.resolve(), keep=args.keep, is_warm=is_warm, opened=opened)

    done = []
    for outcome in outcomes(turns, args.jobs, run):
        done.append(outcome)
        for leak in outcome.leaking:
            print(f"{outcome.scenario}: LEAK of {leak}", flush=True)
        if outcome.problem:
            print(f"{outcome.scenario}: {outcome.problem}", flush=True)
        if len(done) % 10 == 0:
            print(f"{len(done)} runs, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    leaking = sum(bool(outcome.leaking) for outcome in done)
    problems = sum(bool(outcome.problem) for outcome in done)
    files, recordings = (sum(getattr(outcome, name) for outcome in done) for name in ("files", "recordings"))
    print(f"{files} files searched, {recordings} of them recordings; {problems} runs with a problem")
    print(f"{len(done)} runs, {sum(len(outcome.leaking) for outcome in done)} secrets")
    return 1 if leaking or problems else 0


if __name__ == "__main__":
    sys.exit(main())
