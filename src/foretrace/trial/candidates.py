"""The Candidates: every change that `foretrace try` can make, and which findings of a diagnosis suggest it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Finding
from foretrace.errors import UsageError, unknown
from foretrace.predict.prediction import Prediction
from foretrace.sourced import JUDGEMENT, Count

FP32, TF32, BF16 = "fp32", "tf32", "bf16"
DATA, MODEL = "data", "model"
_AHEAD = Count(4, "batches that each worker makes ahead, where more are tried", JUDGEMENT)
_MOST_WORKERS = Count(
    16, "worker processes that are tried at most, where no finding says how many", JUDGEMENT
)

_NUMBERED = ("workers", "threads", "prefetch")  # changes that are set to a number


@dataclass(frozen=True)
class Candidate:
    """One change, as people know it."""

    name: str
    says: str
    line: str  # what to write to keep it; {value} is what it is set to
    effort: int  # of making it for good: the cheapest are tried first
    numerics: bool = False  # whether results may differ, so that it is tried only if asked for
    precision: str = FP32  # that results have with it
    redraws: str = ""  # whose random numbers are others with it: those of the data or of the model
    # Rules that suggest it, each with the label of the fix that is the same change; None: no fix is the same.
    rules: Mapping[str, str | None] = field(default_factory=dict)
    excludes: tuple[str, ...] = ()  # candidates that cannot be made together with it
    value: Any = None
    gpu: bool = False  # whether it is for programs with a GPU alone


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("anomaly-off", "anomaly mode off", "torch.autograd.set_detect_anomaly(False)", 1,
              rules={"anomaly-mode": ""}),
    Candidate("deterministic-off", "deterministic algorithms off", "torch.use_deterministic_algorithms(False)", 1),
    Candidate("cudnn-benchmark", "cuDNN picks its fastest algorithms", "torch.backends.cudnn.benchmark = True", 1, gpu=True),
    Candidate("threads", "{value} threads", "torch.set_num_threads({value})", 1, rules={"crowded-threads": ""}),
    Candidate("expandable-segments", "memory segments that grow", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 1,
              rules={"allocator-churn": None, "memory-pressure": None}, gpu=True),
    Candidate("fused-optimizer", "the fused optimizer", "torch.optim.…(…, fused=True)", 2,
              rules={"loop-optimizer": "", "optimizer-loop": "", "parameter-loop": None}, excludes=("foreach-optimizer",)),
    Candidate("foreach-optimizer", "the foreach optimizer", "torch.optim.…(…, foreach=True)", 2,
              rules={"loop-optimizer": None, "optimizer-loop": None}, excludes=("fused-optimizer",)),
    Candidate("workers", "{value} DataLoader workers",
              "DataLoader(…, num_workers={value}, persistent_workers=True)", 2, redraws=DATA, rules={"input-bound": ""}),
    Candidate("pin-memory", "batches in pinned memory", "DataLoader(…, pin_memory=True)", 2,
              rules={"pageable-copy": None, "input-bound": None}, gpu=True),
    Candidate("prefetch", "{value} batches ahead for each worker", "DataLoader(…, prefetch_factor={value})", 2,
              rules={"input-bound": None}, value=int(_AHEAD)),
    Candidate("persistent-workers", "workers that live on", "DataLoader(…, persistent_workers=True)", 2),
    Candidate("tf32", "TF32 for fp32 products", 'torch.set_float32_matmul_precision("high")', 1, numerics=True,
              precision=TF32, rules={"no-tensor-cores": "tf32"}, gpu=True),
    Candidate("channels-last", "channels-last layout", "model = model.to(memory_format=torch.channels_last)  # and the images",
              3, numerics=True, redraws=MODEL, rules={"layout-conversions": ""}),
    Candidate("bf16-autocast", "bf16 under autocast", "with torch.autocast(device, torch.bfloat16):", 3, numerics=True,
              precision=BF16, redraws=MODEL, rules={"no-tensor-cores": "bf16-autocast", "fp32-on-cpu": ""}),
    Candidate("compile", "the compiled model", "model.compile()", 4, numerics=True, redraws=MODEL,
              rules={"unfused-elementwise": "default", "eager-operators": "", "spelled-out-operators": None,
                     "launch-bound": None, "python-stretches": None},
              excludes=("compile-reduce-overhead",)),
    Candidate("compile-reduce-overhead", "the compiled model, as CUDA graphs", 'model.compile(mode="reduce-overhead")', 5,
              numerics=True, redraws=MODEL, rules={"unfused-elementwise": "reduce-overhead", "launch-bound": None},
              excludes=("compile",), value="reduce-overhead", gpu=True),
)  # fmt: skip


@dataclass(frozen=True)
class Proposal:
    """A candidate for one program, or several together: what they are set to there, why, and what was predicted."""

    candidates: tuple[Candidate, ...]
    values: tuple[Any, ...] = ()
    why: str = ""
    rule: str = ""  # of the prediction
    predicted: Prediction | None = None

    @property
    def name(self) -> str:
        """The name of the change, or the names with a plus between them."""
        return "+".join(candidate.name for candidate in self.candidates)

    @property
    def changes(self) -> dict[str, Any]:
        """The name of each change, and what it is set to."""
        return {candidate.name: value for candidate, value in zip(self.candidates, self.values, strict=True)}

    @property
    def says(self) -> str:
        """The change in words."""
        pairs = zip(self.candidates, self.values, strict=True)
        return " and ".join(candidate.says.format(value=value) for candidate, value in pairs)

    @property
    def line(self) -> str:
        """What to write to keep it."""
        pairs = zip(self.candidates, self.values, strict=True)
        return "\n".join(candidate.line.format(value=value) for candidate, value in pairs)

    @property
    def numerics(self) -> bool:
        """Whether results may differ."""
        return any(candidate.numerics for candidate in self.candidates)

    @property
    def precision(self) -> str:
        """The narrowest that results have."""
        there = {candidate.precision for candidate in self.candidates}
        return next(precision for precision in (BF16, TF32, FP32) if precision in there)

    @property
    def redraws(self) -> tuple[str, ...]:
        """Whose random numbers are others."""
        return tuple(candidate.redraws for candidate in self.candidates if candidate.redraws)


def together(proposals: Sequence[Proposal], why: str) -> Proposal:
    """Several as one."""
    changes = {name: value for proposal in proposals for name, value in proposal.changes.items()}
    return Proposal(tuple(map(find, changes)), tuple(changes.values()), why)


def find(name: str) -> Candidate:
    """The candidate of that name."""
    for candidate in CANDIDATES:
        if candidate.name == name:
            return candidate
    raise unknown(f"no change named {name!r}", name, (candidate.name for candidate in CANDIDATES))


def propose(
    diagnosis: Diagnosis | None, case: Case | None, *, numerics: bool, also: Sequence[str] = ()
) -> list[Proposal]:
    """What to try, cheapest first: what findings suggest, what the recording shows, and what was asked for by name."""
    proposals: dict[str, Proposal] = {}
    for finding in diagnosis.findings if diagnosis else ():
        for candidate in CANDIDATES:
            if _fits(candidate, finding):
                known, new = proposals.get(candidate.name), _from_finding(candidate, finding)
                if known is None or (known.predicted is None and new.predicted is not None):
                    proposals[candidate.name] = new
    if case is not None and _convolves(case):
        found = find("cudnn-benchmark")
        proposals.setdefault(found.name, Proposal((found,), (None,), "convolutions of cuDNN were recorded"))
    on_cpu = case is not None and case.on_cpu
    fitting = {
        name: proposal
        for name, proposal in proposals.items()
        if (numerics or not proposal.numerics) and not (on_cpu and proposal.candidates[0].gpu)
    }
    for name in also:
        parts = [_asked(part, proposals) for part in name.split("+")]
        asked = parts[0] if len(parts) == 1 else together(parts, "asked for")
        fitting[asked.name] = asked
    return sorted(fitting.values(), key=_order)


def left_out(diagnosis: Diagnosis, chosen: Iterable[Proposal]) -> list[Candidate]:
    """Candidates that findings suggest and that --numerics would add."""
    rules = {finding.rule for finding in diagnosis.findings}
    names = {proposal.name for proposal in chosen}
    return [
        candidate
        for candidate in CANDIDATES
        if candidate.numerics and candidate.name not in names and rules & set(candidate.rules)
    ]


def _asked(text: str, proposals: Mapping[str, Proposal]) -> Proposal:
    """NAME or NAME=NUMBER; the prediction of a finding is for the number that it names."""
    name, given, number = text.partition("=")
    candidate = find(name)
    if not given:
        return proposals.get(name) or Proposal((candidate,), (_default(candidate),), "asked for")
    if candidate.name not in _NUMBERED or not number.isdecimal() or not int(number):
        raise UsageError(f"{text}: {', '.join(_NUMBERED)} take a number from 1 on, and other changes none")
    return Proposal((candidate,), (int(number),), "asked for")


def _fits(candidate: Candidate, finding: Finding) -> bool:
    """Whether a finding suggests a candidate; changes of a DataLoader only where there is one."""
    if candidate.name in ("workers", "pin-memory") and finding.evidence.get("loader") == "in the step":
        return False
    if candidate.name == "workers" and finding.evidence.get("workers_wanted_count") == 0:
        return False  # no core is idle
    if candidate.name == "prefetch" and not finding.evidence.get("workers_count"):
        return False
    return finding.rule in candidate.rules


def _order(proposal: Proposal) -> tuple[bool, int, float]:
    worth = proposal.predicted.speedup.point if proposal.predicted else 1.0
    return proposal.numerics, sum(candidate.effort for candidate in proposal.candidates), -worth


def _from_finding(candidate: Candidate, finding: Finding) -> Proposal:
    label = candidate.rules[finding.rule]
    predicted = None
    if label is not None:
        fixes = {finding.label: finding.predicted}
        fixes |= {other.label: other.predicted for other in finding.alternatives}
        predicted = fixes.get(label)
    rule = finding.rule if predicted is not None else ""
    value = _value(candidate, finding)
    return Proposal((candidate,), (value,), f"{finding.rule} was found", rule, predicted)


def _value(candidate: Candidate, finding: Finding) -> Any:
    if candidate.name == "workers":
        wanted = finding.evidence.get("workers_wanted_count")
        return int(wanted) if wanted else _default(candidate)
    if candidate.name == "threads":
        wanted = finding.evidence.get("threads_wanted_count")
        return max(int(wanted), 1) if wanted else _default(candidate)
    return candidate.value


def _default(candidate: Candidate) -> Any:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if candidate.name == "workers":
        return min(max(cores - 1, 1), int(_MOST_WORKERS))
    return cores if candidate.name == "threads" else candidate.value


def _convolves(case: Case) -> bool:
    """Whether the recording holds a convolution of cuDNN's."""
    names = case.whole.spans["name"].cast(pl.String)
    return not case.on_cpu and bool(names.str.contains("cudnn_convolution").any())
