"""What belongs to what, on recordings made by hand whose answer is known; by both readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from tests.builders import MAIN_THREAD, PROCESS, Recording
from tests.ingest.comparison import READERS

Open = Callable[..., foretrace.Trace]


@pytest.fixture(params=READERS)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a recording, or raw bytes, with the reader under test."""

    def open_with(recording: Recording | bytes, name: str = "trace.json") -> foretrace.Trace:
        path = tmp_path / name
        path.write_bytes(recording if isinstance(recording, bytes) else recording.to_bytes())
        return foretrace.open(path, reader=request.param)

    return open_with


def column(trace: foretrace.Trace, name: str) -> dict[str, Any]:
    """Name of each span -> its value in a column; ids as names."""
    spans = trace.spans.with_columns(pl.col("name").cast(pl.String))
    values = spans[name].to_list()
    if name.endswith("_id") and name != "track_id":
        values = [None if value is None else spans["name"][value] for value in values]
    return dict(zip(spans["name"], values, strict=True))


def test_ids_are_the_order_of_start(read: Open) -> None:
    recording = Recording().op("late", 30, 40).op("early", 10, 20).op("middle", 20, 21, thread=5)
    trace = read(recording)
    assert trace.spans["name"].cast(pl.String).to_list() == ["early", "middle", "late"]
    assert trace.spans["id"].to_list() == [0, 1, 2]
    assert trace.spans["start_ns"].to_list() == [0, 10_000, 20_000]


def test_of_equal_starts_the_longer_comes_first(read: Open) -> None:
    trace = read(Recording().op("short", 10, 12).op("long", 10, 20).op("again", 10, 20))
    assert trace.spans["name"].cast(pl.String).to_list() == ["long", "again", "short"]
    assert column(trace, "parent_id") == {"long": None, "again": "long", "short": "again"}
    assert column(trace, "depth") == {"long": 0, "again": 1, "short": 2}


def test_nesting(read: Open) -> None:
    recording = Recording().op("outer", 0, 100).op("inner", 10, 50).op("leaf", 20, 30).op("next", 50, 60)
    recording.op("touching", 100, 110).op("other thread", 20, 30, thread=9)
    assert column(read(recording), "parent_id") == {
        "outer": None, "inner": "outer", "leaf": "inner", "next": "outer", "touching": None, "other thread": None,
    }  # fmt: skip


def test_partial_overlap_is_no_nesting(read: Open) -> None:
    trace = read(Recording().op("a", 0, 10).op("b", 5, 15).op("c", 6, 9))
    assert column(trace, "parent_id") == {"a": None, "b": None, "c": "b"}


def test_device_work_holds_nothing(read: Open) -> None:
    trace = read(Recording().kernel("long", 0, 100).kernel("overlapping", 10, 20))
    assert column(trace, "parent_id") == {"long": None, "overlapping": None}


def test_launch_and_op(read: Open) -> None:
    recording = Recording().op("outer", 0, 100).op("inner", 10, 50).launch(20, "k", 200, 210)
    recording.launch(300, "outside", 310, 320)
    trace = read(recording)
    assert column(trace, "launch_id")["k"] == "cudaLaunchKernel"
    assert column(trace, "op_id")["k"] == "inner"
    assert column(trace, "op_id")["outside"] is None
    assert trace.spans.filter(pl.col("kind") == "runtime")["op_id"].to_list() == [1, None]
    assert trace.spans.filter(pl.col("kind") == "op")["op_id"].null_count() == 2


def test_repeated_correlation_ids(read: Open) -> None:
    recording = Recording()
    for name, start in (("first", 10), ("second", 20), ("third", 30)):
        recording.runtime(name, start, start + 1, correlation=7)
    for name, start in (("before all", 5), ("after one", 15), ("at two", 20), ("after all", 99)):
        recording.kernel(name, start, start + 1, correlation=7)
    launch = column(read(recording), "launch_id")
    assert [launch[name] for name in ("before all", "after one", "at two", "after all")] == [
        "first", "first", "second", "third",
    ]  # fmt: skip


@pytest.mark.parametrize("correlation", [0, -1, None, "x", 2**64 - 1, 2**70, 1.5])
def test_ids_that_link_nothing(correlation: Any, read: Open) -> None:
    recording = Recording().step(1, 0, 100).runtime("call", 1, 2, correlation=correlation)
    trace = read(recording.kernel("k", 3, 4, correlation=correlation))
    assert column(trace, "launch_id")["k"] is None
    assert column(trace, "step")["k"] is None


