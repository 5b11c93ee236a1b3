"""Damage to recordings that knows their structure: events, times, ids and the header; tests/ingest/fuzz.py damages bytes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.ingest.fuzz import mutate as mutate_bytes

Event = dict[str, Any]
Events = list[Any]

# Values that readers and analyses have met in the wild, or never expected.
NUMBERS = (
    0, 1, -1, 0.5, -0.0, 7, 10**6, -(10**6), 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    1e18, 1e300, -1e300, 1e-9, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "",
    " ",
    "0",
    "-1",
    "1e3",
    "NaN",
    "x",
    "GPU 0",
    "stream 7",
    "\u0000",
    "\ud800",
    "\u202e",
    "a" * 300,
    "ж" * 300,
)
DEEP: Any = 0
for _ in range(200):
    DEEP = [DEEP]
OTHERS: tuple[object, ...] = (
    None,
    True,
    False,
    [],
    {},
    [[]],
    [1, "x", None],
    {"a": {"b": 1}},
    [[2, 3], [4]],
    [10**12, -1, 0],
    DEEP,
)
NAMES = (
    "", "aten::copy_", "aten::mm", "aten::_softmax", "aten::item", "aten::cat", "aten::bmm", "aten::index",
    "aten::convolution", "aten::_foreach_add_", "aten::nonzero", "Optimizer.step#X.step", "Optimizer.zero_grad#X.zero_grad",
    "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMalloc", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaFree",
    "hipMemcpyWithStream", "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)", "Memset (Device)",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    "ProfilerStep#0", "ProfilerStep#-1", "ProfilerStep#99999999999999999999", "ProfilerStep#", "ProfilerStep#x",
    "triton_poi_fused_add_0", "void gemm<float>(int)", "autograd::engine::evaluate_function: MmBackward0", "MmBackward0",
    "nn.Module: Linear_0", "train.py(12): step", "train.py(-1): ", "(): ", "Torch-Compiled Region: 0/0", "record_param_comms",
)  # fmt: skip
CATEGORIES = (
    "kernel", "gpu_memcpy", "gpu_memset", "cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function",
    "gpu_user_annotation", "overhead", "cuda_sync", "ac2g", "Trace", "cpu_instant_event", "", "unknown",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    [], [[]], [[0, 0]], [[-1, 5]], "x", [[1, [2]]], [[10**12, 10**12]] * 3, [[2**62, 2], [2, 2**62]], [[10**6] * 4] * 2, None,
    [[3], [4], [5], [6]], [True], [[2, 3], [3, 4]], [[2, 3, 4, 4]] * 3, [[[2, 3], [4]], []], [[1.5, 2]],
)  # fmt: skip
TYPES: tuple[Any, ...] = (
    [],
    ["float"],
    ["c10::BFloat16"] * 9,
    [""],
    None,
    ["Scalar", "int"],
    [["float"]],
    ["double", "long int"],
)
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
PHASES = ("X", "i", "M", "C", "s", "f", "B", "E", "", "XX")
LINKS = ("correlation", "External id", "Sequence number", "Fwd thread id", "Python id", "Python parent id", "stream", "device")  # fmt: skip
HEADER: Mapping[str, tuple[Any, ...]] = {
    "deviceProperties": ([], [{}], [{"id": 0, "name": None}], [{"name": "NVIDIA H200", "numSms": 0}], [{"name": "x" * 300, "numSms": -1}], "x", {}, [1]),
    "distributedInfo": ({}, {"rank": 0, "world_size": 2}, {"rank": -1, "world_size": 0}, {"rank": "x"}, [], 7),
    "baseTimeNanoseconds": (0, -1, 2**63, "x", None, 1.5),
    "schemaVersion": (0, 99, None, "x"),
    "traceName": (None, "x" * 300, 7),
    "with_stack": (0, 1, "x", None),
}  # fmt: skip


def value(chance: random.Random) -> Any:
    """Some value of any type."""
    return chance.choice(chance.choice((NUMBERS, NUMBERS, TEXTS, OTHERS)))


def _changed(events: Events, place: int) -> Event:
    """The event there, as a copy that may be changed; one of its own where there is none."""
    event = events[place]
    event = dict(event) if isinstance(event, dict) else {"ph": "X", "ts": 1, "dur": 1, "name": "x"}
    if isinstance(event.get("args"), dict):
        event["args"] = dict(event["args"])
    events[place] = event
    return event


def _part(event: Event, chance: random.Random) -> tuple[dict[str, Any], str]:
    """A field of the event or of its arguments, and where it is."""
    args = event.get("args")
    if isinstance(args, dict) and args and chance.random() < 0.5:
        return args, chance.choice(list(args))
    return event, chance.choice(FIELDS)


def drop_field(events: Events, place: int, chance: random.Random) -> None:
    """A field is not there."""
    where, key = _part(_changed(events, place), chance)
    where.pop(key, None)


def set_field(events: Events, place: int, chance: random.Random) -> None:
    """A field has another value, of any type."""
    where, key = _part(_changed(events, place), chance)
    where[key] = value(chance)


def set_time(events: Events, place: int, chance: random.Random) -> None:
    """A start or a length is zero, negative, huge, or moved by a little."""
    event = _changed(events, place)
    key = chance.choice(("ts", "dur"))
    old = event.get(key)
    near = old if isinstance(old, int | float) else 0
    event[key] = chance.choice(
        (0, 1e-3, -1, near - 500, near + 500, near * 1000, near * 1.5, -near, *NUMBERS[-8:])
    )


def set_name(events: Events, place: int, chance: random.Random) -> None:
    """An event has another name, or is of another kind."""
    event = _changed(events, place)
    key = chance.choice(("name", "name", "cat", "ph"))
    event[key] = chance.choice({"name": NAMES, "cat": CATEGORIES, "ph": PHASES}[key])


def swap(events: Events, place: int, chance: random.Random) -> None:
    """Two events have each other's field."""
    one, other = _changed(events, place), _changed(events, chance.randrange(len(events)))
    key = chance.choice(FIELDS)
    one[key], other[key] = other.get(key), one.get(key)


