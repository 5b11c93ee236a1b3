"""Writes every resource of a recording to a folder, as the page gets it: for work on the page without a server.

python scripts/page_data.py RECORDING FOLDER [--step-ms MS] [--other RECORDING]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from foretrace import analyze
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView

SPANS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-ms", type=float)
    parser.add_argument("--other", type=Path, help="a second recording, as run `other`")
    args = parser.parse_args()
    view = RecordingView(open_case(args.recording, step_ms=args.step_ms), run_id="run")
    views = {"run": view}
    if args.other:
        views["other"] = RecordingView(open_case(args.other), run_id="other")
    entries = [payload.run_entry(each) for each in views.values()]
    write(args.folder, "runs", payload.runs(entries), 0.0)
    for name in names(view, tuple(views)):
        begun = time.perf_counter()
        try:
            answer = payload.resource(view, name, find=views.__getitem__)
        except ForetraceError as reason:
            print(f"{name}: {reason}")
            continue
        write(args.folder, name, answer, time.perf_counter() - begun)


def names(view: RecordingView, runs: tuple[str, ...]) -> list[str]:
    """Every resource that needs no question, tables, and some spans of each kind."""
    plain = [name for name in payload.RESOURCES if not name.endswith("/") and name not in payload.LIVE]
    tables = [f"table/{each.name}" for each in analyze.ANALYSES]
    spans = view.trace.spans.group_by("kind", maintain_order=True).head(SPANS)["id"]
    others = [f"compare/{each}" for each in runs] if "compare/" in payload.RESOURCES else []
    found = [number for each in view.finding_spans for number in each[:5].tolist()]
    return plain + tables + others + [f"span/{each}" for each in dict.fromkeys([*found, *spans])]


def write(folder: Path, name: str, answer: payload.Answer, seconds: float) -> None:
    path = folder / f"{name}{'.bin' if isinstance(answer, bytes) else '.json'}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(payload.to_bytes(answer))
    if not name.startswith("span/"):
        print(f"{seconds:7.3f} s {path.stat().st_size:>10,} B {name}")


if __name__ == "__main__":
    main()
