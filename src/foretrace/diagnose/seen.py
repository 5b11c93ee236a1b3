"""What a rule saw that is no finding here: it is there, but takes too little, or is not what the step waits for.

"Checked, no issue" is for what is not there at all: a rule that saw something says so, with the figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from foretrace.sourced import JUDGEMENT, Share

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case

LEAST = Share(
    0.001, "what a limit is of, from which on a rule speaks of something below its limit", JUDGEMENT
)


@dataclass(frozen=True)
class Seen:
    """One thing that is there, and why it is no finding; the diagnosis fills in `rule`."""

    says: str
    rule: str = ""


def seen(case: Case, says: str) -> None:
    """Keeps what the rule at work saw, and why it is no finding, as one clause with its figure."""
    if Seen(says) not in case.seen:
        case.seen.append(Seen(says))


def too_little(case: Case, what: str, share: float, limit: Share) -> bool:
    """Whether a share is below a rule's limit; what there is of it all the same is kept."""
    if share >= limit:
        return False
    if share >= LEAST:
        seen(case, f"{what}: {100 * share:.3g} % of {limit.of}, less than {limit}")
    return True
