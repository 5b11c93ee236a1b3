"""Damaged recordings by the thousand: nothing may fail but with a documented error, nothing may hang, readers must agree.

    python tests/fuzz/run.py reader --cases 1000000 --seed 1      # every tenth through both readers, every seventh to tables
    python tests/fuzz/run.py diagnose --cases 20000 --seed 1      # through the whole of `foretrace diagnose`, in-process
    python tests/fuzz/run.py report --cases 2000 --seed 1         # through every analysis and view, as a report holds them
    python tests/fuzz/run.py ncu --cases 20000 --seed 1           # tables of Nsight Compute, through all that counters answer
    python tests/fuzz/run.py compare --cases 2000 --seed 1        # with another damaged recording, through every table and the flame graph
    python tests/fuzz/run.py rocpd --cases 20000 --seed 1         # or rocprof-csv, rocprof-json, proton, xprof: read, and asked
    python tests/fuzz/run.py nsys --cases 20000 --seed 1          # exports and tables of Nsight Systems, some through `diagnose`
    python tests/fuzz/run.py ledger --cases 10000 --seed 1        # or baselines, benchmark, run-folder, summary, cache-entry
    python tests/fuzz/run.py sqlite --cases 100000 --seed 1       # pages of SQLite files, straight into the native reader

Case N of seed S is always the same input. `--only N` runs one and prints its traceback; `--keep FOLDER` keeps the inputs
that failed. A crash, or more than 20 seconds of processor time, is reported with its case, and the run goes on behind it. Prints
the cases, the rate and the failures by their last line; exits with 1 if there was any. CI runs a few hundred, in
test_fuzz.py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "tests")]

from foretrace.errors import ForetraceError
from foretrace.ingest import kineto, kineto_native
from foretrace.ingest.source import Source
from tests.fuzz import mutations, ncu_tables, other_formats, own_files, recordings, sqlite_pages
from tests.ingest import fuzz as scanners

HANG_S = 20
COMPARED, TABLED = 10, 7  # every so many cases of `reader` go through both, or become tables
FEW_EVENTS = 80  # in what the reader is fuzzed with: it is about text, and many inputs
DONE, SAID = (0, 3, 4), "foretrace: "  # exit codes that bad input may lead to
FORMS = ("table", "table", "json", "md")
TABLES = ("causes", "causes", "modules", "operators", "kernels", "nodes")


class HangError(BaseException):
    """It took too long."""


@cache
def seeds() -> list[tuple[Any, bytes]]:
    """What is damaged."""
    return recordings.small()


@cache
def short_seeds() -> list[tuple[Any, bytes]]:
    """Those of few events."""
    return [(document, text) for document, text in seeds() if len(_events(document)) <= FEW_EVENTS]


def _events(document: Any) -> list[Any]:
    listed = document["traceEvents"] if isinstance(document, dict) else document
    return listed if isinstance(listed, list) else []


def made(kind: str, case: int, seed: int) -> tuple[bytes, random.Random]:
    """The input of a case, and the chance that goes on from there."""
    chance = random.Random(f"{seed} {case}")
    if kind in other_formats.FORMATS:
        return other_formats.FORMATS[kind](chance), chance
    if kind == "ncu":
        return ncu_tables.damaged(chance), chance
    document, text = chance.choice(short_seeds() if kind == "reader" else seeds())
    return mutations.mutate(document, text, chance), chance


class _InMemory(Source):
    """A source whose bytes are at hand."""

    def chunks(self, progress: Any = None) -> Iterator[bytes]:
        yield self.head


def read(data: bytes, chance: random.Random, case: int) -> str | None:
    """What is wrong with reading this; None if nothing is. Some cases go into both readers, and some into tables."""
    if case % COMPARED == 0 and not kineto_native.missing:
        different = scanners.differences(data, chance)
        return f"readers differ: {different[0]}" if different else None
    if case % TABLED != 0 and not kineto_native.missing:
        scanners.native(data, chance)
        return None
    reader = "python" if kineto_native.missing or chance.random() < 0.2 else "native"
    with contextlib.suppress(ForetraceError):
        if kineto.accepts(data[: 1 << 16]):
            kineto.read(_InMemory(Path("fuzz.json"), len(data), "", data), reader=reader)
    return None


def commanded(kind: str, data: bytes, chance: random.Random, folder: Path) -> str | None:
    """What is wrong with `foretrace diagnose`, `report` or `compare` of this; None if nothing is."""
    from foretrace.commands import main

    path = folder / "fuzz.json"
    path.write_bytes(data)
    said, out = io.StringIO(), folder / "out.html"
    options = ["--format", chance.choice(FORMS)] if kind == "diagnose" else ["-o", str(out), "--force"]
    if kind == "compare":
        other = folder / "other.json"
        other.write_bytes(
            mutations.mutate(*chance.choice(seeds()), chance) if chance.random() < 0.7 else data
        )
        options = [str(other), "--by", chance.choice(TABLES), "--flame", str(out), "--force"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = main([kind, str(path), *options, "--no-cache"])
    lines = said.getvalue().strip().splitlines()
    if code in DONE and "Traceback" not in said.getvalue() and (code == 0 or len(lines) == 1):
        return None
    return f"exit code {code}: {said.getvalue()[-3000:]}"


def nsys_read(chance: random.Random, case: int, folder: Path) -> str | None:
    """What is wrong with reading a damaged export or table of Nsight Systems; some go through commands."""
    from foretrace import schema
    from foretrace.commands import main
    from foretrace.ingest import open_trace
    from tests.fuzz import nsys_files

    path = nsys_files.made(chance, folder)
    if case % COMPARED == 0:
        command = chance.choice(
            (["diagnose"], ["show", "sections"], ["show", "sections", "--breakdown"], ["show", "durations"])
        )
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main([*command, str(path), "--no-cache"])
        lines = said.getvalue().strip().splitlines()
        sound = code in DONE and "Traceback" not in said.getvalue() and (code == 0 or len(lines) == 1)
        return None if sound else f"exit code {code}: {said.getvalue()[-3000:]}"
    os.environ["FORETRACE_PURE_PYTHON"] = "1" if chance.random() < 0.3 else ""
    try:
        with contextlib.suppress(ForetraceError):
            trace = open_trace(path, cache=False)
            for table in schema.TABLES:
                trace.table(table)
    finally:
        os.environ["FORETRACE_PURE_PYTHON"] = ""
    return None


def attempt(kind: str, case: int, seed: int, folder: Path) -> str | None:
    """What is wrong with one case, within the time it may take."""

    def too_long(*_: object) -> None:
        raise HangError(f"more than {HANG_S} s")

    # Of processor time: how busy the machine is does not count. Who waits for nothing is seen by `Worker.check`.
    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        if kind == "nsys":
            return nsys_read(random.Random(f"{seed} {case}"), case, folder)
        if kind in own_files.KINDS:
            return own_files.KINDS[kind](case, random.Random(f"{seed} {case}"), folder)
        if kind == "sqlite":
            return sqlite_pages.attempt(random.Random(f"{seed} {case}"), folder)
        data, chance = made(kind, case, seed)
        if kind == "reader":
            return read(data, chance, case)
        if kind in other_formats.FORMATS:
            return other_formats.attempt(data, case, folder)
        if kind == "ncu":
            return ncu_tables.attempt(data, case, folder)
        return commanded(kind, data, chance, folder)
    except (Exception, HangError):
        return traceback.format_exc()
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            return traceback.format_exc()
        raise
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def work(kind: str, cases: range, seed: int, at: Any, told: Any) -> None:
    """Tries cases one by one, in a process of its own: which one is in `at`, what is wrong goes to `told`."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            at.value = case
            if (problem := attempt(kind, case, seed, Path(folder))) is not None:
                told.put((case, problem))
    at.value = cases.stop


