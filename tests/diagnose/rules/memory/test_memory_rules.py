"""Rules about memory: what each predicts beside the recording of the same program with the fix made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.concepts.memory import memory_replay
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rule import Rule
from foretrace.diagnose.rules.memory.foreach_temporaries import foreach_temporaries
from foretrace.diagnose.rules.memory.fp32_activations import fp32_activations
from foretrace.diagnose.rules.memory.fp32_optimizer_state import fp32_optimizer_state
from foretrace.diagnose.rules.memory.fp32_parameters import fp32_parameters
from foretrace.diagnose.rules.memory.kept_gradients import kept_gradients
from foretrace.diagnose.rules.memory.kept_references import kept_references
from foretrace.diagnose.rules.memory.split_segments import split_segments
from foretrace.diagnose.rules.memory.uncheckpointed_blocks import uncheckpointed_blocks
from tests.analyze.snapshots.allocator import Allocator
from tests.analyze.snapshots.histories import MIB, at_line
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.memory_steps import UNIT, Training

STEP_NS = 1_000_000
EVERY = (
    uncheckpointed_blocks, fp32_activations, fp32_parameters, foreach_temporaries, fp32_optimizer_state, kept_gradients,
    split_segments,
)  # fmt: skip


def judged(training: Training, folder: Path, *rules: Rule) -> Diagnosis:
    found = diagnose(Case(training.open(folder), step_ns=STEP_NS), rules)
    assert not found.unchecked, found.unchecked
    return found


def one(training: Training, folder: Path, rule: Rule) -> Finding:
    (finding,) = judged(training, folder, rule).findings
    return finding


def peak(training: Training, folder: Path) -> int:
    return memory_replay.find(training.open(folder, "other.json")).peak_bytes


@pytest.mark.parametrize(
    ("rule", "slow", "fast"),
    [
        (uncheckpointed_blocks, Training(), Training(checkpointed=True)),
        (foreach_temporaries, Training(foreach=True), Training()),
        (foreach_temporaries, Training(foreach=True, zero_grad="late"), Training(zero_grad="late")),
        (kept_gradients, Training(zero_grad="late"), Training()),
        (kept_gradients, Training(zero_grad="zeroes"), Training()),
    ],
)
def test_the_peak_is_that_of_the_program_with_the_fix(
    rule: Rule, slow: Training, fast: Training, tmp_path: Path
) -> None:
    finding = one(slow, tmp_path, rule)
    assert finding.freed_bytes is not None
    assert finding.freed_bytes.point == peak(slow, tmp_path) - peak(fast, tmp_path) > 0
    assert finding.freed_bytes.low <= finding.freed_bytes.point <= finding.freed_bytes.high
    assert finding.evidence["peak_after_bytes"] == peak(fast, tmp_path)
    assert finding.severity == "low"  # there is room


def test_checkpointing_costs_the_forward_once_more(tmp_path: Path) -> None:
    """The host takes 90 us for the first block's forward, and 49 up to the second one's last launch; 3.3 times that on top."""
    finding = one(Training(), tmp_path, uncheckpointed_blocks)
    assert finding.predicted is not None
    assert finding.predicted.verdict == "no gain"
    again = 90 + 49
    assert finding.predicted.after_ns.point / 1e3 == pytest.approx(1_000 + again + 3.3 * again, rel=0.01)


def test_what_is_not_at_the_new_peak_frees_nothing(tmp_path: Path) -> None:
    """While the optimizer's step is the peak, neither checkpointing nor freeing gradients earlier lowers it."""
    training = Training(foreach=True, zero_grad="late")
    found = judged(training, tmp_path, uncheckpointed_blocks, kept_gradients)
    assert found.findings == ()
    assert found.freed_bytes is None


def test_together_they_free_what_the_program_with_all_of_them_does(tmp_path: Path) -> None:
    """Gradients free 2 and checkpointing 4 alone; both together 4, because the peak is elsewhere then."""
    slow = Training(zero_grad="late")
    found = judged(slow, tmp_path, uncheckpointed_blocks, kept_gradients)
    alone = [finding.freed_bytes.point for finding in found.findings if finding.freed_bytes]
    assert sorted(alone) == [2 * UNIT, 4 * UNIT]
    assert found.freed_bytes is not None
    both = peak(slow, tmp_path) - peak(replace(slow, zero_grad="behind", checkpointed=True), tmp_path)
    assert found.freed_bytes.point == both < sum(alone)


