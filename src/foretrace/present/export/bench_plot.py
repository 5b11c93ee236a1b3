"""A Benchmark as a picture: the median of each row and its interval, as one SVG that opens anywhere."""

from __future__ import annotations

import html
import math

from foretrace.bench.benchmark import Benchmark
from foretrace.present.text.bench_tables import cell, labels_of

_ROW, _TOP, _BOTTOM, _VALUE, _PLOT = 22, 44, 34, 130, 460  # pixels
_LETTER = 6.7  # pixels of a letter of the labels' font, about
_LOG_FROM = 50  # where the longest time is so many times the shortest, short bars would not show
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.quiet{fill:#6e7781}.axis{stroke:#d0d7de}"
    ".bar{fill:#5673b8}.whisker{stroke:#24292f;stroke-width:1.5}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.axis{stroke:#3d444d}.whisker{stroke:#e6edf3}}"
)


def to_svg(benchmark: Benchmark) -> str:
    """A bar per row from zero, or, where times lie far apart, a dot on a logarithmic axis."""
    timed = [row for row in benchmark.rows if row.get("median_ms")]
    labels = labels_of(benchmark, timed) if timed else []
    left = 20 + _LETTER * max((len(label) for label in labels), default=10)
    width, height = left + _PLOT + _VALUE, _TOP + _ROW * len(timed) + _BOTTOM
    title = f"{benchmark.kind}: {benchmark.device}, torch {benchmark.torch}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" viewBox="0 0 {width:.0f} {height}">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
        f'<text x="10" y="22" font-weight="600">{html.escape(title)}</text>',
    ]
    if not timed:
        return "".join((*parts, '<text x="10" y="48">nothing was timed</text></svg>\n'))
    medians = [row["median_ms"] for row in timed]
    logarithmic = max(medians) / min(medians) >= _LOG_FROM
    scale = _Scale([value for row in timed for value in (row["low_ms"], row["high_ms"])], logarithmic, left)
    bottom = _TOP + _ROW * len(timed)
    for tick in scale.ticks():
        x = scale.x(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text class="quiet" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g} ms</text>'
        )
    for number, (row, label) in enumerate(zip(timed, labels, strict=True)):
        parts += _row(row, label, scale, _TOP + _ROW * number, left)
    return "".join((*parts, "</svg>\n"))


class _Scale:
    def __init__(self, values: list[float], logarithmic: bool, left: float) -> None:
        self.logarithmic = logarithmic
        self.left = left
        self.low = 10 ** math.floor(math.log10(min(values))) if logarithmic else 0.0
        self.high = max(values)

    def x(self, value: float) -> float:
        """Where a value stands."""
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return self.left + _PLOT * share

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self.logarithmic:
            first, last = round(math.log10(self.low)), math.floor(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = 10 ** math.floor(math.log10(self.high))
        step = next(size for size in (step, step / 2, step / 5) if self.high / size >= 3)
        return [step * number for number in range(int(self.high / step) + 1)]


def _row(row: dict[str, float], label: str, scale: _Scale, top: float, left: float) -> list[str]:
    middle, x = top + _ROW / 2, scale.x(row["median_ms"])
    low, high = scale.x(row["low_ms"]), scale.x(row["high_ms"])
    mark = (
        f'<circle class="bar" cx="{x:.1f}" cy="{middle}" r="5"/>'
        if scale.logarithmic
        else f'<rect class="bar" x="{left:.1f}" y="{top + 4}" width="{x - left:.1f}" height="{_ROW - 8}"/>'
    )
    text = f"{cell('median_ms', row['median_ms'])} ms"
    return [
        f'<text x="{left - 8:.1f}" y="{middle + 4}" text-anchor="end">{html.escape(label)}</text>',
        mark,
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{max(high, x) + 10:.1f}" y="{middle + 4}">{text}</text>',
    ]
