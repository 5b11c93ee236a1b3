"""`operators` against torch's own tables: printed ones, saved ones, and one recorded here where torch is."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import foretrace
from foretrace.analyze.concepts.trees.call_tree import NOBODY, build, containers
from foretrace.analyze.operators import operators
from foretrace.errors import MissingDataError, UsageError
from tests.builders import PROCESS, Recording
from tests.corpus import CORPUS, needs_corpus

COLD = CORPUS / "other" / "cold_start"
SAVED = Path(__file__).parents[1] / "traces" / "operators"  # torch 2.11 on an H200, and its key_averages()
ATTRIBUTES = {
    "count": "calls_count",
    "cpu_time_total": "host_total_ns",
    "self_cpu_time_total": "host_self_ns",
    "device_time_total": "device_total_ns",
    "self_device_time_total": "device_self_ns",
    "cpu_memory_usage": "host_memory_bytes",
    "self_cpu_memory_usage": "host_self_memory_bytes",
    "device_memory_usage": "device_memory_bytes",
    "self_device_memory_usage": "device_self_memory_bytes",
}
PRINTED = {
    "Self CPU %": "host_self_pct", "Self CPU": "host_self_ns", "CPU total %": "host_total_pct",
    "CPU total": "host_total_ns", "CPU time avg": "host_mean_ns", "Self CUDA": "device_self_ns",
    "Self CUDA %": "device_self_pct", "CUDA total": "device_total_ns", "CUDA time avg": "device_mean_ns",
    "# of Calls": "calls_count",
}  # fmt: skip

Row = dict[str, Any]


def rows_of(trace: foretrace.Trace, **options: Any) -> list[Row]:
    return operators(trace, **options).table.to_dicts()


def row(rows: list[Row], name: str, on: str = "host") -> Row:
    found = [each for each in rows if (each["name"], each["on"]) == (name, on)]
    assert len(found) == 1, (name, on, len(found))
    return found[0]


# --- torch's printed tables -------------------------------------------------------------------------------


def printed_table(path: Path) -> tuple[list[dict[str, str]], dict[str, str]]:
    """Rows by heading, and the footer, of a table that torch printed."""
    lines = path.read_text().splitlines()
    heading = re.split(r" {2,}", lines[1].strip())
    body = [re.split(r" {2,}", line.strip()) for line in lines[3:] if not line.startswith(("---", "Self C"))]
    footer = dict(line.split(": ") for line in lines if line.startswith("Self C"))
    return [dict(zip(heading, cells, strict=True)) for cells in body], footer


def as_torch_prints(column: str, value: float) -> str:
    """torch's `_format_time` and `_format_time_share`."""
    if column.endswith("_pct"):
        return f"{value:.2f}%"
    if column.endswith("_count"):
        return str(value)
    for unit, factor in (("s", 1e9), ("ms", 1e6)):
        if value >= factor:
            return f"{value / factor:.3f}{unit}"
    return f"{value / 1e3:.3f}us"


@needs_corpus
@pytest.mark.parametrize("name", ["matmul_cold_wait0", "matmul_cold_wait1"])
def test_every_cell_of_the_printed_tables(name: str) -> None:
    printed, footer = printed_table(COLD / f"{name}.txt")
    result = operators(foretrace.open(COLD / f"{name}.json"))
    ours = result.table.to_dicts()
    assert len(ours) == len(printed)
    for theirs in printed:
        where = "device" if theirs["Self CPU"] == theirs["CPU total"] == "0.000us" else "host"
        name_start = theirs["Name"].removesuffix("...")
        mine = [each for each in ours if each["name"].startswith(name_start) and each["on"] == where]
        assert len(mine) == 1, theirs["Name"]
        for heading, column in PRINTED.items():
            assert as_torch_prints(column, mine[0][column]) == theirs[heading], (theirs["Name"], heading)
    assert as_torch_prints("_ns", result.values["host_self_ns"]) == footer["Self CPU time total"]  # type: ignore[arg-type]
    assert as_torch_prints("_ns", result.values["device_self_ns"]) == footer["Self CUDA time total"]  # type: ignore[arg-type]


@needs_corpus
def test_what_the_cold_start_is_known_for() -> None:
    rows = rows_of(foretrace.open(COLD / "matmul_cold_wait0.json"))
    annotation = row(rows, "matmul_add", "device")
    assert (annotation["device_self_ns"], round(annotation["device_self_pct"], 2)) == (123_680, 1475.37)
    assert row(rows, "Activity Buffer Request")["device_self_ns"] == 1_920
    assert row(rows, "ProfilerStep*")["calls_count"] == 3


