"""Replay: programs with an answer on paper, the two machines against each other, and real recordings."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import foretrace
from foretrace.analyze.trust import judge
from foretrace.errors import MissingDataError
from foretrace.predict.builder import build
from foretrace.predict.calibrate import calibrate
from foretrace.predict.replay import Replay, replay
from foretrace.predict.steady import step_ns
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.predict.programs import Draft

MACHINES = (
    pytest.param(False, id="python"),
    pytest.param(
        True,
        id="native",
        marks=pytest.mark.skipif(find_spec("foretrace._scan") is None, reason="the extension is not built"),
    ),
)


@pytest.mark.parametrize("native", MACHINES)
def test_a_host_bound_program_takes_what_its_host_takes(native: bool) -> None:
    program = Draft().launch(100, 10, 50, latency=5).launch(100, 10, 50, latency=5).program(tail=20)
    run = replay(program, native=native)
    assert run.task_start_ns.tolist() == [105, 215]
    assert (run.host_ns, run.device_ns) == (240, 265)


@pytest.mark.parametrize("native", MACHINES)
def test_a_device_bound_program_takes_what_its_tasks_and_their_gaps_take(native: bool) -> None:
    draft = Draft()
    for _ in range(10):
        draft.launch(1, 1, 1000, latency=7, apart=3)
    run = replay(draft.program(), native=native)
    assert run.device_ns == 8 + 10 * 1000 + 9 * 3 - 0  # the first starts at 1 + 7
    assert run.host_ns == 20


@pytest.mark.parametrize("native", MACHINES)
def test_streams_run_side_by_side_and_an_event_orders_them(native: bool) -> None:
    apart = Draft().launch(0, 1, 500, stream=0).launch(0, 1, 500, stream=1)
    assert replay(apart.program(), native=native).device_ns == 501
    ordered = Draft().launch(0, 1, 500, stream=0).record(0).wait(1).launch(0, 1, 500, stream=1)
    assert replay(ordered.program(), native=native).device_ns == 1000


@pytest.mark.parametrize("native", MACHINES)
def test_a_sync_returns_when_its_stream_has_finished_and_the_thread_woke(native: bool) -> None:
    both = Draft().launch(0, 1, 100, stream=0).launch(0, 1, 900, stream=1)
    one = replay(
        Draft(calls=both.calls[:], tasks=both.tasks[:]).sync(0, 2, stream=0, wake=9).program(), native=native
    )
    whole = replay(
        Draft(calls=both.calls[:], tasks=both.tasks[:]).sync(0, 2, wake=9).program(), native=native
    )
    assert (one.host_ns, whole.host_ns) == (109, 910)


@pytest.mark.parametrize("native", MACHINES)
def test_a_sync_with_nothing_to_wait_for_costs_only_itself(native: bool) -> None:
    assert replay(Draft().sync(5, 2, wake=9).program(), native=native).host_ns == 7


@pytest.mark.parametrize("native", MACHINES)
def test_a_blocking_copy_holds_the_host_until_the_data_is_there(native: bool) -> None:
    run = replay(Draft().copy(10, 3, 400, wake=6).program(), native=native)
    assert run.host_ns == 10 + 400 + 6


@pytest.mark.parametrize("native", MACHINES)
def test_a_full_queue_holds_the_next_launch_until_a_place_is_free(native: bool) -> None:
    draft = Draft(queue_calls=2)
    for _ in range(5):
        draft.launch(0, 1, 100)
    run = replay(draft.program(), native=native)
    assert run.call_end_ns.tolist() == [1, 2, 101, 201, 301]
    assert run.device_ns == 500


@pytest.mark.parametrize("native", MACHINES)
def test_a_graph_takes_one_place_in_the_queue_however_many_kernels_it_has(native: bool) -> None:
    draft = Draft(queue_calls=2).launch(0, 1, *([10] * 50)).launch(0, 1, 10).launch(0, 1, 10)
    assert replay(draft.program(), native=native).call_end_ns.tolist() == [1, 2, 501]


@pytest.mark.parametrize("native", MACHINES)
def test_work_left_over_from_before_delays_what_comes(native: bool) -> None:
    run = replay(Draft().launch(0, 1, 100).program(free=(700, 0)), native=native)
    assert run.task_start_ns.tolist() == [700]
    held = replay(Draft(queue_calls=1).launch(0, 1, 100).program(pending=(300,)), native=native)
    assert held.task_start_ns.tolist() == [300]


@pytest.mark.parametrize("native", MACHINES)
@pytest.mark.parametrize(
    ("host", "device", "expected"),
    [(300, 100, 300), (10, 100, 100), (100, 100, 100)],
    ids=["host", "device", "even"],
)
def test_the_steady_step_is_the_slower_of_host_and_device(
    native: bool, host: int, device: int, expected: int
) -> None:
    program = Draft(queue_calls=8).launch(host - 1, 1, device).program()
    assert step_ns(program, native=native) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("native", MACHINES)
def test_the_steady_step_of_a_synchronising_loop_is_the_sum(native: bool) -> None:
    program = Draft().launch(40, 10, 500, latency=5).sync(0, 1, wake=7).program(tail=30)
    # 40 before the launch, then 5 until it runs for 500, 7 to wake up, 30 behind: the call's own 10 overlap
    assert step_ns(program, native=native) == pytest.approx(40 + 5 + 500 + 7 + 30, rel=0.01)


@pytest.mark.skipif(find_spec("foretrace._scan") is None, reason="the extension is not built")
def test_both_machines_agree_on_random_programs() -> None:
    for seed in range(200):
        generator = random.Random(seed)
        draft = Draft(queue_calls=generator.choice((1, 3, 1024)))
        for _ in range(generator.randrange(1, 60)):
            gap, base = generator.randrange(300), generator.randrange(50)
            choice = generator.randrange(6)
            stream = generator.randrange(2)
            if choice < 3:
                draft.launch(gap, base, *(generator.randrange(400) for _ in range(generator.randrange(1, 4))),
                             stream=stream, latency=generator.randrange(-9, 9), apart=generator.randrange(-5, 5))  # fmt: skip
            elif choice == 3:
                draft.sync(gap, base, stream=generator.choice((-1, 0, 1)), wake=generator.randrange(9))
            elif choice == 4:
                draft.copy(gap, base, generator.randrange(300), wake=generator.randrange(9))
            else:
                draft.record(stream).wait(1 - stream)
        program = draft.program(
            tail=generator.randrange(50), free=(generator.randrange(500), 0), pending=(10, 90)
        )
        ours, reference = (replay(program, tiles=3, native=native) for native in (True, False))
        for name in Replay.__dataclass_fields__:
            assert np.array_equal(getattr(ours, name), getattr(reference, name)), (seed, name)


def _recordings() -> list[Path]:
    return sorted(
        path for path in CORPUS.rglob("*.json*") if "truth" not in path.name and "rocprof" not in path.parts
    ) if CORPUS.is_dir() else []  # fmt: skip


@needs_corpus
def test_a_recording_replayed_takes_the_time_it_took() -> None:
    """The issue's bar: within 2 % on at least 95 % of the recordings with a GPU."""
    errors = {}
    for path in _recordings():
        trace = foretrace.open(path)
        if not trace.has_device or "activity-buffer-request" in {note.code for note in judge(trace).notes}:
            continue  # the recorded step holds what the profiler allocated, which the program does without
        program = build(trace)
        errors[path.name] = replay(program).total_ns / program.measured_ns - 1
    assert len(errors) >= 70
    close = [name for name, error in errors.items() if abs(error) <= 0.02]
    assert len(close) >= 0.95 * len(errors), sorted(errors.items(), key=lambda item: -abs(item[1]))[:10]


