"""The Report of a sweep: one row for each change, with what was predicted, measured, and became of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from foretrace.measured import Interval
from foretrace.predict.prediction import Prediction, to_dict
from foretrace.trial import candidates, judgement, sweep
from foretrace.trial.candidates import Proposal
from foretrace.trial.process import MEASURED
from foretrace.trial.results import ResultsKept
from foretrace.trial.sweep import TOGETHER, Swept

SCHEMA = "foretrace.try/1"
NOT_APPLIED, NOT_TRIED = "not applied", "not tried"
_START_S = 1.0  # a start that is longer by less than this is not worth a word


@dataclass(frozen=True)
class Row:
    """One change, or several together."""

    change: str
    says: str
    line: str
    status: str  # measured, not applied, failed, too long, too large, no steps, not tried
    why: str = ""  # why it is tried
    numerics: bool = False
    rule: str = ""
    predicted: Prediction | None = None
    verdict: str = ""  # faster, slower, same, inconclusive
    step_ns: float | None = None
    speedup: Interval | None = None
    runs: int = 0  # processes that were measured
    results: ResultsKept | None = None
    peak_bytes: int | None = None
    start_extra_s: float | None = (
        None  # beyond the start of the program as it is: compiling, starting workers
    )
    pays_back_steps: int | None = None
    proof: str = ""
    error: str = ""

    @property
    def unsure(self) -> str:
        """Why it is inconclusive."""
        if self.speedup is None or self.verdict != "inconclusive":
            return ""
        within = self.speedup.low <= 1 <= self.speedup.high
        return "the difference is within the noise" if within else "blocks of steps differ too much to tell"

    @property
    def inside(self) -> bool | None:
        """Whether what was measured lies in the range that was predicted, up to the noise of the measurement."""
        if self.predicted is None or self.speedup is None:
            return None
        return (
            self.speedup.low <= self.predicted.speedup.high
            and self.speedup.high >= self.predicted.speedup.low
        )


@dataclass(frozen=True)
class Report:
    """All that is said about a program that was tried."""

    program: str
    device: str
    base: judgement.Base
    base_bytes: int | None
    step_source: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seed: int = 0
    steps: int = 0  # timed in each process
    recorded_on: str = (
        ""  # the device of the recording, where it is another: its predictions are not of this one
    )

    def to_dict(self) -> dict[str, Any]:
        """The documented contract."""
        return {
            "schema": SCHEMA,
            "program": self.program,
            "device": self.device,
            "base": {
                "step_ms": self.base.step_ns / 1e6,
                "noise_pct": 100 * self.base.floor,
                "too_noisy": self.base.noisy,
                "runs": self.base.runs,
                "peak_bytes": self.base_bytes,
                "step_source": self.step_source,
            },
            "seed": self.seed,
            "steps": self.steps,
            "changes": [_row_dict(row) for row in self.rows],
            "notes": list(self.notes),
        }


def make(
    program: str, proposals: Sequence[Proposal], swept: Swept, *, seed: int, recorded_on: str = ""
) -> Report:
    """The report of what was run; `recorded_on` is the device that predictions are of."""
    base = swept.base
    other = recorded_on if recorded_on != base[0]["device"] else ""
    notes = [f"the recording is of another device ({other}): so are its predictions"] if other else []
    rows = [_row(swept, proposal.name, proposal) for proposal in proposals]
    together = swept.of(TOGETHER)
    if together is not None:
        named = [proposal for proposal in proposals if set(proposal.changes) <= set(together["changes"])]
        rows.append(_row(swept, TOGETHER, candidates.together(named, "the changes that were faster")))
    return Report(
        program,
        base[0]["device"],
        judgement.base_of(base),
        _peak(base[0]),
        base[0]["step_source"],
        tuple(rows),
        (*notes, *_notes(swept)),
        seed,
        base[0]["block_steps"] * len(base[0]["blocks_ns"]),
        other,
    )


def _row(swept: Swept, variant: str, proposal: Proposal) -> Row:
    row: dict[str, Any] = {
        "change": variant,
        "says": proposal.says,
        "line": proposal.line,
        "why": proposal.why,
        "numerics": proposal.numerics,
        "rule": proposal.rule,
        "predicted": proposal.predicted,
    }
    run = swept.of(variant)
    if run is None:
        return Row(**row, status=NOT_TRIED)
    if run["status"] != MEASURED:
        return Row(**row, status=run["status"], error=run["error"])
    row["proof"] = "; ".join(proof["says"] for proof in run["proofs"].values())
    if not sweep.applied(run):
        wrong = [proof["says"] for proof in run["proofs"].values() if not proof["applied"]]
        return Row(**row, status=NOT_APPLIED, error="; ".join(wrong))
    told = swept.measured(variant)
    extra_s = _start_extra_s(swept, run)
    return Row(
        **row,
        status=MEASURED,
        verdict=told.verdict,
        step_ns=told.step_ns,
        speedup=told.speedup,
        runs=len(swept.counted(variant)),
        results=sweep.kept_results(swept.base, run, proposal),
        peak_bytes=_peak(run),
        start_extra_s=extra_s,
        pays_back_steps=None
        if extra_s is None or told.verdict != "faster"
        else judgement.pays_back_steps(extra_s, told.speedup.point * told.step_ns, told.step_ns),
    )


def _start_extra_s(swept: Swept, run: Mapping[str, Any]) -> float | None:
    """By how much the first steps took longer than at best as the program is; None where it is not worth a word."""
    starts = [one["start_s"] for one in swept.base if one.get("start_s") is not None]
    if not starts or run.get("start_s") is None:
        return None
    extra_s = run["start_s"] - max(starts)
    return extra_s if extra_s >= _START_S else None


def _peak(run: Mapping[str, Any]) -> int | None:
    """Of the GPU where there is one, else of the process."""
    peak: int | None = run["peak_gpu_bytes"]
    return peak if peak is not None else run["peak_host_bytes"]


def _notes(swept: Swept) -> list[str]:
    notes = []
    base = judgement.base_of(swept.base)
    if base.noisy:
        notes.append(
            f"too noisy to rank: runs of the program as it is differ by {100 * base.floor:.0f} %; what is said here of "
            "smaller differences is inconclusive"
        )
    short = next((run["stopped_because"] for run in swept.base if "ended" in run["stopped_because"]), "")
    if short:
        notes.append(f"{short}; let it take more steps for surer numbers")
    if swept.not_tried:
        notes.append(
            f"the time was spent before: {', '.join(swept.not_tried)}; the same command goes on with them"
        )
    notes += [
        f"one process with {run['variant']} does not count: {run['error'] or 'the change was not applied'}"
        for run in swept.runs
        if not sweep.counts(run) and swept.counted(run["variant"])
    ]
    effects = [run["side_effects"] for run in swept.runs if run.get("side_effects")]
    for kind, says in (
        ("redirected", "saved into the scratch folder instead of where the program wanted"),
        ("written", "files that the program writes outside of the scratch folder"),
        ("connected", "the program connects to"),
        ("problems", "not all that the program writes and connects to was seen"),
    ):
        names = sorted({name for effect in effects for name in effect.get(kind, ())})
        if names:
            notes.append(
                f"{says}: {', '.join(names[:8])}" + (f" and {len(names) - 8} more" if len(names) > 8 else "")
            )
    together, singles = (
        swept.of(TOGETHER),
        [run for run in swept.runs if run["variant"] not in ("base", TOGETHER)],
    )
    if together is not None and sweep.counts(together):
        made = [
            run["variant"]
            for run in singles
            if sweep.counts(run) and set(run["changes"]) <= set(together["changes"])
        ]
        best = min(made, key=lambda variant: swept.measured(variant).step_ns)
        if swept.measured(TOGETHER).step_ns >= swept.measured(best).step_ns:
            notes.append(f"together they are no faster than {best} alone: keep that")
    return notes


def _row_dict(row: Row) -> dict[str, Any]:
    return {
        "change": row.change,
        "says": row.says,
        "why": row.why,
        "numerics": row.numerics,
        "status": row.status,
        "error": row.error,
        "proof": row.proof,
        "rule": row.rule,
        "predicted": None if row.predicted is None else to_dict(row.predicted),
        "verdict": row.verdict or None,
        "step_ms": None if row.step_ns is None else row.step_ns / 1e6,
        "speedup": None if row.speedup is None else asdict(row.speedup),
        "runs": row.runs,
        "inside_prediction": row.inside,
        "results": None if row.results is None else asdict(row.results),
        "peak_bytes": row.peak_bytes,
        "start_extra_s": row.start_extra_s,
        "pays_back_steps": row.pays_back_steps,
        "line": row.line,
    }
