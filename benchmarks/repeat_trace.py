"""A trace as large as wanted: one real recording repeated, each copy later and with ids of its own."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

# The text that Kineto writes around events. A raw newline cannot occur inside a JSON string.
OPENING = b'"traceEvents": [\n  {\n'
BETWEEN = b"\n  },\n  {\n"
CLOSING = b"\n  }\n  ]"

# Fields that must differ from copy to copy; those of one group are shifted alike, so that links hold.
# An ac2g flow's id is the correlation id.
GROUP = {
    "id": "correlation",
    "correlation": "correlation",
    "wait_on_cuda_event_record_corr_id": "correlation",
    "External id": "External id",
    "Record function id": "Record function id",
    "Sequence number": "Sequence number",
    "Ev Idx": "Ev Idx",
    "Python id": "Python id",
    "Python parent id": "Python id",
    "ProfilerStep#": "ProfilerStep#",
    "ts": "ts",
}
ZERO_MEANS_NONE = {"correlation", "External id", "Record function id"}
STEP_NAME = re.compile(r"^ProfilerStep#(\d+)$")

# A flow's "id" counts only right after its "ph": other events may have an argument of that name.
_ARGUMENTS = "|".join(re.escape(key) for key in GROUP if key not in ("id", "ProfilerStep#"))
SHIFTED = re.compile(rf'((?:"(?:{_ARGUMENTS})": )|(?:"ph": "[stf]", "id": )|"ProfilerStep#)(\d+)'.encode())


class Recording:
    """A Kineto file cut into the text between the numbers that change from copy to copy."""

    def __init__(self, source: Path) -> None:
        opener = gzip.open if source.read_bytes()[:2] == b"\x1f\x8b" else open
        with opener(source, "rb") as file:
            text = file.read()
        document = json.loads(text, parse_float=Decimal)
        self.events: list[dict[str, Any]] = [e for e in document["traceEvents"] if not _once(e)]
        self.once: list[dict[str, Any]] = [e for e in document["traceEvents"] if _once(e)]

        start, end = text.find(OPENING) + len(OPENING), text.rfind(CLOSING)
        events = text[start:end].split(BETWEEN)
        if OPENING not in text or len(events) != len(document["traceEvents"]):
            raise SystemExit(f"{source} is not in the text layout that torch writes: choose another --source")
        self.head, self.tail = text[:start], text[end:]
        paired = list(zip(events, document["traceEvents"], strict=True))
        repeated = [text for text, event in paired if not _once(event)]
        self.once_texts = [text for text, event in paired if _once(event)]

        pieces = SHIFTED.split(BETWEEN.join(repeated))
        self.values = [int(number) for number in pieces[2::3]]
        groups = [_group(key) for key in pieces[1::3]]
        self.steps = self._steps(groups)
        self.shifts = [
            0 if value == 0 and group in ZERO_MEANS_NONE else self.steps[group]
            for value, group in zip(self.values, groups, strict=True)
        ]
        # literal, number, literal, ..., literal: the numbers are filled in for each copy
        self.pieces = [b""] * (2 * len(self.values) + 1)
        self.pieces[0::2] = [a + b for a, b in zip(pieces[0::3], [*pieces[1::3], b""], strict=True)]

    def _steps(self, groups: list[str]) -> dict[str, int]:
        """How far each group moves per copy: past its largest number; in time, past the last event's end."""
        steps: dict[str, int] = {}
        for group, value in zip(groups, self.values, strict=True):
            steps[group] = max(steps.get(group, 0), value + 1)
        if "ProfilerStep#" in steps:
            numbers = [int(match[1]) for e in self.events if (match := STEP_NAME.match(e.get("name", "")))]
            steps["ProfilerStep#"] = max(numbers) - min(numbers) + 1
        first = min(e["ts"] for e in self.events)
        last = max(e["ts"] + e.get("dur", 0) for e in self.events)
        steps["ts"] = math.ceil(last - first) + 100  # whole microseconds, so the fraction's text can stay
        return steps

    def copy(self, index: int) -> bytes:
        """The text of copy `index`; copy 0 is the recording's own."""
        shifted = zip(self.values, self.shifts, strict=True)
        self.pieces[1::2] = [b"%d" % (value + index * shift) for value, shift in shifted]
        return b"".join(self.pieces)

    def chunks(self, copies: int) -> Iterator[bytes]:
        """The text of the whole file, copy by copy, then what a trace has once (names, record window)."""
        yield self.head
        for index in range(copies):
            yield (BETWEEN if index else b"") + self.copy(index)
        added = (copies - 1) * self.steps["ts"]
        for text in self.once_texts:
            if b'"cat": "Trace"' in text:
                text = re.sub(rb'(?<="dur": )\d+', partial(_add, added), text)
            elif b'"Record Window End"' in text:
                text = re.sub(rb'(?<="ts": )\d+', partial(_add, added), text)
            yield BETWEEN + text
        yield self.tail

    def copies_for(self, size_bytes: int) -> int:
        """How many copies reach `size_bytes`."""
        return math.ceil(size_bytes / len(self.copy(0)))


