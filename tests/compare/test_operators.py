"""Operators of two recordings, matched by module, name, shapes and order."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from foretrace.compare.operators import matched, operators
from foretrace.compare.traces import compare
from tests.builders import Recording
from tests.compare.recorded import ADD, GEMM, steps


def side(*rows: tuple[str, str, str, float]) -> pl.DataFrame:
    """Operators in order: module, name, shapes, nanoseconds."""
    schema = {"module": pl.String, "op": pl.String, "shapes": pl.String, "ns": pl.Float64}
    made = pl.DataFrame(list(rows), schema=schema, orient="row").with_row_index("at")
    nothing = pl.lit(None, pl.String)
    return made.with_columns(
        pl.col("at").cast(pl.Int64), role=pl.lit("gemm"), kernel=nothing, count=pl.lit(1.0)
    )


def pairs(before: pl.DataFrame, after: pl.DataFrame) -> set[tuple[str, str, float | None, float | None]]:
    columns = ("change", "op", "before_ns", "after_ns")
    return set(matched(before, after).select(columns).iter_rows())


def test_module_and_shapes_tell_which_is_which() -> None:
    before = side(("a", "mm", "[1]", 10), ("b", "mm", "[1]", 20), ("b", "mm", "[2]", 30))
    after = side(("b", "mm", "[2]", 33), ("b", "mm", "[1]", 22), ("a", "mm", "[1]", 11))
    assert pairs(before, after) == {("kept", "mm", 10, 11), ("kept", "mm", 20, 22), ("kept", "mm", 30, 33)}


def test_other_shapes_and_other_modules_match_what_is_left_in_order() -> None:
    before = side(("a", "mm", "[1]", 10), ("a", "mm", "[2]", 20), ("b", "add", "[1]", 30))
    after = side(("a", "mm", "[4]", 11), ("a", "mm", "[8]", 21), ("c", "add", "[1]", 31))
    assert pairs(before, after) == {("kept", "mm", 10, 11), ("kept", "mm", 20, 21), ("kept", "add", 30, 31)}


def test_what_has_no_partner_was_added_or_removed() -> None:
    before, after = side(("a", "softmax", "[1]", 10)), side(("a", "flash", "[1]", 4))
    assert pairs(before, after) == {("removed", "softmax", 10, None), ("added", "flash", None, 4)}
    assert matched(before, after)["difference_ns"].to_list() == [-10, 4]


def test_per_step_with_shapes(tmp_path: Path) -> None:
    found = operators(steps((1_000.0,) * 4, adds=2).open(tmp_path))
    rows = {op: (count, ns) for op, count, ns in found.select("op", "count", "ns").iter_rows()}
    assert rows == {"aten::mm": (1, pytest.approx(1e6)), "aten::add": (2, pytest.approx(2e5))}
    assert found["shapes"].null_count() == 0


@pytest.mark.slow
def test_two_devices_are_compared_by_operator_not_by_kernel(tmp_path: Path) -> None:
    def made(device: str, kernel: str, length: float) -> Recording:
        recording = Recording(deviceProperties=[{"id": 0, "name": device}])
        for number in range(2):
            at = 1_000.0 * number
            recording.step(number, at, at + 900)
            recording.op("aten::mm", at + 5, at + 30, **{"External id": number + 1})
            recording.launch(at + 10, kernel, at + 40, at + 40 + length)
        return recording

    nvidia = made("NVIDIA H100", GEMM, 100).open(tmp_path, "h100.json")
    amd = made("AMD Instinct MI300X", "Cijk_Alik_Bljk_BBS_BH_MT128x128x32_MI16x16x16x1", 150).open(
        tmp_path, "mi300.json"
    )
    found = compare(nvidia, amd)
    (row,) = found.kernels.to_dicts()
    assert (row["op"], row["role"]) == ("aten::mm", "gemm")
    assert (row["a_kernel"], row["b_kernel"][:4]) == (GEMM, "Cijk")
    assert row["difference_ns"] == pytest.approx(50_000)
    assert any("different devices" in note for note in found.notes)
    same = compare(nvidia, nvidia)
    assert same.kernels["name"].to_list() == [GEMM]
    assert ADD not in same.kernels["name"]
