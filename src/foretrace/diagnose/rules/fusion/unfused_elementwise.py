"""Chains of pointwise kernels each read and write whole tensors that one fused kernel would keep in registers."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import pointwise_chains
from foretrace.diagnose.patterns.pointwise_chains import LEAST_SAVED, LEAST_SHARE, Chains
from foretrace.diagnose.rule import KERNELS, headline, healthy, needs, rule
from foretrace.predict.changes import Change
from foretrace.predict.costs import compiled, streaming  # noqa: F401  # named on the page


@needs(KERNELS)
@headline("{chains_pct:.0f} % of GPU time goes to chains of pointwise kernels")
@healthy("sequences", "{candidate_count:,} short chains, little to save")
@rule("Pointwise operators run one kernel each", "Pointwise chains", see="sequences")
def unfused_elementwise(case: Case) -> Iterator[Finding]:
    """Chains of pointwise operators, casts, norms and reductions over the same elements, one kernel each.

    Takes together all pointwise work, norms and reductions over equally many elements that lie between two kernels that
    cannot be fused (matrix products, attention, indexing), in one phase of the step; also across a product that makes the
    other operand of a gate. Speaks where such work takes at least {LEAST_SHARE} of GPU time and fusing it saves at least
    {LEAST_SAVED} of the step.

    Left out are torch's own losses, which are often computed outside the compiled model, the optimizer, and what already
    is compiled. Attention has a rule of its own (unfused-attention), and so have chains that spell out one of torch's
    operators where the step follows the host (spelled-out-operators).

    Slow
        def forward(self, x):
            return torch.sigmoid(self.gate(x)) * self.scale + self.shift

    Fast
        model = torch.compile(model)

    Why
    A pointwise kernel does next to nothing with each element but move it. Ten in a row move it twenty times.

    How the worth is predicted
    One kernel replaces each chain. It takes the longest of three times: to move its outside operands, what lives on and its
    result at {streaming.BANDWIDTH_SHARE} of the bandwidth; to run its instructions (a tanh has 22) at the peak rate; and
    the slowest reduction in it as recorded, but for a layer norm of rows of at most {compiled.SHORT_ROW} values. A batch
    norm keeps all its kernels.

    Where the step follows the host, compiled code launches fewer kernels, but each launch costs {compiled.LAUNCH_COST} times
    as much. Elsewhere the host's time stays.

    When not
    Shapes change from step to step, so that the model is compiled over and over, or operators between the chains keep the
    compiler from fusing them.
    """
    chains = pointwise_chains.find(case, least_share=LEAST_SHARE)
    if chains is None or chains.saved_share < LEAST_SAVED or chains.mostly_spelled_out:
        return
    calls = chains.spelled_out.calls
    yield Finding(
        says=chains.says(),
        why="Each kernel of a chain reads and writes whole tensors that a fused one keeps in registers.",
        fix=Fix(
            "Compile the model, or the function that holds the chain"
            + ("; or call what torch has as one operator." if calls else "."),
            "\n".join(["model = torch.compile(model)", *(f"y = {call}   # or" for call in calls)]),
        ),
        evidence=chains.evidence(),
        where=chains.places(),
        change=_change(chains),
        unless="shapes change from step to step, so that it is compiled over and over, or operators between hinder "
        "the compiler.",
    )


def _change(chains: Chains) -> Change:
    """One kernel for each chain. Where the step follows the host: fewer launches, each of which costs more."""
    fused = chains.fused()
    with_host = chains.compiled() if chains.case.calibration.host_bound else None
    if with_host is None:
        return Change("pointwise chains fused", fused)
    return Change("pointwise chains fused", with_host, others=(fused,))
