"""Predicted against measured: what `foretrace diagnose` promises for programs whose fix was measured.

    python benchmarks/predictions.py [FOLDER ...]        default: ../shared/corpus/h200

The pairs of several folders are judged as one set. A folder holds NAME.slow.lite.json.gz or .zst (and rich) and
NAME.truth.json with `slow.step_ms`, `speedup_range` and `truth.label`, or `truth.rule` to name the rule that is the fix,
"together" where all that promise a gain are, but for the rules in `truth.not_made`; `truth.alternative` names one of that
rule's alternatives. For every pair it prints the prediction of that rule beside what was measured, with the step time known and
unknown, and beside two baselines that other tools use: the savings added up as if nothing overlapped, and the idle time taken
off. A program whose recording was not kept is skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding
from foretrace.errors import ForetraceError
from foretrace.predict.prediction import PROMISED_GAIN

ROOT = Path(__file__).parents[1]
# What the corpus calls a fault, and the rule that looks for it.
RULE_OF = {
    "unfused attention": "unfused-attention", "unfused elementwise": "unfused-elementwise",
    "no tensor cores": "no-tensor-cores", "layout": "layout-conversions", "launch-bound": "launch-bound",
    "data loading": "input-bound", "python gap": "host-stall", "host-device copies": "pageable-copy",
    "sync": "host-sync", "healthy": "unfused-elementwise",
}  # fmt: skip
# Of several fixes of one cause, the one that was measured, unless `truth.alternative` names another.
FIX_OF = {"no-tensor-cores": "tf32"}
NO_GAIN = 1.03
TOGETHER = "together"


@dataclass(frozen=True)
class Row:
    """One prediction beside its truth."""

    name: str
    rule: str
    known: bool
    first: str  # the rule that came first
    truth: tuple[float, float]
    verdict: str
    point: float
    low: float
    high: float
    summed: float
    idle: float

    @property
    def error(self) -> float:
        """Distance to the nearer end of the measured range; none within it."""
        return distance(self.point, self.truth)

    @property
    def true_gain(self) -> bool:
        return self.truth[1] >= NO_GAIN

    @property
    def false_promise(self) -> bool:
        return self.verdict == "gain" and self.point >= 1.10 and self.truth[1] < NO_GAIN

    @property
    def promised(self) -> bool:
        return self.verdict == "gain"

    @property
    def missed(self) -> bool:
        return self.truth[0] >= 1.15 and self.verdict == "no gain"

    @property
    def covered(self) -> bool:
        return self.low <= self.truth[1] and self.truth[0] <= self.high


def distance(point: float, truth: tuple[float, float]) -> float:
    """Relative distance of a speed-up to a range."""
    low, high = truth
    return max(low / point - 1, point / high - 1, 0.0)


def main() -> int:
    """Prints the rows and their summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT.parent / "shared" / "corpus" / "h200"])
    parser.add_argument("--form", default="lite", choices=("lite", "rich"))
    options = parser.parse_args()
    for folder in options.folders:
        if not any(folder.glob("*.truth.json")):
            print(f"{folder}: no NAME.truth.json in it", file=sys.stderr)
            return 3
    truths = [path for folder in options.folders for path in sorted(folder.glob("*.truth.json"))]
    skipped = [path for path in truths if not recordings(path, options.form)]
    if skipped:
        print(f"skipped: {len(skipped)} of {len(truths)} programs have no {options.form} recording here; to record those of "
              f"benchmarks/pairs again, on a GPU: python benchmarks/pairs/measure.py --missing --half SET", file=sys.stderr)  # fmt: skip
    for known in (True, False):
        rows = [row for path in truths if (row := judge(path, options.form, known=known))]
        print_rows(rows, known)
    return 0


def recordings(path: Path, form: str) -> list[Path]:
    """The recordings of one form that lie beside a truth: one, or none where it was not kept."""
    return sorted(path.parent.glob(f"{path.name.removesuffix('.truth.json')}.slow.{form}.json.*"))


def judge(path: Path, form: str, *, known: bool) -> Row | None:
    """The row of one pair; None where its fix changes the work, no rule is named for it, or it has no recording."""
    truth = json.loads(path.read_text())
    name = path.name.removesuffix(".truth.json")
    rule = truth["truth"].get("rule") or RULE_OF.get(truth["truth"].get("label"))
    files = recordings(path, form)
    if truth["truth"].get("same_work") is False or rule is None or not files:
        return None
    case = Case(foretrace.open(files[0]), step_ns=truth["slow"]["step_ms"] * 1e6 if known else None)
    try:
        found = diagnose(case, RULES)
    except ForetraceError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return None
    first = found.findings[0].rule if found.findings else "-"
    findings = [each for each in found.findings if each.rule == rule and each.predicted][:1]
    findings = fixed_by(findings, truth["truth"].get("alternative") or FIX_OF.get(rule, ""))
    predicted = findings[0].predicted if findings else None
    if rule == TOGETHER:
        promised = [each for each in found.findings if each.predicted and each.predicted.verdict == "gain"]
        findings = [each for each in promised if each.rule not in truth["truth"].get("not_made", ())]
        changes = tuple(each.change for each in findings if each.change)
        predicted = case.predict(changes) if changes and findings != promised else found.combined
        first = TOGETHER if len(findings) > 1 else first
    return Row(
        name, rule, known, first, tuple(truth["speedup_range"]),
        predicted.verdict if predicted else "no gain", *_speedup(predicted), summed(case, findings), idle(case),
    )  # fmt: skip


