"""How long a server may say nothing."""

from __future__ import annotations

import os

from foretrace.errors import UsageError

_PATIENCE_S = 30.0


def patience_s() -> float:
    """How long a server may say nothing: FORETRACE_URL_TIMEOUT, in seconds."""
    text = os.environ.get("FORETRACE_URL_TIMEOUT", "")
    try:
        chosen = float(text) if text else _PATIENCE_S
    except ValueError:
        chosen = 0.0
    if not 0 < chosen < 86_400:
        raise UsageError(f"FORETRACE_URL_TIMEOUT must be a number of seconds, not {text!r}")
    return chosen
