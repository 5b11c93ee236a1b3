"""What a recording of 1 GB costs to read, beside json.load, and how each cost grows with what it depends on.

    python benchmarks/reading.py                  # every figure, about ten minutes
    python benchmarks/reading.py --only growth    # events, steps, threads and ranks doubled, and the exponent of each; minutes
    python benchmarks/reading.py --gate           # exit code 1 if a bar is missed

The file is that of ingest.py. Every figure comes from processes of their own, with the file in the page cache. foretrace and json.load
take turns, so that what else the machine does falls on both; ratios are of the best of each. CPU is what the kernel counted for the
process and those that it started, imports included unless the line says load.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import ingest
from benchmarks.ingest import Bar, Contender, machine, warm
from benchmarks.many_steps import GRID, HEADER, KERNEL, event, launched
from benchmarks.repeat_trace import generate

PARTS = ("load", "diagnose", "start", "growth")
DOUBLINGS = 3
LARGEST_EXPONENT = 1.1
QUIET = 1.15  # wall over processor time of json.load, which has one thread: above, others had the processors


@dataclass(frozen=True)
class Cost:
    """What one process took."""

    wall_s: float
    cpu_s: float
    rss_bytes: int
    printed: str


def cost(command: list[str], **environment: str) -> Cost:
    """Runs a command, which must succeed."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.DEVNULL, env=os.environ | environment
        )
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read().decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])}: exit status {process.returncode}")
    return Cost(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, printed)


def foretrace(*words: str, **environment: str) -> Cost:
    """Runs the command line."""
    script = Path(sys.executable).with_name("foretrace")
    launcher = [str(script)] if script.exists() else [sys.executable, "-m", "foretrace"]
    return cost([*launcher, *words], **environment)


# ---- loading, beside json.load --------------------------------------------------------------------------


def loads(plain: Path, zipped: Path, runs: int, peer_runs: int) -> list[Bar]:
    """Tables of 1 GB, plain and zipped, and json.load of the same."""
    warm(plain, zipped)
    size = plain.stat().st_size
    contenders = ((ingest.NATIVE, plain, runs), (ingest.GZIP, zipped, runs), (ingest.JSON, plain, peer_runs))
    load_s: dict[str, list[float]] = {}
    cpu_s: dict[str, list[float]] = {}
    rss: dict[str, int] = {}
    for turn in range(max(runs, peer_runs)):
        for contender, path, times in contenders:
            if turn >= times:
                continue
            told, used = _load(contender, path)
            load_s.setdefault(contender.name, []).append(told["load_s"])
            cpu_s.setdefault(contender.name, []).append(told["cpu_s"])
            rss[contender.name] = max(rss.get(contender.name, 0), used.rss_bytes)
    print(f"\n{plain.name}, {size / 1e6:,.0f} MB; best load of each, imports left out")
    for contender, _, times in contenders:
        name = contender.name
        print(
            f"{name:20} {min(load_s[name]):8.3f} s wall {min(cpu_s[name]):8.3f} s CPU {size / 1e6 / min(load_s[name]):8.0f} MB/s"
            f" {rss[name] / size:6.3f} x RSS   (best of {times})"
        )
    best = {name: min(each) for name, each in load_s.items()}
    best_cpu = {name: min(each) for name, each in cpu_s.items()}
    native, zipped_name, peer = ingest.NATIVE.name, ingest.GZIP.name, ingest.JSON.name
    print(
        f"CPU of json.load / CPU of foretrace, whatever ran beside: {best_cpu[peer] / best_cpu[native]:.1f}"
    )
    print(f"CPU of .json / CPU of .json.gz: {best_cpu[native] / best_cpu[zipped_name]:.2f}")
    quiet = best[peer] <= QUIET * best_cpu[peer]
    if not quiet:
        print(
            "the machine was busy: json.load waited for a processor, and wall times say nothing; not judged"
        )
    return [
        Bar(
            "1 GB to linked tables: times faster than json.load",
            best[peer] / best[native] if quiet else None,
            40,
            True,
        ),
        Bar("1 GB: peak RSS / size", rss[native] / size, 0.3, False),
        Bar(
            "1 GB: .json.gz speed / .json speed",
            best[native] / best[zipped_name] if quiet else None,
            0.8,
            True,
        ),
    ]


