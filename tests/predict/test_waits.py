"""The waits of a program: calls in which the host waits for results."""

from __future__ import annotations

from pathlib import Path

from builders import Recording

from foretrace.analyze.concepts.host.runtime_calls import HostSpans
from foretrace.predict.builder import build
from foretrace.predict.waits import for_sizes, waiting_calls


def test_waits_for_results_and_not_for_copies_to_the_device_or_to_free_memory(tmp_path: Path) -> None:
    recording = Recording().op("aten::add", 0, 10).launch(2, "add", 5, 9)
    recording.op("aten::to", 10, 30)
    to_device = {"category": "gpu_memcpy", "bytes": 1 << 20}
    recording.launch(12, "Memcpy HtoD (Pageable -> Device)", 13, 20, call=10, **to_device)
    recording.runtime("cudaStreamSynchronize", 23, 28)
    recording.op("aten::nonzero", 30, 45).runtime("cudaStreamSynchronize", 32, 40)
    recording.op("aten::item", 45, 55).runtime("cudaStreamSynchronize", 46, 50)
    recording.runtime("cudaFree", 60, 70)
    trace = recording.open(tmp_path)
    program = build(trace)
    calls = waiting_calls(trace, program)
    assert trace.spans["start_ns"].gather(program.call_span[calls]).to_list() == [32_000, 46_000]
    assert for_sizes(HostSpans(trace), program, calls).tolist() == [True, False]
