"""Predicted against measured for real programs: what `foretrace diagnose RUN` says of every change that was timed.

    python benchmarks/real/judge.py [FOLDER ...] [--only NAME,...] [--json FILE]

A FOLDER holds truth.json (see measure.py) and, for each program, its Run as NAME/, NAME.tar.xz, or either of them within
recordings-N.tar. The default is ../shared/corpus/real. A change is judged by the finding of the rule that truth.json
names for it: RULE, RULE:LABEL for one of its alternatives, or "together". A rule that finds nothing, or does not offer the
alternative, predicts 1.00. Changes without a rule are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from predictions import NO_GAIN, TOGETHER, distance  # noqa: E402

from foretrace.diagnose import RULES  # noqa: E402
from foretrace.diagnose.diagnosis import Diagnosis, diagnose  # noqa: E402
from foretrace.diagnose.opening import open_case  # noqa: E402
from foretrace.errors import ForetraceError  # noqa: E402
from foretrace.predict.prediction import Prediction  # noqa: E402

TRUE_GAIN = 1.10
# What sets call a change, and the rules that speak of it: the first that found something counts.
STANDS_FOR = {"compile": ("unfused-elementwise",), "loop-optimizer": ("loop-optimizer", "parameter-loop")}
# Truths that name no label: the change tells which one is meant.
LABELS = {("no-tensor-cores", "tf32"): "tf32", ("no-tensor-cores", "bf16"): "autocast"}


@dataclass(frozen=True)
class Judged:
    """One change of one program: what was measured and what was predicted."""

    name: str
    change: str
    rule: str
    truth: tuple[float, float]
    found: bool
    verdict: str
    point: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Distance to the nearer end of the measured range; none within it."""
        return float(distance(self.point, self.truth))

    @property
    def covered(self) -> bool:
        return self.low <= self.truth[1] and self.truth[0] <= self.high

    @property
    def true_gain(self) -> bool:
        return self.truth[0] >= TRUE_GAIN

    @property
    def promised(self) -> bool:
        return self.verdict == "gain"

    @property
    def false_promise(self) -> bool:
        return self.promised and self.point >= TRUE_GAIN and self.truth[1] < NO_GAIN


