"""Proton's profiles and timelines, made by hand: sums by scope, FLOPs that users counted, cycles as cycles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace import analyze
from foretrace.commands import main
from foretrace.errors import InputError, MissingDataError
from foretrace.ingest import open_trace
from foretrace.trace import Trace
from tests.corpus import CORPUS, needs_corpus

# An H100 SXM by its SMs and its memory: 2 x 2.619 GHz x 5120 bits are 3.35 TB/s.
H100 = {
    "CUDA": {
        "0": {
            "arch": "90",
            "bus_width": 5120,
            "clock_rate": 1980000,
            "memory_clock_rate": 2619000,
            "num_sms": 132,
        }
    }
}


def node(name: str, *children: dict[str, Any], **metrics: Any) -> dict[str, Any]:
    named = {key.replace("time_ns", "time (ns)"): value for key, value in metrics.items()}
    return {"frame": {"name": name, "type": "function"}, "metrics": named, "children": list(children)}


def kernel(name: str, time_ns: int, count: int, **more: Any) -> dict[str, Any]:
    return node(name, time_ns=time_ns, count=count, device_id="0", device_type="CUDA", **more)


def opened(folder: Path, root: dict[str, Any], devices: dict[str, Any] | None = None) -> Trace:
    path = folder / "proton.hatchet"
    path.write_text(json.dumps([root, devices or {}]))
    return open_trace(path, cache=False)


def test_scopes_have_inclusive_and_exclusive_time(tmp_path: Path) -> None:
    inner = node("attention", kernel("softmax", 300, 3))
    trace = opened(tmp_path, node("ROOT", node("step", inner, kernel("matmul", 700, 2)), time_ns=0, count=0))
    sections = analyze.run(trace, "sections").table
    columns = ("section", "device_ns", "device_exclusive_ns", "device_pct", "work_count", "top_kernel")
    assert sections.select(*columns).rows() == [
        ("step", 1000, 700, 100.0, 5, "matmul"),
        ("step / attention", 300, 300, 30.0, 3, "softmax"),
    ]
    kernels = analyze.run(trace, "kernels").table
    assert kernels.select("name", "calls_count", "total_ns", "mean_ns", "median_ns").rows() == [
        ("matmul", 2, 700, 350.0, None),
        ("softmax", 3, 300, 100.0, None),
    ]


def test_counted_work_becomes_a_share_of_the_peak(tmp_path: Path) -> None:
    """494.5 TFLOP/s of fp16 are half of the H100's 989; 335 GB/s a tenth of its memory."""
    scope = node("matmul", kernel("nvjet", 1_000, 1), flops16=494.5e6, bytes=335_000)
    (row,) = analyze.run(opened(tmp_path, node("ROOT", scope), H100), "sections").table.to_dicts()
    assert row["achieved_flops_per_s"] == pytest.approx(494.5e12)
    assert row["achieved_bytes_per_s"] == pytest.approx(335e9)
    assert row["roof_pct"] == pytest.approx(50)


def test_cycles_are_no_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = opened(tmp_path, node("ROOT", node("kernel", node("load", cycles=5_000.0, count=4))))
    (_, row) = analyze.run(trace, "sections").table.to_dicts()
    assert (row["section"], row["cycles_count"], row["device_ns"]) == ("kernel / load", 5_000, 0)
    assert main(["show", "sections", str(trace.path)]) == 0
    assert "they are no time" in capsys.readouterr().out


def test_a_timeline_keeps_its_scopes(tmp_path: Path) -> None:
    events = [
        {"name": "matmul", "cat": "kernel", "ph": "X", "ts": start, "dur": 5, "tid": 7,
         "args": {"call_stack": ["ROOT", "step", "matmul"], "flops16": 1e6}}
        for start in (0, 10)
    ]  # fmt: skip
    path = tmp_path / "x.chrome_trace"
    path.write_text(json.dumps({"displayTimeUnit": "us", "traceEvents": events}))
    trace = open_trace(path, cache=False)
    assert trace.device_spans.select("start_ns", "dur_ns", "stream").rows() == [
        (0, 5_000, 7),
        (10_000, 5_000, 7),
    ]
    assert analyze.run(trace, "overview").values["gpu_busy_pct"] == pytest.approx(100 * 10 / 15)
    (row,) = analyze.run(trace, "sections").table.to_dicts()
    assert (row["section"], row["device_ns"], row["work_count"], row["work_flops"]) == (
        "step",
        10_000,
        2,
        2e6,
    )


def test_cycles_inside_kernels_of_a_timeline(tmp_path: Path) -> None:
    event = {"name": "load", "cat": "triton", "ph": "X", "ts": 0, "dur": 2.5, "pid": "matmul CTA0", "tid": "warp 0",
             "args": {"call_stack": []}}  # fmt: skip
    path = tmp_path / "x.chrome_trace"
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": [event]}))
    rows = analyze.run(open_trace(path, cache=False), "sections").table.to_dicts()
    assert [(row["section"], row["cycles_count"]) for row in rows] == [
        ("matmul CTA0", None),
        ("matmul CTA0 / load", 2_500),
    ]


@pytest.mark.parametrize("text", ['[{"frame": {}, "metrics": {}, "children": []}, {}]', '[{"frame": 3, "children": [3], "metrics": 5}]',
                                  '[{"children": [], "frame": {"name": "ROOT"}, "metrics": {"time (ns)": 5}'])  # fmt: skip
def test_what_holds_nothing_is_told_in_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError) as told:
        open_trace(tmp_path / "x", cache=False)
    assert "\n" not in str(told.value)


@needs_corpus
def test_a_real_profile_adds_up() -> None:
    """Summed from the JSON itself: the scopes step0 to step2."""
    trace = open_trace(CORPUS / "other" / "proton" / "proton_gpt.hatchet", cache=False)
    sections = analyze.run(trace, "sections").table
    assert dict(sections.select("section", "device_ns").iter_rows()) == {
        "step0": 14_533_162, "step1": 3_160_843, "step2": 3_161_516,
    }  # fmt: skip
    with pytest.raises(MissingDataError, match="needs a timeline"):
        analyze.run(trace, "idle")
    with pytest.raises(MissingDataError, match="no host time to break down"):
        analyze.run(trace, "sections", breakdown=True)
