"""Output where the encoding has no `µ`: what the encoding lacks is spelled with what it has, one character for one in tables."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

SPELLED = "foretrace.spelled"  # the name of the error handler
# `→` is longer: it stands in sentences only.
SPELLINGS = {
    "µ": "u", "μ": "u", "×": "x", "→": "->", "–": "-", "−": "-", "…": "~", "·": "*", "●": "*", "±": "~", "²": "2",
    "ᵀ": "T", "■": "#", "▇": "#", "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": ".", "▎": ".", "▏": ".",
    "▓": "+", "░": "-", "▁": ".", "▂": ".", "▃": ".", "▄": "#", "▅": "#", "▆": "#", "›": ">",
}  # fmt: skip


def spell_out(stream: TextIO) -> None:
    """Lets a stream write any text: characters that its encoding lacks as `SPELLINGS` has them, others as ?."""
    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error(SPELLED, _spelled)
        stream.reconfigure(errors=SPELLED)


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(SPELLINGS.get(character, "?") for character in lacking), error.end