def test_a_program_that_does_it_all_already_has_no_finding(tmp_path: Path) -> None:
    trained = Training(checkpointed=True, dtype="c10::BFloat16", parameters="c10::BFloat16")
    assert judged(trained, tmp_path, *EVERY).findings == ()


def test_adams_state_in_8_bits(tmp_path: Path) -> None:
    """Two tensors of 750 million elements: two values each, of 4 bytes now and 1.016 then; the largest may stay."""
    finding = one(Training(optimizer="AdamW"), tmp_path, fp32_optimizer_state)
    saved = 2 * 2 * 750_000_000 * (4 - 1.016)
    assert finding.freed_bytes is not None
    assert (finding.freed_bytes.point, finding.freed_bytes.low) == pytest.approx((saved, saved / 2))
    assert finding.evidence["state_bytes"] == 12 * UNIT


def test_another_optimizer_has_no_such_state(tmp_path: Path) -> None:
    assert judged(Training(optimizer="SGD"), tmp_path, fp32_optimizer_state).findings == ()


def test_activations_under_autocast(tmp_path: Path) -> None:
    """The products' 4 become 2, gradients passed on 0.5; the sums stay; bf16 copies of the parameters' 6 take 3.

    At the peak, in the first backward: 10 and the copies' 3, 2 and 1 and 2 and 1 of the blocks, 0.5 passed on, 3 of gradient.
    """
    finding = one(Training(), tmp_path, fp32_activations)
    assert finding.evidence["peak_after_bytes"] == 22.5 * UNIT


def test_parameters_in_bf16(tmp_path: Path) -> None:
    """At the peak, in the first backward: 10 less half of the parameters' 6; 2 and 1, twice; 0.5 passed on, 1.5 of gradient.

    At least: 7, 4 and 1, twice, 1 passed on, 1.5 of gradient.
    """
    finding = one(Training(), tmp_path, fp32_parameters)
    assert finding.evidence["parameters_bytes"] == 6 * UNIT
    assert finding.evidence["peak_after_bytes"] == 15 * UNIT
    assert finding.freed_bytes is not None
    assert finding.freed_bytes.low == (24 - 19.5) * UNIT


def test_adams_state_is_in_the_parameters_type(tmp_path: Path) -> None:
    """Two values for each of 1,500 million elements: 12, of which half goes."""
    finding = one(Training(optimizer="AdamW"), tmp_path, fp32_parameters)
    assert finding.evidence["state_bytes"] == 12 * UNIT
    assert finding.evidence["peak_after_bytes"] == 9 * UNIT


def test_nothing_is_freed_twice(tmp_path: Path) -> None:
    """With bf16 parameters autocast has nothing to add; of Adam's 12, 8 bits leave 3.048 and bf16 leaves 6."""
    found = judged(
        Training(optimizer="AdamW"), tmp_path, fp32_activations, fp32_parameters, fp32_optimizer_state
    )
    assert len(found.findings) == 3
    assert found.freed_bytes is not None
    assert found.freed_bytes.point == pytest.approx((24 - (15 - (12 - 3.048))) * UNIT)


def _leaking(folder: Path, *, steps: int, per_step: int) -> None:
    """The snapshot of a Run in a folder, as `run --memory` leaves it beside its recordings."""
    made, times = Allocator(1 << 40), []
    for number in range(steps):
        began = made.now_ns
        made.release(made.malloc(MIB, at_line(4)))
        if per_step:
            made.malloc(per_step, at_line(77))
        times.append({"step": number, "began_ns": began, "ended_ns": made.now_ns - 1000})
    made.write(folder / "memory.pickle")
    facts = {"passes": [{"kind": "memory", "file": "memory.pickle", "step_times": times}]}
    (folder / "rank.json").write_text(json.dumps(facts), encoding="utf-8")


