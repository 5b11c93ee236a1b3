"""How long every analysis takes on a large trace, and how much memory, once its tables are loaded.

The input is that of ingest.py. Each run is a new process: it opens the trace from its cache, loads all tables,
and only then starts the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.ingest import SIZES, SOURCE, Bar, foretrace_works, machine
from benchmarks.repeat_trace import generate

KERNELS = 1_000_000

# VmHWM is set back before each analysis, so that each one's own peak shows.
READ_MEMORY = """
def memory(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) * 1024

def reset_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
"""

EVERY_ANALYSIS = (
    READ_MEMORY
    + """
import json, sys, time
import numpy, polars
import foretrace
from foretrace import analyze, schema
from foretrace.errors import MissingDataError

imports_bytes = memory("VmRSS")
trace = foretrace.open(sys.argv[1])
tables_bytes = sum(trace.table(name).estimated_size() for name in schema.TABLES)
loaded_bytes = memory("VmRSS")
only, rows = sys.argv[2:], []
for analysis in analyze.ANALYSES:
    if only and analysis.name not in only:
        continue
    before = memory("VmRSS")
    reset_peak()
    start, start_cpu = time.perf_counter(), time.process_time()
    try:
        says = analysis(trace).says
    except MissingDataError as error:
        says = str(error)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    row = {"name": analysis.name, "seconds": seconds, "cpu_s": cpu}
    row |= {"before_bytes": before, "peak_bytes": memory("VmHWM")}
    rows.append({**row, "says": says})
report = {"imports_bytes": imports_bytes, "tables_bytes": tables_bytes, "loaded_bytes": loaded_bytes}
print(json.dumps({**report, "spans": trace.spans.height, "rows": rows}))
"""
)

# The trace's own tables, repeated: kernels are a part of the spans, as in any recording.
KERNEL_SUMMARY = """
import json, sys, time
import polars as pl
import foretrace
from foretrace import analyze
from foretrace.trace import Trace

