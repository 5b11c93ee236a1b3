"""Ranks with GPUs communicate through the host."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.diagnose.patterns import exposed_work, link_speed
from foretrace.diagnose.patterns.exposed_work import Exposed
from foretrace.diagnose.rule import KERNELS, headline, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs import links, overlap
from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import format_value

LEAST_SHARE = Share(
    0.05, "the step, in which the host sends messages and the GPU computes nothing", JUDGEMENT
)
_NCCL, _HALVED = "nccl", "bf16"
_FP32 = ("Float", "float")
_BOUND = "one rank's recording does not tell transfer from waiting for a slower rank, so this is a bound"
_SHARED = " This rank sees one GPU only: if the ranks share it, NCCL cannot be used, and nothing is predicted for it."
_IF_SHARED = "Let NCCL move what lies on the GPU, one GPU for each rank. Where ranks must share one, send gradients in bf16."
_USE_NCCL = Fix(
    "Let NCCL move what lies on the GPU: gloo, MPI and UCC take it through the host's memory.",
    'dist.init_process_group("nccl")   # one GPU for each rank; "cpu:gloo,cuda:nccl" where tensors of the host are sent too\n'
    "# AMD: the same name, it is RCCL there",
)
_NARROWER = Fix(
    "Send gradients in bf16: half the bytes.",
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
)


@needs(KERNELS)
@headline("Ranks with GPUs communicate through the host for {exposed_pct:.0f} % of a step")
@rule("Collectives take the way through the host", "Backend", see="communication")
def host_collectives(case: Case) -> Iterator[Finding]:
    """A program on GPUs whose collectives run on threads of the host: gloo, MPI or UCC, not NCCL.

    Finds programs with GPU work whose collectives all run on the host, where the GPU computes nothing meanwhile for at least
    {LEAST_SHARE} of the step. exposed-communication and slow-link are about collectives on the GPU.

    Slow
        dist.init_process_group("gloo")
        model = DDP(model.cuda())

    Fast
        dist.init_process_group("nccl")
        model = DDP(model.cuda())

    Why
    gloo copies each tensor to the host, sums it there with a few threads, sends it over TCP and copies it back. NCCL moves it
    from GPU to GPU over NVLink, PCIe or InfiniBand, in kernels that run beside the computation. Larger buckets do not
    change the way.

    How the worth is predicted
    The step is replayed with the collectives whose size is known at {links.REACHED} of PCIe's bandwidth, and the host
    standing still only for that long. The range is from nothing to the device's own links, where it has them. That is a bound:
    one recording does not tell how much of a collective is waiting for a slower rank. So a gain is never promised. Where a
    rank sees one GPU only, the ranks may share it, and NCCL needs one for each: then sums of fp32 tensors are replayed in
    bf16, with {links.BF16_SHARE} of the bytes, of which {overlap.COLLECTIVES_HIDDEN} of the saving is taken, and all of it as
    the bound.

    When not
    The ranks share one GPU, or only a few numbers of the host are sent.
    """
    if not case.result("communication").values["collectives_count"] or len(exposed_work.collectives(case)):
        return
    exposed = exposed_work.collectives_on_host(case)
    if too_little(case, "collectives on the host's threads", exposed.step_share, LEAST_SHARE):
        return
    speed, shared = link_speed.find(case), _may_share(case)
    best = speed.best_bytes_per_s
    moved = f" Messages move at {format_value('_bytes_per_s', best)} at best." if best else ""
    yield Finding(
        says=f"For {exposed.exposed_ns / case.step_count / 1e6:.3g} ms a step, {100 * exposed.step_share:.0f} % of it, threads "
        f"of the host send messages to other ranks and the GPU computes nothing.{moved}{_SHARED * shared}",
        why="The backend takes tensors of the GPU through the host's memory, and what no computation hides adds to the step.",
        fix=Fix(_IF_SHARED, f"{_USE_NCCL.code}\n{_NARROWER.code}") if shared else _USE_NCCL,
        label=_HALVED if shared else _NCCL,
        evidence={
            "exposed_ns": exposed.per_step_ns,
            "exposed_pct": 100 * exposed.step_share,
            "best_bytes_per_s": best,
            "expected_bytes_per_s": case.device.pcie_bytes if case.device else None,
        },
        change=_halved(case, exposed) if shared else _on_links(case, exposed),
        alternatives=() if shared else _narrower(case, exposed),
        at_best=0.0 if shared else min(exposed.step_share, 1.0),
        unless="the ranks share one GPU, or only a few numbers of the host are sent.",
    )


def _may_share(case: Case) -> bool:
    """Whether several ranks see one GPU only: NCCL cannot help ranks that share one."""
    world, devices = case.trace.meta.get("world_size"), case.trace.meta.get("devices")
    return isinstance(world, int) and world > 1 and isinstance(devices, list) and len(devices) == 1


def _on_links(case: Case, exposed: Exposed) -> Change | None:
    """Collectives over PCIe; at best over the device's own links, at worst as they are. None where no size is known."""
    calls = link_speed.find(case).calls.filter(pl.col("on") == "host")
    taken_ns = int(calls["dur_ns"].sum())
    if not taken_ns:
        return None

    def gone(bytes_per_s: float) -> float:
        times = zip(calls["dur_ns"], calls["bus_bytes"], strict=True)
        left: float = sum(min(links.transfer_ns(moved, bytes_per_s), dur) for dur, moved in times)
        return 1 - left / taken_ns

    bus = links.bus_bytes_per_s(case.device)
    fastest = (case.device.nvlink_bytes if case.device else None) or bus
    return Change(
        "collectives at PCIe's bandwidth",
        exposed.shortened(gone(bus)),
        others=(exposed.shortened(0.0), exposed.shortened(gone(fastest))),
        doubt=_BOUND,
    )


def _halved(case: Case, exposed: Exposed) -> Change | None:
    """Sums of large fp32 tensors in bf16; None where there are none."""
    summed = pl.col("collective").is_in(("all_reduce", "reduce_scatter")) & pl.col("dtype").is_in(_FP32)
    calls = link_speed.find(case).calls.filter(summed & (pl.col("size_bytes") >= links.LARGE_BYTES))
    if calls.is_empty():
        return None
    saved = 1 - links.BF16_SHARE
    return Change(
        "sums of fp32 tensors sent in bf16",
        exposed.shortened(overlap.COLLECTIVES_HIDDEN * saved),
        others=(exposed.shortened(0.0), exposed.shortened(saved)),
        doubt=_BOUND,
    )


def _narrower(case: Case, exposed: Exposed) -> tuple[Alternative, ...]:
    """The same backend with fewer bytes, for ranks that must stay with it."""
    change = _halved(case, exposed)
    unless = "the sums need more than bf16's 8 bits."
    return (Alternative(_HALVED, _NARROWER, change, unless, may_lead=False),) if change else ()
