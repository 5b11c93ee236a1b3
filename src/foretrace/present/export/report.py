"""The report: the page and its data as one HTML file that opens anywhere, without a network.

Every resource is gzip, then base64, in `<script type="application/gzip+base64" data-resource="RUN/NAME" data-part="0">`
of at most 6 MiB: browsers take memory for a text several times over. The page's own script and style are named by their
hashes in a policy that lets nothing else run and nothing be fetched.

A report that would exceed its budget loses detail in this order: Python frames, then spans outside the chosen steps.
What was left out is told on the page.
"""

from __future__ import annotations

import gzip
import html
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foretrace import analyze
from foretrace.errors import FaultError, ForetraceError, MissingDataError, UsageError, contained
from foretrace.present.export.perfetto_page import hash_of
from foretrace.present.web import payload, static_files
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.encoding import to_json
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.timeline import timeline
from foretrace.present.web.resources.waiting import longest_gaps
from foretrace.present.web.snapshot_view import SnapshotView
from foretrace.present.web.timeline_cut import Cut, cut, cuts
from foretrace.units import visible

BUDGET_BYTES = 25_000_000
MOST_BYTES = 200_000_000
# Whole groups of three bytes, so that each part is base64 by itself.
_PART_BYTES = (6 << 20) // 4 * 3
_DETAILED_SPANS = 1_000
_NEVER = 1 << 62


