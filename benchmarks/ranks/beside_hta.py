"""Whom HTA takes for a straggler, beside `foretrace ranks`: synthetic jobs whose slow rank is known, or recordings of one job.

pip install HolisticTraceAnalysis
python benchmarks/ranks/beside_hta.py                    # five jobs, with kernel names as NCCL had them before 2.19, and as since
python benchmarks/ranks/beside_hta.py RANK0 RANK1 ...    # recordings of one job
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.ranks.layouts import data_parallel, three_d  # noqa: E402
from benchmarks.ranks.recordings import write  # noqa: E402
from benchmarks.ranks.simulate import Fault, Job, simulate  # noqa: E402
from foretrace.ranks.job import read_job  # noqa: E402

ONE_CLOCK: dict[str, Any] = {
    "offset_us": 0.0,
    "drift_ppm": 0.0,
}  # otherwise those of the ranks differ, as those of hosts do
JOBS: dict[str, Job] = {
    "8 data parallel, healthy": data_parallel(world=8),
    "8 data parallel, rank 5 slow": data_parallel(world=8, faults=(Fault("slow-rank", 5, 1.3),)),
    "the same, with one clock": data_parallel(world=8, faults=(Fault("slow-rank", 5, 1.3),), **ONE_CLOCK),
    "16 in 3d, healthy": three_d(tensor=4, pipeline=2, data=2),
    "16 in 3d, rank 9 slow": three_d(tensor=4, pipeline=2, data=2, faults=(Fault("slow-rank", 9, 1.3),)),
}


def main(recordings: Sequence[str]) -> None:
    """Prints one row for each job."""
    logging.disable(logging.CRITICAL)
    print("| job | HTA, one candidate | HTA, as it is set | foretrace |")
    print("|---|---|---|---|")
    if recordings:
        paths = [Path(name) for name in recordings]
        print(f"| {len(paths)} recordings | {hta(paths, num_candidates=1)} | {hta(paths)} | {ours(paths)} |")
        return
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, job) in enumerate(JOBS.items()):
            folder = write(simulate(job), Path(scratch) / str(number))
            for says, older in (("", True), (", since NCCL 2.19", False)):
                paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem.removeprefix("rank")))
                if older:
                    paths = [_older(path) for path in paths]
                print(
                    f"| {name}{says} | {hta(paths, num_candidates=1)} | {hta(paths)} | {ours(paths)} |",
                    flush=True,
                )


def _older(path: Path) -> Path:
    """The same recording with the kernels' names of before."""
    older = path.parent / "older" / path.name
    older.parent.mkdir(exist_ok=True)
    older.write_text(path.read_text().replace("ncclDevKernel_", "ncclKernel_"))
    return older


def hta(paths: Sequence[Path], **options: Any) -> str:
    """The ranks it names, or what it raises."""
    from hta.trace_analysis import TraceAnalysis

    try:
        files = {rank: str(path.resolve()) for rank, path in enumerate(paths)}
        return str(TraceAnalysis(trace_files=files, trace_dir="/").get_potential_stragglers(**options))
    except Exception as error:  # what it raises is its answer
        return f"{type(error).__name__}: {error}"


def ours(paths: Sequence[Path]) -> str:
    """What each finding says of whom."""
    findings = read_job(paths).findings
    return "; ".join(f"{finding.what}: {finding.who}" for finding in findings) or "nothing"


if __name__ == "__main__":
    main(sys.argv[1:])
