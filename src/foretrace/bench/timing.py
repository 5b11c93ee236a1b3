"""A Timing is how something is to be timed: on which device, for how long, one call at a time or many."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from foretrace.errors import UsageError, unknown
from foretrace.sourced import JUDGEMENT, Count, Nanoseconds, Share

_NVBENCH = "nvbench's default"

WARMUP_NS = Nanoseconds(
    200_000_000, "calls before the first sample, so that clocks and caches settle", JUDGEMENT
)
LEAST_NS = Nanoseconds(500_000_000, "sampling, at least", _NVBENCH)
MOST_NS = Nanoseconds(15_000_000_000, "sampling, at most", _NVBENCH)
LEAST_SAMPLES = Count(10, "samples, at least, unless time is up", _NVBENCH)
PRECISE = Share(0.005, "the median, as half of its interval: then it is known well enough", _NVBENCH)

How = Literal["back-to-back", "flush", "single"]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """How to time: the device, what a sample is, and when to stop.

    `how` is what a sample is: "back-to-back", many calls in a row, as in a loop; "flush", one call after the device's L2 cache was
    emptied; "single", one call from its start on the host until all of its work is done, launches included.
    """

    device: str = "auto"
    how: How = "back-to-back"
    warmup_s: float = WARMUP_NS / 1e9
    least_s: float = LEAST_NS / 1e9
    most_s: float = MOST_NS / 1e9
    least_samples: int = int(LEAST_SAMPLES)
    precise: float = float(PRECISE)
    timeout_s: float | None = None  # of a whole case; then it is a row with the status TIMEOUT
    isolate: bool = False  # each case in a process of its own
    cold: bool = False  # the first calls of a process of its own are the samples: no warm-up
    seed: int = 0

    def __post_init__(self) -> None:
        if self.how not in ("back-to-back", "flush", "single"):
            raise unknown(
                f"how={self.how!r}", self.how, ("back-to-back", "flush", "single"), listed="it is one of"
            )
        if self.device != "auto" and self.device.partition(":")[0] not in ("cpu", "cuda"):
            kind = self.device.partition(":")[0].replace(
                "gpu", "cuda"
            )  # as torch calls it, NVIDIA's or AMD's
            raise unknown(f"no device {self.device!r}", kind, ("auto", "cpu", "cuda", "cuda:N"))
        for name in ("warmup_s", "least_s", "most_s", "precise", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e6:
                raise UsageError(f"{name}={value}: a number from 0")
        if self.timeout_s == 0 or self.most_s == 0:
            raise UsageError("no time to measure in")
        if self.least_samples < 1:
            raise UsageError("least_samples: at least 1")

    @property
    def apart(self) -> bool:
        """Whether each case runs in a process of its own."""
        return self.isolate or self.cold

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it goes to a process of its own and into the JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Timing:
        """What `to_dict` gave."""
        return cls(**{field.name: data[field.name] for field in fields(cls) if field.name in data})
