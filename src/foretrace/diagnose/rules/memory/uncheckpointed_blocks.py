"""Repeated blocks keep all that they compute until their backward."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.analyze.concepts.memory import saved_for_backward
from foretrace.analyze.concepts.memory.saved_for_backward import Repeated, Saved
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.freed import Freed
from foretrace.diagnose.patterns import freed_memory, recomputed_blocks
from foretrace.diagnose.patterns.freed_memory import BLOCKS, LEAST_FREED, LEAST_HELD
from foretrace.diagnose.rule import headline, needs, rule
from foretrace.units import format_value


@needs(BLOCKS)
@headline("Checkpointing the repeated blocks would free {freed_pct:.0f} % of the peak")
@rule("Blocks keep their activations until the backward", "Activations", see="saved-activations")
def uncheckpointed_blocks(case: Case) -> Iterator[Finding]:
    """Repeated blocks whose activations, kept for the backward pass, are a good part of the peak.

    Finds modules of one class that occur several times, and what their forward allocates that is still there when their
    backward begins, where checkpointing them would lower the peak by at least {LEAST_FREED}. Where the peak is less than
    {LEAST_HELD} of the device's memory it is only mentioned.

    Slow
        for block in blocks:
            x = block(x)

    Fast
        for block in blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)

    Why
    Autograd keeps what every operator needs for its gradient. A checkpointed block keeps its input alone, and computes the
    rest again when its backward begins. That is slower, and leaves room for a larger batch or model.

    How the worth is predicted
    The curve of allocated memory is replayed with what each block saves freed behind its forward, and there again from its
    backward on, when all that the forward holds at once is there for a moment. The new peak is the highest point of that
    curve. At one end of the range nothing is there but what is saved; at the other the blocks' outputs are computed again
    too.

    The time is that of the step replayed with the forward of every block run again before its backward, and with
    {recomputed_blocks.checkpointing.OVERHEAD}: checkpoint() calls Python for every tensor that autograd saves, and keeps the
    state of random numbers.

    When not
    Memory is not short: the step becomes longer.
    """
    saved = saved_for_backward.find(case.whole)
    blocks = saved_for_backward.best_to_checkpoint(saved)
    if blocks is None:
        return
    freed = _freed(saved, blocks)
    count = len(blocks.modules)
    what = f"{count} {blocks.name} modules checkpointed would free {format_value('_bytes', freed.size_bytes.point)}"
    if freed_memory.not_worth(case, what, freed, least=LEAST_FREED, held=LEAST_HELD):
        return
    kept = int(blocks.calls.saved_bytes(saved.memory).max())
    yield Finding(
        says=f"{count} {blocks.name} modules keep up to {format_value('_bytes', kept)} each for the backward pass: with "
        f"them checkpointed the peak falls from {format_value('_bytes', saved.memory.peak_bytes)} to "
        f"{format_value('_bytes', freed.after_bytes)}.",
        why="Autograd keeps what every operator needs for its gradient; a checkpointed block keeps its input alone.",
        fix=Fix(
            "If memory is short, checkpoint the blocks; the step becomes longer.",
            "from torch.utils.checkpoint import checkpoint\n"
            "for block in blocks:\n"
            "    x = checkpoint(block, x, use_reentrant=False)",
        ),
        evidence=freed_memory.evidence(freed, blocks_count=count, saved_per_block_bytes=kept),
        where=tuple(Place(None, None, saved.paths[module]) for module in _worst(saved, blocks)),
        change=recomputed_blocks.computed_again(case, blocks.calls),
        unless="memory is not short.",
        severity=freed_memory.severity(case),
        freed=freed,
    )


def _freed(saved: Saved, blocks: Repeated) -> Freed:
    memory = saved.memory
    most = blocks.checkpointed(memory, forward="saved")
    least = blocks.checkpointed(memory, forward="output")
    return Freed(memory, blocks.checkpointed(memory), (most, least))


def _worst(saved: Saved, blocks: Repeated) -> list[int]:
    """The blocks that keep most, a few."""
    sizes = blocks.calls.saved_bytes(saved.memory).tolist()
    kept = dict(zip(blocks.calls.module.tolist(), sizes, strict=True))
    return sorted(kept, key=lambda module: (-kept[module], module))[:3]
