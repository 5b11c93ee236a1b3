"""A Trace keeps what was worked out of it, until it is told to let go."""

from __future__ import annotations

from pathlib import Path

import foretrace
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
