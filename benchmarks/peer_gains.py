"""Every gain that `foretrace diagnose` promises on recordings of others, as the table of docs/peers.md.

    python benchmarks/peer_gains.py FOLDER

Prints a row for each gain; docs/peers.md holds the same rows with a defence. `tests/diagnose/test_peer_gains.py` fails
where the two differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foretrace.diagnose import RULES
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError
from foretrace.ingest.recordings import is_recording
from foretrace.predict.prediction import Prediction


def recordings(folder: Path) -> list[Path]:
    """All files of a folder that begin as a recording does."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and is_recording(path)]


def gains(path: Path) -> dict[str, Prediction]:
    """The promised gains of one recording by rule, `RULE:LABEL` for an alternative; none where it cannot be replayed."""
    try:
        case = open_case(path)
        case.require_replay()
        found = diagnose(case, RULES)
    except ForetraceError:
        return {}
    fixes = [(finding.rule, finding.predicted) for finding in found.findings]
    fixes += [
        (f"{finding.rule}:{other.label}", other.predicted)
        for finding in found.findings
        for other in finding.alternatives
    ]
    return {name: predicted for name, predicted in fixes if predicted and predicted.verdict == "gain"}


def main() -> int:
    """Prints the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = recordings(folder)
    for path in found:
        for name, predicted in gains(path).items():
            span = predicted.speedup
            worth = f"× {span.point:.2f} ({span.low:.2f} to {span.high:.2f})"
            print(f"| {path.relative_to(folder).as_posix()} | {name} | {worth} |")
    print(f"{len(found)} recordings", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
