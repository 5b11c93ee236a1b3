"""The waits of a program: calls in which the host waits for results."""

from __future__ import annotations

from pathlib import Path

from foretrace.analyze.concepts.host.runtime_calls import HostSpans
from foretrace.predict.builder import build
from foretrace.predict.waits import for_sizes, for_splits, waiting_calls
from tests.builders import Recording


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


def test_waits_for_the_split_sizes_of_an_exchange(tmp_path: Path) -> None:
    """What is read since the last exchange and is not of floating point; without types, only what is read last."""
    for types, expected in (
        ((["long int"], ["float"], ["long int"]), [True, False, True]),
        ((), [False, False, True]),
    ):
        recording = Recording().launch(2, "add", 5, 15)
        for number in range(3):
            about = {"Input type": types[number]} if types else {}
            at = 20 + 10 * number
            recording.op("aten::item", at, at + 9, **about).runtime("cudaStreamSynchronize", at + 1, at + 8)
        metadata = {
            "Collective name": "all_to_allv",
            "In msg nelems": 8,
            "Out msg nelems": 8,
            "Group size": 2,
        }
        recording.op("record_param_comms", 60, 70, **metadata)
        recording.op("aten::item", 80, 89).runtime("cudaStreamSynchronize", 81, 88)  # behind the exchange
        recording.launch(90, "add", 95, 99)
        trace = recording.open(tmp_path)
        program = build(trace)
        calls = waiting_calls(trace, program)
        feeds = for_splits(trace, HostSpans(trace), program, calls).tolist()
        assert feeds == [*expected, False]
