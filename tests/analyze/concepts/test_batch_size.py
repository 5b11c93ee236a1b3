"""The batch, where shapes tell it beyond doubt; and nothing where they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.analyze.concepts.work import batch_size, throughput
from foretrace.analyze.overview import overview
from foretrace.analyze.steps import step_windows, steps
from foretrace.commands import main
from foretrace.diagnose.case import Case
from foretrace.diagnose.step_times import step_times
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.step_time import step_time
from foretrace.trace import Trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

Body = Callable[[Recording, float], None]
NODE = "autograd::engine::evaluate_function: MmBackward0"


def program(folder: Path, body: Body, *, backward: bool = True) -> Trace:
    """Three steps of 1 ms: the body, a backward, and a kernel that ends with the step."""
    recording = Recording()
    for number in range(3):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        body(recording, at)
        if backward:
            recording.op(NODE, at + 700, at + 750)
        recording.op("aten::add", at + 800, at + 900).launch(at + 810, "k", at + 820, at + 1_000)
    return recording.open(folder)


def op(recording: Recording, name: str, at: float, *shapes: Any) -> None:
    recording.op(name, at, at + 10, **{"Input Dims": [list(shape) for shape in shapes]})


def tokens(recording: Recording, at: float, ids: tuple[int, int], query: tuple[int, ...]) -> None:
    """Token ids looked up, positions too, and attention over them."""
    op(recording, "aten::embedding", at + 10, (50_000, 64), ids, (), (), ())
    op(recording, "aten::embedding", at + 30, (1_024, 64), (1, ids[1]), (), (), ())
    op(recording, "aten::scaled_dot_product_attention", at + 50, query, query, query)


def copied(recording: Recording, at: float, *shapes: tuple[int, ...]) -> None:
    for number, shape in enumerate(shapes):
        begin = at + 100 + 20 * number
        op(recording, "aten::copy_", begin, shape, shape, ())
        args = {"bytes": 4096, "category": "gpu_memcpy"}
        recording.launch(begin + 2, "Memcpy HtoD (Pageable -> Device)", begin + 5, begin + 8, **args)


def test_token_ids_with_attention_over_them(tmp_path: Path) -> None:
    batch = batch_size.find(program(tmp_path, lambda made, at: tokens(made, at, (8, 512), (8, 12, 512, 64))))
    assert batch is not None
    assert (batch.items, batch.tokens) == (dict.fromkeys(range(3), 8), dict.fromkeys(range(3), 4096))
    assert batch.source == batch_size.TOKENS


def test_ids_may_lie_with_the_length_first(tmp_path: Path) -> None:
    batch = batch_size.find(program(tmp_path, lambda made, at: tokens(made, at, (35, 20), (20, 4, 35, 64))))
    assert batch is not None
    assert (batch.items[0], batch.tokens[0]) == (20, 700)


def test_ids_without_attention_may_be_anything(tmp_path: Path) -> None:
    """Categories of a recommender, or the words of an RNN: which dimension is the batch is not known."""

    def body(made: Recording, at: float) -> None:
        op(made, "aten::embedding", at + 10, (50_000, 64), (35, 20), (), (), ())

    assert batch_size.find(program(tmp_path, body)) is None


def test_gradients_that_accumulate_count_together(tmp_path: Path) -> None:
    def body(made: Recording, at: float) -> None:
        tokens(made, at, (8, 512), (8, 12, 512, 64))
        made.op(NODE, at + 200, at + 250)
        tokens(made, at + 300, (8, 512), (8, 12, 512, 64))

    batch = batch_size.find(program(tmp_path, body))
    assert batch is not None
    assert (batch.items[1], batch.tokens[1]) == (16, 8192)


def test_a_model_called_twice_before_its_backward_is_no_answer(tmp_path: Path) -> None:
    def body(made: Recording, at: float) -> None:
        tokens(made, at, (8, 512), (8, 12, 512, 64))
        tokens(made, at + 300, (8, 512), (8, 12, 512, 64))

    assert batch_size.find(program(tmp_path, body)) is None


def convolve(made: Recording, at: float, images: int = 32) -> None:
    op(made, "aten::conv2d", at + 10, (images, 3, 224, 224), (64, 3, 7, 7), ())
    op(made, "aten::conv2d", at + 30, (images, 64, 56, 56), (64, 64, 3, 3), ())


def test_the_first_convolution(tmp_path: Path) -> None:
    batch = batch_size.find(program(tmp_path, convolve))
    assert batch is not None
    assert (batch.items, batch.tokens, batch.source) == (dict.fromkeys(range(3), 32), {}, batch_size.IMAGES)


def test_without_a_backward_the_copies_must_agree(tmp_path: Path) -> None:
    """A denoising model runs its convolutions on twice the images that are asked for."""
    assert batch_size.find(program(tmp_path, convolve, backward=False)) is None

    def body(made: Recording, at: float) -> None:
        convolve(made, at)
        copied(made, at, (32, 3, 224, 224))

    batch = batch_size.find(program(tmp_path, body, backward=False))
    assert batch is not None
    assert batch.items[2] == 32


def test_copies_that_disagree_are_no_answer(tmp_path: Path) -> None:
    def body(made: Recording, at: float) -> None:
        convolve(made, at)
        copied(made, at, (16, 3, 224, 224), (16,))

    assert batch_size.find(program(tmp_path, body)) is None


def test_under_autocast_an_operator_calls_itself(tmp_path: Path) -> None:
    def body(made: Recording, at: float) -> None:
        shapes = {"Input Dims": [[32, 3, 224, 224], [64, 3, 7, 7], []]}
        made.op("aten::conv2d", at + 10, at + 30, **shapes).op("aten::conv2d", at + 15, at + 28, **shapes)

    batch = batch_size.find(program(tmp_path, body))
    assert batch is not None
    assert batch.items[0] == 32


def test_an_input_and_its_labels(tmp_path: Path) -> None:
    batch = batch_size.find(program(tmp_path, lambda made, at: copied(made, at, (256, 20), (256,))))
    assert batch is not None
    assert (batch.items[0], batch.source) == (256, batch_size.COPIED)


@pytest.mark.parametrize("shapes", [[(3, 224, 224)], [(35, 20), (700,)], [(64, 8), (64, 8)]])
def test_copies_that_leave_a_doubt(tmp_path: Path, shapes: list[tuple[int, ...]]) -> None:
    """One image without a batch; a sequence-first input; two tensors of one shape, or one tensor twice."""
    assert batch_size.find(program(tmp_path, lambda made, at: copied(made, at, *shapes))) is None


def test_what_a_checkpoint_computes_again_is_read_once(tmp_path: Path) -> None:
    def body(made: Recording, at: float) -> None:
        convolve(made, at)
        made.op(NODE, at + 400, at + 600)
        op(made, "aten::conv2d", at + 410, (32, 3, 224, 224), (64, 3, 7, 7), ())

    batch = batch_size.find(program(tmp_path, body))
    assert batch is not None
    assert batch.items[0] == 32


def test_steps_and_overview_show_it(tmp_path: Path) -> None:
    """4,096 tokens of 8 sequences in steps of 1 ms."""
    trace = program(tmp_path, lambda made, at: tokens(made, at, (8, 512), (8, 12, 512, 64)))
    for result in (steps(trace), overview(trace)):
        assert result.values["items_per_step_count"] == 8
        assert result.values["items_per_s"] == pytest.approx(8_000)
        assert result.values["tokens_per_s"] == pytest.approx(4_096_000)
        assert result.values["batch_source"] == batch_size.TOKENS
    table = steps(trace).table
    assert table["items_count"].to_list() == [8, 8, 8]
    assert table["tokens_per_s"].to_list()[1:] == pytest.approx([4_096_000] * 2)
    assert "8 items a step, 8,000 items/s; 4,096 tokens a step, 4,096,000 tokens/s" in steps(trace).says
    caption = step_time(RecordingView(Case(trace)))["caption"]
    assert "4,096,000 tokens/s, as recorded (token ids of the embedding" in caption


@pytest.mark.slow
def test_the_diagnosis_gives_it_at_the_time_that_predictions_start_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4,096 tokens in a step that takes 0.5 ms without a profiler."""
    trace = program(tmp_path, lambda made, at: tokens(made, at, (8, 512), (8, 12, 512, 64)))
    times = step_times(Case(trace, step_ns=500_000.0))
    assert times.per_s("tokens") == pytest.approx(8_192_000)
    assert times.per_s("items") == pytest.approx(16_000)
    assert (
        "; at 500 µs: 8 items a step, 16,000 items/s; 4,096 tokens a step, 8,192,000 tokens/s" in times.says()
    )
    assert main(["diagnose", str(trace.path), "--step-ms", "0.5", "--format", "json"]) == 0
    overview = json.loads(capsys.readouterr().out)["overview"]
    assert (overview["step_tokens_count"], overview["step_tokens_per_s"]) == (4096, pytest.approx(8_192_000))
    assert overview["step_items_per_s"] == pytest.approx(16_000)