def link(events: Events, place: int, chance: random.Random) -> None:
    """An id leads elsewhere."""
    event = _changed(events, place)
    args = event.setdefault("args", {})
    if isinstance(args, dict):
        other = events[chance.randrange(len(events))]
        given = other.get("args") if isinstance(other, dict) else None
        key = chance.choice(LINKS)
        args[key] = chance.choice(
            (given.get(key) if isinstance(given, dict) else 0, 0, -1, 10**9, "7", value(chance))
        )


def reshape(events: Events, place: int, chance: random.Random) -> None:
    """An operator was called with other shapes or types."""
    args = _changed(events, place).setdefault("args", {})
    if isinstance(args, dict):
        args[chance.choice(("Input Dims", "Input Strides"))] = chance.choice(SHAPES)
        if chance.random() < 0.3:
            args["Input type"] = chance.choice(TYPES)


def repeat(events: Events, place: int, chance: random.Random) -> None:
    """An event stands there twice."""
    events.insert(chance.randrange(len(events) + 1), events[place])


def remove(events: Events, place: int, chance: random.Random) -> None:
    """An event is gone."""
    if len(events) > 1:
        del events[place]


def no_event(events: Events, place: int, chance: random.Random) -> None:
    """Something else stands there."""
    events[place] = value(chance)


def elsewhere(events: Events, place: int, chance: random.Random) -> None:
    """An event is on another thread, stream or process."""
    event = _changed(events, place)
    event[chance.choice(("pid", "tid"))] = chance.choice(
        (0, 7, 100, 101, 12345, "x", "stream 7", None, -3, 2**40)
    )


ONE: tuple[Callable[[Events, int, random.Random], None], ...] = (
    drop_field, set_field, set_field, set_time, set_time, set_name, swap, link, reshape, repeat, remove, no_event, elsewhere,
)  # fmt: skip


def of_all(events: Events, chance: random.Random) -> None:
    """One thing done to all events, or to all of one category."""
    category = chance.choice((None, *CATEGORIES[:8]))
    field, given = chance.choice(
        (("dur", 0), ("dur", None), ("dur", 1e9), ("ts", 5), ("tid", 1), ("pid", "x"), ("pid", 3), ("args", {}), ("cat", "kernel"))
    )  # fmt: skip
    for place, event in enumerate(events):
        if isinstance(event, dict) and category in (None, event.get("cat")):
            changed = _changed(events, place)
            if given is None:
                changed.pop(field, None)
            else:
                changed[field] = given


def in_disorder(events: Events, chance: random.Random) -> None:
    """The events stand in another order."""
    choice = chance.randrange(3)
    if choice == 0:
        events.reverse()
    elif choice == 1:
        chance.shuffle(events)
    else:
        middle = chance.randrange(len(events))
        events[:] = events[middle:] + events[:middle]


def two_processes(events: Events, chance: random.Random) -> None:
    """The same again from another process, at the same time or later."""
    shift = chance.choice((0, 100, 10**6, -(10**6)))
    for event in list(events):
        if isinstance(event, dict) and isinstance(event.get("ts"), int | float):
            events.append({**event, "ts": event["ts"] + shift, "pid": chance.choice((event.get("pid"), 999))})


def mutate_events(document: Any, chance: random.Random) -> Any:
    """A damaged copy of a recording: one to four kinds of damage, each in one to fifty places."""
    header = dict(document) if isinstance(document, dict) else {"traceEvents": document}
    events: Events = list(header["traceEvents"])
    for _ in range(chance.randint(1, 4)):
        choice = chance.random()
        if not events:
            events.append(value(chance))
        if choice < 0.75:
            damage = chance.choice(ONE)
            for _ in range(chance.choice((1, 1, 2, 5, 50))):
                damage(events, chance.randrange(len(events)), chance)
        elif choice < 0.83:
            of_all(events, chance)
        elif choice < 0.89:
            in_disorder(events, chance)
        elif choice < 0.92:
            two_processes(events, chance)
        else:
            key = chance.choice(list(HEADER))
            header[key] = chance.choice(HEADER[key])
    header["traceEvents"] = events if chance.random() < 0.99 else value(chance)
    return header


def mutate(document: Any, text: bytes, chance: random.Random) -> bytes:
    """A damaged recording as text: by its structure, by its bytes, or both."""
    if chance.random() < 0.15:
        return mutate_bytes(text, chance)
    data = json.dumps(mutate_events(document, chance)).encode("utf-8", "surrogatepass")
    if chance.random() < 0.05:  # keys that stand there twice
        field = chance.choice(
            (b'"ts": 5, ', b'"dur": "x", ', b'"name": "twice", ', b'"args": {}, ', b'"pid": null, ')
        )
        data = data.replace(b'{"ph"', b"{" + field + b'"ph"', chance.choice((1, 20)))
    return mutate_bytes(data, chance) if chance.random() < 0.1 else data
