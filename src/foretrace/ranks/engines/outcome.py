"""What became of one recording: the bytes of its summary, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.errors import ForetraceError, fault_text, is_fault
from foretrace.ranks.summarise import summarise

IN_MEMORY = "memory://"  # what no other process can see


@dataclass(frozen=True)
class Outcome:
    """A recording's summary, or the reason why it has none."""

    path: str
    summary: bytes | None
    reason: str = ""
    lost: bool = False  # who read it died: the recording itself may be sound


def summary_of(path: str) -> Outcome:
    """The same in every engine: a recording that cannot be read is told, and is not tried again."""
    try:
        return Outcome(path, summarise(path).to_bytes())
    except ForetraceError as error:
        return Outcome(path, None, str(error))
    except BaseException as error:
        if not is_fault(error):
            raise
        return Outcome(path, None, fault_text(error))
