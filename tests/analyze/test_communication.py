"""Communication: bandwidths by hand, overlap against a count of microseconds, and real recordings."""

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


def about(name: str, sent: int, received: int, ranks: int, dtype: str = "Float") -> dict[str, Any]:
    return {
        "Collective name": name, "dtype": dtype, "In msg nelems": sent, "Out msg nelems": received,
        "Group size": ranks, "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sent", "received", "expected", "size", "factor"),
    [
        ("allreduce", 1000, 1000, "all_reduce", 4000, 1.5),
        ("_allgather_base", 1000, 4000, "all_gather", 16000, 0.75),
        ("allgather", 1000, 1000, "all_gather", 16000, 0.75),
        ("_reduce_scatter_base", 4000, 1000, "reduce_scatter", 16000, 0.75),
        ("all_to_all", 1000, 1000, "all_to_all", 4000, 0.75),
        ("broadcast", 1000, 1000, "broadcast", 4000, 1),
        ("reduce", 1000, 1000, "reduce", 4000, 1),
        ("send", 1000, 1000, "send_recv", 4000, 1),
    ],
)
def test_bandwidths(
    name: str, sent: int, received: int, expected: str, size: int, factor: float, tmp_path: Path
) -> None:
    recording = Recording().launch(
        0, "ncclDevKernel_X_RING_LL(ncclArgs)", 10, 20, **about(name, sent, received, 4)
    )
    result = run(recording.open(tmp_path), "communication")
    (row,) = result.table.to_dicts()
    assert row["collective"] == expected
    assert row["size_bytes"] == size
    assert row["algorithm_bytes_per_s"] == pytest.approx(size / 10e-6)
    assert row["bus_bytes_per_s"] == pytest.approx(factor * size / 10e-6)
    assert row["algorithm"] == "ring ll"
    assert (row["ranks_count"], row["group"], row["on"]) == (4, "0", "device")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*)", "reduce_scatter"),
        ("void vllm::cross_device_reduce_1stage<__half, 2>(RankData*)", "all_reduce"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
    ],
)
def test_found_by_the_kernel_alone(kernel: str, expected: str, tmp_path: Path) -> None:
    recording = Recording().launch(0, kernel, 10, 20)
    (row,) = run(recording.open(tmp_path), "communication").table.to_dicts()
    assert row["collective"] == expected
    assert row["size_bytes"] is row["bus_bytes_per_s"] is row["ranks_count"] is None


def test_named_and_sized_by_what_launched_it(tmp_path: Path) -> None:
    """A send-and-receive kernel is an all-to-all if that launched it; of a gather the input is but a part."""
    recording = Recording()
    for start, name in ((0, "nccl:all_to_all"), (50, "nccl:_all_gather_base")):
        recording.op("record_param_comms", start, start + 10)
        shapes = {"Input Dims": [[6]], "Input type": ["long"]}
        recording.add("user_annotation", name, start + 1, 8, PROCESS, MAIN_THREAD, **shapes)
        recording.launch(
            start + 2, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", start + 10, start + 20
        )
    first, second = run(recording.open(tmp_path), "communication", group_by="call").table.to_dicts()
    assert (first["collective"], first["size_bytes"], first["dtype"]) == ("all_to_all", 48, "long")
    assert (second["collective"], second["size_bytes"]) == ("all_gather", None)


def test_transfers_of_host_threads(tmp_path: Path) -> None:
    groups = {"pg_config": [{"pg_name": "0", "pg_size": 4, "ranks": [0, 1, 2, 3]}]}
    recording = Recording(distributedInfo={"backend": "gloo", "rank": 0, "world_size": 4, **groups})
    shapes = {"Input Dims": [[1000]], "Input type": ["float"]}
    recording.add("user_annotation", "gloo:all_reduce", 0, 100, PROCESS, 300, **shapes)
    recording.add("gpu_user_annotation", "gloo:all_reduce", 0, 100, 0, 7)
    recording.launch(0, "gemm", 50, 80)
    result = run(recording.open(tmp_path), "communication")
    (row,) = result.table.to_dicts()
    assert (row["on"], row["size_bytes"], row["total_ns"], row["ranks_count"]) == ("host", 4000, 100_000, 4)
    assert row["bus_bytes_per_s"] == pytest.approx(1.5 * 4000 / 100e-6)
    assert result.values["overlap_pct"] == pytest.approx(30)


