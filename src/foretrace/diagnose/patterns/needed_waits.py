"""Waits that a program cannot do without: for the sizes of a collective's parts, or for what it returns.

An exchange between experts (all_to_all with split sizes) must know on the host how much it sends. A step of inference ends
when its result is on the host, and a loop that generates goes by the tokens that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.host_waits import HostWaits
from foretrace.predict.graph_capture import NEAR_END
from foretrace.predict.numbers import Calls
from foretrace.predict.waits import FLOATS, brings_values, for_splits, types_read

SPLITS = "the host reads how a collective (all_to_all) splits its tensor, and cannot call it without"
OUTPUT = "the wait is the last of a step of inference: it brings the result, which the program returns"
CHOSEN = (
    "what is read was chosen right before by argmax, multinomial or topk: tokens or a choice that the program returns or "
    "goes by"
)
_CHOOSES = r"^aten::(?:argmax|multinomial|topk)$"
_SINGLE = r"^aten::(?:item|_local_scalar_dense|is_nonzero)$"


@dataclass(frozen=True)
class Needed:
    """For each of some calls, why it is needed; empty where nothing shows that it is."""

    why: tuple[str, ...]

    @property
    def flags(self) -> NDArray[np.bool_]:
        """Whether each is needed."""
        return np.array([bool(reason) for reason in self.why], bool)

    def reasons(self) -> str:
        """All reasons, once each, most frequent first."""
        given = [reason for reason in self.why if reason]
        return "; ".join(sorted(set(given), key=lambda reason: -given.count(reason)))


def needed(case: Case, waits: HostWaits) -> Needed:
    """Which of these waits the program needs, and why."""
    calls = waits.calls
    why = np.where(for_splits(case.trace, case.host, case.program, calls), SPLITS, "")
    if not case.trains:
        types = types_read(case.trace, case.host, case.program, calls)
        whole = np.array([text is not None and not FLOATS.search(text) for text in types], bool)
        brings = brings_values(case.host, case.program, calls)
        single = case.host.named(_SINGLE, "op")[waits.readers]
        # A single number with a fraction is a loss or a measure, which can be summed on the device.
        results = brings & (whole | ~single) & _at_end(case, waits)
        for flags, reason in ((brings & whole & _chosen(case, calls), CHOSEN), (results, OUTPUT)):
            why = np.where(flags & (why == ""), reason, why)
    return Needed(tuple(why.tolist()))


def _at_end(case: Case, waits: HostWaits) -> NDArray[np.bool_]:
    """Whether next to nothing is launched in the step behind each wait, and nothing that the host computes of what it read."""
    program, calls = case.program, waits.calls
    launches = np.flatnonzero(np.diff(program.task_from) > 0)
    bounds = np.searchsorted(launches, np.append(program.step_calls, len(program.kind)))
    step = np.clip(program.step[calls], 0, len(program.step_calls) - 1)
    behind = bounds[step + 1] - np.searchsorted(launches, calls, "right")
    few: NDArray[np.bool_] = behind <= NEAR_END * (bounds[step + 1] - bounds[step])
    following = np.append(launches, -1)[np.searchsorted(launches, calls, "right")]
    return few & ~np.isin(following, waits.computing.next_calls)


def _chosen(case: Case, calls: Calls) -> NDArray[np.bool_]:
    """Whether an operator that chooses ran between each of these calls and the wait before it."""
    host, program = case.host, case.program
    at = np.sort(host.start_ns[host.named(_CHOOSES, "op")]) - program.start_ns
    order = np.argsort(calls, kind="stable")
    start = program.call_start_ns[calls[order]]
    since = np.concatenate(([np.iinfo(np.int64).min], start[:-1]))
    found = np.zeros(len(calls), bool)
    found[order] = np.searchsorted(at, start) > np.searchsorted(at, since)
    return found
