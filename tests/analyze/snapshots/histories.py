"""Histories of an allocator made by hand: each call is an event, and what is left at the end becomes the snapshot's blocks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from foretrace.snapshot import ANNOTATIONS, BLOCKS, COMMON_POOL, EVENTS, FRAMES, SEGMENTS, STACKS, Snapshot

MIB = 1 << 20
Frame = tuple[str, int, str]

MAIN: Frame = ("/me/train.py", 90, "<module>")
CALLED: Frame = ("/site-packages/torch/nn/modules/module.py", 1779, "_call_impl")
ADAM: Frame = ("/site-packages/torch/optim/adam.py", 200, "step")
TO_DEVICE: Frame = ("/site-packages/torch/nn/modules/module.py", 934, "_apply")
ZERO_GRAD: Frame = ("/site-packages/torch/optim/optimizer.py", 1000, "zero_grad")
EMPTY_CACHE: Frame = ("/site-packages/torch/cuda/memory.py", 200, "empty_cache")


def forward(line: int, *, file: str = "/me/model.py", caller: int = 91) -> tuple[Frame, ...]:
    """The stack of a module's forward."""
    return ((file, line, "forward"), CALLED, ("/me/train.py", caller, "<module>"))


def at_line(line: int) -> tuple[Frame, ...]:
    """The stack of a line of the program itself."""
    return (("/me/train.py", line, "<module>"),)


