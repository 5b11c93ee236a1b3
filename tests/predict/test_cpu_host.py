"""Replay of a program without a GPU: its step is what its thread does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foretrace.analyze.concepts.host.cpu_program import RUN_ON_A_GPU, computes_on_cpu
from foretrace.analyze.trust import judge
from foretrace.predict.builder import build
from foretrace.predict.calibrate import calibrate
from foretrace.predict.steady import step_ns
from tests.builders import Recording
from tests.diagnose.cpu_loops import cpu_loop


def hundred_operators(recording: Recording, at: float) -> None:
    """100 operators of 8 µs in a step of 1,000 µs."""
    for number in range(100):
        recording.op("aten::add", at + 10 * number, at + 10 * number + 8)


def test_a_recorded_step_replays_to_itself(tmp_path: Path) -> None:
    trace = cpu_loop(tmp_path, 1_000, hundred_operators)
    assert computes_on_cpu(trace)
    assert step_ns(build(trace)) == pytest.approx(1e6, rel=0.001)


def test_what_recording_costs_is_taken_out_of_the_operators(tmp_path: Path) -> None:
    """A step of 900 µs without a profiler: 1 µs to record each of 100 operators."""
    trace = cpu_loop(tmp_path, 1_000, hundred_operators)
    found = calibrate(trace, build(trace), step_ns=900e3)
    assert (found.known, found.representative, found.host_bound) == (True, True, True)
    assert "1.0 µs to record an operator, the rest 1.00 times" in found.basis
    assert step_ns(found.program) == pytest.approx(900e3, rel=0.01)


def test_a_measured_step_out_of_reach_is_not_representative(tmp_path: Path) -> None:
    trace = cpu_loop(tmp_path, 1_000, hundred_operators)
    found = calibrate(trace, build(trace), step_ns=20e6)
    assert not found.representative
    assert "not like the measured one" in found.basis


def test_one_operator_that_another_process_held_up_does_not_count(tmp_path: Path) -> None:
    """In one of five steps an operator takes 4 ms longer: the median step has none of it."""
    recording, at = Recording(), 0.0
    for number in range(5):
        held = 4_000 if number == 2 else 0
        recording.step(number, at, at + 1_000 + held)
        recording.op("aten::mm", at, at + 900 + held)
        recording.op("aten::relu", at + 920 + held, at + 980 + held)
        at += 1_000 + held
    trace = recording.open(tmp_path)
    found = calibrate(trace, build(trace), step_ns=1e6)
    assert found.representative
    assert found.program.gap_ns[::4].max() < 1.1e6


def test_a_program_with_a_gpu_is_none_of_these(tmp_path: Path) -> None:
    def cudnn(recording: Recording, at: float) -> None:
        recording.op("aten::cudnn_convolution", at, at + 900)

    assert not computes_on_cpu(cpu_loop(tmp_path, 1_000, cudnn))
    devices = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
    devices.step(0, 0, 10).op("aten::add", 0, 5)
    assert not computes_on_cpu(devices.open(tmp_path))


@pytest.mark.parametrize("question", ["aten::cudnn_is_acceptable", "aten::_use_cudnn_ctc_loss"])
def test_asking_for_a_library_of_a_gpu_is_not_having_one(tmp_path: Path, question: str) -> None:
    """nn.LSTM, nn.GRU and nn.RNN ask on every processor."""

    def rnn(recording: Recording, at: float) -> None:
        recording.op("aten::lstm", at, at + 900)
        recording.op(question, at + 10, at + 12)

    assert computes_on_cpu(cpu_loop(tmp_path, 1_000, rnn))


@pytest.mark.slow
def test_operators_that_tell_of_a_gpu_have_no_kernel_for_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    of_a_gpu = sorted(name for name in names if re.search(RUN_ON_A_GPU, name))
    assert {"aten::cudnn_convolution", "aten::_cudnn_rnn", "aten::miopen_rnn"} <= set(of_a_gpu)
    for name in of_a_gpu:
        for schema in torch._C._jit_get_schemas_for_operator(name):
            whole = f"{name}.{schema.overload_name}" if schema.overload_name else name
            for key in ("CPU", "CompositeImplicitAutograd"):
                assert not torch._C._dispatch_has_kernel_for_dispatch_key(whole, key), whole


def test_nobody_advises_to_record_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    trust = judge(cpu_loop(tmp_path, 1_000, hundred_operators))
    assert "computes on the CPU" in next(note.says for note in trust.notes if note.code == "cpu-only")
    assert not any("CUDA" in note.says or "about the GPU" in note.says for note in trust.notes)