# --- torch's values, saved and recorded here --------------------------------------------------------------


def keyed(rows: list[Row], extra: str | None) -> dict[tuple[Any, ...], Row]:
    found = {
        (each["name"], each["on"], each["kind"] == "annotation", each[extra] or "[]" if extra else ""): each
        for each in rows
    }
    assert len(found) == len(rows)
    return found


def torch_keyed(rows: list[Row], by_shape: bool) -> dict[tuple[Any, ...], Row]:
    return {
        (
            each["key"],
            "host" if each["device_type"] == "DeviceType.CPU" else "device",
            bool(each["is_user_annotation"]),
            each["input_shapes"] if by_shape else "",
        ): each
        for each in rows
    }


def assert_equal(trace: foretrace.Trace, torch_rows: list[Row], *, by_shape: bool = False) -> None:
    """Every row, and every number in it to the nanosecond and the byte."""
    ours = keyed(rows_of(trace, group_by="shape" if by_shape else "name"), "shapes" if by_shape else None)
    theirs = torch_keyed(torch_rows, by_shape)
    assert set(ours) == set(theirs)
    for key, expected in theirs.items():
        for attribute, column in ATTRIBUTES.items():
            value = ours[key][column]
            if value is None:  # not recorded: torch says 0
                assert expected[attribute] == 0
                continue
            value = value / 1000 if column.endswith("_ns") else value
            assert value == pytest.approx(expected[attribute], abs=0.0011), (key, attribute)


@pytest.mark.parametrize("name", ["cold", "train", "graph"])
def test_saved_tables_of_a_gpu(name: str) -> None:
    trace = foretrace.open(SAVED / f"{name}.json.gz")
    saved = json.loads(gzip.decompress((SAVED / f"{name}.torch.json.gz").read_bytes()))
    assert_equal(trace, saved["rows"])
    if name != "cold":
        assert_equal(trace, saved["shapes"], by_shape=True)


def torch_rows(averages: Any) -> list[Row]:
    names = (*ATTRIBUTES, "key", "is_user_annotation")
    return [
        {name: getattr(each, name) for name in names}
        | {"device_type": str(each.device_type), "input_shapes": str(each.input_shapes)}
        for each in averages
    ]


