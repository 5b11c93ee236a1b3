"""The Processor: what a Run knows of the CPU that a program computes on, and of the threads that torch uses there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Processor:
    """A rank's processor; `None` where something is not known."""

    model: str
    flags: frozenset[str] | None
    threads: int | None  # that an operator of torch may use
    cores: float | None  # that this rank may use: affinity, quota and the other ranks taken into account
    load_average: float | None  # of the whole machine when the rank began

    @property
    def bf16(self) -> str | None:
        """The instructions by which it multiplies bf16: amx_bf16 or avx512_bf16; None where it has none or nobody says."""
        return next((name for name in ("amx_bf16", "avx512_bf16") if name in (self.flags or ())), None)


def read_processor(facts: object, cores: float | None) -> Processor | None:
    """From what rank.json holds; what is missing or makes no sense is not known."""
    if not isinstance(facts, Mapping):
        return None
    flags = facts.get("flags")
    threads = _number(facts, "torch_threads_count")
    return Processor(
        model=str(facts.get("model") or "this processor")[:80],
        flags=frozenset(str(flag) for flag in flags) if isinstance(flags, list) else None,
        threads=int(threads) if threads else None,
        cores=min((count for count in (_number(facts, "usable_cpu_count"), cores) if count), default=None),
        load_average=_number(facts, "load_average"),
    )


def _number(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