@pytest.mark.parametrize("correlation", [1, 2**63, 2**64 - 2, "12"])
def test_ids_up_to_64_bits(correlation: Any, read: Open) -> None:
    recording = Recording().runtime("call", 1, 2, correlation=correlation)
    assert column(read(recording.kernel("k", 3, 4, correlation=correlation)), "launch_id")["k"] == "call"


def test_one_graph_launch_starts_many_kernels(read: Open) -> None:
    recording = Recording().step(4, 0, 50).op("replay", 0, 20).runtime("cudaGraphLaunch", 5, 6, correlation=3)
    for node in range(3):
        recording.kernel(
            f"k{node}", 60 + node, 61 + node, correlation=3, **{"graph id": 2, "graph node id": node}
        )
    trace = read(recording)
    kernels = trace.spans.filter(pl.col("kind") == "kernel")
    assert kernels["launch_id"].to_list() == [2, 2, 2]
    assert kernels["op_id"].to_list() == [1, 1, 1]
    assert kernels["step"].to_list() == [4, 4, 4]
    assert trace.kernels["graph_id"].to_list() == [2, 2, 2]
    assert trace.kernels["graph_node_id"].to_list() == [0, 1, 2]


def test_external_id_where_there_is_no_launch(read: Open) -> None:
    recording = Recording().step(1, 0, 50).op("one", 1, 2, **{"External id": 5})
    recording.op("twice", 3, 4, **{"External id": 6}).op("twice too", 5, 6, **{"External id": 6})
    recording.kernel("by id", 100, 101, **{"External id": 5}).kernel(
        "ambiguous", 102, 103, **{"External id": 6}
    )
    recording.kernel("old spelling", 104, 105, **{"external id": 5}).kernel(
        "zero", 106, 107, **{"External id": 0}
    )
    trace = read(recording)
    op, step = column(trace, "op_id"), column(trace, "step")
    names = ("by id", "ambiguous", "old spelling", "zero")
    assert [op[name] for name in names] == ["one", None, "one", None]
    assert [step[name] for name in names] == [1, None, 1, None]


def test_nesting_goes_before_the_external_id(read: Open) -> None:
    recording = Recording().op("around", 0, 10).op("elsewhere", 20, 30, **{"External id": 5})
    recording.runtime("inside", 1, 2, **{"External id": 5}).runtime("outside", 40, 41, **{"External id": 5})
    op = column(read(recording), "op_id")
    assert (op["inside"], op["outside"]) == ("around", "elsewhere")


def test_step_is_that_of_the_launch(read: Open) -> None:
    recording = Recording().step(3, 0, 100).step(4, 100, 200)
    recording.launch(50, "runs in the next step", 150, 160).launch(150, "runs after all", 300, 310)
    recording.kernel("launched before the recording", 20, 30, correlation=999)
    recording.op("host", 100, 110).op("after", 200, 210)
    trace = read(recording)
    step = column(trace, "step")
    assert step == {
        "ProfilerStep#3": 3, "ProfilerStep#4": 4, "cudaLaunchKernel": 4, "host": 4, "after": None,
        "runs in the next step": 3, "runs after all": 4, "launched before the recording": None,
    }  # fmt: skip
    assert [(each.number, each.start_ns, each.end_ns) for each in trace.steps] == [
        (3, 0, 100_000), (4, 100_000, 200_000),
    ]  # fmt: skip


def test_no_steps(read: Open) -> None:
    recording = Recording().op("a", 0, 1).launch(2, "k", 3, 4)
    recording.device("gpu_user_annotation", "ProfilerStep#1", 0, 10).annotation("ProfilerStep#x", 0, 9)
    trace = read(recording)
    assert trace.steps == ()
    assert trace.spans["step"].null_count() == trace.spans.height


def test_backward_finds_its_forward(read: Open) -> None:
    def sequence(number: int, thread: int) -> dict[str, int]:
        return {"Sequence number": number, "Fwd thread id": thread}

    recording = Recording().op("linear", 0, 10, **sequence(5, 0)).op("addmm", 1, 9, **sequence(5, 0))
    recording.op("AddmmBackward0", 20, 30, thread=2, **sequence(5, 1))
    recording.op("other", 31, 32, thread=2, **sequence(6, 1)).op("linear again", 40, 50, **sequence(5, 0))
    trace = read(recording)
    names = trace.spans["name"].cast(pl.String)
    forward = {
        names[span]: None if made is None else names[made]
        for span, made in trace.ops.select("span_id", "forward_id").iter_rows()
    }
    assert forward == {
        "linear": None,
        "addmm": None,
        "AddmmBackward0": "addmm",
        "other": None,
        "linear again": None,
    }


