"""`graph step`: launches replayed as CUDA graphs, by the same model as the launch-bound rule, and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.errors import MissingDataError, UsageError
from foretrace.predict import graph_capture
from foretrace.predict.builder import build
from foretrace.predict.calibrate import calibrate
from foretrace.predict.changes import Change, parse
from foretrace.predict.prediction import predict
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def graphed(trace: Trace) -> Change:
    return parse("graph step", trace, build(trace))


def test_small_kernels_become_as_fast_as_the_device(tmp_path: Path) -> None:
    """100 kernels of 1 µs, launched every 10 µs; as a graph they take 1 µs and 0.15 µs between them."""
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    fitted = calibrate(trace, build(trace), step_ns=1_000_000)
    result = predict(fitted, (parse("graph step", trace, fitted.program),))
    assert result.after_ns.point / 1e3 == pytest.approx(115, rel=0.03)
    assert result.verdict == "gain"
    assert "CUDA graphs" in result.basis


def test_the_rule_and_the_verb_make_the_same_edit(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    (found,) = findings(launch_bound, trace, step_us=1_000)
    fitted = calibrate(trace, build(trace), step_ns=1_000_000)
    mine = parse("graph step", trace, fitted.program)
    assert found.change is not None
    assert np.array_equal(found.change.edit.captured_calls, mine.edit.captured_calls)
    assert found.change.edit.added_host_ns == mine.edit.added_host_ns
    assert predict(fitted, (mine,)).speedup == found.predicted.speedup  # type: ignore[union-attr]


def test_one_graph_a_step_costs_the_host_15_us(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert graphed(trace).edit.added_host_ns == {0: 15_000, 100: 15_000, 200: 15_000}


def test_a_wait_within_the_step_is_an_obstacle(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        recording.runtime("cudaStreamSynchronize", at + 501, at + 505)
        launches(recording, at + 510, 49)

    with pytest.raises(MissingDataError, match="waits for the device within the step"):
        graphed(loop(tmp_path, 1_000, body))


def test_steps_that_differ_are_an_obstacle(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 5, grid=[1 + int(at), 1, 1])

    with pytest.raises(MissingDataError, match="same shapes"):
        graphed(loop(tmp_path, 1_000, body))


@pytest.mark.parametrize(("changing", "differs"), [(0, False), (4, False), (6, True), (100, True)])
def test_shapes_differ_where_more_than_a_twentieth_of_the_launches_does(
    tmp_path: Path, changing: int, differs: bool
) -> None:
    """Of 100 launches, so many have another grid in every step: what lies around a model, or the model."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 100 - changing)
        launches(recording, at + 10 * (100 - changing), changing, grid=[1 + int(at), 1, 1])

    trace = loop(tmp_path, 1_001, body)
    assert graph_capture.shapes_differ(trace, build(trace)) is differs
    assert graph_capture.differ(trace, build(trace)) is (changing > 0)


def test_steps_that_are_not_marked_are_an_obstacle(tmp_path: Path) -> None:
    recording = Recording()
    launches(recording, 0, 5)
    with pytest.raises(MissingDataError, match="fewer than two steps"):
        graphed(recording.open(tmp_path))


def test_steps_without_launches_cannot_be_captured(tmp_path: Path) -> None:
    trace = loop(
        tmp_path, 100, lambda recording, at: recording.runtime("cudaMalloc", at + 5, at + 9) and None
    )
    with pytest.raises(MissingDataError, match="no launches"):
        graphed(trace)


@pytest.mark.parametrize(
    "text", ["graph", "graph kernel:x", "graph step 2", "graph host", "graph step under:x"]
)
def test_only_steps_are_captured(tmp_path: Path, text: str) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 5))
    with pytest.raises(UsageError):
        parse(text, trace, build(trace))


def _waits(recording: Recording, at: float) -> None:
    recording.runtime("cudaStreamSynchronize", at, at + 4)


def _allocates(recording: Recording, at: float) -> None:
    recording.runtime("cudaMalloc", at, at + 4)


def _allocates_in_order(recording: Recording, at: float) -> None:
    recording.runtime("cudaMallocAsync", at, at + 4)


def _replays(recording: Recording, at: float) -> None:
    recording.runtime("cudaGraphLaunch", at, at + 4)


def _communicates(recording: Recording, at: float) -> None:
    recording.launch(at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 5, at + 8)


def _reduces_in_symmetric_memory(recording: Recording, at: float) -> None:
    recording.launch(at, "void c10d::symmetric_memory::multimem_one_shot_all_reduce_kernel<>", at + 5, at + 8)


def _communicates_on_host(recording: Recording, at: float) -> None:
    recording.annotation("gloo:all_reduce", at, at + 4, thread=200)


def _sends_objects(recording: Recording, at: float) -> None:
    recording.python("torch/distributed/distributed_c10d.py(2900): all_gather_object", at, at + 4)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (_replays, "the program uses one already"),
        (_allocates, "memory is allocated from the driver within the step"),
        (_allocates_in_order, None),
        (_communicates, None),
        (_reduces_in_symmetric_memory, None),
        (_communicates_on_host, "its collectives run on the host (gloo, MPI or UCC)"),
        (_sends_objects, "it sends Python objects to other ranks, which the host pickles"),
        (_waits, None),  # parts a graph, but does not prevent one for each part
    ],
)
def test_what_no_graph_can_hold(
    tmp_path: Path, what: Callable[[Recording, float], None], why: str | None
) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        what(recording, at + 501)
        launches(recording, at + 510, 49)

    trace = loop(tmp_path, 1_000, body)
    assert graph_capture.preventing(trace, build(trace)) == why


def test_a_step_with_collectives_gets_a_graph_that_is_not_promised(tmp_path: Path) -> None:
    """As without the collective, 1,000 µs become about 115; how long it then waits for other ranks nobody recorded."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 99)
        _communicates(recording, at + 992)

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert "no CUDA graph" not in found.says
    assert "every rank captures the same ones" in found.fix.code
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(115, rel=0.1)
    assert "every rank has to capture the same collectives" in found.predicted.basis


def test_split_sizes_that_the_host_reads_prevent_a_graph(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50)
        _exchange(recording, at + 500)
        launches(recording, at + 520, 48)

    (found,) = findings(launch_bound, loop(tmp_path, 1_000, body), step_us=1_000)
    assert (
        "no CUDA graph can be made of it: the host reads within the step how a collective splits"
        in found.says
    )
    assert found.predicted is None


def _exchange(recording: Recording, at: float) -> None:
    """counts.tolist(), then an exchange that is split by them."""
    recording.op("aten::to", at, at + 9, **{"Input type": ["long int", "int"]})
    recording.runtime("cudaStreamSynchronize", at + 2, at + 8)
    inputs = ["", "", "", "", "[3, 5]", "[4, 4]", "-1"]
    recording.op("c10d::alltoall_base_", at + 10, at + 20, **{"Concrete Inputs": inputs})
    recording.launch(at + 12, "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", at + 15, at + 18)
