"""Whether a benchmark can be believed: rows that failed, noise, samples, and what held the clock back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from foretrace.bench.benchmark import OK, Benchmark
from foretrace.measured import MATTERS
from foretrace.present.web.bench_plots import names_of
from foretrace.units import counted, visible

Row = Mapping[str, Any]
Fact = dict[str, str]


def trust(found: Benchmark) -> dict[str, Any]:
    """The verdict in words, and four figures."""
    timed = [row for row in found.rows if row["status"] == OK]
    facts = [_rows(found, timed), *_noise(found, timed), *_samples(timed), _clock(found)]
    doubts = sum(fact["mark"] in ("note", "bad") for fact in facts)
    verdict, says = ("no", "No") if not timed else ("with care", "With care") if doubts else ("yes", "Yes")
    return {
        "verdict": verdict,
        "says": says,
        "detail": "Nothing was timed." if not timed else f"{counted(len(timed), 'row')} timed.",
        "facts": facts,
        "notes": [],
    }


def noise_pct(row: Row, prefix: str = "") -> float | None:
    """Half of the interval of a median, in per cent of it; None where that is not known."""
    middle = row.get(f"{prefix}ms" if prefix else "median_ms")
    low, high = row.get(f"{prefix}low_ms"), row.get(f"{prefix}high_ms")
    known = all(isinstance(value, int | float) and math.isfinite(value) for value in (middle, low, high))
    return 50 * (high - low) / middle if known and middle and low is not None and high is not None else None


def _rows(found: Benchmark, timed: Sequence[Row]) -> Fact:
    failed = [row["status"] for row in found.rows if row["status"] != OK]
    counts = ", ".join(f"{failed.count(status)} {status}" for status in dict.fromkeys(failed))
    mark = "good" if not failed else "note" if timed else "bad"
    value = f"{len(timed):,} of {len(found.rows):,}"
    return _fact(mark, "Rows timed", value, counts or "none failed")


def _noise(found: Benchmark, timed: Sequence[Row]) -> list[Fact]:
    known = [(max(noises), row) for row in timed if (noises := _noises(row))]
    if not known:
        return []
    worst, row = max(known, key=lambda pair: pair[0])
    beyond = sum(noise > 100 * MATTERS for noise, _ in known)
    label = names_of(found, found.rows)[found.rows.index(dict(row))]
    detail = f"at most ± {worst:.2g} %: {label}"
    if beyond:
        detail = f"{beyond:,} of {len(known):,} rows beyond ± {MATTERS}; {detail}"
    value = f"± {median(noise for noise, _ in known):.2g} %"
    return [_fact("note" if beyond else "good", "Noise of a median", value, detail)]


def _noises(row: Row) -> list[float]:
    """Of the forward and the backward pass, where a row has both."""
    return [noise for prefix in ("", "bwd_") if (noise := noise_pct(row, prefix)) is not None]


def _samples(timed: Sequence[Row]) -> list[Fact]:
    counts = [len(row["samples_ms"]) for row in timed if isinstance(row.get("samples_ms"), list)]
    if not counts:
        return []
    cut = sum("time" in (row.get("stopped"), row.get("bwd_stopped")) for row in timed)
    value = _range(counts)
    detail = "until the median was known, or the noise stayed the same"
    if cut:
        detail = f"time was up first in {cut:,} of {len(timed):,} rows"
    return [_fact("note" if cut else "good", "Samples of a row", value, detail)]


def _clock(found: Benchmark) -> Fact:
    rows = found.rows
    clocks = [int(row["clock_mhz"]) for row in rows if isinstance(row.get("clock_mhz"), int | float)]
    slowed = [str(row["slowed_by"]) for row in rows if row.get("slowed_by")]
    around = [str(why) for why in found.clock.get("slowed_by") or ()]
    value = f"{_range(clocks)} MHz" if clocks else ""
    if slowed:
        why = ", ".join(sorted({part for text in slowed for part in text.split(", ")}))
        detail = f"held back in {len(slowed):,} of {len(rows):,} rows: {why}"
        return _fact("note", "Clock", value or "held back", detail)
    if around:
        return _fact(
            "note", "Clock", value or "held back", f"held back around the sweep: {', '.join(around)}"
        )
    if clocks:
        return _fact("good", "Clock", value, "watched between samples; nothing held it back")
    if found.clock.get("by") == "nvidia-smi":
        return _fact("unknown", "Clock", "looked at twice", "before and after, by nvidia-smi; not between")
    return _fact("unknown", "Clock", "not watched", "other programs and the clock may have slowed some rows")


def _range(numbers: Sequence[int]) -> str:
    return "–".join(dict.fromkeys(f"{number:,}" for number in (min(numbers), max(numbers))))


def _fact(mark: str, label: str, value: str, detail: str) -> Fact:
    return {"mark": mark, "label": label, "value": value, "detail": visible(detail)}
