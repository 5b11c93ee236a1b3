"""How fast a trace becomes tables, side by side with `json.load` and HTA, on one machine in one run.

The input is a real recording repeated until it is large enough. Every figure comes from a cold process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.repeat_trace import generate

REPOSITORY = Path(__file__).resolve().parents[1]
CORPUS = REPOSITORY.parent / "shared" / "corpus" / "h200"
SOURCE = CORPUS / "naive_attention.slow.rich.json.gz"
SMALL = CORPUS / "item_sync.fixed.rich.json.gz"

SIZES = {"150mb": 150_000_000, "1gb": 1_000_000_000, "10gb": 10_000_000_000}

HTA = "HolisticTraceAnalysis==0.5.0"
HTA_NEEDS = "pandas<3"  # HTA 0.5.0 crashes on some traces with pandas 3


# ---- the contenders ------------------------------------------------------------------------------------

# VmHWM belongs to the process's memory map and starts anew at exec; getrusage's maximum outlives it.
CHILD = """
import json, sys, time
path, part_s = sys.argv[1], 0.0
{setup}
start = time.perf_counter()
{load}
load_s = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
rss_bytes = int(peak.split()[1]) * 1024
print(json.dumps({{"load_s": load_s, "part_s": part_s, "rss_bytes": rss_bytes, "rows": rows}}))
"""


@dataclass(frozen=True)
class Contender:
    """A way to load a trace: what is imported before the clock starts, and what the clock measures."""

    name: str
    setup: str
    load: str


def _foretrace(name: str, options: str, rows: str = "trace.spans.height") -> Contender:
    setup = "from foretrace import open as open_trace"  # imports polars too, as the peers' imports are made before
    return Contender(name, setup, f"trace = open_trace(path{options})\nrows = {rows}")


NATIVE = _foretrace("foretrace .json", ", cache=False")
GZIP = _foretrace("foretrace .json.gz", ", cache=False")
FIRST = _foretrace("foretrace, filling its cache", "")
REOPEN = _foretrace("foretrace, reopened", "", "trace.spans.filter(trace.spans['kind'] == 'kernel').height")
PYTHON = _foretrace("foretrace, Python reader", ', cache=False, reader="python"')
JSON = Contender(
    "json.load",
    "",
    "with open(path) as file:\n    document = json.load(file)\nrows = len(document['traceEvents'])",
)
# HTA finds each event's step by trying every step: rows x steps. Repeating a recording multiplies both, and a
# real trace of this size would have fewer steps. So that loop is timed apart, and shown as a row of its own.
HTA_LOAD = Contender(
    "HTA, default",
    """
import logging
logging.disable()
import hta.common.trace
from hta.trace_analysis import TraceAnalysis
assign_steps = hta.common.trace.add_iteration
def timed(*arguments):
    global part_s
    start = time.perf_counter()
    steps = assign_steps(*arguments)
    part_s += time.perf_counter() - start
    return steps