def test_python_callers(read: Open) -> None:
    recording = Recording()
    for number, parent, name in (
        (1, None, "main"),
        (2, 1, "step"),
        (3, 2, "loss"),
        (9, 77, "lost"),
        (4, 4, "self"),
    ):
        recording.python(name, number, 10)
        recording.events[-1]["args"] = {"Python id": number, "Python parent id": parent}
    recording.python("double", 11, 12).python("child of double", 13, 14)
    recording.events[-2]["args"] = {"Python id": 1}
    recording.events[-1]["args"] = {"Python id": 20, "Python parent id": 1}
    trace = read(recording)
    names = trace.spans["name"].cast(pl.String)
    callers = {
        names[span]: None if caller is None else names[caller]
        for span, caller in trace.python.select("span_id", "caller_id").iter_rows()
    }
    # Two calls have the id 1: no one's caller.
    assert callers == {
        "main": None, "step": None, "loss": "step", "lost": None, "self": "self", "double": None,
        "child of double": None,
    }  # fmt: skip


def test_stacks(read: Open) -> None:
    recording = Recording().python("train.py(12): main", 0, 100).python("model.py(34): forward", 10, 40)
    recording.op("mm", 20, 30).python("model.py(34): forward", 50, 60).op("add", 52, 53)
    recording.python("<built-in method apply>", 70, 80).op("relu", 72, 73).op("outside", 200, 201)
    trace = read(recording)
    # main ran when recording began, at line 12; forward is called again later: 34 is where it begins.
    assert trace.stacks.rows() == [
        (0, None, "train.py", None, None, 12, "main"),
        (1, 0, "model.py", 34, "entry", None, "forward"),
        (2, 0, None, None, None, None, "<built-in method apply>"),
    ]
    assert trace.ops["stack_id"].to_list() == [1, 1, 2, None]
    assert trace.python["stack_id"].to_list() == [0, 1, 1, 2]


def test_call_stack_of_the_old_schema(read: Open) -> None:
    recording = Recording().op("a", 0, 1, **{"Call stack": "m.py(3): inner;t.py(9): outer"})
    recording.op("b", 2, 3, **{"Call stack": "t.py(9): outer"}).op("c", 4, 5, **{"Call stack": ""})
    trace = read(recording)
    frames = trace.stacks.rows_by_key("id", unique=True)

    def path(stack: int | None) -> list[str]:
        return [] if stack is None else [*path(frames[stack][0]), frames[stack][-1]]

    assert [path(stack) for stack in trace.ops["stack_id"]] == [["outer", "inner"], ["outer"], []]
    assert trace.stacks.height == 2
    assert trace.stacks["line_by"].unique().to_list() == ["ran"]


@pytest.mark.parametrize("again", [True, False])
def test_first_lines_and_lines_of_the_moment(read: Open, again: bool) -> None:
    """main and loop ran when recording began; step is the first call then, and known to begin at 5 where it is called again."""
    recording = Recording().python("t.py(50): main", 0, 100).python("t.py(30): loop", 1, 99)
    recording.python("torch/profiler/profiler.py(9): start", 2, 10)
    recording.python("t.py(5): step", 20, 40).python("m.py(7): forward", 22, 30)
    recording.python("w.py(3): work", 0, 50, thread=200).python("m.py(7): forward", 10, 20, thread=200)
    if again:
        recording.python("w.py(3): work", 60, 70, thread=200)
    frames = {(file, function): line for _, _, file, line, _, _, function in read(recording).stacks.rows()}
    assert (frames["t.py", "main"], frames["t.py", "loop"]) == (None, None)
    assert (frames["t.py", "step"], frames["m.py", "forward"]) == (5, 7)
    assert frames["w.py", "work"] == (3 if again else None)


def test_modules(read: Open) -> None:
    recording = Recording().python("nn.Module: Net_0", 0, 100).python("net.py(1): forward", 5, 90)
    recording.python("nn.Module: Linear_0", 10, 30).op("mm", 15, 20).python("nn.Module: Linear_1", 40, 50)
    recording.op("add", 45, 46).op("between", 60, 61)
    trace = read(recording)
    assert trace.modules.rows() == [(0, None, "Net_0"), (1, 0, "Linear_0"), (2, 0, "Linear_1")]
    assert trace.ops["module_id"].to_list() == [1, 2, 0]
    assert trace.python["module_id"].to_list() == [0, 0, 1, 2]


