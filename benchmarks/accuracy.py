"""Predicted beside measured: what `foretrace diagnose` promises for programs whose changes were timed.

    python benchmarks/accuracy.py FOLDER ... [--only NAME,...] [--form lite|rich] [--unknown-step] [--json FILE]

A FOLDER is one of two kinds:

- pairs of a slow and a fixed program: NAME.truth.json with `slow.step_ms`, `speedup_range` and `truth.rule` (or
  `truth.label`), and the recording of the slow one, NAME.slow.lite.json.gz or .zst (or `rich`);
- real programs: truth.json with the measured speedup of each change and the rule that proposes it, and the Run of each
  program as NAME/, NAME.tar.xz, or either of them inside recordings-N.tar.

The rule of a change is RULE, RULE:LABEL for one of its alternatives, or `together` for everything that is promised. A rule
without a finding, or without that alternative, predicts 1.00. Programs without a recording are listed and skipped.
docs/accuracy.md says where the folders of the project are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.finding import Alternative, Finding
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError
from foretrace.predict.prediction import PROMISED_GAIN, Prediction

# Rules behind the labels of the corpus.
RULE_OF = {
    "unfused attention": "unfused-attention", "unfused elementwise": "unfused-elementwise",
    "no tensor cores": "no-tensor-cores", "layout": "layout-conversions", "launch-bound": "launch-bound",
    "data loading": "input-bound", "python gap": "host-stall", "host-device copies": "pageable-copy",
    "sync": "host-sync", "healthy": "unfused-elementwise",
}  # fmt: skip
# Truths of pairs whose rule offers several changes, and that do not name the one that was measured.
FIX_OF = {"no-tensor-cores": "tf32"}
# Rules that may propose a change of the real programs, the preferred one first, and the alternative that the change is.
RULES_FOR = {"compile": ("unfused-elementwise",), "loop-optimizer": ("loop-optimizer", "parameter-loop")}
LABELS = {("no-tensor-cores", "tf32"): "tf32", ("no-tensor-cores", "bf16"): "autocast"}
NO_GAIN = 1.03
TOGETHER = "together"


@dataclass(frozen=True)
class Row:
    """One change: what was measured and what was predicted."""

    name: str
    change: str
    rule: str
    truth: tuple[float, float]
    predicted: bool
    verdict: str
    point: float
    low: float
    high: float
    # What other tools would say: every saving added up; the GPU's idle time removed. Of pairs only.
    added_up: float | None = None
    without_idle: float | None = None

    @property
    def error(self) -> float:
        return distance(self.point, self.truth)

    @property
    def covered(self) -> bool:
        return self.low <= self.truth[1] and self.truth[0] <= self.high

    @property
    def gains(self) -> bool:
        return self.truth[1] >= NO_GAIN

    @property
    def large_gain(self) -> bool:
        return self.truth[0] >= PROMISED_GAIN

    @property
    def promised(self) -> bool:
        return self.verdict == "gain"

    @property
    def false_promise(self) -> bool:
        return self.promised and self.point >= PROMISED_GAIN and self.truth[1] < NO_GAIN


def distance(point: float, truth: tuple[float, float]) -> float:
    """Relative distance of a speedup to the nearer end of the measured range; 0 inside it."""
    low, high = truth
    return max(low / point - 1, point / high - 1, 0.0)


def main() -> int:
    """Prints a line per change, then the summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="NAME,...", help="judge only these programs")
    parser.add_argument(
        "--form", default="lite", choices=("lite", "rich"), help="recordings of pairs to read"
    )
    parser.add_argument("--unknown-step", action="store_true", help="do not tell the step time of pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows to FILE")
    options = parser.parse_args()
    only = {name for name in options.only.split(",") if name}
    rows: list[Row] = []
    for folder in options.folders:
        if (folder / "truth.json").is_file():
            rows += judge_programs(folder, only)
        elif any(folder.glob("*.truth.json")):
            rows += judge_pairs(folder, only, options.form, known_step=not options.unknown_step)
        else:
            print(f"{folder}: has neither truth.json nor NAME.truth.json", file=sys.stderr)
            return 3
    print(table(rows))
    print(summary(rows))
    if options.json:
        rows_json = [{**asdict(row), "error": row.error, "covered": row.covered} for row in rows]
        options.json.write_text(json.dumps(rows_json, indent=1) + "\n")
    return 0


def judge_pairs(folder: Path, only: Collection[str], form: str, *, known_step: bool) -> list[Row]:
    """The rows of a folder of pairs."""
    rows: list[Row] = []
    for path in sorted(folder.glob("*.truth.json")):
        name = path.name.removesuffix(".truth.json")
        if only and name not in only:
            continue
        recordings = sorted(folder.glob(f"{name}.slow.{form}.json.*"))
        if not recordings:
            print(f"{name}: no {form} recording", file=sys.stderr)
            continue
        truth = json.loads(path.read_text())
        try:
            rows += judge_pair(name, truth, recordings[0], known_step=known_step)
        except ForetraceError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return rows


