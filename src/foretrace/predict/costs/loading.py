"""Batches from worker processes: what handing one over costs, and what more workers bring."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Factor, Nanoseconds, Share

_MEASURED = "benchmarks/loader.py, one worker against none; torch 2.13 on a busy machine of two cores"

TAKEN_NS = Nanoseconds(
    120_000,
    "the main process, for a batch that a worker has ready",
    "0.09 to 0.14 ms for 77 MB in corpus/real/imagenet, with pin_memory",
)
SENT_NS = Nanoseconds(600_000, "a worker, to send a batch", f"{_MEASURED}: 0.63 ms for 1 to 64 KiB")
SENT_NS_PER_BYTE = Factor(
    0.9,
    "nanoseconds a byte of a batch, to write it to shared memory",
    f"{_MEASURED}: 0.4 to 1.6 for 1 to 64 MiB",
)
LEAST_OF_A_CORE = Share(
    0.5, "a worker's pace that a further one brings at least: two threads share a core", JUDGEMENT
)


def sent_ns(batch_bytes: int) -> float:
    """How long a worker needs to hand a batch over, besides making it."""
    return SENT_NS + SENT_NS_PER_BYTE * batch_bytes
