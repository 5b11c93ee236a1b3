"""Which changes are tried of a program: what its findings suggest, cheapest first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foretrace.capture.trial import PATCHES
from foretrace.diagnose import RULES
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Alternative, Finding, Fix
from foretrace.errors import UsageError
from foretrace.predict.prediction import Prediction, Span
from foretrace.trial import candidates

FIX = Fix("", "")


def worth(point: float) -> Prediction:
    span = Span(point, point - 0.1, point + 0.1)
    return Prediction("gain", 1e8, Span(1e8 / point, 1e8 / span.high, 1e8 / span.low), span, "")


def finding(rule: str, *, point: float = 1.5, label: str = "", **evidence: object) -> Finding:
    return Finding("", "", FIX, evidence, rule=rule, predicted=worth(point), label=label)


def names(*findings: Finding, numerics: bool = False, also: tuple[str, ...] = ()) -> list[str]:
    found = Diagnosis(findings, (), (), None)
    return [proposal.name for proposal in candidates.propose(found, None, numerics=numerics, also=also)]


def test_every_candidate_has_a_patch_and_names_rules_that_exist() -> None:
    known = {rule.name for rule in RULES}
    assert {candidate.name for candidate in candidates.CANDIDATES} == set(PATCHES)
    for candidate in candidates.CANDIDATES:
        assert set(candidate.rules) <= known
        assert set(candidate.excludes) <= set(PATCHES)


def test_neither_fp16_nor_another_batch_size_is_ever_tried() -> None:
    assert not any("fp16" in name or "batch" in name for name in PATCHES)


def test_the_default_keeps_results() -> None:
    tensor_cores = replace(
        finding("no-tensor-cores", label="tf32"), alternatives=(Alternative("bf16-autocast", FIX, None, predicted=worth(2)),)
    )  # fmt: skip
    found = (tensor_cores, finding("unfused-elementwise", label="default"), finding("anomaly-mode"))
    assert names(*found) == ["anomaly-off"]
    assert names(*found, numerics=True) == [
        "anomaly-off", "tf32", "bf16-autocast", "compile", "compile-reduce-overhead",
    ]  # fmt: skip


def test_a_prediction_is_taken_only_from_the_fix_that_is_the_same_change() -> None:
    tensor_cores = replace(
        finding("no-tensor-cores", label="tf32", point=1.4),
        alternatives=(Alternative("bf16-autocast", FIX, None, predicted=worth(2)),),
    )
    found = Diagnosis(
        (finding("launch-bound"), tensor_cores, finding("unfused-elementwise", label="default", point=1.2)),
        (),
        (),
        None,
    )
    made = {one.name: one for one in candidates.propose(found, None, numerics=True)}
    assert made["tf32"].predicted == worth(1.4)
    assert made["bf16-autocast"].predicted == worth(2)
    # launch-bound stands before, but its fix is not torch.compile.
    assert made["compile"].predicted == worth(1.2)
    assert made["compile"].rule == "unfused-elementwise"
    assert made["compile-reduce-overhead"].predicted is None


def test_workers_are_as_many_as_the_finding_wants() -> None:
    found = Diagnosis((finding("input-bound", workers_wanted_count=7, workers_count=2),), (), (), None)
    made = {one.name: one for one in candidates.propose(found, None, numerics=False)}
    assert made["workers"].changes == {"workers": 7}
    assert made["workers"].line == "DataLoader(…, num_workers=7, persistent_workers=True)"
    assert "prefetch" in made
    assert "prefetch" not in names(finding("input-bound", workers_wanted_count=7, workers_count=0))
    assert "workers" not in names(finding("input-bound", loader="in the step"))


def test_more_can_be_asked_for_by_name_also_together() -> None:
    assert names(also=("compile", "cudnn-benchmark", "tf32+compile")) == [
        "cudnn-benchmark",
        "compile",
        "tf32+compile",
    ]
    (both,) = candidates.propose(None, None, numerics=False, also=("tf32+compile",))
    assert both.changes == {"tf32": None, "compile": None}
    assert both.line == 'torch.set_float32_matmul_precision("high")\nmodel.compile()'
    assert both.precision == "tf32"
    assert candidates.propose(None, None, numerics=False, also=("workers=3",))[0].changes == {"workers": 3}
    for text in ("compile=3", "workers=few", "workers=0"):
        with pytest.raises(UsageError, match="take a number"):
            candidates.propose(None, None, numerics=False, also=(text,))
    with pytest.raises(UsageError, match="did you mean compile"):
        candidates.propose(None, None, numerics=False, also=("compiled",))