def _load(contender: Contender, path: Path) -> tuple[dict[str, Any], Cost]:
    setup = f"{contender.setup}\nimport resource\nbefore = resource.getrusage(resource.RUSAGE_SELF)"
    after = (
        f"{contender.load}\nafter = resource.getrusage(resource.RUSAGE_SELF)\n"
        "cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime"
    )
    code = ingest.CHILD.format(setup=setup, load=after).replace(
        '"part_s": part_s', '"part_s": part_s, "cpu_s": cpu_s'
    )
    used = cost([sys.executable, "-c", code, str(path)])
    return json.loads(used.printed.splitlines()[-1]), used


# ---- commands ---------------------------------------------------------------------------------------------


def diagnoses(plain: Path, runs: int) -> list[Bar]:
    """`foretrace diagnose` of 1 GB that no cache knows."""
    warm(plain)
    done = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            done.append(foretrace("diagnose", str(plain), FORETRACE_CACHE=folder))
    print(f"\ndiagnose of {plain.name}, cold: {min(each.wall_s for each in done):.2f} s wall, best of {runs}")
    rss = max(each.rss_bytes for each in done) / plain.stat().st_size
    return [
        Bar("diagnose of 1 GB, cold: CPU s", min(each.cpu_s for each in done), 3, False),
        Bar("diagnose of 1 GB, cold: peak RSS / size", rss, 0.5, False),
    ]


def starts(runs: int) -> list[Bar]:
    """How long it takes to begin. The first run may compile, and does not count."""
    imported = [cost([sys.executable, "-c", "import foretrace"]) for _ in range(runs + 1)][1:]
    helped = [foretrace("--help") for _ in range(runs + 1)][1:]
    nothing = [cost([sys.executable, "-c", "pass"]) for _ in range(runs)]
    print(f"\nPython alone: {min(each.cpu_s for each in nothing):.3f} s CPU")
    if sys.dont_write_bytecode:
        print(
            "PYTHONDONTWRITEBYTECODE is set: every start compiles what it imports, which an installed package does once"
        )
    return [
        Bar("import foretrace: CPU s", min(each.cpu_s for each in imported), 0.1, False),
        Bar("foretrace --help: CPU s", min(each.cpu_s for each in helped), 0.1, False),
    ]


# ---- growth -----------------------------------------------------------------------------------------------


def write_trace(file: Path, *, steps: int, launches: int, threads: int) -> Path:
    """A recording: in each step each thread makes so many launches."""
    with file.open("w") as out:
        out.write(json.dumps(HEADER)[:-1] + ', "traceEvents": [\n')
        out.write(",\n".join(map(json.dumps, _events(steps, launches, threads))))
        out.write("\n]}")
    return file


def _events(steps: int, launches: int, threads: int) -> Iterator[dict[str, Any]]:
    step_us, link = 20 * launches + 50, 0
    for number in range(steps):
        at = number * step_us
        yield event("user_annotation", f"ProfilerStep#{number}", at, step_us - 5)
        for thread in range(threads):
            for launch in range(launches):
                link += 1
                begin = at + 10 + 20 * launch
                ids = {"External id": link, "Input Dims": [[64, 64]], "Input type": ["float"]}
                yield event("cpu_op", "aten::add", begin, 15, 100 + thread, **ids)
                yield event("cuda_runtime", "cudaLaunchKernel", begin + 3, 5, 100 + thread, correlation=link)
                kernel = launched("kernel", KERNEL, begin + 10, 8, link, **GRID, **{"External id": link}) | {
                    "tid": 7 + thread
                }
                kernel["args"] = {**kernel["args"], "stream": 7 + thread}
                yield kernel


