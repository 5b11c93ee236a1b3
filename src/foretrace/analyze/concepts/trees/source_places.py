"""Where in the program something happened: the function and the module of a span.

The profiler records the line at which a function was entered, not the line within it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from foretrace.analyze.concepts.host.runtime_calls import NOBODY, Flags, HostSpans, Ids
from foretrace.analyze.concepts.names.line_text import function_text
from foretrace.trace import Trace
from foretrace.user_files import owner


class Places:
    """Looks up source lines and modules of a trace's spans."""

    def __init__(self, trace: Trace, host: HostSpans) -> None:
        self._trace = trace
        self._host = host

    @cached_property
    def known(self) -> bool:
        """Whether Python frames were recorded."""
        return self._trace.stacks.height > 0

    @cached_property
    def _of_span(self) -> dict[str, Ids]:
        """For each span that has one, its row in `stacks` and `modules`."""
        columns: dict[str, Ids] = {}
        for column in ("stack_id", "module_id"):
            row = np.full(len(self._host.start_ns), NOBODY, np.int64)
            for table in (self._trace.ops, self._trace.python):
                values = table[column].cast(pl.Int64).fill_null(NOBODY).to_numpy()
                row[table["span_id"].to_numpy()] = values
            columns[column] = row
        return columns

    @cached_property
    def _described(self) -> Flags:
        return self._host.kind("op", "python")

    @cached_property
    def _program_frame(self) -> Ids:
        """For each stack, its innermost frame that is the user's, else an installed package's, else its innermost with a file."""
        stacks = self._trace.stacks
        parent = stacks["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        has_file = stacks["file"].is_not_null()
        files = stacks["file"].unique().drop_nulls().to_list()
        frame = np.full(len(parent), NOBODY)
        for whose in ("user", "package", "library"):
            owned = stacks["file"].is_in([file for file in files if owner(file) == whose])
            innermost = _innermost(parent, (has_file & owned).fill_null(value=False).to_numpy())
            frame = np.where(frame == NOBODY, innermost, frame)
        return frame

    def frames(self, ids: Ids) -> Ids:
        """For each span a number for the program's innermost frame, which `text` spells; NOBODY where none is known.

        Work of the backward pass runs on a thread without Python: it gets the frame of its forward operator.
        """
        frames = np.full(len(ids), NOBODY, np.int64)
        if not self.known or not (ids != NOBODY).any():
            return frames
        own = self._stacks(ids)
        rows = np.flatnonzero(own != NOBODY)
        frames[rows] = self._program_frame[own[rows]]
        rows = np.flatnonzero((own == NOBODY) & (ids != NOBODY))
        forward = self._stacks(self._forward(ids[rows]))
        rows, forward = rows[forward != NOBODY], forward[forward != NOBODY]
        frame = self._program_frame[forward]
        frames[rows] = np.where(frame == NOBODY, NOBODY, frame + self._trace.stacks.height)
        return frames

    def text(self, frames: pl.Series) -> pl.Series:
        """The frames of `frames` in words, "train.py(12): step", with the function's first line; null for NOBODY."""
        count = self._trace.stacks.height
        known = frames.replace(NOBODY, None)
        words = self._trace.stacks.select(function_text()).to_series()
        named = words.gather(known % max(count, 1))
        return pl.select(
            pl.when(known >= count).then(pl.lit("backward of ") + named).otherwise(named)
        ).to_series()

    def lines(self, ids: Ids) -> pl.Series:
        """For each span the program's innermost frame in words; null where none is known."""
        return self.text(pl.Series(self.frames(ids), dtype=pl.Int64))

    def modules(self, ids: Ids) -> pl.Series:
        """For each span the innermost nn.Module around it; null where none is known."""
        near = self._host.nearest(ids, self._described)
        rows = np.where(near == NOBODY, NOBODY, self._of_span["module_id"][near])
        return self._trace.modules["name"].gather(pl.Series(rows).replace(NOBODY, None))

    def _stacks(self, ids: Ids) -> Ids:
        """The stack of each span, or NOBODY."""
        near = self._host.nearest(ids, self._described)
        return np.where(near == NOBODY, NOBODY, self._of_span["stack_id"][near])

    def _forward(self, ids: Ids) -> Ids:
        """The forward operator of each span of the backward pass, or NOBODY."""
        ops = self._trace.ops
        forward = np.full(len(self._host.start_ns), NOBODY, np.int64)
        forward[ops["span_id"].to_numpy()] = ops["forward_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
        near = self._host.nearest(ids, forward != NOBODY)
        return np.where(near == NOBODY, NOBODY, forward[near])


def _innermost(parent: Ids, wanted: Flags) -> Ids:
    """For each row, itself or the nearest ancestor that is wanted; NOBODY where none is."""
    nearest = np.arange(len(parent))
    rows = np.flatnonzero(~wanted)
    while len(rows):
        nearest[rows] = parent[nearest[rows]]
        rows = rows[nearest[rows] != NOBODY]
        rows = rows[~wanted[nearest[rows]]]
    return nearest