def test_calls_without_a_kernel(tmp_path: Path) -> None:
    recording = Recording().op("record_param_comms", 0, 10, **about("allreduce", 10, 10, 1))
    recording.op("record_param_comms", 20, 30, **about("wait", 0, 0, 1))
    result = run(recording.open(tmp_path), "communication")
    (row,) = result.table.to_dicts()
    assert (row["on"], row["total_ns"], row["size_bytes"]) == ("call", None, 40)
    assert result.values["communication_ns"] is None
    assert "group of one" in result.notes[0]


def test_none_is_an_answer_but_nothing_is_not(tmp_path: Path) -> None:
    result = run(Recording().op("aten::mm", 0, 10).launch(1, "gemm", 2, 9).open(tmp_path), "communication")
    assert result.table.is_empty()
    assert result.values["communication_ns"] == 0
    with pytest.raises(MissingDataError):
        run(Recording().open(tmp_path, "empty.json"), "communication")


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(0, 1)), max_size=8)


@pytest.mark.exhaustive
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(collectives=spans, computing=spans)
def test_overlap_counts_each_microsecond_once(
    collectives: list[tuple[int, int, int]], computing: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    recording = Recording()
    busy: dict[str, set[tuple[int, int]]] = {"communicating": set(), "computing": set()}
    for kind, name, stream, chosen in (
        ("communicating", "ncclDevKernel_AllReduce", 20, collectives),
        ("computing", "gemm", 7, computing),
    ):
        for start, length, device in chosen:
            recording.launch(0, name, start, start + length, device=device, stream=stream)
            busy[kind] |= {(device, moment) for moment in range(start, start + length)}
    recording.op("aten::mm", 0, 1)
    values = run(recording.open(tmp_path), "communication").values
    overlapped = len(busy["communicating"] & busy["computing"])
    assert values["communication_ns"] == 1000 * len(busy["communicating"])
    assert values["overlapped_ns"] == 1000 * overlapped
    assert values["exposed_ns"] == 1000 * (len(busy["communicating"]) - overlapped)


@needs_corpus
def test_recorded_metadata() -> None:
    """15 all-reduces of 5 buckets over 3 steps: ResNet-50's 25,557,032 parameters of 4 bytes, three times."""
    result = run(foretrace.open(CORPUS / "peers/hta/nccl_parser_config__nccl_data.json.gz"), "communication")
    row = result.table.row(0, named=True)
    assert (row["collective"], row["calls_count"], row["ranks_count"]) == ("all_reduce", 15, 2)
    assert row["size_bytes"] == 3 * 4 * 25_557_032
    assert row["bus_bytes_per_s"] == pytest.approx(row["algorithm_bytes_per_s"]), "2(n-1)/n = 1 for two ranks"
    # HTA, with the last step: 15.14 %; it rounds to whole microseconds and leaves memsets out.
    assert result.values["overlap_pct"] == pytest.approx(15.14, abs=0.6)


@needs_corpus
def test_overlap_as_hta_has_it() -> None:
    """HTA 0.5.0, include_last_profiler_step=True: 14.95 %."""
    trace = foretrace.open(CORPUS / "peers/hta/trace_filter__sampled_rank-0.json.gz")
    result = run(trace, "communication")
    assert result.values["overlap_pct"] == pytest.approx(14.95, abs=0.01)
    # Every kernel is named SendRecv; the annotations around their launches tell more.
    counts = dict(result.table.group_by("collective").agg(pl.col("calls_count").sum()).iter_rows())
    assert counts == {"all_to_all": 4, "all_reduce": 4, "all_gather": 2}


@needs_corpus
@pytest.mark.parametrize("rank", range(4))
def test_gloo(rank: int) -> None:
    """Three gradient buckets in each of three steps, in a group of four."""
    trace = foretrace.open(CORPUS / f"other/multirank_gloo/rank{rank}.json.gz")
    result = run(trace, "communication")
    (row,) = result.table.to_dicts()
    assert (row["calls_count"], row["ranks_count"], row["on"]) == (9, 4, "host")
    assert row["size_bytes"] == 3 * 4 * (2_097_152 + 7_345_152 + 7_475_200)
    values = result.values
    assert values["overlapped_ns"] + values["exposed_ns"] == values["communication_ns"] <= values["total_ns"]  # type: ignore[operator]