class Worker:
    """A process and the cases it has still to try."""

    def __init__(self, kind: str, cases: range, seed: int, told: Any) -> None:
        self._facts, self.cases = (kind, seed, told), cases
        self._start(cases)

    def _start(self, cases: range) -> None:
        kind, seed, told = self._facts
        self.at = multiprocessing.Value("q", cases.start)
        self.process = multiprocessing.Process(target=work, args=(kind, cases, seed, self.at, told))
        self.process.start()
        self._seen, self._since = -1, time.monotonic()

    def check(self) -> tuple[int, str] | None:
        """The case in which the process itself went wrong, and how: then it goes on behind that case."""
        case = int(self.at.value)
        if case != self._seen:
            self._seen, self._since = case, time.monotonic()
        hung = self.process.is_alive() and time.monotonic() - self._since > 10 * HANG_S
        if hung:
            self.process.kill()
        if hung or (self.process.exitcode not in (None, 0) and case < self.cases.stop):
            self.process.join()
            why = "hangs in native code" if hung else f"the process ended with {self.process.exitcode}"
            self._start(range(min(case + self.cases.step, self.cases.stop), self.cases.stop, self.cases.step))
            return case, f"case {case}: {why}"
        return None


def run(kind: str, cases: range, seed: int, *, processes: int = 1) -> dict[int, str]:
    """What is wrong with which case."""
    told: Any = multiprocessing.Queue()
    parts = [range(cases.start + number, cases.stop, processes) for number in range(processes)]
    workers = [Worker(kind, part, seed, told) for part in parts if part]
    problems: dict[int, str] = {}
    while any(worker.process.is_alive() for worker in workers) or not told.empty():
        for worker in workers:
            if failed := worker.check():
                problems[failed[0]] = failed[1]
        while not told.empty():
            case, problem = told.get()
            if _place(problem) not in map(_place, problems.values()):
                print(f"case {case}: {_place(problem)}", flush=True)
            problems[case] = problem
        time.sleep(0.2)
    return problems


