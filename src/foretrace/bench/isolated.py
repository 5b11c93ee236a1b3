"""The program that runs one case in a process of its own: `python -m foretrace.bench.isolated CASE ROW`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from foretrace.bench.kinds import KINDS
from foretrace.bench.sweep import import_torch, run_here, started_mark
from foretrace.bench.timing import Timing
from foretrace.whole_files import replace_text


def main(asked: Path, answer: Path) -> None:
    """Runs the case that the first file holds; writes its row to the second."""
    given = json.loads(asked.read_text(encoding="utf-8"))
    timing = replace(Timing.from_dict(given["timing"]), isolate=False)
    import_torch()
    started_mark(answer).touch()
    row = run_here(given["kind"], KINDS[given["kind"]].run_case, given["case"], timing)
    replace_text(answer, json.dumps(row))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
