"""Leaks planted in pickles, named with the steps that show them; and what grows for a while without being one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.analyze.snapshots.findings import DeviceFindings, findings
from foretrace.commands import main
from foretrace.ingest.snapshots import read_snapshot
from foretrace.present.text.memory_words import leaks_says
from tests.analyze.snapshots.histories import MIB, Frame, History, at_line, forward
from tests.analyze.snapshots.trainings import appends, train

MODULE: Frame = ("/env/lib/python3.13/site-packages/torch/nn/modules/module.py", 1779, "_call_impl")
MODEL: Frame = ("/me/transformer.py", 211, "forward")
BLOCKS = 8


def only(path: Path) -> DeviceFindings:
    (device,) = findings(read_snapshot(path)).devices
    return device


def block_stack(line: int, *, caller: int = 50) -> tuple[Frame, ...]:
    """An allocation of a block that the model calls in a loop."""
    return (
        ("/me/transformer.py", line, "forward"),
        MODULE,
        MODEL,
        MODULE,
        ("/me/bench.py", caller, "<module>"),
    )


def one_pass(made: History, *, kept: bool = True) -> None:
    """An embedding, blocks that keep 5 MiB each for a backward pass, and the final product."""
    entrance = ((("/me/transformer.py", 205, "forward")), MODULE, ("/me/bench.py", 50, "<module>"))
    held = [made.alloc(4 * MIB, entrance)]
    for _ in range(BLOCKS):
        held += [made.alloc(3 * MIB, block_stack(54)), made.alloc(2 * MIB, block_stack(57))]
        made.free(made.alloc(8 * MIB, block_stack(60)))
    held.append(made.alloc(MIB, (("/me/transformer.py", 214, "forward"), *entrance[1:])))
    if not kept:
        for block in held:
            made.free(block)


def single_pass() -> History:
    made = History()
    one_pass(made)
    return made


def two_passes() -> History:
    """The last of which is still held, as `out = model(x)` in a loop leaves it."""
    made = History()
    one_pass(made, kept=False)
    one_pass(made)
    return made


def layers_alone() -> History:
    """nn.Sequential: nothing is allocated before or after the blocks."""
    container: Frame = ("/env/site-packages/torch/nn/modules/container.py", 250, "forward")
    made = History()
    for _ in range(BLOCKS):
        stack = (("/me/net.py", 12, "forward"), MODULE, container, MODULE, ("/me/bench.py", 50, "<module>"))
        made.alloc(3 * MIB, stack)
    return made


def native_frames() -> History:
    """The stacks of `stacks="all"`: the interpreter's own frames lie between those of Python."""
    made = History()
    for number in range(BLOCKS):
        interpreter = ("??" if number % 2 else "ceval.c", 0, "_PyEval_EvalFrameDefault")
        made.alloc(3 * MIB, [frame for own in block_stack(54) for frame in (interpreter, own)])
        made.alloc(MIB, block_stack(57))
    return made


def one_step(optimizer: bool = True) -> History:
    """One step of training accumulates the gradients of four forward and backward passes, whose losses stay until its end."""
    made = History()
    losses = []
    for _ in range(4):
        saved = made.alloc(6 * MIB, forward(10))
        losses.append(made.alloc(MIB, forward(11)))
        made.free(made.alloc(2 * MIB))
        made.free(saved)
    if optimizer:
        stack = (("/site-packages/torch/optim/adam.py", 200, "step"), ("/me/train.py", 70, "<module>"))
        made.free(made.alloc(MIB, stack))
    return made


def update_in_backward() -> History:
    """Hooks update each parameter in the backward pass: many runs of the optimizer's code in one step."""
    hook = (("/site-packages/torch/optim/adam.py", 200, "_init_group"), ("/me/train.py", 40, "hook"))
    made = History()
    saved = [made.alloc(6 * MIB, forward(10 + layer)) for layer in range(4)]
    for block in saved:
        gradient = made.alloc(2 * MIB)
        made.alloc(8 * MIB, hook)
        made.free(gradient)
        made.free(block)
    return made


def cleared_cache() -> History:
    """Grows by 2 MiB a step, is cleared every six steps, and holds four entries at the end."""
    held: list[int] = []

    def grows(made: History, step: int) -> None:
        if step % 6 == 0:
            while held:
                made.free(held.pop())
        held.append(made.alloc(2 * MIB, at_line(61)))

    return train(16, after_step=grows)


