"""How fast the page is in Chromium: its size, its first picture and its frames, with the bars of ui.md.

Generated timelines come in the page's own binary format from a local server; the Overview and a large trace come
through `foretrace serve`, a job of many ranks from ranks/served.py. Every figure is of a new browser with an empty profile.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.repeat_trace import generate

REPOSITORY = Path(__file__).resolve().parents[1]
WEB = REPOSITORY / "web"
SOURCE = REPOSITORY.parent / "shared" / "corpus" / "h200" / "naive_attention.slow.rich.json.gz"
JOB_SERVER = REPOSITORY / "benchmarks" / "ranks" / "served.py"
WORK = Path.home() / ".cache" / "foretrace-benchmarks"
GIGABYTE = 1_000_000_000
PARTS = ("spans", "overview", "trace", "ranks")
RANKS = 10_240


@dataclass(frozen=True)
class Figure:
    """One measured number, its bar, and both as text."""

    name: str
    value: float
    bar: float | None
    unit: str

    @property
    def met(self) -> bool:
        """Whether the bar holds."""
        return self.bar is None or self.value <= self.bar

    def text(self) -> str:
        """A line of the table."""
        line = f"{self.name:<60}{self.value:>9,.1f} {self.unit:<3}"
        if self.bar is None:
            return f"        {line}"
        return f"{'ok    ' if self.met else 'MISSED'}  {line} (bar {self.bar:,.0f})"


def build(folder: Path) -> list[Figure]:
    """The page, built as it is shipped, and what it weighs."""
    subprocess.run(["node", "build.mjs", str(folder)], cwd=WEB, check=True)
    weight = sum(len(gzip.compress((folder / name).read_bytes(), 9)) for name in ("app.js", "app.css"))
    return [Figure("bundle, gzipped", weight / 1000, 80, "kB")]


def drive(app: Path, *words: str) -> dict[str, Any]:
    """What browser/page_bench.mjs measured."""
    command = ["node", "browser/page_bench.mjs", str(app), *words]
    done = subprocess.run(command, cwd=WEB, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if result["errors"]:
        raise SystemExit(f"the page failed: {result['errors']}")
    return result


def best(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The lowest of each number: other work on the machine only ever adds."""
    return {
        key: min(each[key] for each in results)
        for key, value in results[0].items()
        if isinstance(value, int | float)
    }


def spans(
    app: Path, count: int, runs: int, *, first_paint: float, frame: float, compressed: bool
) -> list[Figure]:
    """A timeline of so many spans: first picture, frames, memory."""
    how = "spans-gzip" if compressed else "spans"
    measured = best([drive(app, how, str(count)) for _ in range(runs)])
    name = f"{count // 1_000_000} M spans{', gzipped' if compressed else ''}"
    figures = [
        Figure(f"{name}: first paint", measured["first_paint_ms"], first_paint, "ms"),
        Figure(f"{name}: names there, too", measured["named_ms"], None, "ms"),
        Figure(f"{name}: 95 % of frames within", measured["frame_p95_ms"], frame, "ms"),
    ]
    if count >= 10_000_000:
        figures.append(Figure(f"{name}: renderer", measured["renderer_bytes"] / 1e6, 400, "MB"))
    return figures


def served(*words: str, cache: Path) -> AbstractContextManager[str]:
    """The address of `foretrace serve`, which has just been started."""
    return started(sys.executable, "-m", "foretrace", "serve", *words, FORETRACE_CACHE=str(cache))


