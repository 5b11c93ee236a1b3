"""The link between ranks is slower than any link that these devices have."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import exposed_work, link_speed
from foretrace.diagnose.patterns.exposed_work import Exposed
from foretrace.diagnose.patterns.link_speed import LEAST_CALLS, LinkSpeed  # noqa: F401  # named on the page
from foretrace.diagnose.rule import headline, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import links
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import format_value

LEAST_SHARE = Share(0.05, "the step, in which such messages are sent and nothing is computed", JUDGEMENT)
_BOUND = "one rank's recording does not tell transfer from waiting for a slower rank, so this is a bound"
_CHECK = Fix(
    "Find out which way the messages take, and why not the fast one.",
    "NCCL_DEBUG=INFO python train.py   # P2P: NVLink or PCIe; SHM: the host's memory; NET: the network\n"
    "env | grep -E 'NCCL_(P2P|SHM|IB)_DISABLE|NCCL_SOCKET_IFNAME'   # should not be set\n"
    "nvidia-smi topo -m   # NV#: NVLink; PIX, PXB, NODE, SYS: PCIe (AMD: rocm-smi --showtopo)\n"
    "# NET/Socket between nodes is TCP: InfiniBand or RoCE is not used\n"
    "# in a container: --ipc=host or a larger --shm-size, and devices that may reach each other",
)


@headline("Messages to other ranks move at {best_bytes_per_s} at best")
@rule("The link between ranks is implausibly slow", "Slow links", see="communication")
def slow_link(case: Case) -> Iterator[Finding]:
    """Collectives that move their bytes far slower than any link of the device does.

    Finds recordings with at least {LEAST_CALLS} collectives of {links.LARGE_BYTES} or more, the fastest of which reaches less
    than {links.IMPLAUSIBLE} of what PCIe moves on this device, where collectives are exposed for at least {LEAST_SHARE} of
    the step. Bandwidths are bus bandwidths, as NCCL's tests count them; those of PCIe and NVLink are the device's own
    (`hardware.py`, each with its source). Of a device that is not known, PCIe 3 x16 is taken: it has no slower one.

    Slow
        NCCL_P2P_DISABLE=1 torchrun --nproc-per-node 8 train.py  # left over from a test

    Fast
        torchrun --nproc-per-node 8 train.py  # NCCL finds NVLink by itself

    Why
    A link at a few per cent of its speed is no matter of tuning. Something keeps NCCL from the fast way: P2P is switched
    off or not allowed in the container, or messages go over TCP though there is InfiniBand.

    How the worth is predicted
    The step is replayed with every collective whose size is known at {links.REACHED} of PCIe's bandwidth. The range is from
    nothing to NVLink's, where the device has it. That is a bound: one recording does not tell how much of a collective is
    waiting for a slower rank. So a gain is never promised. Collectives on threads of the host (gloo) are the rule
    host-collectives.

    When not
    The ranks lie on hosts whose network is no faster.
    """
    if not case.result("communication").values["collectives_count"]:
        return
    speed = link_speed.find(case)
    work = exposed_work.collectives(case)
    if not speed.is_implausible or speed.best_bytes_per_s is None or not len(work):
        return
    exposed = exposed_work.find(work)
    if too_little(
        case, "messages move slower than any link of the device can", exposed.step_share, LEAST_SHARE
    ):
        return
    large = speed.calls.filter(pl.col("size_bytes") >= links.LARGE_BYTES)
    best = format_value("_bytes_per_s", speed.best_bytes_per_s)
    yield Finding(
        says=f"Messages of {format_value('_bytes', large['size_bytes'].mean())}, {large.height / case.step_count:.3g} a step, "
        f"move at {best} at best, over the bus: implausibly slow. {_sentence(speed.expected())}.",
        why="At a few per cent of its speed a link is not the one that it should be, or is not used. What a faster one would "
        "bring is an upper bound: waiting for slower ranks counts as transfer here.",
        fix=_CHECK,
        evidence={
            "best_bytes_per_s": speed.best_bytes_per_s,
            "expected_bytes_per_s": case.device.pcie_bytes if case.device else None,
            "link_bytes_per_s": case.device.nvlink_bytes if case.device else None,
            "exposed_pct": 100 * exposed.step_share,
            "messages_per_step_count": large.height / case.step_count,
            "spans": work.spans(),
        },
        where=work.places(),
        change=_faster(case, speed, exposed) if exposed.order_is_known else None,
        at_best=min(exposed.step_share, 1.0) * (1 - links.IMPLAUSIBLE),
        unless="the ranks lie on hosts whose network is no faster.",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _faster(case: Case, speed: LinkSpeed, exposed: Exposed) -> Change:
    """Collectives over PCIe; at best over the device's own links, at worst as they are."""
    bus = links.bus_bytes_per_s(case.device)
    fastest = (case.device.nvlink_bytes if case.device else None) or bus
    return Change(
        "collectives at PCIe's bandwidth",
        _at(case, speed, exposed, bus),
        others=(exposed.shortened(0.0), _at(case, speed, exposed, fastest)),
        doubt=_BOUND,
    )


def _at(case: Case, speed: LinkSpeed, exposed: Exposed, bytes_per_s: float) -> Edit:
    """Collectives whose size is known on a link of this bandwidth."""
    taken_ns = {
        span: (dur, min(links.transfer_ns(moved, bytes_per_s), dur))
        for span, dur, moved in speed.calls.select("id", "dur_ns", "bus_bytes").iter_rows()
    }
    rows = case.tasks.filter(pl.col("id").is_in(list(taken_ns))).select("task", "id")
    gone = {task: 1 - taken_ns[span][1] / taken_ns[span][0] for task, span in rows.iter_rows()}
    return exposed.shortened(0.0, only=gone)
