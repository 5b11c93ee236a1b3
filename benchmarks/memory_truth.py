"""Whether a snapshot, as Foretrace reads it, says what torch's own counters say.

    python benchmarks/memory_truth.py --record DIR   # on a machine with a GPU: torch alone; well under a minute
    python benchmarks/memory_truth.py --judge DIR    # anywhere: prints a table; exit code 1 where they differ by over 0.1 %

Small programs leave a snapshot, and beside it `memory_stats()`, the sums of `memory_snapshot()`, and the times between which a
block of a size of its own was allocated. The peaks are those since recording began, which a history that lost its start
cannot know. Each program is a process of its own, since allocator settings are read once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

MOST_PCT = 0.1
MOST_APART_NS = 1_000_000  # of a time: the two clocks are matched when the snapshot is made
MARKED_BYTES = 7_654_321  # no program allocates another block of this size
LIMIT_S = 55
# torch gives a block away whole where less than 1 MiB would be left of it, and its history names the request alone.
UNSPLIT = ("sizes", "expandable")
CASES = ("training", "sizes", "streams", "graph", "expandable", "ring", "failed")


# --- on the GPU ---------------------------------------------------------------------------------------------


def training() -> None:
    """Four steps of an MLP under Adam, whose states appear in the first."""
    import torch
    from torch import nn

    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        model(torch.randn(4096, 2048, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sizes() -> list[Any]:
    """Blocks of many sizes, of which some stay."""
    import torch

    made = random_numbers()
    kept: list[Any] = []
    for _ in range(400):
        size = 1 << next(made) % 26
        kept.append(torch.empty(size + next(made) % size, dtype=torch.uint8, device="cuda"))
        if len(kept) > 40:
            kept.pop(next(made) % 40)
    return kept


def streams() -> list[Any]:
    """Blocks that another stream still uses when they are freed."""
    import torch

    other = torch.cuda.Stream()
    kept: list[Any] = []
    for _ in range(20):
        block = torch.ones(1 << 24, device="cuda")
        with torch.cuda.stream(other):
            torch.cuda._sleep(50_000_000)
            kept.append(block[:1000].sum())
        block.record_stream(other)
        del block
    return kept


def graph() -> list[Any]:
    """A CUDA graph, with a pool of its own."""
    import torch

    x = torch.randn(2048, 2048, device="cuda")
    (x @ x).relu()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = (x @ x).relu()
    captured.replay()
    return [x, y, captured]


def failed() -> list[Any]:
    """Blocks until an allocation fails, which is caught."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(4 * 2**30 / total)
    kept: list[Any] = []
    try:
        while True:
            kept.append(torch.empty(200 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        del kept[::2]
    return kept


PROGRAMS: dict[str, Callable[[], Any]] = {
    "training": training, "sizes": sizes, "streams": streams, "graph": graph, "expandable": sizes, "ring": sizes, "failed": failed,
}  # fmt: skip


def random_numbers() -> Iterator[int]:
    """The same ones each time."""
    value = 12345
    while True:
        value = (value * 1103515245 + 12345) % 2**31
        yield value >> 4


def record_case(name: str, folder: Path) -> None:
    """Runs one program and writes what torch says of it."""
    import torch

    torch.empty(1, device="cuda")
    held = torch.ones(3 << 20, device="cuda")  # older than the history
    torch.cuda.reset_peak_memory_stats()
    entries = 300 if name == "ring" else 1_000_000
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=entries
    )
    kept = PROGRAMS[name]()
    if name != "streams":  # what waits for its stream must still wait when it is counted
        torch.cuda.synchronize()
    began_ns = time.time_ns()
    marked = torch.empty(MARKED_BYTES, dtype=torch.uint8, device="cuda")
    ended_ns = time.time_ns()
    stats, segments = torch.cuda.memory_stats(), torch.cuda.memory_snapshot()
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    torch.cuda.memory._record_memory_history(enabled=None)
    sums = {
        size: sum(segment[size] for segment in segments)
        for size in ("total_size", "allocated_size", "active_size")
    }
    known = {
        "torch": torch.__version__, "device": torch.cuda.get_device_name(), "stats": stats, "sums": sums,
        "peaks": name != "ring", "marked_ns": [began_ns, ended_ns], "held": [len(kept or ()), held.numel(), len(marked)],
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(known, indent=1), encoding="utf-8")


def record(folder: Path) -> int:
    """Runs all programs, three at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    running: dict[Any, Any] = {}
    until_s, left, faults = time.monotonic() + LIMIT_S, list(CASES), 0
    while left or running:
        while left and len(running) < 3:
            name = left.pop(0)
            settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if name == "expandable" else {}
            command = [sys.executable, __file__, "--record", str(folder), "--case", name]
            running[name] = subprocess.Popen(command, env={**os.environ, **settings})
        for name, process in list(running.items()):
            if process.poll() is None and time.monotonic() > until_s:
                process.kill()
            if process.poll() is not None:
                faults += running.pop(name).returncode != 0
                print(f"{name}: exit code {process.returncode}", flush=True)
        time.sleep(0.05)
    return 1 if faults else 0


# --- anywhere -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One number, as read and as torch says it."""

    case: str
    what: str
    read: int
    torch: int
    most: float  # how far they may be apart
    unit: str = "B"
    judged: bool = True

    @property
    def good(self) -> bool:
        """Whether they are near enough."""
        return not self.judged or abs(self.read - self.torch) <= self.most


def judge_case(name: str, folder: Path) -> Iterator[Row]:
    """The rows of one program."""
    from foretrace.ingest.snapshots import read_snapshot

    known = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    stats, snapshot = known["stats"], read_snapshot(folder / f"{name}.pickle")
    read = totals(snapshot)
    for what, key in TOTALS.items():
        yield near(name, what, read[what], stats[key])
    for what, key in (("reserved", "total_size"), ("allocated", "allocated_size"), ("active", "active_size")):
        yield near(name, f"{what}, memory_snapshot", read[what], known["sums"][key])
    if known["peaks"]:
        for what, key in PEAKS.items():
            row = near(name, what, peak(snapshot, what, read), stats[key])
            yield replace(row, judged=what != "peak allocated" or name not in UNSPLIT)
        yield Row(name, "failed allocations", count(snapshot, "oom"), stats["num_ooms"], 0, "")
    yield marked(name, snapshot, known["marked_ns"])


TOTALS = {
    "reserved": "reserved_bytes.all.current",
    "allocated": "allocated_bytes.all.current",
    "active": "active_bytes.all.current",
    "requested": "requested_bytes.all.current",
    "inactive splits": "inactive_split_bytes.all.current",
}
PEAKS = {
    "peak reserved": "reserved_bytes.all.peak",
    "peak requested": "requested_bytes.all.peak",
    "peak allocated": "allocated_bytes.all.peak",
}


def near(case: str, what: str, read: int, told: int) -> Row:
    """Two sums of bytes, which may differ by a share of torch's."""
    return Row(case, what, read, told, MOST_PCT / 100 * told)


def totals(snapshot: Any) -> dict[str, int]:
    """What the tables add up to, on the device."""
    import polars as pl

    blocks = snapshot.blocks.filter(pl.col("device") >= 0)
    segments = snapshot.segments.filter(pl.col("device") >= 0)
    # torch counts no splits in expandable segments, and a free block that is a whole segment is none.
    of_segment = snapshot.segments.select("expandable", "total_bytes").with_row_index("segment")
    joined = blocks.join(of_segment.with_columns(pl.col("segment").cast(pl.Int32)), on="segment")
    splits = joined.filter(
        (pl.col("state") == "inactive")
        & ~pl.col("expandable").fill_null(False)
        & (pl.col("size_bytes") < pl.col("total_bytes"))
    )
    return {
        "reserved": int(segments["total_bytes"].sum()),
        "allocated": int(blocks.filter(pl.col("state") == "active")["size_bytes"].sum()),
        "active": int(blocks.filter(pl.col("state") != "inactive")["size_bytes"].sum()),
        "requested": int(segments["requested_bytes"].sum()),
        "inactive splits": int(splits["size_bytes"].sum()),
    }


def peak(snapshot: Any, what: str, read: dict[str, int]) -> int:
    """The most that the history shows, counted back from what there is at its end.

    Torch counts what a request was rounded up to as allocated, until it is freed, and the request itself until the block can
    be used again. A history knows requests alone; they are rounded up to 512 bytes here.
    """
    import polars as pl

    adds, takes, total = {
        "peak reserved": (("segment_alloc", "segment_map"), ("segment_free", "segment_unmap"), "reserved"),
        "peak requested": (("alloc",), ("free_completed",), "requested"),
        "peak allocated": (("alloc",), ("free_requested",), "allocated"),
    }[what]
    size = pl.col("size_bytes")
    if what == "peak allocated":
        size = (size + 511) // 512 * 512
    action = pl.col("action").cast(pl.String)
    change = pl.when(action.is_in(adds)).then(size).when(action.is_in(takes)).then(-size).otherwise(0)
    changes = snapshot.events.filter(pl.col("device") >= 0).select(change=change)["change"]
    base = read[total] - int(changes.sum() or 0)
    return base + max(0, int(changes.cum_sum().max() or 0))


def count(snapshot: Any, action: str) -> int:
    """How often something happened."""
    import polars as pl

    return snapshot.events.filter(pl.col("action").cast(pl.String) == action).height


def marked(case: str, snapshot: Any, between_ns: Sequence[int]) -> Row:
    """How far the marked block's time lies outside of the times around it."""
    import polars as pl

    events = snapshot.events.filter(
        (pl.col("action").cast(pl.String) == "alloc") & (pl.col("size_bytes") == MARKED_BYTES)
    )
    if events.height != 1:
        return Row(case, "marked blocks", events.height, 1, 0, "")
    at_ns = int(events["time_ns"][0])
    outside_ns = max(between_ns[0] - at_ns, at_ns - between_ns[1], 0)
    return Row(case, "time of an event, outside of its marks", outside_ns, 0, MOST_APART_NS, "ns")


def judge(folder: Path) -> int:
    """Prints the table."""
    found = [name for name in CASES if (folder / f"{name}.json").is_file()]
    rows = [row for name in found for row in judge_case(name, folder)]
    for row in rows:
        share = f"{100 * (row.read - row.torch) / row.torch:+.4f} %" if row.torch and row.unit == "B" else ""
        verdict = ("" if row.judged else "not judged") if row.good else "DIFFERS"
        print(
            f"{row.case:<11} {row.what:<39} {row.read:>16,} {row.torch:>16,} {row.unit:<3} {share:>11} {verdict}".rstrip()
        )
    missing = [name for name in CASES if name not in found]
    wrong = sum(not row.good for row in rows)
    print(
        f"{len(rows)} numbers of {len(found)} programs, {wrong} differ"
        + (f"; not recorded: {', '.join(missing)}" if missing else "")
    )
    return 1 if wrong or missing else 0


def main(words: Sequence[str] | None = None) -> int:
    """Records or judges."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", type=Path, metavar="DIR")
    parser.add_argument("--judge", type=Path, metavar="DIR")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.case and args.record:
        record_case(args.case, args.record)
        return 0
    if args.record:
        return record(args.record)
    if args.judge:
        return judge(args.judge)
    parser.print_usage()
    return 2


if __name__ == "__main__":
    sys.exit(main())