def memory(
    at: float, size: int, address: int, *, device: int = 0, kind: int = 1, **totals: int
) -> dict[str, Any]:
    args = {"Bytes": size, "Addr": address, "Device Id": device, "Device Type": kind, **totals}
    return {"ph": "i", "name": "[memory]", "pid": PROCESS, "tid": MAIN_THREAD, "ts": at, "args": args}


def test_allocations(read: Open) -> None:
    recording = Recording().op("empty", 0, 10)
    recording.events += [
        memory(1, 512, 0x10), memory(2, 256, 0x10, device=1), memory(20, -512, 0x10), memory(21, 64, 0x10),
        memory(22, -99, 0x20), memory(23, 8, 2**64 - 2, kind=0, device=-1),
    ]  # fmt: skip
    trace = read(recording)
    rows = trace.allocations.select("start_ns", "end_ns", "size_bytes", "device", "address", "op_id").rows()
    assert rows == [
        (1_000, 20_000, 512, "cuda:0", 0x10, 0),
        (2_000, None, 256, "cuda:1", 0x10, 0),
        (21_000, None, 64, "cuda:0", 0x10, None),
        (None, 22_000, 99, "cuda:0", 0x20, None),
        (23_000, None, 8, "cpu", 2**64 - 2, None),
    ]


def test_allocator_totals_are_counters(read: Open) -> None:
    recording = Recording().op("a", 0, 1)
    recording.events += [
        memory(2, 8, 1, **{"Total Allocated": 8, "Total Reserved": 100}),
        memory(1, 4, 2, kind=0, device=-1, **{"Total Allocated": 4}),
        memory(3, -8, 1, **{"Total Allocated": 0, "Total Reserved": 100}),
    ]
    recording.events.append({"ph": "C", "name": "power", "pid": 0, "ts": 5, "args": {"W": 350.5, "x": "n/a"}})
    trace = read(recording)
    named = trace.counters.join(
        trace.tracks, left_on="track_id", right_on="id", how="left", suffix="_of_track"
    )
    rows = named.select("at_ns", pl.col("name").cast(pl.String), "value", "name_of_track", "device").rows()
    assert rows[0][:3] == (5_000, "power", 350.5)
    assert rows[1:] == [
        (1_000, "allocated_bytes", 4.0, "cpu memory", None),
        (2_000, "allocated_bytes", 8.0, "cuda:0 memory", 0),
        (3_000, "allocated_bytes", 0.0, "cuda:0 memory", 0),
        (2_000, "reserved_bytes", 100.0, "cuda:0 memory", 0),
        (3_000, "reserved_bytes", 100.0, "cuda:0 memory", 0),
    ]


def test_collectives(read: Open) -> None:
    recording = Recording()
    common = {"Process Group Name": "dp", "Group size": 8, "Process Group Ranks": "[0, 1]", "Seq": 3}
    for start, dtype in enumerate(("BFloat16", "Double", "Unheard")):
        recording.kernel(
            f"nccl{start}", start, start + 1, **common,
            **{"Collective name": "allreduce", "dtype": dtype, "In msg nelems": 1024 if start == 0 else 64,
               "Out msg nelems": 64, "Comms Id": 2**64 - 1},
        )  # fmt: skip
    recording.kernel("gemm", 9, 10)
    trace = read(recording)
    assert trace.collectives["size_bytes"].to_list() == [1024 * 2, 64 * 8, None]
    assert trace.collectives.row(0, named=True) == {
        "span_id": 0, "collective": "allreduce", "group": "dp", "group_size": 8, "ranks": "[0, 1]",
        "dtype": "BFloat16", "in_count": 1024, "out_count": 64, "size_bytes": 2048, "seq": 3,
        "comms_id": "18446744073709551615",
    }  # fmt: skip


def test_copies(read: Open) -> None:
    recording = Recording().copy("Memcpy HtoD (Pageable -> Device)", 0, 1, bytes=10)
    recording.copy("Memcpy DtoH (Device -> Pinned)", 2, 3, bytes=20).copy(
        "Memcpy DtoD (Device -> Device)", 4, 5
    )
    recording.copy("CopyHostToDevice", 6, 7, bytes=30).memset(8, 9, bytes=40)
    recording.copy("Memcpy PtoP (Device -> Device)", 10, 11, bytes=2**40)
    assert read(recording).copies.rows() == [
        (0, 10, "HtoD", True), (1, 20, "DtoH", False), (2, None, "DtoD", None), (3, 30, None, None),
        (4, 40, "set", None), (5, 2**40, "PtoP", None),
    ]  # fmt: skip


