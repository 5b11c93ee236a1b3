"""Memory: categories and peaks of hand-made lifetimes, brute force, and the sums of real recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import foretrace
from foretrace.analyze import run
from foretrace.errors import MissingDataError
from tests.builders import MAIN_THREAD, PROCESS, Recording
from tests.corpus import CORPUS, needs_corpus

AUTOGRAD = 200
RECORDED = (
    sorted(path for part in ("h200/*.rich", "peers/tutorial_h100/*", "peers/tracelens/*_qwen")
           for path in CORPUS.glob(f"{part}.json.gz"))
    if CORPUS.is_dir() else []
)  # fmt: skip


class Memory(Recording):
    """A Recording whose allocator keeps count."""

    def __init__(self, *, baseline: int = 0, **header: Any) -> None:
        super().__init__(**header)
        self.total = baseline

    def change(self, at: float, size: int, address: int | None, *, thread: int = MAIN_THREAD) -> Memory:
        self.total += size
        args = {"Total Allocated": self.total, "Total Reserved": 10_000, "Bytes": size, "Device Type": 1,
                "Device Id": 0}  # fmt: skip
        if address is not None:
            args["Addr"] = address
        else:
            del args["Total Allocated"], args["Total Reserved"]
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PROCESS,
                 "tid": thread, "ts": at, "args": args}  # fmt: skip
        self.events.append(event)
        return self


def training(tmp_path: Path) -> foretrace.Trace:
    """One step in which every category is allocated; the peak, 5000 + 1110 bytes, is at 55 us."""
    memory = Memory(baseline=5000).step(1, 0, 150)
    memory.python("nn.Module: Net_0", 0, 40)
    memory.op("aten::linear", 1, 20, **{"Sequence number": 5, "Fwd thread id": 0})
    memory.op("aten::empty", 2, 3).change(2.5, 1000, 1)  # activation: freed in backward
    memory.change(4, 16, 2).change(15, -16, 2)  # temporary: freed before linear ends
    memory.op("aten::relu", 21, 30, **{"Sequence number": 6, "Fwd thread id": 0})
    memory.change(22, 32, 3).change(35, -32, 3)  # intermediate: freed before backward begins
    memory.op("autograd::engine::evaluate_function: ReluBackward0", 50, 60, thread=AUTOGRAD,
              **{"Sequence number": 6, "Fwd thread id": 1})  # fmt: skip
    memory.change(52, 100, 4, thread=AUTOGRAD)  # gradient: outlives the pass
    memory.change(55, 10, 5, thread=AUTOGRAD)  # autograd: freed by the next node
    memory.op("autograd::engine::evaluate_function: LinearBackward0", 61, 70, thread=AUTOGRAD,
              **{"Sequence number": 5, "Fwd thread id": 1})  # fmt: skip
    memory.change(62, -10, 5, thread=AUTOGRAD).change(65, -1000, 1, thread=AUTOGRAD)
    memory.annotation("Optimizer.step#Adam.step", 80, 100).op("aten::_foreach_mul", 81, 85)
    memory.change(82, 64, 6)  # optimizer state: kept
    memory.change(83, 128, 7).change(95, -128, 7)  # temporary: freed before the step ends
    memory.annotation("Optimizer.zero_grad#Adam.zero_grad", 110, 120)
    memory.change(112, -100, 4).change(113, -400, 8)  # the second one is a gradient of an earlier step
    memory.change(140, 8, 9)  # unknown: in no operator
    return memory.open(tmp_path)


def column(table: pl.DataFrame, key: str, value: str) -> dict[str, int]:
    return dict(table.select(key, value).iter_rows())


def test_peak_and_what_was_live(tmp_path: Path) -> None:
    result = run(training(tmp_path), "memory")
    values = result.values
    assert values["peak_bytes"] == 5000 + 1000 + 100 + 10
    assert (values["peak_at_ns"], values["peak_step"]) == (55_000 - 0, 1)
    assert (values["baseline_bytes"], values["reserved_at_peak_bytes"]) == (5000, 10_000)
    assert values["unused_at_peak_bytes"] == 10_000 - 6110
    assert column(result.table, "category", "peak_bytes") == {
        "before the recording": 4600,
        "activation": 1000,
        "gradient": 100 + 400,
        "autograd": 10,
        "temporary": 0,
        "optimizer state": 0,
        "intermediate": 0,
        "unknown": 0,
    }
    assert column(result.table, "category", "allocated_bytes") == {
        "before the recording": 0,
        "activation": 1000,
        "gradient": 100,
        "autograd": 10,
        "temporary": 16 + 128,
        "optimizer state": 64,
        "intermediate": 32,
        "unknown": 8,
    }
    assert float(result.table["peak_pct"].sum()) == pytest.approx(100)


def test_by_operator(tmp_path: Path) -> None:
    table = run(training(tmp_path), "memory", by="op").table
    rows = {row["op"]: row for row in table.to_dicts()}
    assert column(table.filter(pl.col("peak_bytes") > 0), "op", "peak_bytes") == {
        "before the recording": 5000,
        "aten::linear": 1000,
        "autograd::engine::evaluate_function: ReluBackward0": 110,
    }
    linear = rows["aten::linear"]
    assert (linear["self_allocated_bytes"], linear["self_allocated_count"]) == (1016, 2), (
        "empty's are linear's"
    )
    assert (linear["increase_bytes"], linear["self_increase_bytes"]) == (1000, 1000)
    assert rows["autograd::engine::evaluate_function: LinearBackward0"]["increase_bytes"] == -1010
    assert "aten::empty" not in rows


def test_by_module(tmp_path: Path) -> None:
    table = run(training(tmp_path), "memory", by="module").table
    peak = column(table, "module", "peak_bytes")
    assert peak["Net_0"] == 1110, "its forward's 1000 and its backward's 110"
    assert peak["before the recording"] == 5000
    allocated = column(table, "module", "allocated_bytes")
    assert allocated["Net_0"] == 1000 + 16 + 32 + 110
    assert allocated["(optimizer)"] == 64 + 128
    assert allocated["(outside modules)"] == 8


def test_curve(tmp_path: Path) -> None:
    table = run(training(tmp_path), "memory", by="curve").table
    assert table["allocated_bytes"].to_list()[:4] == [6000, 6016, 6000, 6032]
    assert table["at_ns"].is_sorted()
    assert table["reserved_bytes"].unique().to_list() == [10_000]


@pytest.mark.slow
def test_without_addresses_only_the_curve_is_known(tmp_path: Path) -> None:
    memory = Memory().op("aten::mm", 0, 10)
    memory.change(1, 100, None).change(2, 50, None).change(3, -100, None)
    result = run(memory.open(tmp_path), "memory")
    assert result.values["peak_bytes"] == 150
    assert result.values["baseline_bytes"] is result.values["reserved_peak_bytes"] is None
    assert column(result.table, "category", "peak_bytes") == {"unknown": 150}
    assert any("addresses were not recorded" in note for note in result.notes)
    for by in ("op", "curve"):
        run(memory.open(tmp_path), "memory", by=by)


def test_it_says_what_to_record(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="profile_memory=True"):
        run(Recording().op("aten::mm", 0, 10).open(tmp_path), "memory")
    with pytest.raises(MissingDataError, match="no allocation happened"):
        run(Recording(profile_memory=1).op("aten::mm", 0, 10).open(tmp_path, "on.json"), "memory")


blocks = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 30), st.integers(1, 99), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=blocks, baseline=st.integers(0, 500))
def test_peak_against_a_replay(
    chosen: list[tuple[int, int, int, bool]], baseline: int, tmp_path: Path
) -> None:
    """Blocks of (start, length, size, freed), one address each, at moments of their own."""
    events = []
    for number, (start, length, size, freed) in enumerate(chosen):
        events.append((start + number / 1000, size, number + 1))
        if freed:
            events.append((start + length + (number + 500) / 1000, -size, number + 1))
    memory = Memory(baseline=baseline).op("aten::mm", 0, 100)
    live: dict[int, int] = {}
    at_peak: dict[int, int] = {}
    total, peak = baseline, -1
    for at, size, address in sorted(events):
        memory.change(at, size, address)
        total += size
        live = {**live, address: size} if size > 0 else {key: live[key] for key in live if key != address}
        if total > peak:
            peak, at_peak = total, live
    result = run(memory.open(tmp_path), "memory")
    assert result.values["peak_bytes"] == peak
    before = result.table.filter(pl.col("category") == "before the recording")["peak_bytes"].sum()
    assert before == baseline
    assert int(result.table["peak_bytes"].sum()) - before == sum(at_peak.values())
    assert result.table["peak_count"].sum() == len(at_peak)


@needs_corpus
@pytest.mark.parametrize("path", RECORDED[::2], ids=lambda path: path.name)
def test_rows_sum_to_the_peak(path: Path) -> None:
    trace = foretrace.open(path)
    if trace.allocations.is_empty():
        with pytest.raises(MissingDataError):
            run(trace, "memory")
        return
    totals = trace.counters.filter(pl.col("name").cast(pl.String) == "allocated_bytes")
    names = trace.tracks.select(track_id="id", device=pl.col("name").str.strip_suffix(" memory"))
    expected = totals.join(names, on="track_id").group_by("device").agg(pl.col("value").max())
    made = trace.allocations.filter(pl.col("start_ns").is_not_null())
    for by in ("category", "op"):
        table = run(trace, "memory", by=by).table
        for device, peak in expected.iter_rows():
            mine = table.filter(pl.col("device_name") == device)
            assert int(mine["peak_bytes"].sum()) == peak
            assert mine["peak_pct"].is_between(0, 100).all()
            if by == "category":
                listed = made.filter(pl.col("device") == device)
                assert int(mine["allocated_bytes"].sum()) == int(listed["size_bytes"].sum())


@needs_corpus
@pytest.mark.parametrize(
    "name", ["gpt_healthy.slow", "naive_attention.slow", "host_stall.fixed", "resnet50.slow"]
)
def test_one_gradient_per_parameter_and_step(name: str) -> None:
    """Autograd's own AccumulateGrad nodes count them; zero_grad frees them each step."""
    trace = foretrace.open(CORPUS / "h200" / f"{name}.rich.json.gz")
    spans = trace.spans.filter(pl.col("kind") == "op")
    nodes = spans.filter(pl.col("name").cast(pl.String) == "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad")  # fmt: skip
    table = run(trace, "memory").table.filter(pl.col("device_name") == "cuda:0")
    assert column(table, "category", "allocated_count")["gradient"] == nodes.height