hta.common.trace.add_iteration = timed
""",
    "trace = TraceAnalysis(trace_files={0: path}).t\nrows = len(trace.get_trace(0))",
)
HTA_LESS = "HTA less its step loop"
OVERVIEW = "foretrace show overview"


@dataclass(frozen=True)
class Measurement:
    """The best times of some cold runs, and the worst peak memory."""

    name: str
    runs: int
    size_bytes: int  # of the JSON, uncompressed
    wall_s: float
    load_s: float
    part_s: float = 0.0  # the share of load_s that a contender times apart
    rss_bytes: int | None = None
    rows: int | None = None

    @property
    def mb_per_s(self) -> float:
        return self.size_bytes / 1e6 / self.load_s

    @property
    def rss_ratio(self) -> float:
        return (self.rss_bytes or 0) / self.size_bytes


def measure(
    contender: Contender,
    path: Path,
    *,
    runs: int,
    size_bytes: int,
    python: str = sys.executable,
    cache: Path | None = None,
) -> Measurement | None:
    """Run `contender` in `runs` fresh processes; None, and a line that says why, where it fails."""
    code = CHILD.format(setup=contender.setup, load=contender.load)
    environment = os.environ | ({"FORETRACE_CACHE": str(cache)} if cache else {})
    walls, reports = [], []
    for _ in range(runs):
        start = time.perf_counter()
        process = subprocess.run(
            [python, "-c", code, str(path)], capture_output=True, text=True, env=environment, cwd=path.parent
        )
        walls.append(time.perf_counter() - start)
        if process.returncode:
            reason = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
            print(f"{contender.name}: not measured: {reason[-1]}")
            return None
        reports.append(json.loads(process.stdout.splitlines()[-1]))
    best = min(reports, key=lambda report: report["load_s"])
    best["rss_bytes"] = max(report["rss_bytes"] for report in reports)
    measured = Measurement(contender.name, runs, size_bytes, min(walls), **best)
    print(f"  {contender.name}: {measured.load_s:.3f} s", file=sys.stderr)
    return measured


def measure_overview(small: Path, *, runs: int, work: Path) -> Measurement | None:
    """Wall time of the command line on a small trace, each time with an empty cache."""
    command = Path(sys.executable).with_name("foretrace")
    launcher = [str(command)] if command.exists() else [sys.executable, "-m", "foretrace"]
    walls = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(dir=work) as cache:
            start = time.perf_counter()
            process = subprocess.run(
                [*launcher, "show", "overview", str(small)],
                capture_output=True,
                text=True,
                env=os.environ | {"FORETRACE_CACHE": cache},
            )
            walls.append(time.perf_counter() - start)
        if process.returncode:
            reason = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
            print(f"{OVERVIEW}: not measured: {reason[-1]}")
            return None
    return Measurement(OVERVIEW, runs, small.stat().st_size, min(walls), min(walls))


def hta_python(work: Path) -> str:
    """The interpreter of a virtual environment that has HTA, made on first use."""
    environment = work / "hta-venv"
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"installing {HTA} into {environment}")
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    if subprocess.run([str(python), "-c", "import hta.trace_analysis"], capture_output=True).returncode:
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", HTA, HTA_NEEDS], check=True)
    return str(python)


def measure_size(path: Path, args: argparse.Namespace, *, python_reader: bool) -> dict[str, Measurement]:
    """Every contender on one file, by name; those that failed are missing."""
    size_bytes, zipped = path.stat().st_size, path.with_suffix(".json.gz")
    warm(path, zipped)
    run = partial(measure, size_bytes=size_bytes)
    measured: list[Measurement | None] = []
    if foretrace_works():
        measured += [run(NATIVE, path, runs=args.runs), run(GZIP, zipped, runs=args.runs)]
        with tempfile.TemporaryDirectory(dir=args.work) as cache:
            measured.append(run(FIRST, path, runs=1, cache=Path(cache)))
            measured.append(run(REOPEN, path, runs=args.runs, cache=Path(cache)))
        if python_reader:
            measured.append(run(PYTHON, path, runs=1))
    measured.append(run(JSON, path, runs=args.peer_runs))
    if args.hta and (hta := run(HTA_LOAD, path, runs=args.peer_runs, python=hta_python(args.work))):
        wall_s, load_s = hta.wall_s - hta.part_s, hta.load_s - hta.part_s
        measured += [hta, replace(hta, name=HTA_LESS, wall_s=wall_s, load_s=load_s)]
    return {m.name: m for m in measured if m}


def foretrace_works() -> bool:
    """Whether this interpreter can import a foretrace with an `open`; says so where it cannot."""
    code = "import foretrace; foretrace.open"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY.parent
    )
    if found.returncode:
        reason = found.stderr.strip().splitlines()[-1]
        print(f"foretrace: not measured: {reason} (install it for {sys.executable}: pip install -e .)")
    return not found.returncode


def warm(*paths: Path) -> None:
    """Read the files once, so that every contender finds them in the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass


# ---- the table and the bars ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """A figure that must not be missed; `value` is None where it could not be measured."""

    says: str
    value: float | None
    limit: float
    at_least: bool

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        value = "not measured" if self.value is None else f"{self.value:.3g}"
        return f"{'met' if self.met else 'MISSED':7} {self.says}: {value} (bar {sign} {self.limit:g})"


def bars(size: str, measured: dict[str, Measurement], *, hta: bool) -> list[Bar]:
    """The bars that apply to a file of this size."""

    def faster(than: str, who: str = NATIVE.name) -> float | None:
        one, other = measured.get(who), measured.get(than)
        return other.load_s / one.load_s if one and other else None

    if size == "150mb":
        return [Bar("150mb: times faster than json.load", faster(JSON.name), 15, True)]
    native, reopen = measured.get(NATIVE.name), measured.get(REOPEN.name)
    found = [
        Bar("1gb: times faster than json.load", faster(JSON.name), 20, True),
        Bar("1gb: .json.gz speed / .json speed", faster(NATIVE.name, GZIP.name), 0.6, True),
        Bar("1gb: peak RSS / size", native.rss_ratio if native else None, 0.4, False),
        Bar("1gb: reopen and read kernel rows, s", reopen.load_s if reopen else None, 0.3, False),
    ]
    if hta:
        found.insert(1, Bar(f"1gb: times faster than {HTA_LOAD.name}", faster(HTA_LOAD.name), 60, True))
    return found