def test_kernel_geometry(read: Open) -> None:
    recording = Recording().kernel(
        "k", 0, 1, grid=[1, 2, 3], block=[64, 4, 1], **{
            "registers per thread": 40, "shared memory": 1 << 33, "blocks per SM": "inf", "warps per SM": 1.5,
            "est. achieved occupancy %": 38,
        },
    )  # fmt: skip
    recording.kernel("bare", 2, 3, grid=[7], block="no", **{"registers per thread": 2**31})
    assert read(recording).kernels.rows() == [
        (0, 1, 2, 3, 64, 4, 1, 40, 1 << 33, None, 1.5, 38.0, None, None),
        (1, 7, None, None, None, None, None, None, None, None, None, None, None, None),
    ]


def test_tracks(read: Open) -> None:
    recording = Recording()
    recording.add("cpu_op", "a", 0, 1, 12, 34).add("cpu_op", "b", 1, 1, "12", "thread x").kernel("k", 2, 3)
    recording.add("cpu_op", "c", 3, 1, "12", 2**65)
    label = {"ph": "M", "name": "thread_name", "pid": 12, "tid": 34, "ts": 0, "args": {"name": "autograd "}}
    recording.events.append(label)
    trace = read(recording)
    assert trace.spans["track_id"].to_list() == [0, 1, 2, 3]
    assert trace.tracks.select("process", "device", "stream", "thread", "name").rows() == [
        (12, None, None, 34, "autograd"),
        (None, None, None, None, "thread x"),
        (None, 0, 7, None, "GPU 0 stream 7"),
        (None, None, None, None, f"thread {2**65}"),
    ]


@pytest.mark.parametrize(
    ("runtime", "kernel", "call"),
    [
        ("cuda_runtime", "kernel", "hipLaunchKernel"),
        ("cuda_driver", "kernel", "cuLaunchKernelEx"),
        ("xpu_runtime", "kernel", "urEnqueueKernelLaunch"),
        ("mtia_runtime", "kernel", "runFunction"),
        (
            "mtia_runtime",
            "mtia_ccp_events",
            "runFunction",
        ),  # on the device, as Kineto's ActivityType.h has it
        ("privateuse1_runtime", "concurrent_kernel", "launch"),
        ("Runtime", "Kernel", "cudaLaunchKernel"),
    ],
)
def test_other_vendors_and_old_names(runtime: str, kernel: str, call: str, read: Open) -> None:
    recording = Recording().add("Operator", "aten::mm", 0, 10, 1, 1)
    recording.add(runtime, call, 2, 1, 1, 1, correlation=5)
    trace = read(recording.add(kernel, "gemm", 20, 5, 0, 7, device=0, stream=7, correlation=5))
    assert column(trace, "kind") == {"aten::mm": "op", call: "runtime", "gemm": "kernel"}
    assert column(trace, "op_id")["gemm"] == "aten::mm"


def test_kinds(read: Open) -> None:
    categories = {
        "cpu_op": "op", "Operator": "op", "python_function": "python", "user_annotation": "annotation",
        "Memcpy": "copy", "gpu_memcpy": "copy", "Memset": "set", "gpu_memset": "set", "cuda_sync": "sync",
        "xpu_sync": "sync", "overhead": "overhead", "never heard of": "annotation",
    }  # fmt: skip
    recording = Recording()
    for at, category in enumerate(categories):
        recording.add(category, category, at * 10, 1, 1, 1)
    assert column(read(recording), "kind") == categories


def test_steps_of_the_old_schema_are_annotations(read: Open) -> None:
    trace = read(Recording().add("Operator", "ProfilerStep#7", 0, 100, 1, 1).add("Operator", "a", 5, 5, 1, 1))
    assert column(trace, "kind") == {"ProfilerStep#7": "annotation", "a": "op"}
    assert [step.number for step in trace.steps] == [7]
    assert trace.ops.height == 1


def test_absolute_times_keep_their_nanoseconds(read: Open) -> None:
    data = (
        b'{"schemaVersion": 1, "traceEvents": ['
        b'{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1790857026000123.001, "dur": 0.001},'
        b'{"ph": "X", "name": "b", "pid": 1, "tid": 1, "ts": 1790857026000123.002, "dur": 1.999}]}'
    )
    trace = read(data)
    assert trace.spans["start_ns"].to_list() == [0, 1]
    assert trace.spans["dur_ns"].to_list() == [1, 1999]
    assert trace.meta["epoch_ns"] == 1790857026000123001
    assert trace.meta["base_ns"] is None