@pytest.mark.slow
def test_categories_as_torch_has_them(tmp_path: Path) -> None:
    """torch's profiler follows tensors; gradients, optimizer state and autograd's own come out the same.

    What it calls activations holds two things more and one less than ours: what an optimizer computes in the first recorded
    step, because it follows from gradients, and what the forward pass frees before any backward, which is `intermediate`
    here; inputs it lists apart. With that, both agree to the byte.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    from torch.profiler._memory_profiler import Action

    net = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(net.parameters())
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        for _ in range(2):
            loss = torch.nn.functional.cross_entropy(net(torch.randn(16, 64)), torch.randint(0, 10, (16,)))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace = foretrace.open(path, cache=False)
    name = trace.spans["name"].cast(pl.String)
    steps = trace.spans.filter(name.str.starts_with("Optimizer.step#"))
    stepping = [(start, start + dur) for start, dur in steps.select("start_ns", "dur_ns").iter_rows()]
    profile = profiler._memory_profile()
    expected: dict[str, int] = {}
    in_optimizer: dict[str, int] = {}
    for at, action, (key, version), size in profile.timeline:
        category = profile._categories.get(key, version)
        if action == Action.CREATE and category is not None:
            inside = any(start <= at - trace.meta["epoch_ns"] <= end for start, end in stepping)
            expected[category.name] = expected.get(category.name, 0) + size
            in_optimizer[category.name] = in_optimizer.get(category.name, 0) + size * inside
    found = column(run(trace, "memory").table, "category", "allocated_bytes")
    assert found["gradient"] == expected["GRADIENT"]
    assert found["optimizer state"] == expected["OPTIMIZER_STATE"]
    assert found["autograd"] == expected["AUTOGRAD_DETAIL"]
    parameters = sum(parameter.nbytes for parameter in net.parameters())
    assert in_optimizer["ACTIVATION"] == parameters
    inputs = expected["INPUT"] - in_optimizer["INPUT"]
    activations = expected["ACTIVATION"] - in_optimizer["ACTIVATION"]
    assert found["activation"] + found["intermediate"] == activations + inputs