def main() -> int:
    """Prints the rows and their summary."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT.parent / "shared" / "corpus" / "real"
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", default=[default])
    parser.add_argument("--only", default="", metavar="NAME,...", help="these programs alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    rows: list[Judged] = []
    for folder in options.folders:
        if not (folder / "truth.json").is_file():
            print(f"{folder}: no truth.json in it", file=sys.stderr)
            return 3
        rows += judge_folder(folder, only)
    print_rows(rows)
    if options.json:
        figures = [{**asdict(row), "error": row.error, "covered": row.covered} for row in rows]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def judge_folder(folder: Path, only: Sequence[str] = ()) -> list[Judged]:
    """The rows of all programs in a folder; what cannot be judged is said."""
    truths = json.loads((folder / "truth.json").read_text())
    rows: list[Judged] = []
    with tempfile.TemporaryDirectory(prefix="judge-") as scratch:
        runs = unpack(folder, Path(scratch))
        for name, truth in truths.items():
            if only and name not in only:
                continue
            for change, error in truth.get("errors", {}).items():
                print(f"{name} {change}: not measured: {error}", file=sys.stderr)
            if name not in runs:
                print(f"{name}: no recording", file=sys.stderr)
                continue
            try:
                rows += judge(name, truth, diagnose(open_case(runs[name]), RULES))
            except ForetraceError as error:
                print(f"{name}: {error}", file=sys.stderr)
    return rows


def unpack(folder: Path, scratch: Path) -> dict[str, Path]:
    """The Run folders by name, those in tars taken out into `scratch`."""
    for outer in sorted(folder.glob("recordings*.tar")):
        _extract(outer, scratch)
    for packed in sorted([*folder.glob("*.tar.xz"), *scratch.glob("*.tar.xz")]):
        _extract(packed, scratch)
    places = sorted([*folder.glob("*/run.json"), *scratch.glob("*/run.json")])
    return {place.parent.name.removesuffix(".run"): place.parent for place in places}


def _extract(path: Path, into: Path) -> None:
    with tarfile.open(path) as file:
        file.extractall(into, filter="data")


def judge(name: str, truth: Mapping[str, Any], found: Diagnosis) -> list[Judged]:
    """A row for every measured change that a rule speaks of."""
    rows = []
    for change, facts in truth["changes"].items():
        if not facts.get("rule"):
            continue
        rule, predicted = predicted_for(found, change, facts["rule"])
        span = predicted.speedup if predicted else None
        figures = (span.point, span.low, span.high) if span else (1.0, 1.0, 1.0)
        verdict = predicted.verdict if predicted else "no gain"
        low, high = facts["speedup_range"]
        rows.append(Judged(name, change, rule, (low, high), predicted is not None, verdict, *figures))
    return rows


def predicted_for(found: Diagnosis, change: str, named: str) -> tuple[str, Prediction | None]:
    """The rule that speaks of a change, and what it predicts; None where it found nothing."""
    if named == TOGETHER:
        return TOGETHER, found.combined
    rule, _, label = named.partition(":")
    rules = STANDS_FOR.get(rule, (rule,))
    rule = next((each for each in rules if any(offers_of(found, each))), rules[0])
    label = label or LABELS.get((rule, change), "")
    offers = list(offers_of(found, rule))
    for offered, predicted in offers:
        if label and label in offered:
            return f"{rule}:{label}", predicted
    if label:
        return f"{rule}:{label}", None  # what was measured is not among what the rule offers
    return rule, offers[0][1] if offers else None


def offers_of(found: Diagnosis, rule: str) -> Iterator[tuple[str, Prediction]]:
    """What a rule predicts, each with its label: its findings and their alternatives."""
    for finding in found.findings:
        for offer in (finding, *finding.alternatives) if finding.rule == rule else ():
            if offer.predicted:
                yield offer.label, offer.predicted


def print_rows(rows: Sequence[Judged]) -> None:
    """The table and its summary."""
    width = max([len(row.name) for row in rows], default=0) + 2
    columns = f"{{:<{width}}}{{:<20}}{{:<29}}{{:>12}}{{:>10}}{{:>14}}{{:>7}}  {{:<10}}{{}}"
    print(
        columns.format("program", "change", "rule", "measured", "predicted", "range", "error", "verdict", "")
    )
    for row in rows:
        notes = [] if row.covered else ["not covered"]
        notes += ["promised"] if row.true_gain and row.promised else ["MISSED"] if row.true_gain else []
        notes += ["FALSE PROMISE"] if row.false_promise else []
        print(columns.format(
            row.name, row.change, row.rule, f"{row.truth[0]:.2f}-{row.truth[1]:.2f}",
            f"{row.point:.2f}" if row.found else "none", f"{row.low:.2f}-{row.high:.2f}" if row.found else "",
            f"{100 * row.error:.0f}%", row.verdict if row.found else "-", ", ".join(notes)).rstrip())  # fmt: skip
    print(summary(rows))


def summary(rows: Sequence[Judged]) -> str:
    """The figures of a set: errors, coverage, promises."""
    if not rows:
        return "nothing was judged"
    errors, found = [row.error for row in rows], [row for row in rows if row.found]
    gains = [row for row in rows if row.true_gain]
    return (
        f"{len({row.name for row in rows})} programs, {len(rows)} changes: error median "
        f"{100 * statistics.median(errors):.1f} %, p90 {100 * float(np.percentile(errors, 90)):.1f} %, worst "
        f"{100 * max(errors):.0f} %\n"
        f"ranges that cover: {sum(row.covered for row in rows)}/{len(rows)} "
        f"(where something was predicted: {sum(row.covered for row in found)}/{len(found)})\n"
        f"true gains of 10 % or more that are promised: {sum(row.promised for row in gains)}/{len(gains)}\n"
        f"false promises: {sum(row.false_promise for row in rows)}"
    )


if __name__ == "__main__":
    sys.exit(main())