def fixed_by(findings: list[Finding], label: str) -> list[Finding]:
    """The findings with the fix that was measured in front; without those that know it among others but do not offer it."""
    led = [finding.led_by(label) for finding in findings]
    return [finding for finding in led if not label or finding.label in ("", label)]


def _speedup(predicted: Any) -> tuple[float, float, float]:
    return (
        (predicted.speedup.point, predicted.speedup.low, predicted.speedup.high)
        if predicted
        else (1.0, 1.0, 1.0)
    )


def summed(case: Case, findings: list[Finding]) -> float:
    """The baseline of adding up: every saved nanosecond of host and device is taken off the step."""
    dur, saved = case.program.task_dur_ns, 0.0
    for edit in (each.change.edit for each in findings if each.change):
        saved += float(dur[edit.removed_tasks].sum()) + edit.removed_host.total_ns
        saved += sum(int(dur[task]) - new for task, new in edit.durations_ns.items())
        saved += float((case.program.base_ns + case.program.wake_ns)[edit.unwaited_calls].sum())
        saved -= sum(edit.added_host_ns.values())
    after = case.step_ns - saved / case.step_count
    return case.step_ns / after if after > 0.02 * case.step_ns else 50.0


def idle(case: Case) -> float:
    """The baseline of idle time: the step would take as long as the device is busy."""
    busy = float(case.program.task_dur_ns.sum()) / case.step_count
    return case.step_ns / busy if busy else 1.0


def print_rows(rows: list[Row], known: bool) -> None:
    """The table and its summary."""
    print(f"\nstep time {'known' if known else 'not known'}: {len(rows)} pairs")
    heads = (
        "pair",
        "rule",
        "first",
        "measured",
        "predicted",
        "range",
        "error",
        "verdict",
        "added up",
        "idle off",
    )
    width = max([len(row.name) for row in rows], default=0) + 2
    columns = f"{{:<{width}}}{{:<23}}{{:<23}}{{:>13}}{{:>10}}{{:>14}}{{:>8}}  {{:<10}}{{:>9}}{{:>9}}"
    print(columns.format(*heads))
    for row in rows:
        measured = f"{row.truth[0]:.2f}-{row.truth[1]:.2f}"
        spread = f"{row.low:.2f}-{row.high:.2f}"
        print(f"{row.name:<{width}}{row.rule:<23}{row.first:<23}{measured:>13}{row.point:>10.2f}{spread:>14}"
              f"{100 * row.error:>7.0f}%  {row.verdict:<10}{row.summed:>9.2f}{row.idle:>9.2f}")  # fmt: skip
    judged = [row for row in rows if row.true_gain]
    if not judged:
        return
    # Where every measured round gained: a truth on both sides of 1 is met by any cautious prediction.
    sure = [row for row in judged if row.truth[0] >= NO_GAIN] or judged
    for label, errors in (
        ("replayed", [row.error for row in judged]),
        ("added up", [distance(row.summed, row.truth) for row in judged]),
        ("idle taken off", [distance(row.idle, row.truth) for row in judged]),
        ("replayed, sure", [row.error for row in sure]),
    ):
        tenth = float(np.percentile(errors, 90))
        print(f"{label:<16} error: median {100 * statistics.median(errors):.1f} %, p90 {100 * tenth:.1f} %, "
              f"worst {100 * max(errors):.0f} %")  # fmt: skip
    large = [row for row in judged if row.truth[0] >= PROMISED_GAIN]
    over = [row for row in judged if row.verdict == "gain" and row.point > 1.3 * row.truth[1]]
    print(f"range covers the truth {sum(row.covered for row in judged)}/{len(judged)} "
          f"(sure: {sum(row.covered for row in sure)}/{len(sure)}); false promises "
          f"{sum(row.false_promise for row in rows)}; missed gains {sum(row.missed for row in rows)}; "
          f"over-promises (> 1.3 times) {len(over)}; gains of 10 % or more that are promised "
          f"{sum(row.promised for row in large)}/{len(large)}; rule first {sum(row.first == row.rule for row in judged)}/{len(judged)}")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