def read_cpu_s(path: Path) -> float:
    """Processor seconds of a process that reads a recording, imports and all."""
    code = "import sys, foretrace; print(foretrace.open(sys.argv[1], cache=False).spans.height)"
    return min(cost([sys.executable, "-c", code, str(path)]).cpu_s for _ in range(5))


def ranks_cpu_s(folder: Path) -> float:
    """Processor seconds of `foretrace ranks`, its workers included."""
    return min(foretrace("ranks", str(folder), "--format", "json").cpu_s for _ in range(2))


def growth(work: Path) -> list[Bar]:
    """Doubles one thing at a time; the exponent is the slope of log cost over log count: 1 where each costs the same.

    Costs and counts are those beyond a small recording's, so that what every process pays once, as its imports, is no part of them.
    """
    from benchmarks.ranks.measure import job_of
    from benchmarks.ranks.recordings import write
    from benchmarks.ranks.simulate import simulate

    def traced(name: str, **sizes: int) -> Callable[[int], float]:
        def measure(count: int) -> float:
            path = write_trace(work / "growth.json", **{**sizes, name: count})
            return read_cpu_s(path)

        return measure

    def ranks(count: int) -> float:
        with tempfile.TemporaryDirectory(dir=work) as folder:
            write(simulate(job_of(count, faults=False)), Path(folder))
            return ranks_cpu_s(Path(folder))

    series: dict[
        str, tuple[int, int, Callable[[int], float]]
    ] = {  # a small one, the first one, how to measure
        "events": (100, 4000, traced("launches", steps=10, launches=1, threads=1)),
        "steps": (100, 20_000, traced("steps", steps=1, launches=2, threads=1)),
        "threads": (2, 64, traced("threads", steps=10, launches=120, threads=1)),
        "ranks": (16, 64, ranks),
    }
    found = []
    print("\nCPU s while one thing doubles", flush=True)
    for name, (least, first, measure) in series.items():
        began = time.perf_counter()
        counts = [first * 2**i for i in range(DOUBLINGS + 1)]
        fixed = measure(least)
        taken = [measure(count) for count in counts]
        exponent = slope([count - least for count in counts], [max(each - fixed, 1e-3) for each in taken])
        columns = "  ".join(f"{count:,}: {each:.2f}" for count, each in zip(counts, taken, strict=True))
        print(
            f"{name:10} {least:,}: {fixed:.2f}  {columns}   exponent {exponent:.2f}   ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        found.append(Bar(f"growth with {name}: exponent", exponent, LARGEST_EXPONENT, False))
    return found


def slope(counts: list[int], taken: list[float]) -> float:
    """The least-squares slope in logarithms."""
    x, y = [math.log(count) for count in counts], [math.log(each) for each in taken]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum(
        (a - mean_x) ** 2 for a in x
    )


def arguments() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--source", type=Path, default=ingest.SOURCE, help="the recording to repeat (%(default)s)"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these alone")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--peer-runs", type=int, default=1, help="runs of json.load")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bar is missed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--work", type=Path, default=cache / "foretrace-benchmarks", help="(%(default)s)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if {"load", "diagnose"} & set(options.only) and not options.source.exists():
        parser.error(f"no recording to repeat at {options.source}: give one with --source")
    return options


def main() -> int:
    """Prints the figures and the bars."""
    options = arguments()
    print(machine())
    bars: list[Bar] = []
    if {"load", "diagnose"} & set(options.only):
        plain = generate(options.source, ingest.SIZES["1gb"], options.work, compressed=True)
        zipped = plain.with_suffix(".json.gz")
    if "load" in options.only:
        bars += loads(plain, zipped, options.runs, options.peer_runs)
    if "diagnose" in options.only:
        bars += diagnoses(plain, options.runs)
    if "start" in options.only:
        bars += starts(5)
    if "growth" in options.only:
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            bars += growth(Path(folder))
    print("\n" + "\n".join(bar.line() for bar in bars))
    print(f"load average at the end: {os.getloadavg()[0]:.1f}")
    return int(options.gate and not all(bar.met for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