def train(folder: Path, **options: Any) -> tuple[foretrace.Trace, Any]:
    """Two recorded steps of training on the CPU: the Trace, and the profiler that made it."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters())
    path = folder / "recorded.json"
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=plan,
        on_trace_ready=lambda ready: ready.export_chrome_trace(str(path)), **options,
    ) as profiler:  # fmt: skip
        for _ in range(4):
            with record_function("forward"):
                output = model(torch.randn(16, 64))
                loss = torch.nn.functional.cross_entropy(output, torch.zeros(16, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss.item()
            profiler.step()
    return foretrace.open(path, cache=False), profiler


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"record_shapes": True},
        {"profile_memory": True},
        {"record_shapes": True, "profile_memory": True, "with_flops": True},
        {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True},
    ],
    ids=lambda options: "+".join(options) or "plain",
)
def test_recorded_here(tmp_path: Path, options: dict[str, bool]) -> None:
    trace, profiler = train(tmp_path, **options)
    averages = profiler.key_averages()
    assert_equal(trace, torch_rows(averages))
    if "record_shapes" in options:
        assert_equal(trace, torch_rows(profiler.key_averages(group_by_input_shape=True)), by_shape=True)
    total_ns = operators(trace).values["host_self_ns"]
    assert total_ns == pytest.approx(averages.self_cpu_time_total * 1000, abs=1)


@pytest.mark.slow
def test_python_functions_can_be_left_out(tmp_path: Path) -> None:
    trace, _ = train(tmp_path, with_stack=True)
    without = operators(trace, python="no").table
    assert "python" not in without["kind"].to_list()
    assert "python" in operators(trace, python="yes").table["kind"].to_list()
    by_name = without.filter(pl.col("kind") == "op").select("calls_count", "host_self_ns").sum()
    by_stack = operators(trace, group_by="stack", python="no").table.filter(pl.col("kind") == "op")
    assert by_stack.select("calls_count", "host_self_ns").sum().equals(by_name)


# --- by hand ----------------------------------------------------------------------------------------------


def by_hand() -> Recording:
    made = Recording()
    made.step(3, 0, 100).annotation("forward", 10, 60)
    made.python("run.py(1): <module>", 0, 1).python("model.py(5): forward", 11, 59)
    made.op("aten::linear", 12, 52, **{"Input Dims": [[4, 8], [[1], [2]], []], "External id": 1})
    made.op("aten::addmm", 14, 44, **{"External id": 2})
    made.launch(20, "gemm", 30, 70, call=6)
    made.launch(30, "bias", 70, 75, call=4)
    made.runtime("cudaDeviceSynchronize", 80, 96, correlation=99)
    made.add("gpu_user_annotation", "forward", 29.999, 45.002, 0, 7)
    made.add("overhead", "Buffer Flush", 36, 5, -1, 0)
    for at, size, device in ((16, 1000, 0), (18, 512, 1), (50, -1000, 0), (120, -512, 1)):
        made.events.append(
            {"ph": "i", "name": "[memory]", "pid": PROCESS, "tid": PROCESS, "ts": at, "s": "t",
             "args": {"Device Type": device, "Device Id": 0 if device else -1, "Addr": size % 7 or 5,
                      "Bytes": size}}
        )  # fmt: skip
    return made


def test_a_recording_whose_answer_is_known(tmp_path: Path) -> None:
    result = operators(by_hand().open(tmp_path))
    rows = result.table.to_dicts()
    expected = {  # host self, host total, device self, device total, in microseconds
        ("ProfilerStep*", "host"): (100 - 50 - 16, 100, 0, 90),
        ("forward", "host"): (50 - 40, 50, 0, 90),
        ("aten::linear", "host"): (40 - 30, 40, 0, 90),
        # The flush interrupts addmm, takes 5 of its time and repeats its 45 of device work.
        ("aten::addmm", "host"): (30 - 6 - 4 - 5, 30, 45, 90),
        ("cudaLaunchKernel", "host"): (10, 10, 0, 0),
        ("Buffer Flush", "host"): (5, 5, 45, 45),
        ("cudaDeviceSynchronize", "host"): (16, 16, 0, 0),
        ("gemm", "device"): (0, 0, 40, 40),
        ("bias", "device"): (0, 0, 5, 5),
        ("forward", "device"): (0, 0, 45, 45),
        ("[memory]", "host"): (0, 0, 0, 0),
    }
    columns = ("host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns")
    assert {(each["name"], each["on"]): tuple(each[c] / 1000 for c in columns) for each in rows} == expected
    assert result.values["host_self_ns"] == 100_000
    assert result.values["device_self_ns"] == 45_000
    assert row(rows, "aten::addmm")["device_self_pct"] == pytest.approx(100)
    assert row(rows, "cudaLaunchKernel")["host_mean_ns"] == 5_000
    memory = (
        "host_memory_bytes",
        "host_self_memory_bytes",
        "device_memory_bytes",
        "device_self_memory_bytes",
    )
    assert [row(rows, "aten::addmm")[c] for c in memory] == [1000, 1000, 512, 512]
    assert [row(rows, "aten::linear")[c] for c in memory] == [0, -1000, 512, 0]
    assert [row(rows, "[memory]")[c] for c in memory] == [0, 0, -512, -512]


def test_groups(tmp_path: Path) -> None:
    trace = by_hand().open(tmp_path)
    shapes = {each["name"]: each["shapes"] for each in rows_of(trace, group_by="shape")}
    assert shapes["aten::linear"] == "[[4, 8], [], []]"  # a list of tensors is empty, as in torch
    assert shapes["aten::addmm"] is None
    stacks = {(each["name"], each["on"]): each["stack"] for each in rows_of(trace, group_by="stack")}
    assert stacks["aten::addmm", "host"] == "model.py(5): forward"
    assert stacks["gemm", "device"] == "model.py(5): forward"
    assert stacks["ProfilerStep*", "host"] is None


def test_repeated_calls_count_once(tmp_path: Path) -> None:
    made = (
        Recording()
        .op("outer", 0, 50)
        .op("same", 5, 45)
        .op("same", 10, 40)
        .op("same", 12, 38)
        .op("leaf", 15, 20)
    )
    rows = rows_of(made.open(tmp_path))
    assert {each["name"]: each["calls_count"] for each in rows} == {"outer": 1, "same": 1, "leaf": 1}
    assert row(rows, "same")["host_self_ns"] == 35_000
    both = Recording().op("same", 0, 50).op("same", 5, 10).op("same", 20, 30)
    assert row(rows_of(both.open(tmp_path)), "same")["calls_count"] == 3


def test_calls_of_no_operator_count_on_the_thread_with_the_steps(tmp_path: Path) -> None:
    made = Recording().step(0, 0, 100).op("aten::mm", 10, 90).op("elsewhere", 0, 50, thread=7)
    made.runtime("cudaEventQuery", 60, 70, thread=7, correlation=5)
    made.runtime("cudaLaunchKernel", 20, 30, thread=7, correlation=6)
    rows = rows_of(made.open(tmp_path))
    assert row(rows, "aten::mm")["host_self_ns"] == 70_000
    assert row(rows, "elsewhere")["host_self_ns"] == 40_000


def test_what_was_not_recorded_is_null(tmp_path: Path) -> None:
    result = operators(Recording().op("aten::add", 0, 10).open(tmp_path))
    only = result.table.to_dicts()[0]
    absent = [column for column, value in only.items() if value is None]
    assert absent == [
        "device_self_ns", "device_self_pct", "device_total_ns", "device_mean_ns", "host_memory_bytes",
        "host_self_memory_bytes", "device_memory_bytes", "device_self_memory_bytes", "total_flops",
        "tensor_core_eligible", "tensor_core_self_pct", "tensor_core_total_pct", "flags",
    ]  # fmt: skip
    assert result.values["device_self_ns"] is None


def test_impossible_durations_do_not_poison_sums(tmp_path: Path) -> None:
    made = Recording().op("aten::add", 0, 10).op("aten::add", 20, 15).launch(1, "k", 2, 5).kernel("k", 9, 3)
    rows = rows_of(made.open(tmp_path))
    assert (row(rows, "aten::add")["calls_count"], row(rows, "aten::add")["host_total_ns"]) == (2, 10_000)
    assert row(rows, "k", "device")["device_self_ns"] == 3_000


def test_zero_time_has_no_shares(tmp_path: Path) -> None:
    only = operators(Recording().op("aten::add", 5, 5).open(tmp_path)).table.to_dicts()[0]
    assert (only["host_self_ns"], only["host_self_pct"]) == (0, None)


@pytest.mark.slow
def test_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="ProfilerActivity"):
        operators(Recording().open(tmp_path))
    trace = Recording().op("aten::add", 0, 10).open(tmp_path)
    with pytest.raises(MissingDataError, match="record_shapes"):
        operators(trace, group_by="shape")
    with pytest.raises(MissingDataError, match="with_stack"):
        operators(trace, group_by="stack")
    for options in ({"group_by": "colour"}, {"stack_depth": 0}, {"python": "maybe"}):
        with pytest.raises(UsageError):
            operators(trace, **options)


# --- what must always hold --------------------------------------------------------------------------------


def torch_parents(start: list[int], end: list[int]) -> list[int]:
    """`_populate_cpu_children` of torch's profiler_util, with rows for events."""
    parents, opened = [], []  # type: ignore[var-annotated]
    for index in range(len(start)):
        while opened and (start[index] >= end[opened[-1]] or end[index] > end[opened[-1]]):
            opened.pop()
        parents.append(opened[-1] if opened else NOBODY)
        opened.append(index)
    return parents


