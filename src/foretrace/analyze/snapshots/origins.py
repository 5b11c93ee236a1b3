"""What each block held and who allocated it: category, phase, source line and module, per block.

The words for categories are those of the analysis `memory`; a snapshot also shows parameters, by the frames that make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.phases import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTE
from foretrace.analyze.concepts.memory import memory_categories
from foretrace.analyze.concepts.memory.memory_categories import CATEGORIES
from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots import passes
from foretrace.analyze.snapshots.lifetimes import BEFORE, DeviceMemory
from foretrace.analyze.snapshots.passes import Passes
from foretrace.analyze.snapshots.places import OTHER, Places

PARAMETER = "parameter"
OLD = CATEGORIES[memory_categories.BEFORE]
ACTIVATION, GRADIENT, STATE, AUTOGRAD, INTERMEDIATE, TEMPORARY, UNKNOWN = (
    CATEGORIES[place]
    for place in (
        memory_categories.ACTIVATION,
        memory_categories.GRADIENT,
        memory_categories.OPTIMIZER,
        memory_categories.AUTOGRAD,
        memory_categories.INTERMEDIATE,
        memory_categories.TEMPORARY,
        memory_categories.UNKNOWN,
    )
)


@dataclass(frozen=True)
class Origins:
    """The blocks of one device with what their stacks and lifetimes tell."""

    memory: DeviceMemory
    places: Places

    @cached_property
    def lines(self) -> pl.Series:
        """The source line of each block."""
        return self._of_stack(self.places.lines)

    @cached_property
    def modules(self) -> pl.Series:
        """The forwards that were running."""
        return self._of_stack(self.places.modules)

    @cached_property
    def phases(self) -> pl.Series:
        """The phase in which each block was allocated."""
        return self._of_stack(self.places.phases)

    @cached_property
    def backward(self) -> Passes:
        """The backward passes."""
        return passes.backward_passes(self.memory, self.places)

    @cached_property
    def optimizer(self) -> Passes:
        """The optimizer's steps."""
        return passes.optimizer_steps(self.memory, self.places)

    @cached_property
    def categories(self) -> pl.Series:
        """What each block held.

        parameter: made, moved or loaded by a module's own code, and kept.
        activation: allocated in the forward pass, or before it by the program, and freed after a backward pass began.
        gradient: allocated in a backward pass and live after it, or freed by zero_grad.
        autograd: allocated and freed in the same backward pass, or in a forward that it ran again.
        optimizer state: allocated in an optimizer's step and kept.
        temporary: freed within the optimizer's step, or while parameters were made.
        intermediate: allocated in the forward pass and freed before any backward pass.
        before the recording: allocated before the history.
        unknown: what none of these fits: kept, but by whom is not seen.
        """
        lives, never = self.memory.lives, self.memory.events.height
        phase = self.phases
        forward, other, backward, again, stepping = (
            (phase == name).to_numpy() for name in (FORWARD, OTHER, BACKWARD, RECOMPUTE, OPTIMIZER)
        )
        kept = lives.asked == never
        category = np.full(len(lives), UNKNOWN, object)
        into, over = self._into_backward()
        ahead = forward | other
        category[ahead & ~kept] = INTERMEDIATE
        category[ahead & into & ~kept] = ACTIVATION
        category[forward & kept & into & ~over] = ACTIVATION
        made = ahead & self.places.parameters[lives.stack]
        category[made] = np.where(kept, PARAMETER, TEMPORARY)[made]
        category[stepping] = np.where(self._after_step(), STATE, TEMPORARY)[stepping]
        category = self._like_others(category, forward & kept)
        old = lives.start == BEFORE
        fits_parameter = np.isin(lives.size, lives.size[kept & (old | made)])
        flowed = again | backward
        category[flowed] = np.where(self._after_pass(fits_parameter), GRADIENT, AUTOGRAD)[flowed]
        # A block that is older than the history may still have its stack.
        category[old & ~(kept & (made | stepping))] = OLD
        category[old & self._cleared()] = GRADIENT
        return pl.Series("category", category.tolist(), dtype=pl.String)

    def _of_stack(self, words: pl.Series) -> pl.Series:
        stack = self.memory.lives.stack
        named = words.gather(np.where(stack < 0, self.places.count, stack))
        old = pl.Series((self.memory.lives.start == BEFORE) & (stack < 0), dtype=pl.Boolean)
        return pl.select(pl.when(old).then(pl.lit(OLD)).otherwise(named).alias(words.name)).to_series()

    def _into_backward(self) -> tuple[Array, Array]:
        """Whether each block was held when the next backward pass began, and whether after that pass too."""
        lives, found = self.memory.lives, self.backward
        never = self.memory.events.height
        place = found.next_of(lives.start)
        first, left = (np.append(ends, never)[place] for ends in (found.first, found.left))
        return (lives.asked > first) & (first < never), lives.asked > left

    def _after_pass(self, fits_parameter: Array) -> Array:
        """Whether a block was held after the backward pass that it was allocated in.

        Where frees have no stacks, those between the pass and what comes next may be of either: gradients are as large as a
        parameter.
        """
        lives, found = self.memory.lives, self.backward
        place = found.around(lives.start)
        after: Array = lives.asked > np.append(found.last, -1)[place]
        if found.frees_tell:
            return after
        between = (
            after
            & (lives.asked <= np.append(found.left, -1)[place])
            & (lives.asked < self.memory.events.height)
        )
        return after & (~between | fits_parameter)

    def _after_step(self) -> Array:
        """Whether a block was held after the optimizer's step that it was allocated in."""
        lives, found = self.memory.lives, self.optimizer
        after: Array = lives.asked >= np.append(found.left, 0)[found.around(lives.start)]
        return after

    def _cleared(self) -> Array:
        """Whether zero_grad let go of a block."""
        lives, events = self.memory.lives, self.memory.events
        stack = np.append(events["stack"].to_numpy(), -1)[np.maximum(lives.asked, 0)]
        cleared: Array = self.places.clears_gradients[stack] & (stack >= 0)
        return cleared

    def _like_others(self, category: Array, undecided: Array) -> Array:
        """What the history ends with is taken for what the others of its stack and size were."""
        lives = self.memory.lives
        if not undecided.any():
            return category
        rows = pl.DataFrame(
            {"stack": lives.stack, "size": lives.size, "category": category.tolist(), "open": undecided}
        )
        decided = rows.filter(~pl.col("open") & (pl.col("category") != UNKNOWN))
        usual = decided.group_by("stack", "size").agg(pl.col("category").mode().sort().first().alias("usual"))
        joined = rows.join(usual, on=["stack", "size"], how="left", maintain_order="left")
        doubtful = pl.col("open") & (pl.col("category") == UNKNOWN)
        filled = joined.select(
            pl.when(doubtful).then(pl.coalesce("usual", "category")).otherwise(pl.col("category"))
        )
        return np.array(filled.to_series().to_list(), object)