def test_what_every_step_keeps_is_named_with_its_line(tmp_path: Path) -> None:
    """Three steps are recorded and the peak, the same in each, is first in step 0: one step's worth at least."""
    _leaking(tmp_path, steps=4, per_step=2 * UNIT)
    finding = one(Training(), tmp_path, kept_references)
    size = finding.evidence["per_step_bytes"]
    assert 2 * UNIT <= size < 2 * UNIT + (2 << 20)  # large blocks are rounded to 2 MiB at most
    assert finding.freed_bytes is not None
    assert finding.freed_bytes.point == size
    assert (finding.where[0].file, finding.where[0].line) == ("train.py", 77)
    assert "train.py:77 <module>" in finding.says
    assert finding.severity == "medium"


def test_together_with_what_is_kept(tmp_path: Path) -> None:
    _leaking(tmp_path, steps=4, per_step=2 * UNIT)
    found = judged(Training(), tmp_path, kept_references, uncheckpointed_blocks)
    alone = [finding.freed_bytes.point for finding in found.findings if finding.freed_bytes]
    assert found.freed_bytes is not None
    assert found.freed_bytes.point == sum(alone)  # one lowers the whole curve, the other its highest part


def test_a_snapshot_that_grows_nowhere_gives_nothing(tmp_path: Path) -> None:
    _leaking(tmp_path, steps=4, per_step=0)
    assert judged(Training(), tmp_path, kept_references).findings == ()


@pytest.mark.parametrize(
    ("steps", "says"),
    [(None, "record with `foretrace run --memory`"), (2, "2 whole steps"), (-1, "could not be read")],
)
def test_what_the_snapshot_cannot_tell_is_not_checked(steps: int | None, says: str, tmp_path: Path) -> None:
    if steps is not None:
        _leaking(tmp_path, steps=max(steps, 1), per_step=2 * UNIT)
    if steps == -1:
        (tmp_path / "memory.pickle").write_bytes((tmp_path / "memory.pickle").read_bytes()[:-40])
    found = diagnose(Case(Training().open(tmp_path), step_ns=STEP_NS), (kept_references,))
    (unchecked,) = found.unchecked
    assert says in unchecked.why


def test_unused_segments_on_a_device_that_is_half_full(tmp_path: Path) -> None:
    finding = one(Training(reserved=100), tmp_path, split_segments)
    assert finding.evidence["unused_bytes"] == (100 - 24) * UNIT
    assert finding.freed_bytes is not None
    assert finding.freed_bytes.high == pytest.approx(76 * UNIT)
    assert judged(Training(reserved=30), tmp_path, split_segments).findings == ()


def test_a_device_that_is_next_to_empty_is_only_mentioned(tmp_path: Path) -> None:
    large = {"id": 0, "name": "NVIDIA H200", "numSms": 132, "totalGlobalMem": 5_000 * UNIT}
    found = judged(Training(device=large), tmp_path, uncheckpointed_blocks)
    assert found.findings == ()
    (seen,) = found.seen
    assert "2 Block modules checkpointed would free 1.86 GiB: 8 % of the peak" in seen.says


def test_a_device_that_is_nearly_full_makes_it_matter(tmp_path: Path) -> None:
    small = {"id": 0, "name": "NVIDIA A30", "numSms": 56, "totalGlobalMem": 31 * UNIT}
    assert one(Training(device=small), tmp_path, uncheckpointed_blocks).severity == "medium"


@needs_corpus
def test_resnet50_in_bf16_on_the_h200() -> None:
    """Recorded in fp32, and in bf16 under autocast with channels last: 2,835 and 1,601 MiB measured."""
    folder = CORPUS / "h200"
    case = Case(foretrace.open(folder / "resnet50.slow.rich.json.gz"))
    (finding,) = diagnose(case, (fp32_activations,)).findings
    measured = memory_replay.find(foretrace.open(folder / "resnet50.fixed.rich.json.gz")).peak_bytes
    assert finding.evidence["peak_after_bytes"] == pytest.approx(measured, rel=0.1)
    assert finding.freed_bytes is not None
    assert (
        finding.freed_bytes.low
        <= finding.evidence["peak_bytes"] - measured
        <= finding.freed_bytes.high * 1.05
    )
