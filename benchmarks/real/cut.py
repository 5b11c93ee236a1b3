"""Cuts the recordings of a measured set to what the repository keeps: some steps of the light pass.

    python benchmarks/real/cut.py MEASURED --into benchmarks/real/recordings/SET [--steps 3]

MEASURED is a folder that judge.py reads. The steps are from the middle of each recording; what no table keeps is left out
(benchmarks/pairs/trim.py). truth.json is copied.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "pairs"))

from judge import unpack  # noqa: E402
from trim import trimmed  # noqa: E402

from foretrace.ingest.kineto_python import DROPPED  # noqa: E402

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}
STEP = "ProfilerStep#"


def cut(recording: dict[str, Any], steps: int) -> dict[str, Any]:
    """The recording with so many steps from its middle: what the host began in them, and what that launched."""
    events = recording["traceEvents"]
    marks = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(STEP)
    )
    first = max((len(marks) - steps) // 2, 0)
    kept = marks[first : first + steps]
    begins, ends, names = kept[0][0], kept[-1][1], {name for _, _, name in kept}

    def on_host(event: dict[str, Any]) -> bool:
        return begins <= event["ts"] <= ends and (
            event["name"] in names or not event["name"].startswith(STEP)
        )

    launched = {
        event["args"]["correlation"]
        for event in events
        if event.get("ph") == "X" and "correlation" in event.get("args", {})
        if event["cat"] not in ON_DEVICE and on_host(event)
    }

    def stays(event: dict[str, Any]) -> bool:
        if event["ph"] != "X":
            return event["ph"] == "M"
        if event["cat"] in ON_DEVICE:
            return event.get("args", {}).get("correlation") in launched
        if event["cat"] == "gpu_user_annotation":
            return event["name"] in names
        return event["cat"] == "Trace" or on_host(event)

    return {**recording, "traceEvents": [event for event in events if stays(event)]}


def main() -> int:
    """Cuts and packs every recording."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path, metavar="MEASURED")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(options.measured / "truth.json", options.into / "truth.json")
    with tempfile.TemporaryDirectory(prefix="cut-") as scratch:
        for name, run in sorted(unpack(options.measured, Path(scratch)).items()):
            light = run / "rank0" / "light.json"
            light.write_text(
                json.dumps(
                    trimmed(cut(json.loads(light.read_text()), options.steps), DROPPED), separators=(",", ":")
                )
            )
            parts = [f"{run.name}/{part}" for part in ("run.json", "rank0/rank.json", "rank0/light.json")]
            packed = options.into / f"{name}.tar.xz"
            tar = ["tar", "--owner=0", "--group=0", "-I", "xz -9e", "-cf", str(packed.resolve())]
            subprocess.run([*tar, *parts], cwd=run.parent, check=True)
            print(f"{packed.name}: {packed.stat().st_size:,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
