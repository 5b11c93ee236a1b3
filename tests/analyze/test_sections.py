"""Sections: nested ranges with known answers, the CS336 table rebuilt from its printed numbers, brute force."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.device.device_roles import classified
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(x)"


def by_section(table: pl.DataFrame) -> dict[str, dict[str, object]]:
    return {row["section"]: row for row in table.iter_rows(named=True)}


def test_nested_ranges_and_their_work(tmp_path: Path) -> None:
    recording = Recording()
    recording.annotation("forward", 0, 100)
    recording.annotation("attention", 10, 40)
    recording.annotation("mlp", 50, 90)
    recording.op("aten::mm", 12, 20)
    recording.launch(14, GEMM, 200, 230)
    recording.op("aten::add", 52, 60)
    recording.launch(54, ADD, 230, 235)
    recording.op("aten::add", 92, 98)
    recording.launch(94, ADD, 235, 242)
    recording.op("aten::mm", 110, 120)
    recording.launch(112, GEMM, 250, 258)
    result = analyze.run(recording.open(tmp_path), "sections")
    table = by_section(result.table)
    assert list(table) == ["forward", "forward / attention", "forward / mlp"]
    outer = table["forward"]
    assert (outer["host_ns"], outer["host_exclusive_ns"], outer["calls_count"]) == (100_000, 30_000, 1)
    assert (outer["device_ns"], outer["device_exclusive_ns"], outer["work_count"]) == (42_000, 7_000, 3)
    assert outer["residual_pct"] == pytest.approx(30)
    assert outer["host_pct"] == pytest.approx(100)
    assert (outer["top_kernel"], outer["top_kernel_calls_count"]) == (GEMM, 1)
    assert outer["roles"] == "gemm 71 %, elementwise 29 %"
    assert table["forward / attention"]["host_pct"] == pytest.approx(30)
    assert table["forward / attention"]["device_pct"] == pytest.approx(60)
    assert table["forward / mlp"]["device_ns"] == 5_000
    assert result.values["outside_ns"] == 8_000


def test_a_range_inside_its_own_name_counts_once(tmp_path: Path) -> None:
    """CS336's older table had OPTIMIZER at 544.128 ms: 2 x 272.168 - 0.207, the nested range added again."""
    recording = Recording()
    recording.annotation("OPTIMIZER", 0, 272_168)
    recording.annotation("OPTIMIZER", 100, 272_061)  # 271.961 = 272.168 - 0.207
    recording.annotation("inner", 200, 1_200)
    recording.op("aten::add_", 300, 400)
    recording.launch(310, ADD, 500_000, 500_010)
    for flat in (False, True):
        table = by_section(analyze.run(recording.open(tmp_path), "sections", flat=flat).table)
        row = table["OPTIMIZER"]
        assert (row["host_ns"], row["calls_count"]) == (272_168_000, 2)
        assert row["host_exclusive_ns"] == 271_168_000
        assert (row["device_ns"], row["device_exclusive_ns"]) == (10_000, 0)
        assert set(table) == {"OPTIMIZER", "inner" if flat else "OPTIMIZER / inner"}


# ../seeds/004: milliseconds of the forward pass over 30 steps, as printed.
FORWARD, ATTENTION = 1139.483, 780.154
PARTS = {
    "QKV projections": 220.429,
    "output proj": 59.793,
    "RoPE(Q)": 142.246,
    "RoPE(K)": 126.224,
    "attn_logits (QK^T) + mask": 109.037,
    "attn*V (context)": 89.342,
    "softmax": 22.079,
}


def test_the_cs336_table(tmp_path: Path) -> None:
    recording = Recording()
    recording.annotation("FORWARD", 0, FORWARD * 1000)
    recording.annotation("MHA(total)", 10, 10 + ATTENTION * 1000)
    at = 20.0
    for name, length in PARTS.items():
        recording.annotation(name, at, at + length * 1000)
        at += length * 1000
    table = by_section(analyze.run(recording.open(tmp_path), "sections").table)
    attention = table["FORWARD / MHA(total)"]
    parts = [row for name, row in table.items() if name.count("/") == 2]
    assert len(parts) == 7
    assert sum(row["host_ns"] for row in parts) == 769_150_000  # type: ignore[misc]
    assert attention["host_exclusive_ns"] == 11_004_000
    assert attention["residual_pct"] == pytest.approx(1.41, abs=0.005)
    assert attention["host_pct"] == pytest.approx(68.47, abs=0.005)
    assert table["FORWARD"]["host_exclusive_ns"] == 359_329_000
    linear = [
        table[f"FORWARD / MHA(total) / {name}"]["host_ns"] for name in ("QKV projections", "output proj")
    ]
    assert sum(linear) == 280_222_000  # type: ignore[arg-type]
    assert table["FORWARD / MHA(total) / softmax"]["host_pct"] == pytest.approx(2.83, abs=0.005)
    assert attention["device_ns"] is None


