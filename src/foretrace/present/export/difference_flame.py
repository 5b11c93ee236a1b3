"""A differential flame graph as a file: SVG, or the same in an HTML page. It runs no script and loads nothing."""

from __future__ import annotations

from xml.sax.saxutils import escape

from foretrace.compare.flame import Frame, frames, tree
from foretrace.compare.traces import Comparison
from foretrace.units import format_value, shorten, visible

_WIDTH, _ROW, _TOP, _LETTER = 1_200, 19, 58, 6.6
_STYLE = (
    "text{font:11px ui-monospace,monospace;fill:#1f2328}text.head{font:13px system-ui,sans-serif}"
    "text.quiet{font:12px system-ui,sans-serif;fill:#59636e}rect{stroke:#fff;stroke-width:.6}"
)


def to_svg(found: Comparison) -> str:
    """The graph; every frame tells its times where the pointer rests on it."""
    laid = frames(tree(found))
    height = _TOP + _ROW * (1 + max((frame.depth for frame in laid), default=0)) + 8
    names = f"{found.a.name} → {found.b.name}"
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img">',
        f"<title>{_text(names)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect x="0" y="0" width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text class="head" x="8" y="20">{_text(shorten(visible(names), 150))}</text>',
        f'<text class="quiet" x="8" y="38">{_text(shorten(visible(found.says), 190))}</text>',
        '<text class="quiet" x="8" y="53">width: the longer of both, per step · red: more time in the second · blue: less</text>',
    ]
    return "\n".join([*head, *map(_drawn, laid), "</svg>", ""])


def to_html(found: Comparison) -> str:
    """The same in a page."""
    title = _text(f"{found.a.name} and {found.b.name} compared")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>body{{margin:16px}}svg{{max-width:100%;height:auto}}</style></head>\n"
        f"<body>{to_svg(found)}</body></html>\n"
    )


def colour(change: float) -> str:
    """White where nothing changed, red for more and blue for less."""
    strength = min(abs(change), 1.0)
    away = f"{round(236 - 100 * strength):02x}"
    return f"#f0{away}{away}" if change > 0 else f"#{away}{away}f2" if change < 0 else "#ececee"


def _drawn(frame: Frame) -> str:
    x, width = _WIDTH * frame.start, _WIDTH * frame.width
    y = _TOP + _ROW * frame.depth
    room = int((width - 8) / _LETTER)
    label = (
        f'<text x="{x + 4:.1f}" y="{y + 13}">{_text(shorten(visible(frame.name), room))}</text>'
        if room > 3
        else ""
    )
    shape = (
        f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{_ROW - 1}" fill="{colour(frame.change)}"/>'
    )
    return f"<g><title>{_text(says(frame))}</title>{shape}{label}</g>"


def says(frame: Frame) -> str:
    """The frame in words."""
    first, second = (
        format_value("_ns", ns) if ns else "not there" for ns in (frame.before_ns, frame.after_ns)
    )
    difference = frame.after_ns - frame.before_ns
    sign = "+" if difference > 0 else "−" if difference < 0 else "±"
    return f"{frame.name}: {first} → {second} ({sign}{format_value('_ns', abs(difference))})"


def _text(text: str) -> str:
    return escape(visible(text), {'"': "&quot;"})
