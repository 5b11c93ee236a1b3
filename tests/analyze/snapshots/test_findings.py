"""What is said of histories whose answer is known: who holds the peak, leaks and what is none, layers, steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from foretrace.analyze.snapshots import composition, steps
from foretrace.analyze.snapshots.difference import difference
from foretrace.analyze.snapshots.findings import DeviceFindings, findings
from foretrace.analyze.snapshots.layers import peak_checkpointed
from foretrace.errors import MissingDataError
from foretrace.ingest.snapshots import read_snapshot
from foretrace.present.text.memory_words import layers_says, unused_says
from tests.analyze.snapshots.histories import MIB, History, at_line, forward
from tests.analyze.snapshots.trainings import (
    ACTIVATION,
    LAYERS,
    LOOP_LINE,
    PARAMETER,
    STATE,
    appends,
    keeps_last,
    keeps_last_growing,
    kept_graph,
    layer,
    once,
    train,
)
from tests.corpus import CORPUS, needs_corpus


def only(made: History, **options: Any) -> DeviceFindings:
    (found,) = findings(made.snapshot(**options)).devices
    return found


def held(found: DeviceFindings, by: composition.By) -> dict[str, int]:
    table = composition.composition(found.origins, found.origins.memory.peak, by)
    assert table["held_bytes"].sum() == found.origins.memory.peak_bytes
    return dict(table.select(by, "held_bytes").iter_rows())


def test_the_peak_by_category_phase_and_module() -> None:
    found = only(train(4))
    # The first backward of a step that has Adam's state: three activations, one flowing gradient, one gradient.
    assert held(found, "category") == {
        "activation": LAYERS * ACTIVATION, "optimizer state": LAYERS * STATE, "parameter": LAYERS * PARAMETER,
        "gradient": PARAMETER, "autograd": 3 * MIB,
    }  # fmt: skip
    assert held(found, "phase") == {
        "forward": LAYERS * ACTIVATION, "optimizer": LAYERS * STATE, "other": LAYERS * PARAMETER,
        "backward": PARAMETER + 3 * MIB,
    }  # fmt: skip
    assert held(found, "module") == {
        f"model:{LOOP_LINE} › layer": LAYERS * ACTIVATION,
        "(outside modules)": LAYERS * (STATE + PARAMETER) + PARAMETER + 3 * MIB,
    }
    assert found.peak_step == 1


def test_the_peak_by_source_line_is_by_the_programs_own_lines() -> None:
    assert held(only(train(4)), "line") == {
        "layer.py:10 forward": LAYERS * ACTIVATION, "train.py:90 <module>": LAYERS * (STATE + PARAMETER),
        "(backward, no source line)": PARAMETER + 3 * MIB,
    }  # fmt: skip


@pytest.mark.parametrize("free_stacks", [True, False])
def test_every_category_over_the_whole_history(free_stacks: bool) -> None:
    """Frees have stacks where the history was recorded with context="all", and none with "alloc"."""
    origins = only(train(3, free_stacks=free_stacks)).origins
    lives = origins.memory.lives
    rows = pl.DataFrame({"category": origins.categories, "size": lives.size}).group_by("category").sum()
    assert dict(rows.iter_rows()) == {
        "parameter": LAYERS * PARAMETER, "activation": 3 * LAYERS * ACTIVATION, "intermediate": 3 * LAYERS * 2 * MIB,
        "autograd": 3 * LAYERS * 3 * MIB, "gradient": 3 * LAYERS * PARAMETER, "optimizer state": LAYERS * STATE,
        "temporary": 3 * MIB,
    }  # fmt: skip


def test_without_stacks_nothing_is_known() -> None:
    made = History()
    made.alloc(4 * MIB)
    found = only(made)
    assert held(found, "category") == {"unknown": 4 * MIB}
    assert held(found, "line") == {"(no source line)": 4 * MIB}
    assert held(found, "phase") == {"unknown": 4 * MIB}


def test_a_history_that_ends_in_the_backward_pass_still_knows_activations() -> None:
    found = only(train(2, stop_in_backward=True))
    assert held(found, "category")["activation"] == LAYERS * ACTIVATION


def test_what_came_before_the_history_is_said_to_be() -> None:
    lost = 2 * LAYERS  # the parameters: a segment and a block each
    found = only(train(3), lost=lost, block_stacks=False)
    assert held(found, "category")["before the recording"] == LAYERS * PARAMETER
    assert held(found, "line")["before the recording"] == LAYERS * PARAMETER
    # A block keeps its stack, whatever the history lost.
    assert held(only(train(3), lost=lost), "category")["parameter"] == LAYERS * PARAMETER


@pytest.mark.parametrize("optimizer_frames", [True, False])
def test_steps_end_with_the_optimizer_or_zero_grad(optimizer_frames: bool) -> None:
    found = only(train(5, optimizer_frames=optimizer_frames))
    assert found.steps is not None
    assert len(found.steps) == 5
    assert found.steps.told_by == (
        "the optimizer's steps" if optimizer_frames else "zero_grad, which frees the gradients"
    )
    levels = steps.levels(found.origins, found.steps)
    assert levels["growth_bytes"].to_list()[2:] == [0, 0, 0]


def test_steps_that_the_profiler_named_keep_their_numbers() -> None:
    made = History()
    for number in (7, 8, 9):
        made.annotate(f"ProfilerStep#{number}", "START")
        block = made.alloc((number + 1) * MIB, at_line(5))
        made.annotate(f"ProfilerStep#{number}", "END")
        made.free(block)
    found = only(made)
    assert found.steps is not None
    assert found.steps.numbers.tolist() == [7, 8, 9]
    assert found.peak_step == 9


def test_steps_can_be_given_as_times() -> None:
    made = History()
    times = []
    for _ in range(4):
        begun = made.now_ns
        made.alloc(MIB, at_line(5))
        times.append((begun, made.now_ns - 1))
    (found,) = findings(made.snapshot(), step_times_ns=times).devices
    assert found.steps is not None
    assert len(found.steps) == 4
    assert [(leak.where, leak.bytes_per_step) for leak in found.leaks] == [("train.py:5 <module>", MIB)]


LEAKING = {
    "a growing list": (train(6, after_step=appends(77)), [("train.py:77 <module>", 2 * MIB)]),
    "outputs kept": (train(6, after_forward=appends(78, 5 * MIB)), [("train.py:78 <module>", 5 * MIB)]),
    "a kept graph": (
        train(5, after_forward=kept_graph()),
        [("model.py:33 forward", ACTIVATION), ("model.py:34 forward", MIB)],
    ),
    "without an optimizer": (
        train(5, after_step=appends(77), optimizer_frames=False),
        [("train.py:77 <module>", 2 * MIB)],
    ),
}
HEALTHY = {
    "a plain loop": train(6),
    "a cache filled once": train(6, after_forward=once(60)),
    "a batch fetched ahead": train(6, before_step=keeps_last(61, 1)),
    "the last two batches": train(8, before_step=keeps_last(61, 2)),
    "a buffer of three": train(8, after_step=keeps_last(62, 3)),
    "a buffer of larger and larger": train(8, after_step=keeps_last_growing(62, 3)),
    "scalars": train(6, after_step=appends(63, 512)),
    "cut in the backward pass": train(6, stop_in_backward=True),
}


@pytest.mark.parametrize("name", LEAKING)
def test_a_leak_is_named_with_its_line(name: str) -> None:
    made, expected = LEAKING[name]
    found = only(made)
    assert [(leak.where, leak.bytes_per_step) for leak in found.leaks] == expected


@pytest.mark.parametrize("name", HEALTHY)
def test_what_is_kept_on_purpose_is_no_leak(name: str) -> None:
    assert only(HEALTHY[name]).leaks == []


def test_two_steps_show_no_leak() -> None:
    assert only(train(2, after_step=appends(77))).leaks == []


def test_a_loop_without_training_has_rounds() -> None:
    made = History()
    for _ in range(6):
        batch = made.alloc(2 * MIB, at_line(20))
        hidden = made.alloc(4 * MIB, forward(10))
        made.alloc(3 * MIB, forward(11))
        made.free(hidden)
        made.free(batch)
    found = only(made)
    assert found.steps is not None
    assert found.steps.told_by == "rounds that begin at train.py:20 <module>"
    assert [(leak.where, leak.bytes_per_step) for leak in found.leaks] == [("model.py:11 forward", 3 * MIB)]


def test_layers_are_the_calls_of_one_line() -> None:
    found = only(train(3))
    assert found.layers is not None
    assert found.layers.where == f"model.py:{LOOP_LINE}"
    assert found.layers.saved_bytes == (ACTIVATION,) * LAYERS


def test_the_layer_that_saves_most_is_told() -> None:
    made = History()
    saved = []
    for number in range(4):
        saved.append(made.alloc((20 if number == 2 else 4) * MIB, layer(10)))
        saved.append(made.alloc(MIB, layer(11)))
    for block in reversed(saved):
        made.free(made.alloc(2 * MIB))
        made.free(block)
    found = only(made)
    assert found.layers is not None
    assert found.layers.saved_bytes == (5 * MIB, 5 * MIB, 21 * MIB, 5 * MIB)
    assert found.layers.largest == 2


def test_checkpointed_calls_keep_their_output_alone() -> None:
    """Three calls save 4 MiB and an output of 1 MiB; each backward needs 2 MiB more.

    As it is the peak is 3 * 5 + 2. Checkpointed, the last call is whole when its backward begins, and of the two others the
    outputs are there: 5 + 2 * 1 + 2.
    """
    made = History()
    saved = [
        block for _ in range(3) for block in (made.alloc(4 * MIB, layer(10)), made.alloc(MIB, layer(11)))
    ]
    for block in reversed(saved):
        made.free(made.alloc(2 * MIB))
        made.free(block)
        if block == saved[3]:
            within_backward = made.snapshot()
    found = only(made)
    assert found.layers is not None
    assert found.origins.memory.peak_bytes == 17 * MIB
    assert peak_checkpointed(found.origins, found.layers) == 9 * MIB
    assert (layers_says(found) or "").endswith("with them checkpointed the pass would peak at 9.00 MiB")
    (cut,) = findings(within_backward).devices
    assert cut.layers is not None
    assert peak_checkpointed(cut.origins, cut.layers) is None


def test_largest_blocks_have_their_stack_and_life() -> None:
    found = only(train(3))
    table = composition.largest(found.origins, found.origins.memory.peak, 4)
    assert table["size_bytes"].to_list() == [STATE, STATE, STATE, ACTIVATION]
    first = table.row(0, named=True)
    assert first["category"] == "optimizer state"
    assert first["freed_ns"] is first["lived_ns"] is None
    assert first["stack"].startswith(
        "torch/optim/adam.py:200 _init_group < torch/optim/adam.py:200 step < train.py:90"
    )
    last = table.row(3, named=True)
    assert last["lived_ns"] == last["freed_ns"] - last["allocated_ns"] > 0


@pytest.mark.parametrize("by", composition.KEYS)
def test_a_difference_sums_to_that_of_the_peaks(by: composition.By) -> None:
    before, after = only(train(3)), only(train(3, after_forward=once(60)))
    table = difference(before.origins, after.origins, by)
    whole = after.origins.memory.peak_bytes - before.origins.memory.peak_bytes
    assert table["change_bytes"].sum() == whole == 16 * MIB
    if by == "line":
        assert table.row(0) == ("train.py:60 <module>", 0, 16 * MIB, 16 * MIB)


def test_a_line_that_moved_is_compared_with_itself() -> None:
    made = []
    for line, size in ((10, 4), (13, 6)):
        history = History()
        history.alloc(size * MIB, forward(line))
        made.append(only(history).origins)
    table = difference(made[0], made[1], "line")
    assert table.rows() == [("model.py:13 forward", 4 * MIB, 6 * MIB, 2 * MIB)]


def test_segments_that_cannot_hold_the_history_tell_nothing() -> None:
    made = History()
    made.alloc(2 * MIB, at_line(1))
    small = made.snapshot()
    whole = findings(small).to_dict()
    assert whole["devices"][0]["peak_reserved_bytes"] == 2 * MIB
    assert whole["fragmentation_pct"] == 0.0
    cut = replace(small, segments=small.segments.with_columns(total_bytes=pl.lit(MIB, pl.Int64)))
    found = findings(cut)
    assert "held at most" not in found.says
    assert unused_says(found.devices[0]).startswith("not known")
    assert found.to_dict()["devices"][0]["peak_reserved_bytes"] is None
    assert found.to_dict()["fragmentation_pct"] is None


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MissingDataError, match="nothing of cuda:3 in this snapshot; it has: cuda:0"):
        findings(train(1).snapshot(), device=3)


@needs_corpus
def test_encoder12_is_answered() -> None:
    """Exercise 3: the peak, the layer, and what a layer saves; its parameters are those of twelve layers."""
    found = findings(read_snapshot(CORPUS / "other" / "memory" / "encoder12.snapshot.pickle")).devices[0]
    by_category = held(found, "category")
    # d_model 1024, feed-forward 4096: products of in, out and two linear layers, and four biases and two norms.
    weights = 3 * 1024 * 1024 + 1024 * 1024 + 2 * 1024 * 4096
    vectors = 3 * 1024 + 1024 + 4096 + 1024 + 4 * 1024
    assert by_category["parameter"] == 12 * 4 * (weights + vectors)
    assert found.layers is not None
    assert found.layers.where == "torch/nn/modules/transformer.py:540"
    assert len(found.layers.saved_bytes) == 12
    assert len(set(found.layers.saved_bytes)) == 1
    assert found.peak_step == 0
    assert found.leaks == []