class History:
    """Events in order, one microsecond apart; sizes are whole blocks unless `whole` says otherwise."""

    def __init__(self, *, device: int = 0, expandable: bool = False) -> None:
        self.device, self.expandable = device, expandable
        self.rows: list[tuple[Any, ...]] = []
        self.annotations: list[tuple[Any, ...]] = []
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self.segments: dict[int, tuple[int, str]] = {}
        self.blocks: dict[int, tuple[int, int, int]] = {}
        self._next = 1 << 32

    def _stack(self, frames: Sequence[Frame]) -> int:
        for frame in frames:
            self._frames.setdefault(frame, len(self._frames))
        return self._stacks.setdefault(tuple(frames), len(self._stacks)) if frames else -1

    def _event(
        self, action: str, address: int | None, size: int, frames: Sequence[Frame], pool: str = COMMON_POOL
    ) -> None:
        stack = self._stack(frames)
        self.rows.append(
            (self.device, action, address, size, 0, pool, 1000 * len(self.rows), stack, None, None)
        )

    @property
    def now_ns(self) -> int:
        return 1000 * len(self.rows)

    def segment(
        self, size: int, *, address: int | None = None, frames: Sequence[Frame] = (), pool: str = COMMON_POOL
    ) -> int:
        """Memory from the driver; returns its address."""
        if address is None:
            address, self._next = self._next, self._next + size + 64 * MIB
        self.segments[address] = (size, pool)
        self._event("segment_map" if self.expandable else "segment_alloc", address, size, frames, pool)
        return address

    def segment_free(self, address: int, *, frames: Sequence[Frame] = ()) -> None:
        size, pool = self.segments.pop(address)
        self._event("segment_unmap" if self.expandable else "segment_free", address, size, frames, pool)

    def alloc(
        self, size: int, frames: Sequence[Frame] = (), *, address: int | None = None, whole: int | None = None
    ) -> int:
        """A block, in a segment of its own where no address is given."""
        if address is None:
            address = self.segment(max(whole or size, 2 * MIB), frames=frames)
        self._event("alloc", address, size, frames)
        self.blocks[address] = (whole or size, size, self._stack(frames))
        return address

    def free(self, address: int, frames: Sequence[Frame] = (), *, completed: bool = True) -> None:
        _, size, _ = self.blocks[address]
        self._event("free_requested", address, size, frames)
        if completed:
            self._event("free_completed", address, size, frames)
            del self.blocks[address]

    def oom(self, asked: int, left: int, frames: Sequence[Frame] = ()) -> None:
        self._event("oom", left, asked, frames)

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append((self.device, stage, name, self.now_ns))

    def snapshot(
        self, *, lost: int = 0, settings: Mapping[str, Any] | None = None, block_stacks: bool = True
    ) -> Snapshot:
        """The snapshot, without the first `lost` events, as a ring buffer has it, or with blocks of unknown stack."""
        segments: list[tuple[Any, ...]] = []
        blocks: list[tuple[Any, ...]] = []
        for number, (start, (size, pool)) in enumerate(sorted(self.segments.items())):
            inside = sorted((at, block) for at, block in self.blocks.items() if start <= at < start + size)
            held = sum(block[0] for _, block in inside)
            segments.append(
                (self.device, start, size, held, held, held, 0, "large", pool, self.expandable, -1)
            )
            blocks += self._divided(number, start, size, inside)
        blocks = blocks if block_stacks else [(*row[:-1], -1) for row in blocks]
        return Snapshot(
            Path("made.pickle"), _frame(segments, SEGMENTS), _frame(blocks, BLOCKS), _frame(self.rows[lost:], EVENTS),
            _frame(
                [(s, n, self._frames[f]) for frames, s in self._stacks.items() for n, f in enumerate(frames)], STACKS
            ),
            _frame(list(self._frames), FRAMES), _frame(self.annotations, ANNOTATIONS), settings or {},
        )  # fmt: skip

    def write(self, path: Path, **settings: Any) -> Path:
        """The same as a file, as torch.cuda.memory._dump_snapshot writes it."""
        made = self.snapshot()
        names = {number: frames for frames, number in self._stacks.items()}

        def frames_of(stack: int) -> list[dict[str, Any]]:
            return [{"filename": f, "line": n, "name": name} for f, n, name in names.get(stack, ())]

        states = {"active": "active_allocated", "pending": "active_pending_free", "inactive": "inactive"}
        segments = []
        for number, row in enumerate(made.segments.iter_rows(named=True)):
            blocks = [
                {
                    "address": block["address"], "size": block["size_bytes"], "requested_size": block["requested_bytes"],
                    "state": states[block["state"]], "frames": frames_of(block["stack"]),
                }
                for block in made.blocks.iter_rows(named=True) if block["segment"] == number
            ]  # fmt: skip
            segments.append(
                {
                    "device": row["device"], "address": row["address"], "total_size": row["total_bytes"],
                    "allocated_size": row["allocated_bytes"], "active_size": row["active_bytes"],
                    "requested_size": row["requested_bytes"], "stream": 0, "segment_type": row["kind"],
                    "segment_pool_id": tuple(map(int, row["pool"].split(","))), "is_expandable": row["expandable"],
                    "frames": [], "blocks": blocks,
                }
            )  # fmt: skip
        trace = [
            {
                "action": action, "device_free" if action == "oom" else "addr": address, "size": size, "stream": stream,
                "time_us": at // 1000, "frames": frames_of(stack),
            }
            for _, action, address, size, stream, _, at, stack, _, _ in self.rows
        ]  # fmt: skip
        document = {
            "segments": segments,
            "device_traces": [trace],
            "allocator_settings": settings,
            "external_annotations": [],
        }
        path.write_bytes(pickle.dumps(document, protocol=4))
        return path

    def _divided(self, number: int, start: int, size: int, inside: Iterable[Any]) -> list[tuple[Any, ...]]:
        rows, at = [], start
        for address, (whole, asked, stack) in inside:
            if address > at:
                rows.append((number, self.device, at, address - at, 0, "inactive", -1))
            rows.append((number, self.device, address, whole, asked, "active", stack))
            at = address + whole
        if at < start + size:
            rows.append((number, self.device, at, start + size - at, 0, "inactive", -1))
        return rows


def _frame(rows: list[tuple[Any, ...]], schema: Mapping[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=dict(schema), orient="row")
