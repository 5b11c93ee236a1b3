"""A Format is a kind of file as a user knows it: what makes it, how well it is read, and what it cannot tell.

Every reader declares its own in `FORMATS`; `foretrace formats`, docs/reference/formats.md and the README's table are made
from these.
"""

from __future__ import annotations

from dataclasses import dataclass

# How much of Foretrace a format feeds, from all of it down to nothing.
READ = {
    "all": "every analysis, as far as it was recorded",
    "timeline": "a timeline of device work and what launched it, without torch's operators",
    "totals": "sums by name: no timeline, so no idle time and no prediction",
    "kernels": "measurements of single kernels",
    "memory": "memory of the allocator, by `foretrace memory`",
    "no": "told by its content and not read",
}


@dataclass(frozen=True)
class Format:
    """One kind of file."""

    name: str
    files: str  # how its files are usually called
    made_by: str  # the command or call that writes it
    read: str  # a key of READ
    lacks: str  # what it cannot tell, and where there is a way, what to record instead

    def __post_init__(self) -> None:
        if self.read not in READ:
            raise ValueError(f"{self.name}: read is one of {', '.join(READ)}, not {self.read!r}")
