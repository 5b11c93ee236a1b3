"""Dispatch: what the host needs to call operators and to launch their work."""

from __future__ import annotations

import numpy as np

from foretrace.predict.calibrate import dense_ns
from foretrace.predict.program import LAUNCH, Program
from foretrace.sourced import JUDGEMENT, Nanoseconds

OPERATOR_NS = Nanoseconds(
    10_000,
    "the host to call an operator that launches a kernel, where the recording does not tell",
    "operators of the corpus take 5 to 20 µs",
    devices="H200's host",
)
LEAD_NS = Nanoseconds(
    10_000, "an operator before it calls anything, where the recording does not tell", JUDGEMENT
)
LONGEST_CALL_NS = Nanoseconds(
    40_000, "a call that launches: a longer one loads a module, allocates or waits", JUDGEMENT
)


def operator_ns(program: Program) -> int:
    """What the host usually needs for an operator with one launch, as this program has it."""
    launches = np.flatnonzero(program.kind == LAUNCH)
    host_ns = dense_ns(program) + program.base_ns
    return int(np.median(host_ns[launches])) if len(launches) else int(OPERATOR_NS)