@needs_corpus
@pytest.mark.parametrize(
    "name", ["naive_attention", "fp32_gemm", "gpt_healthy", "elementwise_chain", "matmul_add"]
)
def test_the_steady_step_of_a_device_bound_recording_is_the_unprofiled_one(name: str) -> None:
    truth = json.loads((CORPUS / "h200" / f"{name}.truth.json").read_text())
    program = build(foretrace.open(CORPUS / "h200" / f"{name}.fixed.lite.json.gz"))
    assert step_ns(program) / 1e6 == pytest.approx(truth["fixed"]["step_ms"], rel=0.04)


@needs_corpus
@pytest.mark.parametrize("name", ["host_stall", "item_sync", "decode_launch_bound", "resnet50"])
def test_a_known_step_time_is_reached_by_fitting_the_host(name: str) -> None:
    truth = json.loads((CORPUS / "h200" / f"{name}.truth.json").read_text())["slow"]["step_ms"]
    trace = foretrace.open(CORPUS / "h200" / f"{name}.slow.lite.json.gz")
    fitted = calibrate(trace, build(trace), step_ns=truth * 1e6)
    assert fitted.representative
    assert step_ns(fitted.program) / 1e6 == pytest.approx(truth, rel=0.02)


@needs_corpus
def test_a_window_that_cannot_reach_the_measured_step_is_said_to_be_none() -> None:
    """The recording caught steps of 15 ms whose unprofiled mean is 75 ms: the loader's buffer was still full."""
    trace = foretrace.open(CORPUS / "h200" / "slow_dataloader.fixed.lite.json.gz")
    fitted = calibrate(trace, build(trace), step_ns=74.608e6)
    assert not fitted.representative
    assert "not representative" in fitted.basis


def test_a_recording_without_calls_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'
    )
    with pytest.raises(MissingDataError, match="nothing to replay"):
        build(foretrace.open(path, cache=False))


def test_a_last_step_without_calls_counts_as_a_step(tmp_path: Path) -> None:
    """Two steps of 1 ms; the second launches nothing."""
    recording = Recording().step(1, 1_000, 2_000).launch(1_020, "gemm", 1_050, 1_800).step(2, 2_000, 3_000)
    program = build(recording.open(tmp_path))
    assert step_ns(program) == pytest.approx(1_000_000, rel=0.02)