def test_where_it_is_not_known_nothing_is_said(tmp_path: Path) -> None:
    trace = program(tmp_path, lambda made, at: None)
    assert throughput.values(trace, step_windows(trace)) == {}
    assert not any(
        "items" in name or "tokens" in name for name in (*steps(trace).values, *steps(trace).table.columns)
    )
    assert "items" not in step_time(RecordingView(Case(trace)))["caption"]
    assert (step_times(Case(trace)).per_s("items"), "items" in step_times(Case(trace)).says()) == (
        None,
        False,
    )


@needs_corpus
@pytest.mark.parametrize(
    ("name", "items", "length"),
    [
        ("gpt_healthy.slow.rich", 32, 1024), ("decode_launch_bound.slow.rich", 1, 16),
        ("resnet50.slow.rich", 32, None), ("slow_dataloader.slow.rich", 64, None), ("elementwise_chain.slow.rich", None, None),
    ],
)  # fmt: skip
def test_recordings_whose_batch_is_known(name: str, items: int | None, length: int | None) -> None:
    batch = batch_size.find(foretrace.open(CORPUS / "h200" / f"{name}.json.gz"))
    assert (set(batch.items.values()) if batch else None) == (None if items is None else {items})
    if batch and length:
        assert set(batch.tokens.values()) == {(items or 0) * length}
