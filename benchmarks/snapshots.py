"""How fast a memory snapshot becomes tables, and in how much memory, beside `pickle.load`, on one machine in one run.

The file is made here, operation by operation as torch's are pickled (protocol 4): a history of allocations and frees with
stacks, blocks that are still held at its end, segments around them. Every figure comes from a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MOST_SECONDS, MOST_MEMORY = 20.0, 2.0  # for 1 GB; memory as a multiple of the file
PICKLE_NEEDS = (
    14  # times the file's size, in memory that is free: about what pickle.load takes, and some more
)

# VmHWM belongs to the process's memory map and starts anew at exec; getrusage's maximum outlives it.
CHILD = """
import json, sys, time
path = sys.argv[1]
{setup}
start = time.perf_counter()
{load}
load_s = time.perf_counter() - start
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({{"load_s": load_s, "peak_bytes": int(peak.split()[1]) * 1024, "events": events, "allocated": allocated}}))
"""
READ = (
    "from foretrace.ingest.snapshots import read_snapshot",
    "snapshot = read_snapshot(path, reader={reader!r})",
    "import polars as pl\n"
    "alloc = snapshot.events.lazy().filter(pl.col('action') == 'alloc').select(pl.col('size_bytes').sum())\n"
    "events = snapshot.events.height; allocated = alloc.collect().item()",
)
PICKLE = (
    "import pickle",
    "loaded = pickle.load(open(path, 'rb'))",
    "trace = loaded['device_traces'][0]; events = len(trace)\n"
    "allocated = sum(event['size'] for event in trace if event['action'] == 'alloc')",
)


class Writer:
    """Writes the operations that CPython's pickler would, and numbers what it memorises."""

    def __init__(self) -> None:
        self.memo: dict[object, int] = {}
        self.count = 0

    def memoize(self, name: object = None) -> bytes:
        """The operation, and its number under a name."""
        if name is not None:
            self.memo[name] = self.count
        self.count += 1
        return b"\x94"

    def get(self, name: object) -> bytes:
        """What was memorised under a name."""
        number = self.memo[name]
        return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)

    def text(self, text: str) -> bytes:
        """A text, written out once."""
        if text in self.memo:
            return self.get(text)
        return b"\x8c" + bytes([len(text)]) + text.encode() + self.memoize(text)

    def number(self, value: int) -> bytes:
        """A whole number that is not negative."""
        if value < 256:
            return b"K" + bytes([value])
        if value < 65536:
            return b"M" + struct.pack("<H", value)
        if value < 2**31:
            return b"J" + struct.pack("<i", value)
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little")

    def frame(self, number: int) -> bytes:
        """One of the frames: a dictionary that many stacks share."""
        if ("frame", number) in self.memo:
            return self.get(("frame", number))
        begin = b"}" + self.memoize(("frame", number)) + b"("
        name = self.text("name") + self.text(f"function_{number % 700}")
        file = self.text("filename") + self.text(
            f"/usr/lib/python3.12/site-packages/package/module_{number % 90}.py"
        )
        return begin + name + file + self.text("line") + self.number(10 + number * 7 % 3000) + b"u"

    def frames(self, stack: list[int]) -> bytes:
        """A list of frames, which every event has of its own."""
        begin = b"]" + self.memoize()
        return begin + (b"(" + b"".join(self.frame(number) for number in stack) + b"e" if stack else b"")

    def event(self, action: str, address: int, size: int, time_us: int, stack: list[int]) -> bytes:
        """One entry of the history."""
        parts = [
            b"}" + self.memoize() + b"(",
            self.text("action"),
            self.text(action),
            self.text("addr"),
            self.number(address),
        ]
        parts += [self.text("size"), self.number(size), self.text("stream"), self.number(0)]
        parts += [
            self.text("time_us"),
            self.number(time_us),
            self.text("compile_context"),
            b"\x8c\x03N/A" + self.memoize(),
        ]
        parts += [self.text("user_metadata"), self.text(""), self.text("frames"), self.frames(stack), b"u"]
        return b"".join(parts)


def history(writer: Writer, rng: random.Random, live: dict[int, int]) -> Iterator[list[bytes]]:
    """Entries without end: an allocation with its stack, and sooner or later the two of its free."""
    stacks = [[rng.randrange(4000) for _ in range(rng.randrange(4, 24))] for _ in range(3000)]
    time_us, next_address = 1_794_705_454_000_000, 140_000_000_000_000
    while True:
        time_us += rng.randrange(1, 40)
        if len(live) > 3000 or (live and rng.random() < 0.49):
            address = next(iter(live)) if rng.random() < 0.5 else next(reversed(live))
            size = live.pop(address)
            yield [
                writer.event(f"free_{part}", address, size, time_us, [])
                for part in ("requested", "completed")
            ]
            continue
        size = 512 * rng.randrange(1, 1 << rng.randrange(1, 16))
        address, next_address = next_address, next_address + size
        live[address] = size
        yield [writer.event("alloc", address, size, time_us, stacks[rng.randrange(len(stacks))])]