def table(title: str, measured: dict[str, Measurement]) -> str:
    """One line per contender; the last column is how many times longer than foretrace it takes to load."""
    native = measured.get(NATIVE.name)
    lines = [
        f"\n{title}",
        f"{'':30}{'best of':>8}{'wall s':>9}{'load s':>9}{'MB/s':>8}{'RSS MB':>9}{'RSS/size':>10}"
        f"{'rows':>12}{'x foretrace':>13}",
    ]
    for m in measured.values():
        ratio = f"{m.load_s / native.load_s:.2f}" if native else "-"
        lines.append(
            f"{m.name:30}{m.runs:>8}{m.wall_s:>9.2f}{m.load_s:>9.3f}{m.mb_per_s:>8.0f}"
            f"{(m.rss_bytes or 0) / 1e6:>9,.0f}{m.rss_ratio:>10.2f}{m.rows or 0:>12,}{ratio:>13}"
        )
    return "\n".join(lines)


def machine() -> str:
    """What the figures were taken on; the load average shows whether others were busy there."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(": ")[1].strip() for line in file if line.startswith("model name")), "?")
    version = metadata.version("foretrace") if "foretrace" in _installed() else "not installed"
    python, load = platform.python_version(), os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, Python {python}, foretrace {version}, load average {load:.1f}"


def _installed() -> set[str]:
    return {distribution.metadata["Name"] for distribution in metadata.distributions()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="the recording to repeat (%(default)s)")
    parser.add_argument("--small", type=Path, default=SMALL, help="a recording of about 2 MB (%(default)s)")
    parser.add_argument("--size", nargs="+", choices=("150mb", "1gb"), default=["1gb"], help="files to load")
    parser.add_argument("--ten-gb", action="store_true", help="also load 10 GB once, to see its memory")
    parser.add_argument("--runs", type=int, default=3, help="cold runs of foretrace; the best counts")
    parser.add_argument("--peer-runs", type=int, default=1, help="cold runs of json.load and HTA")
    parser.add_argument("--no-hta", dest="hta", action="store_false", help="leave HTA out")
    parser.add_argument("--python-reader", action="store_true", help="also the pure-Python reader, 150 MB")
    parser.add_argument("--generate-only", action="store_true", help="make the files and stop")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bar is missed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--work", type=Path, default=cache / "foretrace-benchmarks", help="(%(default)s)")
    args = parser.parse_args()
    if not args.source.exists():
        parser.error(f"no recording to repeat at {args.source}: give one with --source")
    if args.python_reader and "150mb" not in args.size:
        args.size.insert(0, "150mb")
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def main() -> int:
    args = arguments()
    paths = {size: generate(args.source, SIZES[size], args.work, compressed=True) for size in args.size}
    if args.ten_gb:
        paths["10gb"] = generate(args.source, SIZES["10gb"], args.work, compressed=False)
    if args.generate_only:
        return 0
    print(f"{machine()}\nEach run is a new process; files are read once before, so the page cache is warm.")
    print("wall: the whole process; load s: imports left out; RSS: the largest VmHWM; MB = 1e6 bytes of JSON")
    all_bars: list[Bar] = []
    for size in args.size:
        measured = measure_size(paths[size], args, python_reader=args.python_reader and size == "150mb")
        print(table(f"{size}: {paths[size].name}, {paths[size].stat().st_size / 1e6:,.0f} MB", measured))
        all_bars += bars(size, measured, hta=args.hta)
    if args.ten_gb and foretrace_works():
        path = paths["10gb"]
        warm(path)
        ten = measure(NATIVE, path, runs=1, size_bytes=path.stat().st_size)
        print(table(f"10gb: {path.name}", {ten.name: ten} if ten else {}))
    all_bars.append(overview_bar(args))
    print(
        "\n"
        + "\n".join(bar.line() for bar in all_bars)
        + f"\nload average at the end: {os.getloadavg()[0]:.1f}"
    )
    return int(args.gate and not all(bar.met for bar in all_bars))


def overview_bar(args: argparse.Namespace) -> Bar:
    """Time the command line on a recording of about 2 MB, unpacked into the work folder."""
    measured = None
    if not args.small.exists():
        print(f"{OVERVIEW}: not measured: no recording at {args.small}: give one with --small")
    elif foretrace_works():
        small = args.work / args.small.name.removesuffix(".gz")
        opener = gzip.open if args.small.suffix == ".gz" else open
        with opener(args.small, "rb") as file:
            small.write_bytes(file.read())
        measured = measure_overview(small, runs=5, work=args.work)
    says = f"{OVERVIEW} on {args.small.name}, wall s, best of 5, no cache"
    return Bar(says, measured.wall_s if measured else None, 0.5, False)


if __name__ == "__main__":
    raise SystemExit(main())
