"""The BenchView: one benchmark of `foretrace bench` as the page sees it."""

from __future__ import annotations

from pathlib import Path

from foretrace.bench.benchmark import read_benchmark
from foretrace.compare.benches import bench_of
from foretrace.present.web.recording_view import display_name
from foretrace.units import visible


class BenchView:
    """A benchmark, and the names under which the page lists it: those of one kind stand together."""

    def __init__(self, path: Path, *, run_id: str = "run", name: str | None = None) -> None:
        self.id = run_id
        self.name = self.label = visible(name or display_name(path.name))
        self.title = ""
        self.benchmark = read_benchmark(path)
        self.group = self.benchmark.kind
        self.compared = bench_of(self.benchmark, self.name)
