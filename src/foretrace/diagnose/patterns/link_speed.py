"""The speed of links: how fast large collectives moved their bytes, as NCCL's tests count them."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from foretrace.analyze.concepts.device import collective_calls
from foretrace.diagnose.case import Case
from foretrace.predict.costs import links
from foretrace.sourced import JUDGEMENT, Count
from foretrace.units import format_value

LEAST_CALLS = Count(3, "large collectives in the recording: one may have waited for another rank", JUDGEMENT)


@dataclass(frozen=True)
class LinkSpeed:
    """Collectives whose size is known, and the best of the large ones: their times include waiting for other ranks."""

    case: Case
    calls: pl.DataFrame  # id, on, collective, dtype, size_bytes, dur_ns, bus_bytes
    best_bytes_per_s: float | None  # None where too few are large

    @property
    def is_implausible(self) -> bool:
        """Whether even the best is slower than can be."""
        best = self.best_bytes_per_s
        return best is not None and links.is_implausible(self.case.device, best)

    def expected(self) -> str:
        """What the device's links move, and what is not known of them."""
        device = self.case.device
        if device is None:
            oldest = format_value("_bytes_per_s", float(links.OLDEST_BUS))
            return f"what this device's links move is not known, but PCIe 3 x16 alone moves {oldest}"
        bus = f"PCIe moves {format_value('_bytes_per_s', device.pcie_bytes)} here"
        if not device.nvlink_bytes:
            return bus
        name = "Infinity Fabric" if device.vendor == "AMD" else "NVLink"
        return f"{bus}, {name} {format_value('_bytes_per_s', device.nvlink_bytes)}"


def find(case: Case) -> LinkSpeed:
    """The collectives of the program's steps, with their bytes over the bus."""
    return case.keep("link speed", lambda: _find(case))


def _find(case: Case) -> LinkSpeed:
    program = case.program
    within = pl.col("start_ns").is_between(program.start_ns, program.start_ns + program.measured_ns)
    calls = collective_calls.find(case.trace).with_columns(factor=collective_calls.bus_factor())
    calls = calls.filter(
        within & (pl.col("on") != "call") & (pl.col("dur_ns") > 0) & (pl.col("size_bytes") > 0)
    ).filter(pl.col("factor") > 0)
    calls = calls.select(
        "id",
        "on",
        "collective",
        "dtype",
        "size_bytes",
        "dur_ns",
        bus_bytes=pl.col("size_bytes") * pl.col("factor"),
    )
    large = calls.filter(pl.col("size_bytes") >= links.LARGE_BYTES)
    best = (large["bus_bytes"] / large["dur_ns"]).max() if large.height >= LEAST_CALLS else None
    return LinkSpeed(case, calls, None if best is None else 1e9 * float(best))  # type: ignore[arg-type]
