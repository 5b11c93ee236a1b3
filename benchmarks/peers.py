"""Our numbers beside HTA's on the same recordings, one line per number.

HTA from PyPI runs in its own virtual environment, made on first use. docs/peers.md explains the differences.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import foretrace
from benchmarks.ingest import HTA, REPOSITORY, hta_python
from foretrace import analyze, intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError

ANNOTATIONS = {"critical_path_alexnet": "[param|pytorch.model.alex_net|0|0|0|measure|forward]"}
FIXTURES = REPOSITORY.parent / "shared" / "corpus" / "peers" / "hta"

# Each question is asked on its own: an answer, or the exception that HTA raises.
ASK_HTA = """
import json, logging, sys, warnings
logging.disable()
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis

path, whole, annotation = sys.argv[1], sys.argv[2] == "whole", sys.argv[3]
answers = {}

def ask(name, question):
    try:
        answers[name] = question()
    except Exception as error:
        answers[name] = f"{type(error).__name__}: {str(error)[:90]}"

def idle():
    frame = hta.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    return [[int(row.stream), row.idle_category, float(row.idle_time)] for row in frame.itertuples()]

def queue():
    frame = hta.get_queue_length_summary(ranks=[0])
    return [[int(index[1]), float(row.iloc[1]), float(row.iloc[-1])] for index, row in frame.iterrows()]

def launches():
    frame = hta.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    short = int((frame.gpu_duration < frame.cpu_duration).sum())
    return {"count": len(frame), "delay_us": float(frame.launch_delay.mean()), "short": short}

def critical_path():
    names = df.name.map(hta.t.symbol_table.get_sym_table().__getitem__)
    steps = names[names.str.startswith("ProfilerStep#")].nunique()
    # HTA advises against the first step.
    where = (annotation, 1) if annotation else ("ProfilerStep", min(steps, 2) - 1) if steps else ("", 0)
    graph, succeeded = hta.critical_path_analysis(0, *where)
    if not succeeded:
        return "failed"
    frame = graph.get_critical_path_breakdown()
    return frame.groupby("bound_by").duration.sum().astype(float).to_dict()

try:
    hta = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=whole)
except Exception as error:
    print(json.dumps({"open": f"{type(error).__name__}: {str(error)[:90]}"}))
    raise SystemExit
df = hta.t.get_trace(0)
gpu = df[df.stream.ne(-1)]
answers["device rows"], answers["negative durations"] = len(gpu), int((df.dur < 0).sum())
ask("temporal", lambda: hta.get_temporal_breakdown(visualize=False).iloc[0, 1:5].astype(float).to_dict())
ask("overlap", lambda: float(hta.get_comm_comp_overlap(visualize=False).iloc[0, 1]))
ask("kernel types", lambda: hta.get_gpu_kernel_breakdown(visualize=False)[0].set_index("kernel_type")["sum"]
    .astype(float).to_dict())
ask("idle", idle)
ask("queue", queue)
ask("launches", launches)
ask("critical path", critical_path)
print(json.dumps(answers))
"""


def annotation_of(path: Path) -> str:
    """The part of a recording without steps that HTA's own tests take the critical path of."""
    return next((each for name, each in ANNOTATIONS.items() if path.name.startswith(name)), "")


def hta_says(python: str, path: Path, *, whole: bool, rounding: bool) -> dict[str, Any]:
    """HTA's answers for one recording, or why there are none."""
    environment = os.environ | {"HTA_DISABLE_NS_ROUNDING": "0" if rounding else "1"}
    done = subprocess.run(
        [python, "-c", ASK_HTA, str(path), "whole" if whole else "default", annotation_of(path)],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    if done.returncode:
        return {"open": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def ours(trace: foretrace.Trace) -> dict[str, Any]:
    """The same questions, answered by our analyses and the functions behind them; times in microseconds."""
    work = device_time.device_work(trace)
    launched = work.filter(~work["orphan"])
    answers: dict[str, Any] = {"device rows": work.height, "of them orphans": work.height - launched.height}
    for name, rows in (("temporal", launched), ("temporal, orphans counted", work)):
        line = device_time.timeline(rows)
        answers[name] = {
            "idle": line.idle_ns / 1e3, "compute": line.computation_ns / 1e3,
            "non-compute": (line.exposed_communication_ns + line.exposed_copy_ns) / 1e3,
            "span": line.span_ns / 1e3,
        }  # fmt: skip
    talks = work["communication"]
    both = [device_time.covered(work.filter(each)) for each in (talks, ~talks & (work["kind"] != "copy"))]
    communication = both[0].total_ns
    hidden = intervals.intersect(*both).total_ns
    answers["overlap"] = round(100 * hidden / communication, 2) if communication else None
    for name, options in (("idle", {"over": "launched"}), ("launches", {})):
        answers[name] = answered(trace, name, **options)
    path = answered(trace, "critical-path", annotation=annotation_of(trace.path))
    answers["critical path"] = path if isinstance(path, str) else _second(path)
    return answers


def answered(trace: foretrace.Trace, name: str, **options: Any) -> Any:
    """The headline values of an analysis and its rows, or why there are none."""
    try:
        result = analyze.run(trace, name, **options)
    except MissingDataError as error:
        return str(error)
    return (
        result if name == "critical-path" else {k: v for k, v in result.values.items() if v not in (0, None)}
    )


def _second(path: Result) -> dict[str, Any]:
    """The times of the second stretch (the first where there is only one), in microseconds."""
    row = path.table.row(1 if path.table.height > 2 else 0, named=True)
    return {name: value / 1e3 for name, value in row.items() if name.endswith("_ns") and value}


def lines(answers: dict[str, Any]) -> Iterator[str]:
    """The answers, each on its line."""
    for name, answer in answers.items():
        if isinstance(answer, dict):
            answer = ", ".join(f"{key} {shown(value)}" for key, value in answer.items() if value is not None)
        elif isinstance(answer, list):
            answer = "; ".join(" ".join(map(shown, each)) for each in answer)
        yield f"    {name:26}{shown(answer)}"


def shown(value: object) -> str:
    """A number with at most three decimals."""
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="recordings (HTA's fixtures)")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--work", type=Path, default=cache / "foretrace-benchmarks", help="(%(default)s)")
    args = parser.parse_args()
    args.paths = args.paths or sorted(FIXTURES.glob("*.json.gz"))
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def main() -> int:
    args = arguments()
    python = hta_python(args.work.resolve())
    print(f"{HTA}; HTA's times in microseconds, ours as their names say")
    for path in args.paths:
        print(f"\n{path.name}")
        asked = {
            "HTA, as it comes": hta_says(python, path, whole=False, rounding=True),
            "HTA, last step kept, not rounded": hta_says(python, path, whole=True, rounding=False),
            "foretrace": ours(foretrace.open(path)),
        }
        for who, answers in asked.items():
            print("\n".join([f"  {who}", *lines(answers)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