def judge_pair(name: str, truth: Mapping[str, Any], recording: Path, *, known_step: bool) -> list[Row]:
    """The row of one pair; none where its fix changes the work or no rule is about it."""
    facts = truth["truth"]
    rule = facts.get("rule") or RULE_OF.get(facts.get("label"))
    if facts.get("same_work") is False or rule is None:
        return []
    case = Case(foretrace.open(recording), step_ns=truth["slow"]["step_ms"] * 1e6 if known_step else None)
    diagnosis = diagnose(case, RULES)
    if rule == TOGETHER:
        promised = [
            finding
            for finding in diagnosis.findings
            if finding.predicted and finding.predicted.verdict == "gain"
        ]
        findings = [finding for finding in promised if finding.rule not in facts.get("not_made", ())]
        changes = tuple(finding.change for finding in findings if finding.change)
        predicted = case.predict(changes) if changes and findings != promised else diagnosis.combined
    else:
        findings = [finding for finding in diagnosis.findings if finding.rule == rule and finding.predicted][
            :1
        ]
        findings = fixed_by(findings, facts.get("alternative") or FIX_OF.get(rule, ""))
        predicted = findings[0].predicted if findings else None
    low, high = truth["speedup_range"]
    return [
        Row(name, "", rule, (low, high), *figures(predicted), added_up(case, findings), without_idle(case))
    ]


def fixed_by(findings: list[Finding], label: str) -> list[Finding]:
    """The findings, led by the measured alternative; without those that do not offer it."""
    led = [finding.led_by(label) for finding in findings]
    return [finding for finding in led if not label or finding.label in ("", label)]


def figures(predicted: Prediction | None) -> tuple[bool, str, float, float, float]:
    """Whether something was predicted, the verdict, and the speedup with its range."""
    if predicted is None:
        return (False, "no gain", 1.0, 1.0, 1.0)
    speedup = predicted.speedup
    return (True, predicted.verdict, speedup.point, speedup.low, speedup.high)


def added_up(case: Case, findings: list[Finding]) -> float:
    """The speedup if savings added up: every saved nanosecond of host and device comes off the step."""
    durations, saved = case.program.task_dur_ns, 0.0
    for edit in (finding.change.edit for finding in findings if finding.change):
        saved += float(durations[edit.removed_tasks].sum()) + edit.removed_host.total_ns
        saved += sum(int(durations[task]) - shorter for task, shorter in edit.durations_ns.items())
        saved += float((case.program.base_ns + case.program.wake_ns)[edit.unwaited_calls].sum())
        saved -= sum(edit.added_host_ns.values())
    after = case.step_ns - saved / case.step_count
    return case.step_ns / after if after > 0.02 * case.step_ns else 50.0


def without_idle(case: Case) -> float:
    """The speedup if the step took as long as the device is busy."""
    busy = float(case.program.task_dur_ns.sum()) / case.step_count
    return case.step_ns / busy if busy else 1.0


def judge_programs(folder: Path, only: Collection[str] = ()) -> list[Row]:
    """The rows of a folder of real programs."""
    truths = json.loads((folder / "truth.json").read_text())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="accuracy-") as scratch:
        runs = unpacked(folder, Path(scratch))
        for name, truth in truths.items():
            if only and name not in only:
                continue
            for change, error in truth.get("errors", {}).items():
                print(f"{name} {change}: not measured: {error}", file=sys.stderr)
            if name not in runs:
                print(f"{name}: no recording", file=sys.stderr)
                continue
            try:
                rows += judge_program(name, truth, diagnose(open_case(runs[name]), RULES))
            except ForetraceError as error:
                print(f"{name}: {error}", file=sys.stderr)
    return rows


def unpacked(folder: Path, scratch: Path) -> dict[str, Path]:
    """The Run folders by name; those inside tar files are extracted into `scratch`."""
    for outer in sorted(folder.glob("recordings*.tar")):
        _extract(outer, scratch)
    for packed in sorted([*folder.glob("*.tar.xz"), *scratch.glob("*.tar.xz")]):
        _extract(packed, scratch)
    places = sorted([*folder.glob("*/run.json"), *scratch.glob("*/run.json")])
    return {place.parent.name.removesuffix(".run"): place.parent for place in places}


def _extract(path: Path, into: Path) -> None:
    with tarfile.open(path) as file:
        file.extractall(into, filter="data")


