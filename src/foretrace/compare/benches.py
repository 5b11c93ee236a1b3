"""Two benchmarks, as `foretrace bench` writes them: rows with the same case are compared, and their differences summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace import measured
from foretrace.bench.benchmark import Benchmark, read_benchmark
from foretrace.compare.verdicts import CPU_REPEATS, GPU_REPEATS, Judged, judge
from foretrace.errors import MissingDataError
from foretrace.measured import Interval, Verdict
from foretrace.units import counted

SCHEMA = "foretrace.bench/"
_OK = "OK"
_HEAD_BYTES = 4_096  # the schema stands at the beginning


@dataclass(frozen=True)
class Bench:
    """One file of a benchmark."""

    name: str
    kind: str
    device: str
    rows: Mapping[str, Mapping[str, Any]]  # by what was timed, in words


@dataclass(frozen=True)
class BenchRow:
    """One case on both sides; nothing is judged where it did not run well on both."""

    what: str
    before_ms: float | None
    after_ms: float | None
    status: tuple[str, str]
    judged: Judged | None


@dataclass(frozen=True)
class BenchComparison:
    """Two benchmarks: each case that both hold, and all of those that ran on both sides together."""

    before: Bench
    after: Bench
    rows: tuple[BenchRow, ...]  # the largest difference first
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def timed(self) -> tuple[BenchRow, ...]:
        """The cases with times on both sides."""
        return tuple(row for row in self.rows if row.judged is not None)

    @property
    def before_ms(self) -> float:
        """The sum over the cases with times on both sides."""
        return sum(row.before_ms or 0.0 for row in self.timed)

    @property
    def after_ms(self) -> float:
        """The same after."""
        return sum(row.after_ms or 0.0 for row in self.timed)

    @property
    def speedup(self) -> Interval:
        """Of the sums; from the slowest that all cases may be to the fastest."""
        low = sum((row.before_ms or 0.0) / row.judged.speedup.high for row in self.timed if row.judged)
        high = sum((row.before_ms or 0.0) / row.judged.speedup.low for row in self.timed if row.judged)
        return Interval(self.before_ms / self.after_ms, self.before_ms / high, self.before_ms / low)

    @property
    def verdict(self) -> Verdict:
        """That of the cases, where those that differ all differ in one direction."""
        found = {row.judged.verdict for row in self.timed if row.judged}
        if {"faster", "slower"} <= found:
            return "inconclusive"
        decided: tuple[Verdict, ...] = ("slower", "faster", "inconclusive", "same")
        return next((verdict for verdict in decided if verdict in found), "inconclusive")

    @property
    def says(self) -> str:
        """The result in one sentence."""
        names: tuple[Verdict, ...] = ("faster", "slower", "same", "inconclusive")
        counts = [
            (name, sum(row.judged.verdict == name for row in self.timed if row.judged)) for name in names
        ]
        parts = ", ".join(f"{count} {name}" for name, count in counts if count)
        return f"{counted(len(self.timed), 'case')} of {self.before.kind}: {parts}"


def is_bench(path: Path) -> bool:
    """Whether a file begins as a benchmark does."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return head.lstrip()[:1] == b"{" and SCHEMA.encode() in head


def read_bench(path: Path, name: str) -> Bench:
    """The benchmark in a file."""
    return bench_of(read_benchmark(path), name)


def bench_of(benchmark: Benchmark, name: str) -> Bench:
    """A benchmark as one side of a comparison."""
    cases = {_in_words({key: row.get(key) for key in benchmark.case}): row for row in benchmark.rows}
    return Bench(name, benchmark.kind, benchmark.device, cases)


def _in_words(case: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.items() if value is not None) or "(all)"


def compare_benches(before: Bench, after: Bench) -> BenchComparison:
    """Case by case."""
    both = [what for what in before.rows if what in after.rows]
    repeats = float(CPU_REPEATS if before.device.lower().startswith("cpu") else GPU_REPEATS)
    rows = [_row(what, before.rows[what], after.rows[what], repeats) for what in both]
    found = BenchComparison(
        before,
        after,
        tuple(sorted(rows, key=lambda row: (-abs((row.after_ms or 0.0) - (row.before_ms or 0.0)), row.what))),
        tuple(what for what in before.rows if what not in after.rows),
        tuple(what for what in after.rows if what not in before.rows),
        _notes(before, after, rows),
    )
    if not found.timed:
        raise MissingDataError(f"{before.name} and {after.name}: no case was timed in both")
    return found


def _row(what: str, first: Mapping[str, Any], second: Mapping[str, Any], repeats: float) -> BenchRow:
    status = (str(first.get("status", _OK)), str(second.get("status", _OK)))
    samples = [_samples(row) for row in (first, second)]
    if status != (_OK, _OK) or not samples[0] or not samples[1]:
        return BenchRow(what, _median(first), _median(second), status, None)
    judged = judge(samples[0], samples[1], repeats=repeats)
    times = [measured.median(times).point for times in samples]
    return BenchRow(what, times[0], times[1], status, judged)


def _samples(row: Mapping[str, Any]) -> list[float]:
    listed = row.get("samples_ms")
    samples = [float(time) for time in listed if _is_time(time)] if isinstance(listed, list) else []
    middle = _median(row)
    return samples or ([middle] if middle else [])


def _median(row: Mapping[str, Any]) -> float | None:
    middle = row.get("median_ms")
    return float(middle) if isinstance(middle, int | float) and _is_time(middle) else None


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e12


def _notes(before: Bench, after: Bench, rows: list[BenchRow]) -> tuple[str, ...]:
    notes = []
    if before.kind != after.kind:
        notes.append(f"two kinds of benchmark: {before.kind} and {after.kind}")
    if before.device != after.device:
        notes.append(f"measured on different devices: {before.device or '?'} and {after.device or '?'}")
    changed = [
        f"{row.what}: {row.status[0]}, then {row.status[1]}" for row in rows if row.status[0] != row.status[1]
    ]
    return (*notes, *changed)


def to_dict(found: BenchComparison) -> dict[str, Any]:
    """As `--format json` prints it; documented in docs/guide/compare.md."""
    return {
        "schema": "foretrace.compare/1",
        "verdict": found.verdict,
        "says": found.says,
        "before_ms": found.before_ms,
        "after_ms": found.after_ms,
        "speedup": {"point": found.speedup.point, "low": found.speedup.low, "high": found.speedup.high},
        "causes": [
            {
                "what": row.what,
                "kind": "case",
                "delta_ms": (row.after_ms or 0.0) - (row.before_ms or 0.0),
                "before_ms": row.before_ms,
                "after_ms": row.after_ms,
                "verdict": row.judged.verdict,
                "speedup": vars(row.judged.speedup),
            }
            for row in found.timed
            if row.judged
        ],
        "not_timed": [
            {"what": row.what, "before": row.status[0], "after": row.status[1]}
            for row in found.rows
            if row.judged is None
        ],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
        "before": {"name": found.before.name, "device": found.before.device},
        "after": {"name": found.after.name, "device": found.after.device},
        "notes": list(found.notes),
    }
