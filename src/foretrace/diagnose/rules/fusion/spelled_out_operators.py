"""Norms and activations spelled out in pointwise operators cost a launch for each, where torch has one operator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import compiling, pointwise_chains
from foretrace.diagnose.patterns.pointwise_chains import LEAST_SAVED, LEAST_SHARE, Chains, launch_ns
from foretrace.diagnose.removal import host_time
from foretrace.diagnose.rule import KERNELS, needs, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict import fusion
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Tasks


@needs(KERNELS)
@rule("Norms or activations are spelled out in small operators", "Spelled-out operators", see="sequences")
def spelled_out_operators(case: Case) -> Iterator[Finding]:
    """GELU, layer norm or RMS norm spelled out in pointwise operators, where the step follows the host.

    Looks among chains of pointwise operators between products (at least {LEAST_SHARE} of GPU time, and
    {LEAST_SAVED} of the step to save) for those that spell out what torch has as one operator, and for their gradients. If
    they are most of what can be saved and the step follows the host, this rule speaks beside unfused-elementwise: calling
    torch's operators needs no compiler.

    Slow
        y = 0.5 * x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))

    Fast
        y = F.gelu(x, approximate="tanh")

    Why
    Each of the eight operators costs the host a launch, and moves the whole tensor. torch's own operator costs one launch.

    How the worth is predicted
    Each such chain becomes one operator: its kernel takes what it moves and computes, and the host
    what one of the chain's operators took on average. Nothing else changes. The range includes compiling the model.

    When not
    The formula differs from torch's in a way that matters.
    """
    work = pointwise_chains.fusable(case, least_share=LEAST_SHARE)
    if work is None or not case.calibration.host_bound:
        return
    chains = pointwise_chains.find(case, work)
    if chains is None or not chains.mostly_spelled_out:
        return
    if too_little(case, "operators spelled out that torch has as one", chains.saved_share, LEAST_SAVED):
        return
    calls = chains.spelled_out.calls
    yield Finding(
        says=f"{chains.says()} Most of what can be saved is in operators that torch has as one: {', '.join(calls)}.",
        why="Each kernel of a chain costs a launch, and reads and writes whole tensors.",
        fix=Fix(
            "Call torch's operator; or compile the model.",
            "\n".join([*(f"y = {call}" for call in calls), "model = torch.compile(model)   # or"]),
        ),
        evidence=chains.evidence(),
        where=chains.places(),
        change=Change(
            "spelled-out operators called as one", _by_operators(chains),
            others=_compiled(case),
        ),
        unless="the formula differs from torch's in a way that matters.",
    )  # fmt: skip


def _compiled(case: Case) -> tuple[Edit, ...]:
    """The model compiled, which does more."""
    found = compiling.find(case)
    return () if found is None else (found.likely.default(),)


def _by_operators(chains: Chains) -> Edit:
    """One operator of torch in place of each chain that spells one out, with what works on its rows."""
    case = chains.case
    spelled_out = [chain for place, chain in enumerate(chains.listed) if place in chains.spelled_out.chains]
    edit = fusion.edit(chain.fused for chain in spelled_out)
    links = [link for chain in spelled_out for link in chain.links]
    within = np.zeros(len(case.program.task_span), bool)
    for chain in spelled_out:
        within[chain.links[0].task : chain.links[-1].task] = True
    within[[link.task for link in links]] = False
    on_rows = chains.work.filter(pl.Series(within) & pl.col("fusable"))
    calls = case.tasks["call"].gather([chain.links[-1].task for chain in spelled_out]).to_list()
    host = host_time(case, {link.op_id for link in links} | set(on_rows["op_id"]))
    # One operator costs what those of the chains do on average, on the unprofiled host.
    unprofiled = launch_ns(case) * case.tasks["call"].n_unique() / max(case.program.measured_host_ns, 1)
    operator_ns = round(host.total_ns * unprofiled / (len(links) + on_rows.height))
    return replace(
        edit,
        removed_tasks=Tasks(np.concatenate((edit.removed_tasks, on_rows["task"].to_numpy()))),
        removed_host=host,
        added_host_ns=dict.fromkeys(calls, operator_ns),
    )