def test_base_time(read: Open) -> None:
    trace = read(Recording(baseTimeNanoseconds=1_790_000_000_000_000_000).op("a", 2.5, 3))
    assert trace.meta["epoch_ns"] == 1_790_000_000_000_002_500


@pytest.mark.parametrize(
    ("info", "name", "rank"),
    [
        ({"rank": 3, "world_size": 8}, "trace.json", (3, "metadata")),
        ({"rank": 3, "world_size": 8}, "rank-5.json", (3, "metadata")),
        ({"backend": "nccl"}, "rank5.json", (5, "file name")),
        (None, "run_RANK_12.json", (12, "file name")),
        ({"rank": -1}, "trace.json", (None, None)),
        ({"rank": "x"}, "trace.json", (None, None)),
        ([1], "trace.json", (None, None)),
    ],
)
def test_rank(info: Any, name: str, rank: tuple[int | None, str | None], read: Open) -> None:
    document = {"schemaVersion": 1, "traceEvents": Recording().op("a", 0, 1).events, "distributedInfo": info}
    trace = read(json.dumps(document).encode(), name)  # behind the events, as Kineto writes it
    assert (trace.meta["rank"], trace.meta["rank_source"]) == rank
    assert trace.tracks["rank"].to_list() == [rank[0]]


def test_a_bare_list(read: Open) -> None:
    trace = read(json.dumps(Recording().op("a", 0, 1).launch(2, "k", 3, 4).events).encode())
    assert column(trace, "launch_id")["k"] == "cudaLaunchKernel"
    assert trace.meta["devices"] == []


def test_unknown_arguments_are_kept(read: Open) -> None:
    recording = Recording().op(
        "a", 0, 1, whole=5, real=0.5, text="x\ny", items=[1, [2.50]], flag=True, none=None
    )
    recording.op("b", 2, 3, whole=2**63, minus=-(2**63) + 1, **{"Ev Idx": 7}).runtime(
        "c", 4, 5, grid=[1, 2, 3]
    )
    rows = read(recording).args.with_columns(pl.col(pl.Categorical).cast(pl.String)).rows()
    assert rows == [
        (0, "whole", 5, None, None), (0, "real", None, 0.5, None), (0, "text", None, None, "x\ny"),
        (0, "items", None, None, "[1, [2.5]]"), (0, "flag", 1, None, None),
        (1, "whole", None, None, str(2**63)), (1, "minus", -(2**63) + 1, None, None),
        (2, "grid", None, None, "[1, 2, 3]"),
    ]  # fmt: skip


def test_spellings_of_one_argument_are_told_apart(read: Open) -> None:
    recording = Recording().python("f", 0, 1).python("g", 2, 3)
    recording.events[0]["args"] = {"external id": 1, "External id": 2}
    recording.events[1]["args"] = {"External id": 3}
    rows = read(recording).args.select("span_id", pl.col("key").cast(pl.String), "int").rows()
    assert rows == [(0, "external id", 1), (0, "External id", 2), (1, "External id", 3)]


def test_of_a_repeated_key_the_last_counts(read: Open) -> None:
    events = (
        b'[{"ph":"X","cat":"cpu_op","name":"first","name":"a","ts":0,"dur":1,"args":{"x":1,"y":2,"x":3}},'
        b'{"ph":"C","name":"c","ts":1,"args":{"v":1,"w":5,"v":2}}]'
    )
    trace = read(events)
    assert trace.args.select(pl.col("key").cast(pl.String), "int").rows() == [("x", 3), ("y", 2)]
    assert trace.counters.select(pl.col("name").cast(pl.String), "value").rows() == [
        ("c v", 2.0),
        ("c w", 5.0),
    ]
    assert trace.spans["name"].cast(pl.String).to_list() == ["a"]


def test_shapes_have_one_spelling(read: Open) -> None:
    def op(shapes: str) -> str:
        return f'{{"ph":"X","cat":"cpu_op","name":"a","ts":0,"dur":1,"args":{{"Input Dims":{shapes}}}}}'

    trace = read(f"[{op('[[2,3],[]]')},{op('[[2, 3], []]')},{op('[ [2 , 3],[ ] ]')}]".encode())
    assert trace.ops["shapes"].cast(pl.String).to_list() == ["[[2, 3], []]"] * 3
