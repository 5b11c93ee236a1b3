"""Chrome traces of XProf, as JAX writes them: made by hand, in its format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from foretrace import analyze
from foretrace.errors import InputError
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import is_recording
from foretrace.trace import Trace


def named(kind: str, pid: int, tid: int | None, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "pid": pid,
        "name": kind,
        "args": {"name": name},
        **({} if tid is None else {"tid": tid}),
    }


def span(pid: int, tid: int, ts: float, dur: float, name: str, **args: str) -> dict[str, Any]:
    return {"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args}


DETAILS = "regs:32 static_shared:16 dynamic_shared:48 grid:10,2,1 block:128,1,1 occ_pct:75"
GPU = [
    named("process_name", 1, None, "/device:GPU:0"),
    named("thread_name", 1, 13, "Stream #13(Compute)"),
    named("thread_name", 1, 14, "Stream #14(MemcpyH2D)"),
    named("thread_name", 1, 99, "XLA Modules"),
    named("process_name", 701, None, "/host:CPU"),
    named("thread_name", 701, 5, "python"),
    span(701, 5, 0, 100, "train", step_num="3"),
    span(701, 5, 1, 90, "PjitFunction(step)"),
    span(701, 5, 10, 4, "cuLaunchKernel", correlation_id="21"),
    span(701, 5, 20, 2, "$model.py:12 forward"),
    span(
        1,
        13,
        30,
        40,
        "loop_add_fusion",
        correlation_id="21",
        hlo_op="fusion.3",
        hlo_module="jit_step",
        kernel_details=DETAILS,
    ),
    span(
        1,
        14,
        75,
        5,
        "MemcpyH2D",
        correlation_id="22",
        memcpy_details="kind_src:pinned kind_dst:device size:4096 dest:0 async:1",
    ),
    span(1, 99, 30, 50, "jit_step"),
    {},
]


def opened(folder: Path, events: list[dict[str, Any]], *, packed: bool = True) -> Trace:
    text = json.dumps(
        {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    ).encode()
    path = folder / "host.trace.json.gz"
    path.write_bytes(gzip.compress(text) if packed else text)
    return open_trace(path, cache=False)


def test_kernels_copies_and_the_host(tmp_path: Path) -> None:
    trace = opened(tmp_path, GPU)
    rows = trace.spans.with_columns(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
    assert rows.select("name", "kind", "start_ns", "dur_ns", "depth", "launch_id").rows() == [
        ("train", "annotation", 0, 100_000, 0, None),
        ("PjitFunction(step)", "annotation", 1_000, 90_000, 1, None),
        ("cuLaunchKernel", "runtime", 10_000, 4_000, 2, None),
        ("$model.py:12 forward", "python", 20_000, 2_000, 2, None),
        ("loop_add_fusion", "kernel", 30_000, 40_000, 0, 2),
        ("MemcpyH2D", "copy", 75_000, 5_000, 0, None),
    ]
    (kernel,) = trace.kernels.iter_rows(named=True)
    assert [kernel[f"grid_{axis}"] for axis in "xyz"] == [10, 2, 1]
    assert (kernel["registers"], kernel["shared_bytes"], kernel["occupancy_pct"]) == (32, 64, 75.0)
    assert trace.copies.select("size_bytes", "direction").rows() == [(4096, "HtoD")]
    assert dict(trace.args.filter(span_id=4).select(pl.col("key").cast(pl.String), pl.col("text").cast(pl.String)).iter_rows()) == {
        "hlo_op": "fusion.3", "hlo_module": "jit_step",
    }  # fmt: skip


def test_overview_and_kernels(tmp_path: Path) -> None:
    trace = opened(tmp_path, GPU)
    assert analyze.run(trace, "kernels").table["name"].cast(pl.String).to_list() == ["loop_add_fusion"]
    assert analyze.run(trace, "overview").values["devices"] == "GPU 0 (XProf names none)"


def test_a_tpu_is_read_by_its_ops(tmp_path: Path) -> None:
    events = [
        named("process_name", 3, None, "/device:TPU:1"),
        named("thread_name", 3, 2, "XLA Ops"),
        named("thread_name", 3, 1, "Steps"),
        span(3, 1, 0, 50, "5"),
        span(3, 2, 0, 20, "fusion.1"),
        span(3, 2, 25, 25, "convolution.2"),
    ]
    trace = opened(tmp_path, events, packed=False)
    assert trace.device_spans.select(pl.col("name").cast(pl.String), "device", "dur_ns").rows() == [
        ("fusion.1", 1, 20_000),
        ("convolution.2", 1, 25_000),
    ]


def test_it_is_not_taken_for_torch(tmp_path: Path) -> None:
    trace = opened(tmp_path, GPU)
    assert trace.format == "xprof"
    assert is_recording(trace.path)


@pytest.mark.parametrize("text", ['{"metadata": {"highres-ticks": true}, "traceEvents": []}',
                                  '{"metadata": {"highres-ticks": true}, "traceEvents": [{"ph": "X", "ts": "x"}, 4]}',
                                  '{"metadata": {"highres-ticks": true}, "traceEvents": [{"ph"'])  # fmt: skip
def test_what_holds_nothing_is_told_in_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError) as told:
        open_trace(tmp_path / "x", cache=False)
    assert "\n" not in str(told.value)