@contextmanager
def started(*command: str, **settings: str) -> Iterator[str]:
    """The address that a server prints when it has started."""
    environment = {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if found := re.search(r"http://\S+", line):
                yield found.group()
                return
        raise SystemExit("the server did not start:\n" + "".join(seen))
    finally:
        process.terminate()
        process.wait()


def overview(app: Path, runs: int) -> list[Figure]:
    """From the HTML of the shipped sample to an Overview that can be read."""
    with tempfile.TemporaryDirectory() as cache, served(cache=Path(cache)) as address:
        drive(app, "open", f"{address}#/overview")  # the server works it out once
        measured = best([drive(app, "open", f"{address}#/overview") for _ in range(runs)])
    return [Figure("Overview usable after HTML", measured["usable_ms"], 300, "ms")]


def ranks(app: Path, count: int, runs: int) -> list[Figure]:
    """The Ranks page of a job of so many ranks: opened, moved over and scrolled, and clicked."""
    with started(sys.executable, str(JOB_SERVER), str(app), "--ranks", str(count)) as address:
        measured = best([drive(app, "ranks", address) for _ in range(runs)])
    name = f"{count:,} ranks"
    rows = (
        ("first paint", "first_paint_ms", None, "ms"),
        ("95 % of frames within", "frame_p95_ms", 17, "ms"),
        ("half of frames within", "frame_p50_ms", None, "ms"),
        ("worst frame", "frame_worst_ms", None, "ms"),
        ("script a frame", "script_per_frame_ms", None, "ms"),
        ("main thread a frame", "task_per_frame_ms", None, "ms"),
        ("tasks over 50 ms", "long_tasks", None, ""),
        ("a choice to the next frame, half", "toggle_ms", None, "ms"),
        ("a choice to the next frame, worst", "toggle_worst_ms", None, "ms"),
        ("a click that loads, to the next frame, 95 %", "load_next_ms", None, "ms"),
        ("a click that loads, until it is drawn, 95 %", "load_done_ms", None, "ms"),
    )
    return [
        *(Figure(f"{name}: {what}", measured[key], bar, unit) for what, key, bar, unit in rows),
        Figure(f"{name}: sent at first", measured["sent_bytes"] / 1e3, None, "kB"),
        Figure(f"{name}: renderer", measured["renderer_bytes"] / 1e6, None, "MB"),
    ]


def large_trace(app: Path, trace: Path) -> list[Figure]:
    """From starting the server on a file that was never read, in an open browser, to what can be read."""
    name = f"{trace.stat().st_size / 1e9:.2f} GB from cold"
    timeline, page = (_cold(app, each, trace) for each in ("timeline", "overview"))
    return [
        Figure(f"{name}: spans on the timeline", timeline["shown_ms"] / 1000, 5, "s"),
        Figure(f"{name}: Overview without findings", page["shown_ms"] / 1000, None, "s"),
        Figure(f"{name}: Overview with findings", page["findings_ms"] / 1000, None, "s"),
    ]


def _cold(app: Path, page: str, trace: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FORETRACE_CACHE"] = cache
        return drive(app, "cold", page, sys.executable, "-m", "foretrace", "serve", str(trace))


def main() -> int:
    """Prints the table; with --gate, 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3, help="browsers per figure; the best counts")
    parser.add_argument("--trace", type=Path, help="a large trace (default: one of 1 GB, made once)")
    parser.add_argument("--ranks", type=int, default=RANKS, help="of the job that the Ranks page is of")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these figures alone")
    parser.add_argument("--compressed", action="store_true", help="also over gzip, as to another machine")
    parser.add_argument("--gate", action="store_true", help="exit with 1 when a bar is missed")
    args = parser.parse_args()
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder)
        figures += build(app)
        for compressed in _transfers(args):
            figures += spans(app, 1_000_000, args.runs, first_paint=500, frame=17, compressed=compressed)
            figures += spans(app, 10_000_000, args.runs, first_paint=1000, frame=33, compressed=compressed)
        if "overview" in args.only:
            figures += overview(app, args.runs)
        if "ranks" in args.only:
            figures += ranks(app, args.ranks, args.runs)
        if "trace" in args.only:
            figures += large_trace(app, args.trace or _gigabyte())
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for figure in figures:
        print(figure.text())
    return 1 if args.gate and not all(figure.met for figure in figures) else 0


def _transfers(args: argparse.Namespace) -> tuple[bool, ...]:
    if "spans" not in args.only:
        return ()
    return (False, True) if args.compressed else (False,)


def _gigabyte() -> Path:
    WORK.mkdir(parents=True, exist_ok=True)
    return generate(SOURCE, GIGABYTE, WORK, compressed=False)


if __name__ == "__main__":
    sys.exit(main())