def write_snapshot(path: Path, size: int) -> None:
    """A snapshot of about `size` bytes."""
    writer, live = Writer(), dict[int, int]()
    with path.open("wb") as file:
        file.write(b"\x80\x04}" + writer.memoize() + b"(" + writer.text("device_traces"))
        file.write(b"]" + writer.memoize() + b"]" + writer.memoize() + b"(")
        for at, entries in enumerate(history(writer, random.Random(17), live), 1):
            file.write(b"".join(entries))
            if at % 700 == 0:  # about as picklers do, after 1,000
                file.write(b"e(")
            if file.tell() >= size:
                break
        file.write(b"ea" + writer.text("segments") + b"]" + writer.memoize() + b"(")
        for address, held in live.items():
            # In the order in which they are written: that numbers what is memorised.
            made = [
                b"}" + writer.memoize() + b"(",
                writer.text("device"),
                writer.number(0),
                writer.text("address"),
            ]
            made += [
                writer.number(address),
                writer.text("total_size"),
                writer.number(held),
                writer.text("stream"),
            ]
            made += [
                writer.number(0),
                writer.text("segment_type"),
                writer.text("large"),
                writer.text("blocks"),
            ]
            made += [b"]" + writer.memoize() + b"(}" + writer.memoize() + b"(", writer.text("address")]
            made += [
                writer.number(address),
                writer.text("size"),
                writer.number(held),
                writer.text("requested_size"),
            ]
            made += [writer.number(held), writer.text("state"), writer.text("active_allocated")]
            made += [writer.text("frames"), writer.frames([]), b"ueu"]
            file.write(b"".join(made))
        file.write(b"eu.")


def measured(path: Path, how: tuple[str, str, str]) -> dict[str, float]:
    """What one way to load took, in a process of its own."""
    setup, *load = how
    code = CHILD.format(setup=setup, load="\n".join(load))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{setup}: exit code {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def free_bytes() -> int:
    """Memory that is free now."""
    line = next(
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")
    )
    return int(line.split()[1]) * 1024


def show(name: str, path: Path, found: dict[str, float]) -> None:
    """One line of the result."""
    size = path.stat().st_size
    ratio = found["peak_bytes"] / size
    print(
        f"{name:<22}{found['load_s']:8.2f} s{ratio:8.2f} x file{found['events']:>12,} events{found['allocated']:>20,} B allocated"
    )


def main() -> None:
    """Makes the file, runs the contenders, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=float, default=1000, help="of the file in MB (default: 1000)")
    parser.add_argument(
        "--python-size", type=float, default=20, help="of the file for the reader in Python, in MB (0: none)"
    )
    parser.add_argument("--work", type=Path, help="where the files go (default: a folder that is deleted)")
    parser.add_argument(
        "--gate", action="store_true", help="exit code 1 if reading takes more than 20 s a GB or 2 x the file"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        path = Path(folder, "large.pickle")
        write_snapshot(path, int(args.size * 1e6))
        print(f"{platform.machine()}, {os.cpu_count()} cores; {path.stat().st_size / 1e6:,.0f} MB")
        read = (READ[0], READ[1].format(reader="native"), READ[2])
        found = measured(path, read)
        show("foretrace", path, found)
        if free_bytes() > PICKLE_NEEDS * path.stat().st_size:
            peer = measured(path, PICKLE)
            show("pickle.load", path, peer)
            if (peer["events"], peer["allocated"]) != (found["events"], found["allocated"]):
                raise SystemExit("the two do not say the same")
        else:
            print(
                f"pickle.load             left out: it needs about {PICKLE_NEEDS} x the file in free memory"
            )
        if args.python_size:
            small = Path(folder, "small.pickle")
            write_snapshot(small, int(args.python_size * 1e6))
            print(f"{small.stat().st_size / 1e6:,.0f} MB")
            show(
                "foretrace, in Python",
                small,
                measured(small, (READ[0], READ[1].format(reader="python"), READ[2])),
            )
            show("foretrace", small, measured(small, read))
            show("pickle.load", small, measured(small, PICKLE))
        size = path.stat().st_size
        if args.gate and (
            found["load_s"] > MOST_SECONDS * size / 1e9 or found["peak_bytes"] > MOST_MEMORY * size
        ):
            raise SystemExit(1)


if __name__ == "__main__":
    main()
