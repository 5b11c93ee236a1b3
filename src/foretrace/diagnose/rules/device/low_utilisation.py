"""The GPU works less than half of the time, and its memory has room for a larger batch."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.device import device_time
from foretrace.diagnose.bound import bound
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import batch_parts
from foretrace.diagnose.rule import KERNELS, headline, healthy, needs, rule
from foretrace.diagnose.seen import seen
from foretrace.errors import MissingDataError
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import format_value

BUSY_BELOW = Share(0.5, "the step that the GPU works", "the PyTorch profiler plugin of TensorBoard")
ROOM_BELOW = Share(
    0.5, "the device's memory, held at the peak: less than that is room for twice the items", JUDGEMENT
)
_WAITS = {"input": "its input", "communication": "other ranks", "copy": "copies"}


@needs(KERNELS)
@healthy("overview", "{gpu_busy_pct:.0f} % busy, as recorded")
@headline("The GPU works {busy_pct:.0f} % of a step, and {held_pct:.0f} % of its memory is used")
@rule("The GPU is idle half of the time, with room for a larger batch", "GPU utilisation", see="overview")
def low_utilisation(case: Case) -> Iterator[Finding]:
    """A GPU that works for less than half of a step while its memory is less than half full.

    Finds programs whose GPU work takes less than {BUSY_BELOW} of the step without a profiler, whose memory at the peak is less
    than {ROOM_BELOW} of the device's, and that wait for the host: not for input, copies or other ranks. Where kernels leave
    multiprocessors empty, small-batch speaks instead, and gradient-accumulation where a batch is split.

    Slow
        loader = DataLoader(dataset, batch_size=8)

    Fast
        loader = DataLoader(dataset, batch_size=32)  # for serving: requests batched together

    Why
    The host takes as long to launch a step of many items as one of few. While the GPU waits for the host, more items
    in a step cost little time.

    How the worth is predicted
    It is not here: more items a step are other work, and a step would take longer. What falls is the time per item.
    `foretrace predict PATH --change 'scale batch 2'` predicts that.

    When not
    The batch is given by the task, a larger one trains worse, or the host's part can be made shorter: see the findings about
    launches and waits, which help at any batch size.
    """
    devices = max(len(device_time.by_device(device_time.device_work(case.trace))), 1)
    busy = min(case.device_ns / devices / case.step_count / max(case.step_ns, 1), 1.0)
    if busy >= BUSY_BELOW:
        return
    if batch_parts.filled_share(batch_parts.kernels(case)) < batch_parts.FILLED_BELOW or batch_parts.find(
        case
    ):
        return
    waits = _WAITS.get(bound(case))
    if waits:
        seen(
            case, f"the GPU works {100 * busy:.0f} % of a step, but the step waits for {waits}, not for items"
        )
        return
    held, total = _memory(case)
    if held / total >= ROOM_BELOW:
        seen(
            case,
            f"the GPU works {100 * busy:.0f} % of a step, but {100 * held / total:.0f} % of its memory is held at the "
            "peak: no room for twice the items",
        )
        return
    yield Finding(
        says=f"The GPU works {100 * busy:.0f} % of a step, and at the peak {format_value('_bytes', held)} of its "
        f"{format_value('_bytes', total)} are allocated, {100 * held / total:.2g} %.",
        why="While the GPU waits for the host, more items in a step cost little time.",
        fix=Fix(
            "Give each step more items, if the task allows it: compare time per item, not per step.",
            "loader = DataLoader(dataset, batch_size=2 * batch_size)   # in training, check the learning rate too\n"
            "# foretrace predict PATH --change 'scale batch 2'   says what an item would take then",
        ),
        evidence={
            "busy_pct": 100 * busy,
            "held_pct": 100 * held / total,
            "peak_bytes": held,
            "memory_bytes": total,
        },
        unless="the batch is given by the task, or a larger one trains worse.",
    )


def _memory(case: Case) -> tuple[int, int]:
    """The most that torch had allocated, and the device's memory; of the rich recording where this one has none."""
    try:
        values = case.values("memory", by="curve")
    except MissingDataError:
        if case.rich is None:
            raise
        values = case.rich.values("memory", by="curve")
    peak, share = values["peak_bytes"], values["device_peak_pct"]
    if not isinstance(peak, int) or not isinstance(share, int | float) or not share:
        raise MissingDataError(f"{case.trace.path.name}: the size of the device's memory was not recorded")
    return peak, round(100 * peak / share)