def main() -> int:
    """Runs the cases of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "kind",
        choices=(
            "reader",
            "diagnose",
            "report",
            "compare",
            "ncu",
            "nsys",
            "sqlite",
            *own_files.KINDS,
            *other_formats.FORMATS,
        ),
    )
    parser.add_argument("--cases", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="run this case alone, in this process")
    parser.add_argument("--keep", type=Path, help="folder for the inputs that failed")
    options = parser.parse_args()
    os.environ.update(FORETRACE_FAULTS="raise", FORETRACE_DEBUG="1", POLARS_MAX_THREADS="1")
    if options.only is not None:
        options.first, options.cases, options.processes = options.only, 1, 1
    began = time.perf_counter()
    cases = range(options.first, options.first + options.cases)
    problems = run(options.kind, cases, options.seed, processes=options.processes)
    took = time.perf_counter() - began
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for case in problems:
            (options.keep / f"case{case}.json").write_bytes(made(options.kind, case, options.seed)[0])
    lasts = Counter(_place(text) for text in problems.values())
    for last, count in lasts.most_common():
        first = min(case for case, text in problems.items() if _place(text) == last)
        print(f"{count:>6} times, first in case {first}: {last}")
        if options.only is not None:
            print(problems[first])
    print(
        f"{options.kind}: {options.cases:,} cases of seed {options.seed}, {len(problems):,} failed, {took:,.0f} s, "
        f"{options.cases / max(took, 1e-3):,.0f} a second on {options.processes} processes"
    )
    return 1 if problems else 0


def _place(problem: str) -> str:
    """The last place in our code, and what was raised."""
    lines = [line.strip() for line in problem.strip().splitlines()]
    places = [line for line in lines if "/foretrace/" in line and line.startswith("File ")]
    ours = places[-1].partition("/foretrace/")[2].replace('"', "") if places else ""
    errors = [line for line in lines if not line.startswith(("File ", "^", "foretrace:"))]
    return f"{ours}: {errors[-1][:200]}" if errors else problem[:200]


if __name__ == "__main__":
    sys.exit(main())
