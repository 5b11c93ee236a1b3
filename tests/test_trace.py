"""A Trace keeps what was worked out of it, until it is told to let go."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace import trace as trace_module
from foretrace.analyze.concepts.device import device_time
from tests.builders import Recording


def test_what_was_let_go_is_worked_out_anew(tmp_path: Path) -> None:
    made = Recording().op("aten::add", 5, 20).launch(10, "add_kernel", 30, 60)
    trace = foretrace.open(made.write(tmp_path))
    spans, work = trace.device_spans, device_time.device_work(trace)
    assert trace.device_spans is spans
    assert device_time.device_work(trace) is work
    trace.forget_device_spans()
    trace.forget(device_time.device_work)
    assert trace.device_spans is not spans
    assert trace.device_spans.equals(spans)
    assert device_time.device_work(trace) is not work
    assert device_time.device_work(trace).equals(work)


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_gpu_work_is_seen_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """However many rows are looked at together; a kernel whose duration is not sound is no such work."""
    monkeypatch.setattr(trace_module, "_AT_ONCE", rows)
    host = [("aten::add", 10 * place, 10 * place + 5) for place in range(5)]
    for kernels, expected in (
        ([], False),
        ([(60, 70)], True),
        ([(70, 60)], False),
        ([(70, 60), (80, 90)], True),
    ):
        recording = Recording()
        for name, start, end in host:
            recording.op(name, start, end)
        for start, end in kernels:
            recording.kernel("gemm", start, end)
        assert recording.open(tmp_path).has_device is expected, kernels