def judge_program(name: str, truth: Mapping[str, Any], diagnosis: Diagnosis) -> list[Row]:
    """A row for every measured change that some rule is about."""
    rows = []
    for change, facts in truth["changes"].items():
        if facts.get("rule"):
            rule, predicted = predicted_for(diagnosis, change, facts["rule"])
            low, high = facts["speedup_range"]
            rows.append(Row(name, change, rule, (low, high), *figures(predicted)))
    return rows


def predicted_for(diagnosis: Diagnosis, change: str, rule: str) -> tuple[str, Prediction | None]:
    """The rule that proposes a change, and its prediction; None where it does not propose it."""
    if rule == TOGETHER:
        return TOGETHER, diagnosis.combined
    rule, _, label = rule.partition(":")
    rules = RULES_FOR.get(rule, (rule,))
    rule = next((name for name in rules if any(offers_of(diagnosis, name))), rules[0])
    label = label or LABELS.get((rule, change), "")
    offers = list(offers_of(diagnosis, rule))
    for offered, predicted in offers:
        if label and label in offered:
            return f"{rule}:{label}", predicted
    if label:
        return f"{rule}:{label}", None
    return rule, offers[0][1] if offers else None


def offers_of(diagnosis: Diagnosis, rule: str) -> Iterator[tuple[str, Prediction]]:
    """Label and prediction of a rule's findings and of their alternatives."""
    for finding in diagnosis.findings:
        offers: tuple[Finding | Alternative, ...] = (finding, *finding.alternatives)
        for offer in offers if finding.rule == rule else ():
            if offer.predicted:
                yield offer.label, offer.predicted


def table(rows: Sequence[Row]) -> str:
    """A line per change."""
    width = max([len(row.name) for row in rows], default=0) + 2
    columns = f"{{:<{width}}}{{:<20}}{{:<29}}{{:>12}}{{:>10}}{{:>14}}{{:>7}}  {{:<10}}{{:>9}}{{:>9}}  {{}}"
    heads = (
        "program",
        "change",
        "rule",
        "measured",
        "predicted",
        "range",
        "error",
        "verdict",
        "added up",
        "no idle",
        "",
    )
    lines = [columns.format(*heads)]
    for row in rows:
        notes = [] if row.covered else ["not covered"]
        notes += ["promised" if row.promised else "MISSED"] if row.large_gain else []
        notes += ["FALSE PROMISE"] if row.false_promise else []
        lines.append(columns.format(
            row.name, row.change, row.rule, f"{row.truth[0]:.2f}-{row.truth[1]:.2f}",
            f"{row.point:.2f}" if row.predicted else "none", f"{row.low:.2f}-{row.high:.2f}" if row.predicted else "",
            f"{100 * row.error:.0f}%", row.verdict if row.predicted else "-",
            "" if row.added_up is None else f"{row.added_up:.2f}",
            "" if row.without_idle is None else f"{row.without_idle:.2f}", ", ".join(notes)))  # fmt: skip
    return "\n".join(line.rstrip() for line in lines)


def summary(rows: Sequence[Row]) -> str:
    """Errors, ranges and promises of all rows."""
    if not rows:
        return "nothing was judged"
    gaining = [row for row in rows if row.gains]
    predicted = [row for row in rows if row.predicted]
    large = [row for row in rows if row.large_gain]
    compared = [row for row in gaining if row.added_up is not None and row.without_idle is not None]
    lines = [
        f"{len({row.name for row in rows})} programs, {len(rows)} changes",
        errors("error, all changes", [row.error for row in rows]),
        errors("error, changes that gain 3 % or more", [row.error for row in gaining]),
        errors("  if savings added up", [distance(row.added_up or 1, row.truth) for row in compared]),
        errors("  if idle time went", [distance(row.without_idle or 1, row.truth) for row in compared]),
        f"ranges that cover the truth: {_share(row.covered for row in rows)} (where something was predicted: "
        f"{_share(row.covered for row in predicted)}; of changes that gain 3 % or more: "
        f"{_share(row.covered for row in gaining)})",
        f"gains of 10 % or more that are promised: {_share(row.promised for row in large)}",
        f"false promises: {sum(row.false_promise for row in rows)}",
    ]
    return "\n".join(line for line in lines if line)


def errors(label: str, values: Sequence[float]) -> str:
    """Median, 90th percentile and worst of relative errors; nothing without any."""
    if not values:
        return ""
    tenth = float(np.percentile(values, 90))
    return f"{label}: median {100 * statistics.median(values):.1f} %, p90 {100 * tenth:.1f} %, worst {100 * max(values):.0f} %"


def _share(flags: Iterator[bool]) -> str:
    listed = list(flags)
    return f"{sum(listed)}/{len(listed)}"


if __name__ == "__main__":
    sys.exit(main())
