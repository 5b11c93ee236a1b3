"""The timeline identity, utilisation, SM efficiency and occupancy."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def test_timeline_by_hand(tmp_path: Path) -> None:
    recording = Recording()
    recording.launch(0, "gemm", 10, 20)
    recording.launch(1, "ncclDevKernel_AllReduce", 15, 30, stream=8)
    recording.launch(2, "Memcpy DtoH (Device -> Pinned)", 5, 12, category="gpu_memcpy", stream=9)
    recording.launch(3, "Memcpy DtoH (Device -> Pinned)", 28, 33, category="gpu_memcpy", stream=9)
    recording.launch(4, "Memset (Device)", 40, 42, category="gpu_memset")
    found = device_time.timeline(device_time.device_work(recording.open(tmp_path)))
    assert found.computation_ns == 12 * US  # the memset counts
    assert found.exposed_communication_ns == 10 * US
    assert found.communication_ns == 15 * US
    assert found.exposed_copy_ns == 8 * US
    assert found.copy_ns == 12 * US
    assert found.idle_ns == 7 * US
    assert found.span_ns == 37 * US


def test_collectives_are_known_by_their_metadata_too(tmp_path: Path) -> None:
    args = {"Collective name": "allreduce", "Group size": 2}
    recording = Recording().launch(0, "my_all_reduce", 10, 20, **args).launch(1, "gemm", 20, 25)
    work = device_time.device_work(recording.open(tmp_path))
    assert work["communication"].to_list() == [True, False]


def test_orphans_need_a_recording_with_launches(tmp_path: Path) -> None:
    unlinked = Recording().kernel("gemm", 0, 10).kernel("gemm", 10, 20)
    assert device_time.device_work(unlinked.open(tmp_path, "a.json"))["orphan"].to_list() == [False, False]
    linked = Recording().kernel("gemm", 0, 10).launch(5, "gemm", 10, 20)
    assert device_time.device_work(linked.open(tmp_path, "b.json"))["orphan"].to_list() == [True, False]


SPANS = st.tuples(st.sampled_from(("gemm", "nccl", "copy", "set")), st.integers(0, 40), st.integers(1, 20))


@settings(max_examples=60)
@given(spans=st.lists(SPANS, min_size=1, max_size=10))
def test_timeline_is_what_painting_each_microsecond_gives(
    spans: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    category = {"gemm": "kernel", "nccl": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}
    recording = Recording()
    for stream, (name, start, length) in enumerate(spans):
        recording.device(category[name], name, start, start + length, stream=stream)
    found = device_time.timeline(device_time.device_work(recording.open(tmp_path_factory.mktemp("timeline"))))
    painted = dict.fromkeys(("computation", "communication", "copy", "idle"), 0)
    first, last = min(start for _, start, _ in spans), max(start + length for _, start, length in spans)
    for at in range(first, last):
        here = {name for name, start, length in spans if start <= at < start + length}
        computes = bool(here & {"gemm", "set"})
        role = (
            "computation" if computes else "communication" if "nccl" in here else "copy" if here else "idle"
        )
        painted[role] += US
    assert (
        found.computation_ns,
        found.exposed_communication_ns,
        found.exposed_copy_ns,
        found.idle_ns,
    ) == tuple(painted.values())
    assert found.span_ns == (last - first) * US


def test_concurrent_kernels_add_up_before_the_cut(tmp_path: Path) -> None:
    recording = Recording().kernel("a", 0, 10, **{"blocks per SM": 0.5, "est. achieved occupancy %": 40})
    recording.kernel("b", 5, 15, stream=8, **{"blocks per SM": 0.75, "est. achieved occupancy %": 10})
    kernels = device_time.kernel_fill(recording.open(tmp_path))
    window = MeasuredPeriod(0, 20 * US, "the test")
    assert device_time.utilisation_pct(kernels, window) == pytest.approx(75)
    # 5 at 0.5, 5 at min(1.25, 1), 5 at 0.75
    assert device_time.sm_efficiency_pct(kernels, window) == pytest.approx(100 * (2.5 + 5 + 3.75) / 20)
    # over kernel time, 10 + 10, not over the window
    assert device_time.occupancy_pct(kernels, window) == pytest.approx(25)
    inside = MeasuredPeriod(0, 10 * US, "the test")
    assert device_time.occupancy_pct(kernels, inside) == pytest.approx((40 * 10 + 10 * 5) / 15)


def test_blocks_per_sm_come_from_the_grid_where_the_device_is_known(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[{"id": 0, "name": "a GPU", "numSms": 100}])
    recording.kernel("a", 0, 10, grid=[5, 10, 1], block=[128, 1, 1])
    assert device_time.kernel_fill(recording.open(tmp_path))["blocks_per_sm"].to_list() == [0.5]


def test_estimates_are_not_given_for_a_few_kernels_of_many(tmp_path: Path) -> None:
    recording = Recording().kernel("a", 0, 1, **{"blocks per SM": 1, "est. achieved occupancy %": 40})
    recording.kernel("b", 1, 100)
    kernels = device_time.kernel_fill(recording.open(tmp_path))
    window = MeasuredPeriod(0, 100 * US, "the test")
    assert device_time.sm_efficiency_pct(kernels, window) is None
    assert device_time.occupancy_pct(kernels, window) is None


def test_an_empty_window_has_no_shares(tmp_path: Path) -> None:
    kernels = device_time.kernel_fill(Recording().kernel("a", 0, 1).open(tmp_path))
    nothing = MeasuredPeriod(0, 0, "nothing")
    assert device_time.utilisation_pct(kernels, nothing) is None
    assert device_time.sm_efficiency_pct(kernels, nothing) is None
    assert device_time.occupancy_pct(kernels, nothing) is None


@needs_corpus
def test_counters_agree_with_the_tensorboard_plugin() -> None:
    folder = CORPUS / "peers" / "kineto"
    expected = json.loads(gzip.decompress((folder / "gpu_metrics_expected.json.gz").read_bytes()))
    counters = [event for event in expected["traceEvents"] if event["ph"] == "C"]
    trace = foretrace.open(folder / "gpu_metrics_input.json.gz")
    began_us = trace.meta["epoch_ns"] // US

    # The plugin's test says of its data: "Faked for easy to see in UI. Real data values are 1/10 of these".
    # The series begins with a 1 and a 0 that set the scale.
    efficiency = [
        (event["ts"], event["args"]["Est. SM Efficiency"])
        for event in counters
        if event["name"] == "GPU 0 Est. SM Efficiency"
    ][2:]
    edges = np.array([at for at, _ in efficiency]) - began_us
    kernels = device_time.kernel_fill(trace)
    within = device_time.sm_efficiency_within(kernels, edges * US)
    assert within is not None
    assert within / 10 == pytest.approx([value for _, value in efficiency[:-1]])


def test_time_in_which_only_earlier_work_ran_is_not_idle(tmp_path: Path) -> None:
    """Launched 10-20 and 90-100; work of before the recording at 0-15 and 30-70: 40 µs of the span are its own."""
    recording = Recording().launch(5, "mine", 10, 20).launch(85, "mine", 90, 100)
    recording.kernel("before", 0, 15, stream=9, correlation=900).kernel(
        "before", 30, 70, stream=9, correlation=901
    )
    found = device_time.timeline(device_time.device_work(recording.open(tmp_path)))
    assert (found.span_ns, found.computation_ns) == (90 * US, 20 * US)
    assert (found.earlier_ns, found.idle_ns) == (40 * US, 30 * US)


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", True),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", True),
        ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot>", True),
        ("void oneflow::LayerNormWarpAllReduce<float, 4>(float const*)", False),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", False),
        ("void softmax_block_all_reduce_kernel<float>(float*)", False),
    ],
)
def test_communication_is_told_by_how_a_name_begins(tmp_path: Path, name: str, communicates: bool) -> None:
    work = device_time.device_work(Recording().launch(5, name, 10, 20).open(tmp_path))
    assert work["communication"].to_list() == [communicates]
