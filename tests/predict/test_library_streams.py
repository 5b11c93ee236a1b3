"""Operators on streams of their own: what their work waits for, and what waits for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.predict.builder import build
from foretrace.predict.program import SYNC, Program
from foretrace.predict.replay import replay
from foretrace.predict.steady import step_ns
from tests.builders import Recording

HOME, FIRST, SECOND = 7, 20, 21
STEP = 1_000.0


def layers(recording: Recording, at: float, *, library: bool = True) -> None:
    """100 µs of work on the program's stream; two layers of 200 µs, the second behind the first, on streams of their own;
    100 µs of work on the program's stream that follows them."""
    recording.op("aten::mm", at, at + 10)
    recording.launch(at + 5, "before", at + 10, at + 110, stream=HOME)
    if library:
        recording.op("aten::_cudnn_rnn", at + 20, at + 60)
    recording.runtime("cudaEventRecord", at + 21, at + 22).runtime("cudaStreamWaitEvent", at + 23, at + 24)
    recording.launch(at + 30, "first layer", at + 112, at + 312, stream=FIRST)
    recording.runtime("cudaEventRecord", at + 31, at + 32).runtime("cudaStreamWaitEvent", at + 33, at + 34)
    recording.launch(at + 40, "second layer", at + 314, at + 514, stream=SECOND)
    recording.runtime("cudaEventRecord", at + 41, at + 42).runtime("cudaStreamWaitEvent", at + 43, at + 44)
    recording.op("aten::add", at + 70, at + 80)
    recording.launch(at + 75, "after", at + 516, at + 616, stream=HOME)


def program(folder: Path, *, library: bool = True) -> Program:
    recording = Recording()
    for number in range(3):
        recording.step(number, number * STEP, (number + 1) * STEP)
        layers(recording, number * STEP, library=library)
    return build(recording.open(folder))


def quick_host(made: Program) -> Program:
    """The same with next to no host work: what is left is the device's."""
    nothing = np.zeros_like(made.gap_ns)
    return replace(
        made, gap_ns=nothing, base_ns=nothing, tail_gap_ns=0, between_ns=np.zeros_like(made.between_ns)
    )


def test_layers_follow_each_other_and_what_comes_after_follows_them(tmp_path: Path) -> None:
    """Fork, wait within the operator, and join: 600 µs of work one after the other, 2 µs apart, whatever the host does."""
    made = program(tmp_path)
    first, second, after = (np.arange(3) * 4 + place for place in (1, 2, 3))
    assert made.task_after[first].tolist() == [0, 4, 8]
    assert made.task_after[second].tolist() == first.tolist()
    assert made.task_after[after].tolist() == second.tolist()
    assert step_ns(quick_host(made)) / 1e3 == pytest.approx(606, rel=0.02)


def test_the_recording_is_replayed_as_it_was(tmp_path: Path) -> None:
    made = program(tmp_path)
    begins = np.array([10, 112, 314, 516])
    expected = (np.arange(3)[:, None] * STEP + begins).ravel()
    assert replay(made).task_start_ns / 1e3 == pytest.approx(expected, abs=3)


def test_a_copy_stream_of_the_program_is_no_library(tmp_path: Path) -> None:
    """A copy for the next step, launched by an operator that uses one stream, holds nothing back."""
    recording = Recording()
    for number in range(3):
        at = number * STEP
        recording.step(number, at, at + STEP)
        recording.op("aten::mm", at, at + 10)
        recording.launch(at + 5, "work", at + 10, at + 810, stream=HOME)
        recording.op("aten::copy_", at + 20, at + 30)
        recording.launch(
            at + 25, "Memcpy HtoD (Pinned -> Device)", at + 30, at + 230, stream=FIRST, category="gpu_memcpy"
        )
        recording.op("aten::mm", at + 40, at + 50)
        recording.launch(at + 45, "more work", at + 812, at + 912, stream=HOME)
    assert (build(recording.open(tmp_path)).task_after == -1).all()


def test_the_wait_with_which_the_profiler_ends_is_not_the_programs(tmp_path: Path) -> None:
    def recorded(waits: range) -> Program:
        recording = Recording()
        for number in range(3):
            at = number * STEP
            recording.step(number, at, at + STEP)
            recording.op("aten::mm", at, at + 10)
            recording.launch(at + 5, "work", at + 10, at + 900, stream=HOME)
            if number in waits:
                recording.wait(at + 600, name="cudaDeviceSynchronize")
        return build(recording.open(tmp_path))

    assert not (recorded(range(2, 3)).kind == SYNC).any()
    assert (recorded(range(3)).kind == SYNC).sum() == 3  # a program that waits in every step does so itself