def test_work_of_the_autograd_thread_belongs_to_the_open_range(tmp_path: Path) -> None:
    recording = Recording()
    recording.step(1, 0, 300)
    recording.annotation("forward", 10, 100)
    recording.annotation("backward", 110, 290)
    for at in (50, 150, 295):  # while forward, backward and nothing is open
        recording.op("aten::mm", at, at + 4, thread=200)
        recording.launch(at + 1, GEMM, 1000 + at, 1000 + at + 2, thread=200)
    result = analyze.run(recording.open(tmp_path), "sections")
    table = by_section(result.table)
    assert (table["forward"]["device_ns"], table["backward"]["device_ns"]) == (2_000, 2_000)
    assert result.values["outside_ns"] == 2_000


def test_per_step_values(tmp_path: Path) -> None:
    recording = Recording()
    for number in (1, 2):
        begin = 1000 * number
        recording.step(number, begin, begin + 900)
        recording.annotation("forward", begin + 10, begin + 10 + 100 * number)
        recording.op("aten::mm", begin + 20, begin + 30)
        recording.launch(begin + 22, GEMM, begin + 40, begin + 40 + 10 * number)
    row = by_section(analyze.run(recording.open(tmp_path), "sections").table)["forward"]
    assert (row["host_per_step_ns"], row["device_per_step_ns"]) == (150_000.0, 15_000.0)
    assert (row["host_ns"], row["device_ns"]) == (300_000, 30_000)


def test_the_same_name_in_two_places(tmp_path: Path) -> None:
    recording = Recording()
    recording.annotation("a", 0, 100).annotation("norm", 10, 20)
    recording.annotation("b", 200, 300).annotation("norm", 210, 240)
    trace = recording.open(tmp_path)
    assert list(by_section(analyze.run(trace, "sections").table)) == ["a", "a / norm", "b", "b / norm"]
    flat = by_section(analyze.run(trace, "sections", flat=True).table)
    assert flat["norm"]["host_ns"] == 40_000
    assert flat["norm"]["host_pct"] == pytest.approx(20)


def test_an_argument_named_scope_is_no_scope_of_proton(tmp_path: Path) -> None:
    """torch.compile's events have one."""
    recording = Recording().annotation("forward", 0, 100).op("aten::mm", 10, 20, scope="FUNCTION")
    assert analyze.run(recording.open(tmp_path), "sections").table["section"].to_list() == ["forward"]


def test_without_ranges(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="record_function"):
        analyze.run(Recording().step(1, 0, 10).op("aten::mm", 0, 10).open(tmp_path), "sections")


def brute_inclusive(trace: foretrace.Trace) -> dict[str, int]:
    """Per name: the union of its ranges on each thread, which for nested ranges is the outermost ones' sum."""
    on_device = set(trace.tracks.filter(pl.col("device").is_not_null())["id"])
    total: dict[str, int] = {}
    ranges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in trace.spans.filter(pl.col("kind") == "annotation").to_dicts():
        if row["track_id"] in on_device or row["dur_ns"] is None or row["name"].startswith("ProfilerStep#"):
            continue
        ranges.setdefault((row["name"], row["track_id"]), []).append(
            (row["start_ns"], row["start_ns"] + row["dur_ns"])
        )
    for (name, _), each in ranges.items():
        reach = None
        for start, end in sorted(each, key=lambda one: (one[0], -one[1])):
            if reach is None or start >= reach:
                total[name] = total.get(name, 0) + end - start
                reach = end
            assert end <= reach  # nested, or apart
    return total


@needs_corpus
def test_against_brute_force_on_every_recording() -> None:
    for path in sorted(CORPUS.rglob("*.json*")):
        if "truth" in path.name or "expected" in path.name or "rocprof" in path.parts:
            continue
        trace = foretrace.open(path)
        try:
            result = analyze.run(trace, "sections", flat=True)
        except MissingDataError:
            continue
        host = {name: row["host_ns"] for name, row in by_section(result.table).items()}
        assert host == brute_inclusive(trace), path.name
        work = int(classified(trace)["dur_ns"].sum())
        tree = analyze.run(trace, "sections").table
        if trace.has_device:
            own = int(tree["device_exclusive_ns"].sum())
            assert own + result.values["outside_ns"] == work  # type: ignore[operator]
            assert int(result.table["device_exclusive_ns"].sum()) == own
            assert (tree["device_ns"] <= work).all()
        assert (tree["host_exclusive_ns"] <= tree["host_ns"]).all()