@pytest.mark.parametrize("seed", range(20))
def test_nesting_is_that_of_torch(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 60, 300)
    end = start + random.integers(0, 30, 300)
    order = np.lexsort((-end, start))
    start, end = start[order], end[order]
    assert containers(start, end).tolist() == torch_parents(start.tolist(), end.tolist())


RECORDINGS = [
    "h200/gpt_healthy.slow.rich.json.gz", "h200/gpt_healthy.slow.lite.json.gz", "h200/resnet50.fixed.rich.json.gz",
    "h200/slow_dataloader.slow.rich.json.gz", "other/multirank_gloo/rank0.json.gz",
]  # fmt: skip


@needs_corpus
@pytest.mark.parametrize("name", RECORDINGS)
def test_sums_over_recordings(name: str) -> None:
    trace = foretrace.open(CORPUS / name)
    result = operators(trace)
    tree = build(trace)
    roots = tree.parent == NOBODY
    assert result.values["host_self_ns"] == int((tree.end_ns - tree.start_ns)[roots].sum())
    assert result.table["host_self_pct"].sum() == pytest.approx(100)
    assert result.values["device_self_ns"] == trace.device_spans["dur_ns"].sum()
    annotated = (pl.col("on") == "device") & (pl.col("kind") == "annotation")
    work = result.table.filter((pl.col("on") == "device") & ~annotated)
    assert work["device_self_pct"].sum() == pytest.approx(100)
    on_host = result.table.filter((pl.col("on") == "host") & (pl.col("kind") == "op"))
    linked = trace.device_spans.filter(pl.col("op_id").is_not_null())["dur_ns"].sum()
    assert on_host["device_self_ns"].sum() == linked
    assert (result.table["host_self_ns"] <= result.table["host_total_ns"]).all()
