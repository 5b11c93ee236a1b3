"""`sections`: the ranges that the program marked: each with its time, and the run broken down by them."""

from __future__ import annotations

from typing import Any

from foretrace.errors import MissingDataError
from foretrace.ingest import totals
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.table import documented, of_result


def sections(view: RecordingView) -> dict[str, Any]:
    """The table of sections, and the breakdown of the run; of sums alone only the latter, of Proton's scopes only the former."""
    listed = None if totals.stats(view.trace) else view.result("sections")
    try:
        broken_down = view.result("sections", breakdown=True)
    except MissingDataError:
        broken_down = None
    says = documented("sections")
    first = listed or broken_down
    assert first is not None
    return {
        "says": first.says,
        "sections": None if listed is None else of_result(listed, says=says),
        "breakdown": None if broken_down is None else of_result(broken_down, says=says),
    }