source, wanted, runs = foretrace.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
copies = -(-wanted // source.kernels.height)
count = source.spans.height

def repeated(frame, ids):
    ids = [pl.col(name) + pl.lit(count, pl.UInt32) * pl.col("copy").cast(pl.UInt32) for name in ids]
    parts = [frame.with_columns(copy=pl.lit(copy)).with_columns(ids).drop("copy") for copy in range(copies)]
    return pl.concat(parts, rechunk=True)

kernels = repeated(source.kernels, ["span_id"]).head(wanted)
spans = repeated(source.spans, ["id", "parent_id", "launch_id", "op_id"]).head(kernels["span_id"][-1] + 1)
frames = {"spans": spans, "kernels": kernels, "tracks": source.tracks}
trace = Trace(source.path, source.format, source.meta, source.repairs, frames.__getitem__)
seconds = []
for _ in range(runs):
    start = time.perf_counter()
    result = analyze.run(trace, "kernels", orphans=True)
    seconds.append(time.perf_counter() - start)
kernels = result.values["kernel_count"]
print(json.dumps({"seconds": min(seconds), "first_s": seconds[0], "kernels": kernels, "spans": trace.spans.height}))
"""


# Freed memory goes back to the system at once, so that the peak is what was in use together: by default polars'
# allocator keeps it for ten seconds and the C library's for good. Times are taken without.
KEEP_NOTHING = {
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:0,muzzy_decay_ms:0",
    "MALLOC_MMAP_THRESHOLD_": "1000000",
}


def child(code: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """What the code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def together_s(report: dict[str, Any]) -> float:
    """Seconds of all analyses of one process."""
    return float(sum(row["seconds"] for row in report["rows"]))


def measured(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The quickest process, with the largest peak of any."""
    best = min(reports, key=together_s)
    return {**best, "peak_bytes": max(row["peak_bytes"] for report in reports for row in report["rows"])}


def table(report: dict[str, Any], in_use: dict[str, Any]) -> str:
    """One line per analysis, the slowest first; memory is what it had at its peak beyond its beginning.

    CPU seconds are those of all threads: on a busy machine they say more than the clock.
    """
    own = {row["name"]: (row["peak_bytes"] - row["before_bytes"]) / 1e6 for row in in_use["rows"]}
    lines = [f"\n{'':18}{'seconds':>9}{'CPU s':>8}{'own MB':>9}   says"]
    for row in sorted(report["rows"], key=lambda row: -row["seconds"]):
        figures = f"{row['seconds']:>9.3f}{row['cpu_s']:>8.3f}{own[row['name']]:>9,.0f}"
        lines.append(f"{row['name']:18}{figures}   {row['says'][:90]}")
    cpu = sum(row["cpu_s"] for row in report["rows"])
    lines.append(f"{'together':18}{together_s(report):>9.3f}{cpu:>8.3f}")
    return "\n".join(lines)


def added_ratio(report: dict[str, Any]) -> float:
    """What the process took beyond its loaded tables, of the tables."""
    return float((report["peak_bytes"] - report["loaded_bytes"]) / report["tables_bytes"])


def memory_line(says: str, report: dict[str, Any]) -> str:
    """What a process held: imports, tables, the peak while analysing."""
    names = ("imports_bytes", "tables_bytes", "loaded_bytes", "peak_bytes")
    imports, tables, loaded, peak = (report[name] / 1e6 for name in names)
    return (
        f"MB {says}: imports {imports:,.0f}, tables {tables:,.0f} (as polars counts them), process with tables "
        f"{loaded:,.0f}, peak {peak:,.0f}: the analyses added {added_ratio(report):.2f} times the tables"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=SOURCE, help="the recording to repeat (%(default)s)")
    parser.add_argument("--size", choices=("150mb", "1gb"), default="1gb", help="of the trace (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="processes; the quickest counts (%(default)s)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these analyses alone")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bar is missed")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--work", type=Path, default=cache / "foretrace-benchmarks", help="(%(default)s)")
    args = parser.parse_args()
    if not args.source.exists():
        parser.error(f"no recording to repeat at {args.source}: give one with --source")
    args.work = args.work.resolve()
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def main() -> int:
    args = arguments()
    path = str(generate(args.source, SIZES[args.size], args.work, compressed=False))
    if not foretrace_works():
        return 1
    os.environ.setdefault("FORETRACE_CACHE", str(args.work / "cache"))
    child("import sys, foretrace; foretrace.open(sys.argv[1]).spans.height; print('{}')", path)
    print(f"{machine()}\n{path}: each run is a new process that opens the trace from its cache")
    report = measured([child(EVERY_ANALYSIS, path, *args.only) for _ in range(args.runs)])
    in_use = measured([child(EVERY_ANALYSIS, path, *args.only, **KEEP_NOTHING)])
    print(f"{report['spans']:,} spans{table(report, in_use)}\n")
    print(memory_line("in use", in_use))
    print(memory_line("with what allocators keep", report))
    summary = child(KERNEL_SUMMARY, path, str(KERNELS), "5")
    print(
        f"kernel summary of {summary['kernels']:,} kernels among {summary['spans']:,} spans: "
        f"{1000 * summary['seconds']:.1f} ms, best of 5 (the first {1000 * summary['first_s']:.1f} ms)\n"
    )
    bars = [
        Bar(f"{args.size}: all analyses together, s", together_s(report), 5, False),
        Bar(f"{args.size}: memory in use by the analyses / tables", added_ratio(in_use), 1.5, False),
        Bar("kernel summary of 1 M kernels, ms", 1000 * summary["seconds"], 20, False),
    ]
    print("\n".join(bar.line() for bar in bars))
    return int(args.gate and not all(bar.met for bar in bars))


if __name__ == "__main__":
    raise SystemExit(main())