@dataclass(frozen=True)
class Report:
    """The finished file, and what the reader should know about it."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    name: str
    packed: bytes

    @property
    def html_bytes(self) -> int:
        return len(self.packed) * 4 // 3 + 200


def make(
    runs: Sequence[payload.View], *, budget_bytes: int = BUDGET_BYTES, steps: tuple[int, int] | None = None
) -> Report:
    """The report of these recordings, benchmarks and snapshots, within the budget where dropping detail can achieve that."""
    if not static_files.built():
        raise MissingDataError(f"no report without the page: {static_files.HOW_TO_GET_IT}")
    page_bytes = len(static_files.text(static_files.SCRIPT)) + len(static_files.text(static_files.STYLE))
    views = [run for run in runs if isinstance(run, RecordingView)]
    benches = [run for run in runs if isinstance(run, BenchView)]
    faults: dict[str, list[str]] = {view.id: [] for view in views}
    fixed = {view.id: list(_resources(view, views, faults[view.id])) for view in views}
    benchmarks = [part for bench in benches for part in _benchmark(bench, benches)]
    benchmarks += _snapshots([run for run in runs if isinstance(run, SnapshotView)])
    taken = page_bytes + sum(part.html_bytes for parts in (*fixed.values(), benchmarks) for part in parts)
    # They are made again below, to tell what was left out.
    taken += sum(_overview(view).html_bytes for view in views)
    timelines = _timelines(views, budget_bytes - taken, steps)
    parts = [_part("runs", to_json(payload.runs(map(payload.run_entry, runs), embedded=True)))]
    for view in views:
        view.left_out = (*timelines[view.id][1], *faults[view.id])
        parts += [_overview(view), timelines[view.id][0], *fixed[view.id]]
    text = _document([run.name for run in runs], [*parts, *benchmarks])
    return Report(text, tuple(_notes(text, views, budget_bytes)))


def _benchmark(bench: BenchView, benches: Sequence[BenchView]) -> Iterator[_Part]:
    """A benchmark, and how it compares with the others of its kind."""
    others = {other.id: other for other in benches if other is not bench and other.group == bench.group}
    for name in ("benchmark", *(f"compare/{other}" for other in others)):
        made = payload.resource(bench, name, find=others.__getitem__)
        assert isinstance(made, dict)
        yield _part(f"{bench.id}/{name}", to_json(made))


def _snapshots(views: Sequence[SnapshotView]) -> Iterator[_Part]:
    """Each memory snapshot, and how it compares with the others."""
    for view in views:
        others = {other.id: other for other in views if other is not view}
        for name in ("snapshot", *(f"compare/{other}" for other in others)):
            made = payload.resource(view, name, find=others.__getitem__)
            assert isinstance(made, dict)
            yield _part(f"{view.id}/{name}", to_json(made))


def _overview(view: RecordingView) -> _Part:
    made = payload.resource(view, "overview")
    assert isinstance(made, dict)
    return _part(f"{view.id}/overview", to_json(made))


def _notes(text: str, views: Sequence[RecordingView], budget_bytes: int) -> Iterator[str]:
    if len(text) > MOST_BYTES:
        raise UsageError(
            f"the report would be {len(text) / 1e6:,.0f} MB, and browsers fail above {MOST_BYTES / 1e6:,.0f} MB: "
            "choose fewer runs, or --steps"
        )
    for view in views:
        yield from (f"{view.name}: left out {each}" for each in view.left_out)
    if len(text) > budget_bytes:
        yield (
            f"{len(text) / 1e6:,.2f} MB is above the budget of {budget_bytes / 1e6:,.2f} MB, "
            "and nothing more can be dropped"
        )


def _timelines(
    views: Sequence[RecordingView], budget_bytes: int, steps: tuple[int, int] | None
) -> dict[str, tuple[_Part, tuple[str, ...]]]:
    """The timeline of each run as detailed as the budget lets, and what it lacks."""
    made: dict[str, tuple[_Part, tuple[str, ...]]] = {}
    for number, view in enumerate(views):
        share = max(budget_bytes, 0) // (len(views) - number)
        try:
            with contained("timeline"):
                part, says = _fitting(view, share, steps)
        except FaultError as fault:
            part, says = _part(f"{view.id}/timeline", b""), (str(fault),)
        budget_bytes -= part.html_bytes
        made[view.id] = part, says
    return made


def _fitting(
    view: RecordingView, budget_bytes: int, steps: tuple[int, int] | None
) -> tuple[_Part, tuple[str, ...]]:
    """The most detailed timeline that fits, else the least detailed."""
    whole = timeline(view, tiled_above=_NEVER)
    found: tuple[_Part, tuple[str, ...]] | None = None
    for each in cuts(whole, steps):
        data, left_out = (whole, ()) if each == Cut() else cut(whole, each)
        found = _part(f"{view.id}/timeline", data), left_out
        if found[0].html_bytes <= budget_bytes:
            break
    assert found is not None
    return found


def _resources(view: RecordingView, views: Sequence[RecordingView], faults: list[str]) -> Iterator[_Part]:
    """Everything but the overview and the timeline; what was not recorded is left to the overview to tell.

    What could not be made, by a fault, is added to `faults`.
    """
    others = {each.id: each for each in views if each is not view and _alike(view, each)}
    peers = tuple(each for each in others.values() if each.group == view.group)
    single = [name for name in payload.RESOURCES if name not in (*payload.LIVE, "overview", "timeline")]
    tables = [f"table/{analysis.name}" for analysis in analyze.ANALYSES]
    compared = [f"compare/{other}" for other in others] if "compare/" in payload.RESOURCES else []
    found = [f"finding/{number}" for number in range(1, len(view.diagnosis.findings) + 1)]
    for name in (*single, *tables, *compared, *found):
        try:
            made = payload.resource(view, name, find=others.__getitem__, peers=peers)
        except FaultError as fault:
            faults.append(str(fault))
            continue
        except ForetraceError:
            continue
        yield _part(f"{view.id}/{name}", made if isinstance(made, bytes) else to_json(made))
    details = {}
    try:
        for span in _detailed(view):
            details[str(span)] = payload.resource(view, f"span/{span}")
    except FaultError as fault:
        faults.append(str(fault))
    yield _part(f"{view.id}/spans", to_json(details))


def _alike(view: RecordingView, other: RecordingView) -> bool:
    """Whether two are of one program: files that are named so, passes of one Run, or Runs of the same program."""
    return other.group == view.group or bool(view.title and view.title == other.title)


def _detailed(view: RecordingView) -> list[int]:
    """The spans whose details a report holds: those of the findings, then the longest on the device and the host, and of the gaps."""
    spans = view.trace.spans.select("id", "kind", "dur_ns")
    chosen: dict[int, None] = {}
    for ids in view.finding_spans:
        chosen.update(
            dict.fromkeys(spans[ids].sort("dur_ns", descending=True, nulls_last=True)["id"].head(50))
        )
    for kind in ("kernel", "copy", "op", "runtime", "annotation", "sync"):
        longest = spans.filter(spans["kind"] == kind).top_k(_DETAILED_SPANS // 6, by="dur_ns")
        chosen.update(dict.fromkeys(longest["id"]))
    return [*sorted(chosen)[: 2 * _DETAILED_SPANS], *longest_gaps(view)["span"]]


def _part(name: str, data: bytes) -> _Part:
    return _Part(name, gzip.compress(data, 6, mtime=0))


def _document(names: Sequence[str], parts: Sequence[_Part]) -> str:
    style, script = static_files.text(static_files.STYLE), _inline(static_files.text(static_files.SCRIPT))
    policy = (
        f"default-src 'none'; script-src '{hash_of(script)}'; style-src '{hash_of(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    pieces = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n',
        f"<title>{html.escape(visible(', '.join(names)))} · Foretrace</title>\n<style>{style}</style>\n</head>\n<body>\n",
        '<div id="page"><noscript>This page needs JavaScript.</noscript></div>\n',
        *(piece for part in parts for piece in _elements(part)),
        f"<script>{script}</script>\n</body>\n</html>\n",
    ]
    return "".join(pieces)


def _elements(part: _Part) -> Iterator[str]:
    for number, start in enumerate(range(0, len(part.packed), _PART_BYTES)):
        text = b64encode(part.packed[start : start + _PART_BYTES]).decode("ascii")
        name = html.escape(part.name)
        yield f'<script type="application/gzip+base64" data-resource="{name}" data-part="{number}">{text}</script>\n'


def _inline(script: str) -> str:
    """A script that cannot end its own element: in JavaScript these may only stand in strings and patterns."""
    return script.replace("</script", r"<\/script").replace("<!--", r"<\!--")
