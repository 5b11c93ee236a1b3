"""The device's memory is nearly full."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.rule import healthy, rule
from foretrace.errors import MissingDataError
from foretrace.sourced import Share
from foretrace.units import format_value

FULL = Share(0.90, "the device's memory", "the PyTorch profiler plugin of TensorBoard")


@healthy("memory", "{peak_bytes} at the peak, {device_peak_pct:.0f} % of the device's")
@rule("GPU memory is nearly full", "Memory", see="memory")
def memory_pressure(case: Case) -> Iterator[Finding]:
    """A program that at its peak holds more than {FULL} of the device's memory.

    Compares the peak of what torch had allocated, or of what it had reserved, with the device's memory.

    Slow
        for batch in DataLoader(data, batch_size=64):
            train(batch)

    Fast
        for batch in DataLoader(data, batch_size=32):  # the largest batch that fits: `foretrace show memory-fit`
            train(batch)

    Why
    Close to the limit the allocator gives memory back and takes it again, which waits for the device. A slightly longer
    input ends the program.

    Ways to hold less have rules of their own, each with what it would free: `uncheckpointed-blocks`, `fp32-activations`,
    `fp32-parameters`, `fp32-optimizer-state`, `foreach-temporaries`, `kept-gradients`, `kept-references`, `split-segments`.
    Besides them: a smaller batch with gradient accumulation, and optimizer state that is sharded.

    How the worth is predicted
    It is not: a recording does not tell what the allocator would have done with more room.

    When not
    What is reserved is cache that nobody needs.
    """
    values = case.values("memory", by="curve")
    share = values["device_peak_pct"]
    peak = values["peak_bytes"]
    if not isinstance(share, int | float) or not isinstance(peak, int):
        raise MissingDataError(f"{case.trace.path.name}: the size of the device's memory was not recorded")
    reserved = values["reserved_peak_bytes"]
    held = max(float(share), share * reserved / peak) if isinstance(reserved, int) and peak else float(share)
    if held <= 100 * FULL:
        return
    largest = case.result("memory").table.row(0, named=True)
    yield Finding(
        says=f"At its peak the program allocates {format_value('_bytes', peak)}, and holds {held:.0f} % of the device's "
        "memory.",
        why="Close to the limit the allocator gives memory back and takes it again, which waits for the device.",
        fix=Fix(
            "Hold less at the peak: the findings about memory say what each change would free; else take a smaller batch.",
            "foretrace show memory-fit PATH   # the largest batch that fits",
        ),
        evidence={
            "peak_bytes": peak,
            "device_peak_pct": share,
            "held_pct": held,
            "reserved_peak_bytes": reserved,
            "largest": largest.get("category"),
            "largest_bytes": largest.get("peak_bytes"),
        },
        unless="what is reserved is cache that nobody needs.",
    )