def freed_cache() -> History:
    made = train(6, after_step=appends(61))
    for address in [address for address, block in made.blocks.items() if block[1] == 2 * MIB]:
        made.free(address)
    return made


def generation(function: str) -> History:
    """Tokens of one generation: each appends its keys and values to lists."""
    made = History()
    for _ in range(12):
        caller = (("/me/llm.py", 33, function), ("/me/chat.py", 9, "<module>"))
        made.free(made.alloc(MIB, (("/me/llm.py", 30, function), caller[1])))
        made.alloc(2 * MIB, (("/me/attention.py", 18, "forward"), MODULE, *caller))
    return made


def two_steps() -> History:
    return train(2, after_step=appends(77))


HEALTHY: dict[str, Callable[[], History]] = {
    "one forward pass": single_pass,
    "two forward passes": two_passes,
    "a pass of layers alone": layers_alone,
    "native frames between": native_frames,
    "gradient accumulation": one_step,
    "updates in the backward pass": update_in_backward,
    "a cache cleared now and then": cleared_cache,
    "a growing cache that is freed": freed_cache,
    "tokens of generate": lambda: generation("generate"),
    "tokens of _sample": lambda: generation("_sample"),
    "two steps": two_steps,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_what_no_step_repeats_is_no_leak(name: str, tmp_path: Path) -> None:
    device = only(HEALTHY[name]().write(tmp_path / "a.pickle"))
    assert device.leaks == []


@pytest.mark.parametrize(
    "name", ["one forward pass", "two forward passes", "a pass of layers alone", "tokens of generate"]
)
def test_parts_of_a_step_are_no_steps(name: str, tmp_path: Path) -> None:
    """Nor is it said that they keep nothing."""
    device = only(HEALTHY[name]().write(tmp_path / "a.pickle"))
    assert device.steps is None
    assert leaks_says(device) == "not checked: no repeated step in the history, and 3 are needed"


def inference(kept: int, *, rounds: int = 6) -> History:
    """Batches through a model of several blocks, which keeps some bytes of each batch."""
    made = History()
    for _ in range(rounds):
        batch = made.alloc(2 * MIB, at_line(20))
        one_pass(made, kept=False)
        if kept:
            made.alloc(kept, at_line(22))
        made.free(batch)
    return made


PLANTED = 3 * MIB + 4096
LEAKING: dict[str, tuple[Callable[[], History], int]] = {
    "training": (lambda: train(5, after_forward=appends(22, PLANTED)), 5),
    # The last round of a loop may be cut: it does not count.
    "inference": (lambda: inference(PLANTED), 5),
    # In step 2, which clears it, the line shrinks: of the steps 0 to 8 six are left.
    "after a cache was cleared": (lambda: train(9, after_forward=cleared_once(22)), 6),
}


def cleared_once(line: int) -> Callable[[History, int], None]:
    """Cleared after two steps and never since."""
    held: list[int] = []

    def grows(made: History, step: int) -> None:
        if step == 2:
            while held:
                made.free(held.pop())
        held.append(made.alloc(PLANTED, at_line(line)))

    return grows


@pytest.mark.parametrize("name", LEAKING)
def test_a_planted_leak_is_named_to_the_byte(name: str, tmp_path: Path) -> None:
    made, steps = LEAKING[name]
    device = only(made().write(tmp_path / "a.pickle"))
    (leak,) = device.leaks
    assert leak.where == "train.py:22 <module>"
    assert leak.bytes_per_step == PLANTED
    assert [repetition.kept_bytes for repetition in leak.repetitions] == [PLANTED] * steps
    assert leak.kept_bytes == steps * PLANTED


def test_healthy_inference_has_rounds_and_no_leak(tmp_path: Path) -> None:
    device = only(inference(0).write(tmp_path / "a.pickle"))
    assert device.steps is not None
    assert len(device.steps) == 5
    assert device.leaks == []


def test_a_repetition_is_where_the_block_was_allocated(tmp_path: Path) -> None:
    """Each repetition covers exactly one allocation of the leaking line; events are a microsecond apart."""
    made = train(4, after_forward=appends(22, PLANTED))
    device = only(made.write(tmp_path / "a.pickle"))
    stacks = [device.origins.places.lines[number] for number in device.origins.memory.events["stack"]]
    actions = device.origins.memory.events["action"].to_list()
    planted = [
        row for row, line in enumerate(stacks) if line == "train.py:22 <module>" and actions[row] == "alloc"
    ]
    (leak,) = device.leaks
    for row, repetition in zip(planted, leak.repetitions, strict=True):
        assert repetition.first_event <= row <= repetition.last_event
        assert repetition.start_ns == 1000 * repetition.first_event


def test_every_output_shows_the_repetitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = train(4, after_forward=appends(22, 2 * MIB)).write(tmp_path / "a.pickle")
    assert main(["memory", str(path), "--format", "json"]) == 0
    (leak,) = json.loads(capsys.readouterr().out)["leaks"]
    assert (leak["device"], leak["kept_bytes"]) == ("cuda:0", 8 * MIB)
    assert [(row["step"], row["kept_bytes"]) for row in leak["repetitions"]] == [
        (step, 2 * MIB) for step in range(4)
    ]
    assert main(["memory", str(path)]) == 0
    text = capsys.readouterr().out
    assert (
        "each step keeps 2.00 MiB more, steps 0 to 3 (4 steps, detected by the optimizer's steps)"
        in " ".join(text.split())
    )
    first = leak["repetitions"][0]
    assert f"{first['first_event']} to {first['last_event']}" in text


# --- files of other versions ---------------------------------------------------------------------------------------


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    document = pickle.loads(path.read_bytes())
    change(document)
    path.write_bytes(pickle.dumps(document, protocol=4))
    return path


def without_times(document: dict[str, Any]) -> None:
    for event in document["device_traces"][0]:
        del event["time_us"]


@pytest.mark.parametrize(
    "arguments", [["--by", "category"], ["--by", "step"], ["--by", "block"], ["--format", "json"]]
)
def test_a_history_without_times_is_read(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older torch wrote none. What was held does not depend on them."""
    path = train(4, after_forward=appends(22, PLANTED)).write(tmp_path / "a.pickle")
    timed = only(path)
    untimed = only(changed(path, without_times))
    assert untimed.origins.memory.peak_bytes == timed.origins.memory.peak_bytes
    assert [leak.kept_bytes for leak in untimed.leaks] == [4 * PLANTED]
    assert {repetition.start_ns for repetition in untimed.leaks[0].repetitions} == {None}
    assert untimed.origins.memory.at_ns(untimed.origins.memory.peak) is None
    assert main(["memory", str(path), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "its history has no times" in printed or "--by" in arguments[:1] or '"at_ns": null' in printed


def test_an_out_of_memory_without_times_is_read(tmp_path: Path) -> None:
    made = History()
    made.alloc(2 * MIB, at_line(3))
    made.oom(64 * MIB, MIB, at_line(4))
    (request,) = only(changed(made.write(tmp_path / "a.pickle"), without_times)).out_of_memory
    assert (request.at_ns, request.asked_bytes) == (None, 64 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_addresses_from_2_63_on_change_nothing(expandable: bool, tmp_path: Path) -> None:
    """The same history 2^63 bytes further on in memory."""

    def program() -> History:
        made = History(expandable=expandable)
        segment = made.segment(20 * MIB, frames=at_line(1))
        first = made.alloc(4 * MIB, at_line(1), address=segment)
        made.alloc(4 * MIB, at_line(2), address=segment + 8 * MIB, whole=4 * MIB + 512)
        made.free(first)
        made.oom(64 * MIB, MIB, at_line(4))
        return made

    def moved(document: dict[str, Any]) -> None:
        for segment in document["segments"]:
            for entry in (segment, *segment["blocks"]):
                entry["address"] += 2**63
        for event in document["device_traces"][0]:
            if "addr" in event:
                event["addr"] += 2**63

    path = program().write(tmp_path / "a.pickle")
    low = findings(read_snapshot(path)).to_dict()
    high = findings(read_snapshot(changed(path, moved))).to_dict()
    assert high == low
    # Of 20 MiB, 4 MiB and 512 B lie at 8 MiB: the larger hole is the one before them or behind them.
    assert low["oom"]["largest_hole_bytes"] == 8 * MIB


def test_a_segment_around_2_63_is_read(tmp_path: Path) -> None:
    """A block on either side of the middle of the address space."""
    made = History()
    segment = made.segment(8 * MIB, address=2**63 - 4 * MIB)
    made.alloc(2 * MIB, at_line(1), address=segment)
    made.alloc(3 * MIB, at_line(2), address=2**63 + MIB)
    device = only(made.write(tmp_path / "a.pickle"))
    assert device.origins.memory.peak_bytes == 5 * MIB
    assert device.fragmentation.at_end.largest_bytes == 3 * MIB  # from 2 MiB to 5 MiB in the segment
    assert device.fragmentation.at_end.unused_bytes == 3 * MIB
