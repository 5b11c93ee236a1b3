"""Adam's state takes twice the bytes of the parameters."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.memory import trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import MemoryChange
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory
from foretrace.diagnose.patterns.adam_state import ADAM, STATE, STATES
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import SHAPES, headline, needs, rule
from foretrace.sourced import Count, Factor
from foretrace.units import format_value

QUANTIZED_BYTES = Factor(
    1.016,
    "the bytes of one such value in 8 bits, with a scale in fp32 for every 256",
    "bitsandbytes and torchao, their defaults",
)
LEAST_ELEMENTS = Count(
    4096,
    "elements of a tensor, below which its state stays as it is",
    "bitsandbytes, min_8bit_size; torchao's AdamW8bit",
)


@needs(BLOCKS, SHAPES)
@headline("Adam's state in 8 bits would free {freed_pct:.0f} % of the peak")
@rule("Adam's state is kept in fp32", "Optimizer's state", see="memory")
def fp32_optimizer_state(case: Case) -> Iterator[Finding]:
    """Adam's state, where keeping it in 8 bits would lower the peak.

    Finds steps of torch's Adam and AdamW, and the parameters that the backward pass adds up gradients for, where their state
    in 8 bits would lower the peak by at least {LEAST_FREED}. Where the peak is less than {LEAST_HELD} of the device's memory
    it is only mentioned.

    Slow
        optimizer = torch.optim.AdamW(model.parameters())

    Fast
        optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())

    Why
    Adam keeps {STATES} values for each element, at all times. Quantized block by block, each takes a byte.

    How the worth is predicted
    The state of every trained tensor of at least {LEAST_ELEMENTS} elements becomes {QUANTIZED_BYTES} bytes a value instead of
    those of the parameter's type, at all times of the curve. At the lower end of the range the largest tensor, which may be
    an embedding, keeps its state as it is.

    When not
    Training does not converge as well with it, which has to be tried.
    """
    if not freed_memory.names_there(case, ADAM):
        return
    trained = trained_parameters.of_a_step(case.whole).filter(pl.col("elements") >= LEAST_ELEMENTS)
    if trained.is_empty():
        return
    saved = [
        STATES * (size - QUANTIZED_BYTES * elements)
        for size, elements in trained.select("size_bytes", "elements").iter_rows()
    ]
    state, total, largest = STATES * int(trained["size_bytes"].sum()), sum(saved), max(saved)
    memory = freed_memory.memory_of(case)
    says = "Adam's state in 8 bits"
    freed = Freed(
        memory,
        MemoryChange(says, always_bytes={STATE: -round(total)}),
        (MemoryChange(says, always_bytes={STATE: -round(total - largest)}),),
    )
    if total <= 0 or state > memory.peak_bytes:
        return
    what = f"Adam's state in 8 bits would free {format_value('_bytes', round(freed.size_bytes.point))}"
    if freed_memory.not_worth(case, what, freed, least=LEAST_FREED, held=LEAST_HELD):
        return
    yield Finding(
        says=f"Adam's state takes {format_value('_bytes', state)}: in 8 bits the peak falls from "
        f"{format_value('_bytes', memory.peak_bytes)} to {format_value('_bytes', freed.after_bytes)}.",
        why="It is there at all times, so it is there at the peak.",
        fix=Fix(
            "Keep the optimizer's state in 8 bits.",
            "import bitsandbytes\noptimizer = bitsandbytes.optim.AdamW8bit(model.parameters())  # or torchao.optim.AdamW8bit",
        ),
        evidence=freed_memory.evidence(freed, state_bytes=state, parameters_count=trained.height),
        unless="training does not converge as well with it.",
        severity=freed_memory.severity(case),
        freed=freed,
    )
