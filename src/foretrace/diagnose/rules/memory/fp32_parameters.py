"""Parameters are trained in fp32."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.analyze.concepts.memory import batch_bytes, trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import Factors, Memory, MemoryChange, factors
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory, half_activations
from foretrace.diagnose.patterns.adam_state import ADAM, STATE, STATES
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import SHAPES, headline, needs, rule
from foretrace.predict.costs.precision import ITEM_BYTES
from foretrace.units import format_value

_HALF = ITEM_BYTES["bf16"] / ITEM_BYTES["fp32"]


@needs(BLOCKS, SHAPES)
@headline("Parameters in bf16 would free {freed_pct:.0f} % of the peak")
@rule("Parameters are trained in fp32", "Parameters in fp32", see="memory")
def fp32_parameters(case: Case) -> Iterator[Finding]:
    """Parameters that are trained in fp32, where a model in bf16 would lower the peak.

    Finds parameters whose gradients the backward pass adds up in fp32, where those and their gradients alone, in bf16, would
    lower the peak by at least {LEAST_FREED}. Where the peak is less than {LEAST_HELD} of the device's memory it is only
    mentioned. Activations alone are told by `fp32-activations`.

    Slow
        model = Model().to("cuda")

    Fast
        model = Model().to("cuda", torch.bfloat16)

    Why
    Parameters, their gradients and the state that Adam keeps in their type ({STATES} values for each element) take half the
    bytes in bf16, and so does what is computed with them.

    How the worth is predicted
    The curve of allocated memory is replayed with parameters, gradients, the optimizer's temporary tensors, Adam's state and
    the activations that products lead to at half their size. At the lower end of the range activations stay as they are, and
    so does Adam's state. Made together with bf16 autocast, or with state in 8 bits, nothing is freed twice. The time is
    predicted by `no-tensor-cores`.

    When not
    Small updates are lost in bf16, which has 8 bits of precision: training has to be checked. Copies of the parameters in
    fp32, for the update, take the memory again. Only trained parameters are seen: without a backward pass nothing is told.
    """
    trained = trained_parameters.of_a_step(case.whole)
    trained = trained.filter(pl.col("size_bytes") == ITEM_BYTES["fp32"] * pl.col("elements"))
    memory = freed_memory.memory_of(case)
    size = int(trained["size_bytes"].sum())
    state = STATES * size if freed_memory.names_there(case, ADAM) else 0
    if not size or size + state > memory.peak_bytes:
        return  # more than was there: gradients of several passes are listed
    change, least = _changes(case, memory, size, state)
    freed = Freed(memory, change, (least,))
    alone = Freed(
        memory, least
    )  # activations in bf16 need no parameters in bf16: `fp32-activations` tells of them
    what = (
        f"parameters and gradients in bf16 would free {format_value('_bytes', round(alone.size_bytes.point))}"
    )
    if freed_memory.not_worth(case, what, alone, least=LEAST_FREED, held=LEAST_HELD):
        return
    yield Finding(
        says=f"Parameters of {format_value('_bytes', size)} are trained in fp32: in bf16 the peak falls from "
        f"{format_value('_bytes', memory.peak_bytes)} to {format_value('_bytes', freed.after_bytes)}.",
        why="Parameters, gradients, the optimizer's state and activations take half the bytes.",
        fix=Fix(
            "Train in bf16, if the updates are large enough for it.",
            'model = Model().to("cuda", torch.bfloat16)\nbatch = batch.to(torch.bfloat16)',
        ),
        evidence=freed_memory.evidence(
            freed, parameters_bytes=size, state_bytes=state, parameters_count=trained.height
        ),
        unless="updates are too small for bf16, which has to be tried.",
        severity=freed_memory.severity(case),
        freed=freed,
    )


def _changes(case: Case, memory: Memory, size: int, state: int) -> tuple[MemoryChange, MemoryChange]:
    """The curve with a model in bf16: as expected, and with parameters and gradients alone in bf16."""
    kinds = batch_bytes.category(case.whole)
    stepping = memory.within(batch_bytes.optimizer_steps(case.whole))
    temporary = (kinds == "temporary").to_numpy() & stepping
    own = factors(np.flatnonzero((kinds == "gradient").to_numpy() | temporary), _HALF)
    says = "parameters in bf16"
    halved = -round((1 - _HALF) * size)
    narrowed = half_activations.narrowed(case.whole)
    activations = narrowed[-1].factors if narrowed is not None else Factors()
    always = {"parameters": halved, STATE: -round((1 - _HALF) * state), half_activations.COPIES: 0}
    return (
        MemoryChange(says, factors=activations.but(own), always_bytes=always),
        MemoryChange(says, factors=own, always_bytes={"parameters": halved}),
    )
