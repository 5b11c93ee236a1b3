"""Our numbers beside those of TraceLens and HTA on their own recordings; docs/peers.md explains differences.

TraceLens's come from the CSV files it ships. HTA's were printed by benchmarks/peers.py with HTA 0.5.0 (last
step kept, its rounding off) and are written down here, so that no test needs HTA.
"""

from __future__ import annotations

import csv
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze, intervals
from foretrace.analyze.concepts.device import device_time
from tests.corpus import CORPUS, needs_corpus

pytestmark = needs_corpus

TRACELENS = CORPUS / "peers" / "tracelens"
HTA = CORPUS / "peers" / "hta"
MODELS = ("h100_qwen", "mi300_qwen")


def golden(model: str, name: str) -> list[dict[str, str]]:
    with (TRACELENS / f"{model}_golden" / f"{name}.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def tracelens(model: str) -> foretrace.Trace:
    return foretrace.open(TRACELENS / f"{model}.json.gz")


def kernel_rows(model: str, *, linked: bool) -> dict[tuple[str, str], tuple[int, float, float, float]]:
    """Of each operator (or none) and kernel: count, sum, least and largest duration in microseconds."""
    found = {}
    for row in golden(model, "kernel_summary"):
        if bool(row["Parent cpu_op"]) == linked:
            count, *rest = (row[f"Kernel duration (µs)_{name}"] for name in ("count", "sum", "min", "max"))
            key = (row["Parent cpu_op"], row["Kernel name"])
            assert key not in found, "one stream only"
            found[key] = (int(count), *(float(each) for each in rest))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("model", MODELS)
def test_kernel_summary_of_tracelens(model: str) -> None:
    """Every operator and kernel: the same calls, and durations to the nanosecond they are printed in."""
    table = analyze.run(tracelens(model), "kernels", group_by="config").table
    ours = table.group_by("op", "name").agg(
        pl.col("calls_count", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
    )
    theirs = kernel_rows(model, linked=True)
    assert ours.height == len(theirs) > 20
    for op, name, count, total, least, most in ours.iter_rows():
        expected = theirs[op, name]
        assert count == expected[0]
        assert (total / 1e3, least / 1e3, most / 1e3) == pytest.approx(expected[1:], abs=1e-3)


@pytest.mark.parametrize("model", MODELS)
def test_kernels_without_launch_are_those_that_tracelens_does_not_link(model: str) -> None:
    """TraceLens lists them without a parent and leaves them out of its timeline and operators, as we do."""
    values = analyze.run(tracelens(model), "kernels").values
    theirs = kernel_rows(model, linked=False)
    assert values["orphan_count"] == sum(row[0] for row in theirs.values()) > 400
    assert int(values["orphan_ns"] or 0) / 1e3 == pytest.approx(sum(row[1] for row in theirs.values()))


@pytest.mark.parametrize("model", MODELS)
def test_operators_of_tracelens(model: str) -> None:
    """Each operator's own device time; theirs is summed in 32-bit microseconds, ours is exact."""
    table = analyze.run(tracelens(model), "operators").table.filter(
        (pl.col("on") == "host") & (pl.col("kind") == "op") & (pl.col("device_self_ns") > 0)
    )
    ours = dict(zip(table["name"], table["device_self_ns"] / 1e3, strict=True))
    theirs = {row["name"]: float(row["total_direct_kernel_time_sum"]) for row in golden(model, "ops_summary")}
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, rel=0.0005)
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_calls_of_operators_of_tracelens(model: str) -> None:
    """TraceLens counts calls that launched something, we count all: only arange is called once more."""
    table = analyze.run(tracelens(model), "operators").table.filter(pl.col("on") == "host")
    calls = dict(table.select("name", "calls_count").iter_rows())
    more = {
        row["name"]: calls[row["name"]] - int(row["Count"])
        for row in golden(model, "ops_summary")
        if calls[row["name"]] != int(row["Count"])
    }
    assert more == {"aten::arange": 1}


@pytest.mark.parametrize("model", MODELS)
def test_timeline_of_tracelens(model: str) -> None:
    values = analyze.run(tracelens(model), "timeline", over="launched").values
    theirs = {row["type"]: float(row["time ms"]) for row in golden(model, "gpu_timeline")}
    names = {
        "computation_ns": "computation_time",
        "exposed_communication_ns": "exposed_comm_time",
        "exposed_copy_ns": "exposed_memcpy_time",
        "span_ns": "total_time",
    }
    for ours, name in names.items():
        assert int(values[ours] or 0) / 1e6 == pytest.approx(theirs[name], rel=0.005, abs=1e-4), ours
    idle = int(values["idle_ns"] or 0) + int(values["earlier_ns"] or 0)
    assert idle / 1e6 == pytest.approx(theirs["idle_time"], rel=0.005)


@pytest.mark.parametrize("model", MODELS)
def test_categories_of_tracelens(model: str) -> None:
    """Its categories are of operators, our roles of kernels: a memset that aten::mm launches is GEMM there."""
    trace = tracelens(model)
    table = analyze.run(trace, "roles", by="role").table
    ours: dict[str, float] = dict(zip(table["role"], table["total_ns"] / 1e6, strict=True))
    theirs = {
        row["op category"]: float(row["total_direct_kernel_time_ms"])
        for row in golden(model, "ops_summary_by_category")
    }
    work = device_time.device_work(trace).filter(~pl.col("orphan"))
    memsets = int(work.filter(pl.col("kind") == "set")["dur_ns"].sum()) / 1e6
    assert ours["gemm"] + memsets == pytest.approx(theirs["GEMM"], rel=0.0005)
    assert ours["reduction"] == pytest.approx(theirs["reduce"], rel=0.0005)
    rest = ours["elementwise"] + ours["copy"] + ours["fused attention"] + ours["embedding"] - memsets
    assert rest == pytest.approx(theirs["elementwise"] + theirs["other"], rel=0.0005)
    assert sum(ours.values()) == pytest.approx(sum(theirs.values()), rel=0.0005)


# fixture: HTA's idle, compute and whole time in microseconds (get_temporal_breakdown), and the overlap in
# percent (get_comm_comp_overlap). Fixtures with synchronisation events or annotations on a stream are left
# out: HTA counts those as GPU work.
TEMPORAL = {
    "amd_trace__mi250_minitoy_train_ROCm6_2_kineto": (8_762.845, 110.881, 8_911.887, None),
    "nccl_parser_config__nccl_data": (503_050.991, 115_655.847, 660_551.006, 15.61),
    "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace": (7_574.786, 468_153.602, 480_029.227, None),
    "trace_filter__sampled_rank-0": (675_191, 210_320, 1_222_847, 14.95),
    "trace_filter__sampled_rank-1": (651_136, 271_973, 1_231_186, 19.93),
}


def hta(name: str) -> foretrace.Trace:
    return foretrace.open(HTA / f"{name}.json.gz")


@pytest.mark.parametrize("name", TEMPORAL)
def test_temporal_breakdown_of_hta(name: str) -> None:
    """The same span and idle time; the same computation, once memsets (memory there) are taken out."""
    idle, compute, span, _ = TEMPORAL[name]
    work = device_time.device_work(hta(name))
    ours = device_time.timeline(work)
    # Its times are 64-bit floats of microseconds since 1970: good to a quarter of a microsecond.
    assert ours.span_ns / 1e3 == pytest.approx(span, abs=0.25)
    assert ours.idle_ns / 1e3 == pytest.approx(idle, abs=0.25)
    kernels = work.filter((pl.col("kind") == "kernel") & ~pl.col("communication"))
    assert device_time.covered(kernels).total_ns / 1e3 == pytest.approx(compute, abs=0.25)
    assert ours.computation_ns >= device_time.covered(kernels).total_ns


@pytest.mark.parametrize("name", [name for name, row in TEMPORAL.items() if row[-1] is not None])
def test_overlap_of_hta(name: str) -> None:
    """Communication hidden behind computation, as a share of communication."""
    work = device_time.device_work(hta(name))
    talks = device_time.covered(work.filter(pl.col("communication")))
    kernels = work.filter((pl.col("kind") == "kernel") & ~pl.col("communication"))
    hidden = intervals.intersect(talks, device_time.covered(kernels)).total_ns
    assert 100 * hidden / talks.total_ns == pytest.approx(TEMPORAL[name][-1], abs=0.01)
    values: dict[str, Any] = dict(analyze.run(hta(name), "timeline", over="launched").values)
    # With memsets among the computation a little more is hidden.
    assert values["communication_ns"] == talks.total_ns
    assert hidden <= talks.total_ns - values["exposed_communication_ns"] <= hidden * 1.01


# fixture: HTA's number of launches, of those with a kernel shorter than the call, and the longest queue
LAUNCHES = {
    "critical_path_alexnet__benchmark_result_2869224_1695835535_trace": (98, 32, 18),
    "critical_path_cuda_event_sync__event_sync_trace": (5, 3, 1),
    "nccl_parser_config__nccl_data": (3774, 2077, 10),
    "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace": (6095, 3498, 1022),
    "trace_filter__sampled_rank-0": (1204, 282, 80),
    "trace_filter__sampled_rank-1": (1154, 278, 91),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_and_queues_of_hta(name: str) -> None:
    values = analyze.run(hta(name), "launches").values
    ours = (values["launches_count"], values["short_count"], values["queue_max_count"])
    assert ours == LAUNCHES[name]


def test_idle_time_is_of_the_device_not_of_its_streams() -> None:
    """HTA's idle breakdown adds up streams: 4.3 s of waiting in a recording of 1.2 s; 675 ms is what it was."""
    per_stream = [
        1_214_793, 160, 34, 794_901, 6, 3_142, 560_120, 35, 100_413, 397_917, 3_765, 598_335, 558_073, 0,
    ]  # fmt: skip
    values = analyze.run(hta("trace_filter__sampled_rank-0"), "idle", over="launched").values
    assert values["idle_ns"] == 675_191_000, "as HTA's own temporal breakdown"
    assert sum(per_stream) > 3 * int(values["span_ns"] or 0) / 1e3


def test_idle_time_of_one_stream_as_hta_has_it() -> None:
    """One stream: its host, kernel and other waits are the device's idle time."""
    values = analyze.run(hta(list(TEMPORAL)[2]), "idle", over="launched").values
    assert int(values["idle_ns"] or 0) / 1e3 == pytest.approx(1_290.81 + 6_283.98, abs=0.25)


def test_critical_path_of_hta() -> None:
    """AlexNet's second forward pass: kernels 3,712 us, launches 30; of the gaps 50, which is 51 unrounded."""
    forward = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
    trace = hta("critical_path_alexnet__benchmark_result_2869224_1695835535_trace")
    row = analyze.run(trace, "critical-path", annotation=forward).table.row(1, named=True)
    assert (row["kernel_ns"], row["launch_ns"]) == (3_712_000, 30_000)
    assert row["gap_ns"] == pytest.approx(50_000, abs=1_000)
    # A step that is GPU-bound throughout: HTA has 94,591.138 us of work and 1,144.949 between.
    second = analyze.run(hta(list(TEMPORAL)[2]), "critical-path").table.row(1, named=True)
    work = second["kernel_ns"] + second["copy_ns"] + second["communication_ns"]
    assert work / 1e3 == pytest.approx(94_591.138, abs=1)
    assert second["gap_ns"] / 1e3 == pytest.approx(1_144.949, abs=1)


def test_an_annotation_on_a_stream_is_no_gpu_work() -> None:
    """HTA's Triton example: one kernel of 1.76 µs; HTA says 95.812 µs, since it counts the step's annotation."""
    values = analyze.run(hta("triton_example__triton_example"), "kernels").values
    assert (values["kernel_count"], values["total_ns"]) == (1, 1760)


def test_mean_is_no_sum() -> None:
    """Beyond the first kernels HTA's table has mean = max = min = sum."""
    table = analyze.run(hta("trace_filter__sampled_rank-0"), "kernels").table.filter(
        pl.col("calls_count") > 1
    )
    assert table.height > 10
    assert (table["mean_ns"] < table["total_ns"]).all()
    assert (table["mean_ns"] * table["calls_count"] - table["total_ns"]).abs().max() == pytest.approx(
        0, abs=1
    )
    assert (table["min_ns"] <= table["mean_ns"]).all()
    assert (table["mean_ns"] <= table["max_ns"]).all()


def test_no_duration_is_rounded_away() -> None:
    """HTA's rounding makes 4,065 of 36,209 durations negative on its own nanosecond fixture."""
    spans = hta("ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace").spans
    assert spans["dur_ns"].null_count() == 0
    assert int(spans["dur_ns"].min() or 0) >= 0  # type: ignore[arg-type]
