"""Our rules fire wherever `nsys analyze` fires, and on a GPU that stands idle beside two streams, which it misses."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.nsys_exports import Export

pytestmark = pytest.mark.fast
FOLDER = CORPUS / "other" / "nsys_synthetic"
# What `nsys analyze` reports, and which of our rules says the same of the same calls
RULE_OF = {
    "cuda_api_sync": ("host-sync", "cudaStreamSynchronize"),
    "cuda_memcpy_async": ("pageable-copy", "pageable"),
    "cuda_memcpy_sync": ("host-sync", "cudaMemcpy"),
    "gpu_gaps": ("long-gap", "600 ms"),
    "gpu_time_util": ("host-stall", "neither an operator nor a launch"),
}


def found_in(trace: foretrace.Trace) -> dict[str, Finding]:
    return {found.rule: found for found in diagnose(Case(trace), RULES).findings}


@pytest.mark.slow
@needs_corpus
def test_what_nsys_analyze_reports_is_found() -> None:
    found = found_in(foretrace.open(FOLDER / "synthetic.sqlite", cache=False))
    for report in sorted(FOLDER.glob("rule_*.csv")):
        fires = len(report.read_text().split()) > 1
        rule = report.stem.removeprefix("rule_")
        assert fires == (rule in RULE_OF), report.name
        if fires:
            name, said = RULE_OF[rule]
            places = " ".join(place.function for place in found[name].where)
            assert said in f"{found[name].says} {places}", (rule, found[name].says)
    # rule_gpu_gaps.csv: 600,028,000 ns from 1,009,240,000 ns on; the recording begins at 1,000,000,000.
    assert found["long-gap"].evidence["longest_ns"] == 600_028_000
    assert found["long-gap"].evidence["longest_start_ns"] == 9_240_000
    # rule_gpu_time_util.csv: 1.5 % in use of 618,492,000 ns.
    overview = analyze.run(foretrace.open(FOLDER / "synthetic.sqlite", cache=False), "overview")
    assert overview.values["span_ns"] == 618_492_000
    assert round(float(overview.values["busy_pct"] or 0), 1) == 1.5


def two_streams() -> Export:
    """Six steps of 10 ms: two kernels of 4 ms on two streams at the same time, then nothing for 6 ms.

    Summed over streams, as gpu_time_util does, that is 80 % of the time, more than its 50 %; the gaps of 6 ms are far below the
    500 ms of gpu_gaps. The GPU is idle for 60 %.
    """
    export = Export().gpu(id=0, name="NVIDIA H200", smCount=132, totalMemory=150109880320)
    for step in range(6):
        at = step * 10_000_000
        export.range("train_step", at, at + 10_000_000)
        for place, stream in enumerate((7, 13)):
            number = 2 * step + place + 1
            export.call("cudaLaunchKernel", at + 10_000 * place, at + 10_000 * place + 5_000, number)
            export.kernel(f"kernel{stream}", at + 20_000, at + 4_020_000, number, stream=stream, gridX=132, gridY=1, gridZ=1,
                          blockX=256, blockY=1, blockZ=1, registersPerThread=32)  # fmt: skip
    return export


@pytest.mark.slow
def test_an_idle_gpu_with_two_streams_is_found(tmp_path: Path) -> None:
    trace = foretrace.open(two_streams().write(tmp_path / "streams.sqlite"), cache=False)
    kernel_ns = sum(trace.kernel_spans["dur_ns"])
    assert kernel_ns / trace.duration_ns == pytest.approx(0.8), "what a sum over streams gives"
    values = analyze.run(trace, "overview").values
    assert values["gpu_idle_pct"] == pytest.approx(60, abs=0.5)
    finding = found_in(trace)["host-stall"]
    assert finding.predicted
    assert finding.predicted.after_ns.point == pytest.approx(4e6, rel=0.1), (
        "two kernels side by side take 4 ms"
    )
