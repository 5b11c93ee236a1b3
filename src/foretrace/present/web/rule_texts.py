"""What the page says of a rule that found nothing."""

from __future__ import annotations

import foretrace.diagnose as diagnose
from foretrace.present.web.recording_view import RecordingView

# Analyses that the rules and the page have made anyway: of a large recording, no other is made for one number.
_AT_HAND = ("overview", "cold-start", "communication", "memory")
_LARGE = 500_000
_NO_ISSUE = "nothing to gain"


def checked(view: RecordingView, rule: str) -> str:
    """What was seen where the rule found nothing: a number where one is at hand."""
    healthy = diagnose.find(rule).healthy
    if healthy is None:
        return _NO_ISSUE
    if healthy.analysis not in _AT_HAND and view.trace.spans.height > _LARGE and not healthy.absent:
        return _NO_ISSUE
    result = view.maybe(healthy.analysis, **healthy.options)
    said = healthy.absent if result is None else healthy.says(result.values)
    return said or _NO_ISSUE