def _once(event: dict[str, Any]) -> bool:
    return event["ph"] == "M" or event.get("cat") == "Trace" or event.get("s") == "g"


def _group(key: bytes) -> str:
    return GROUP[re.findall(r'[^"]+', key.decode())[-1 if key.startswith(b'"Prof') else -2]]


def _add(amount: int, match: re.Match[bytes]) -> bytes:
    return b"%d" % (int(match[0]) + amount)


def _shifted(event: dict[str, Any], index: int, steps: dict[str, int]) -> dict[str, Any]:
    """What `event` must be in copy `index`, worked out from its values rather than from the text."""

    def move(fields: dict[str, Any], names: set[str]) -> dict[str, Any]:
        moved = dict(fields)
        for name in names & fields.keys():
            group, value = GROUP[name], fields[name]
            unset = value is None or value < 0 or (value == 0 and group in ZERO_MEANS_NONE)
            moved[name] = value if unset else value + index * steps[group]
        return moved

    expected = move(event, {"ts", "id"} if event["ph"] in "stf" else {"ts"})
    if match := STEP_NAME.match(event.get("name", "")):
        expected["name"] = f"ProfilerStep#{int(match[1]) + index * steps['ProfilerStep#']}"
    if "args" in event:
        expected["args"] = move(event["args"], GROUP.keys() - {"id", "ts", "ProfilerStep#"})
    return expected


def verify(recording: Recording, copies: int = 3) -> None:
    """Parse a small repetition and compare each event with its source; fail on any difference."""
    document = json.loads(b"".join(recording.chunks(copies)), parse_float=Decimal)
    events, count = document["traceEvents"], len(recording.events)
    assert len(events) == copies * count + len(recording.once), "wrong number of events"
    for index in range(copies):
        for source, event in zip(recording.events, events[index * count : (index + 1) * count], strict=True):
            assert event == _shifted(source, index, recording.steps), f"copy {index} of {source} is {event}"

    def distinct(events: list[dict[str, Any]], field: str) -> int:
        return len({e["args"][field] for e in events if e.get("args", {}).get(field)})

    def links(events: list[dict[str, Any]]) -> int:
        """GPU spans whose launch is in the trace."""
        runtime = ("cuda_runtime", "cuda_driver")
        calls = {e["args"]["correlation"] for e in events if e.get("cat") in runtime if "args" in e}
        gpu = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        return sum(e["args"]["correlation"] in calls for e in gpu)

    for field in ("correlation", "External id", "Python id", "Ev Idx", "Sequence number"):
        assert distinct(events, field) >= copies * distinct(recording.events, field), f"{field} repeats"
    assert links(events) == copies * links(recording.events), "launches are linked wrongly"
    steps = [e["name"] for e in events if STEP_NAME.match(e.get("name", ""))]
    assert len(set(steps)) == copies * len({n for n in map(_name, recording.events) if STEP_NAME.match(n)})
    print(f"verified: {copies} copies of {count:,} events parse, equal their source, and stay distinct")


def _name(event: dict[str, Any]) -> str:
    return str(event.get("name", ""))


def generate(source: Path, size_bytes: int, work: Path, *, compressed: bool) -> Path:
    """The path of a file of at least `size_bytes`, made unless `work` has it already; its .gz lies beside."""
    recording = Recording(source)
    stem = source.name.removesuffix(".gz").removesuffix(".json")
    path = work / f"{stem}.x{recording.copies_for(size_bytes)}.json"
    if not path.exists():
        verify(recording)
        start, part = time.perf_counter(), path.with_suffix(".part")
        with open(part, "wb") as file:
            file.writelines(recording.chunks(recording.copies_for(size_bytes)))
        part.rename(path)
        print(f"made {path} ({path.stat().st_size / 1e6:,.0f} MB) in {time.perf_counter() - start:.1f} s")
    zipped = path.with_suffix(".json.gz")
    if compressed and not zipped.exists():
        part = zipped.with_suffix(".part")
        with open(path, "rb") as plain, gzip.open(part, "wb", compresslevel=6) as file:
            shutil.copyfileobj(plain, file, 1 << 22)
        part.rename(zipped)
        print(f"made {zipped} ({zipped.stat().st_size / 1e6:,.0f} MB)")
    return path
