"""Ways to compile, as edits: operators counted, a loss inside, outside or unknown, and CUDA graphs on top."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foretrace.predict import graph_capture
from foretrace.predict.builder import build
from foretrace.predict.compiler.levels import Compilation
from foretrace.predict.compiler.steps import CompiledStep, Fused
from foretrace.predict.costs import graph
from foretrace.predict.edits import apply
from foretrace.predict.program import Program
from tests.diagnose.kernels import ADD, HOST_US, STEPS, Op, device_bound
from tests.predict.programs import Draft


def program() -> Program:
    """Six launches of 10 µs of host and 5 µs of device each."""
    draft = Draft()
    for _ in range(6):
        draft.launch(8_000, 2_000, 5_000)
    return draft.program()


def step(*, graphs: int = 1) -> CompiledStep:
    """Two operators fused, one that stays, two of a loss fused, and a constant."""
    return CompiledStep(
        kernels=(
            Fused((0, 1), 4_000, launches=1, of_loss=False),
            Fused((3, 4), 6_000, launches=2, of_loss=True),
            Fused((5,), 0, launches=0, of_loss=False),
        ),
        kept=((2,),),
        kept_forward=1,
        converting=(),
        operators=6,
        graphs=graphs,
    )


@pytest.mark.parametrize(
    ("loss", "fused_ns", "after"),
    [
        (1.0, 4_000 + 6_000, 1 + 1 + 2),
        (0.5, 4_000 + (6_000 + 10_000) // 2, 1 + 1 + 2),  # half of it fused, half as recorded
        (0.0, 4_000, 1 + 1),
    ],
)
def test_a_loss_is_compiled_as_far_as_it_lies_in_the_model(loss: float, fused_ns: int, after: int) -> None:
    found = Compilation(program(), [step()], loss=loss)
    assert found.fused_ns == fused_ns
    assert found.operators == (6, after)


def test_what_a_loss_outside_takes_stays_as_it_was() -> None:
    edited = apply(program(), Compilation(program(), [step()], loss=0.0).default())
    assert edited.task_dur_ns.tolist() == [4_000, 5_000, 5_000, 5_000]  # fused, product, two of the loss


def test_fused_kernels_take_their_time_and_constants_are_gone() -> None:
    edited = apply(program(), Compilation(program(), [step()], loss=1.0).default())
    assert edited.task_dur_ns.tolist() == [4_000, 5_000, 6_000]


def test_attention_that_gets_a_mask_takes_longer() -> None:
    masked = Compilation(program(), [replace(step(), masking={2: 3.0})], loss=1.0)
    assert masked.masking_ns == 2 * 5_000
    assert apply(program(), masked.default()).task_dur_ns.tolist() == [4_000, 15_000, 6_000]


@pytest.mark.parametrize("cost", [0.4, 0.8, 1.2])
@pytest.mark.parametrize("graphs", [1, 2])
def test_the_host_pays_for_each_operator_left_and_for_each_graph(cost: float, graphs: int) -> None:
    """Of six operators with 8 µs before their call, four are left: their own, 80 µs for each graph, and the guards of one."""
    edit = Compilation(program(), [step(graphs=graphs)], loss=1.0).default(cost)
    expected = 4 * cost * 8_000 + graphs * 80_000 + 0.3 * 8_000
    assert sum(edit.added_host_ns.values()) == pytest.approx(expected, abs=4)
    assert edit.removed_host.total_ns == 6 * 8_000


def test_the_range_has_the_cheapest_and_the_dearest_operator() -> None:
    found = Compilation(program(), [step()], loss=1.0)
    extra = [sum(edit.added_host_ns.values()) for edit in (*found.default_range(), found.default())]
    entered = 80_000 + 0.3 * 8_000
    assert extra == pytest.approx([4 * cost * 8_000 + entered for cost in (0.4, 1.2, 0.8)], abs=4)


def test_graphs_replay_the_compiled_part_or_the_whole_step() -> None:
    """Without the loss, its two calls stay outside, and the host launches them as before.

    The guards are those of the one that stays, and of a whole step there are none.
    """
    found = Compilation(program(), [step()], loss=0.0)
    everything = np.ones(6, bool)
    part, whole = (found.graphs(everything, whole=whole) for whole in (False, True))
    assert part.captured_calls.tolist() == [0, 1, 2, 5]
    assert part.added_host_ns == {1: 50_000 + round(0.3 * 4 * 8_000 / 6), 5: 50_000}
    assert whole.captured_calls.tolist() == list(range(6))
    assert whole.added_host_ns == {
        1: int(graph.LAUNCH_NS)
    }  # the first that launches: the kernel of both is the second's
    assert part.durations_ns == whole.durations_ns


def test_conversions_go() -> None:
    converted = CompiledStep((), ((1,),), 1, (0,), 6, 1)
    edited = apply(program(), Compilation(program(), [converted], loss=1.0).default())
    assert len(edited.task_dur_ns) == 5


def test_of_a_recording_copies_and_waits_stay_outside_a_graph(tmp_path: Path) -> None:
    ops = [Op("aten::relu", ADD, 5, [[64]], ["float"]) for _ in range(4)]
    trace = device_bound(tmp_path, ops)
    recorded = build(trace)
    steps = [
        CompiledStep(
            (Fused(tuple(range(4 * number, 4 * number + 4)), 5_000, 1, of_loss=False),), (), 0, (), 4, 1
        )
        for number in range(STEPS)
    ]
    found = Compilation(recorded, steps, loss=1.0)
    assert found.operators == (4, 1)
    captured = found.graphs(graph_capture.capturable(trace, recorded), whole=False)
    assert len(captured.captured_calls) == 4 * STEPS
    assert len(captured.added_host_ns) == STEPS
    assert found.default().removed_host.total_ns <= 4 * STEPS * HOST_US * 1_000


def test_what_it_costs_to_enter_a_graph_is_paid_though_its_first_call_launches_nothing() -> None:
    """The first operator is fused into the second: its call is empty, and host work added there would be dropped."""
    found = Compilation(program(), [step()], loss=1.0)
    entered = int(apply(program(), found.default()).gap_ns.sum())
    assert entered == pytest.approx(4 * 0.8 * 8_000 + 80_000 + 0.3 * 8_000, abs=8)
    replayed = apply(program(), found.graphs(np.ones(6, bool), whole=True))
    assert int(replayed.gap_ns.sum()) == graph.LAUNCH_NS


def waiting(before: int) -> Compilation:
    """Twenty launches that all stay, and a wait behind this many of them."""
    draft = Draft()
    for number in range(20):
        if number == before:
            draft.sync(1_000, 1_000)
        draft.launch(8_000, 2_000, 5_000)
    kept = tuple((task,) for task in range(20))
    return Compilation(draft.program(), [CompiledStep((), kept, 20, (), 20, 1)], loss=1.0)


@pytest.mark.parametrize(
    ("before", "splits"),
    [(0, False), (2, False), (3, True), (10, True), (17, True), (18, False)],
)
def test_a_wait_splits_the_compiled_part_in_its_midst_not_near_an_end(before: int, splits: bool) -> None:
    """Up to a tenth of twenty launches, two, may lie before or behind it: an input, a result that is read."""
    assert waiting(before).split_by_waits is splits


def test_a_wait_outside_of_the_compiled_part_does_not_split_it() -> None:
    """Ten launches are compiled; the wait is among ten others behind them."""
    found = waiting(15)
    first = CompiledStep((), tuple((task,) for task in range(10)), 10, (), 10, 1)
    assert not Compilation(found.program, [first], loss=1.0).split_by_waits
