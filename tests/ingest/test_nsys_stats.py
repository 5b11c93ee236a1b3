"""Tables of `nsys stats`: seed 4's whole table from CSVs rebuilt from its printed numbers, in any spelling of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

import foretrace
from foretrace import analyze
from foretrace.commands import main
from foretrace.errors import ForetraceError, FormatError, MissingDataError, UsageError
from foretrace.ingest.nsys_stats import accepts, siblings
from foretrace.ingest.recordings import find_recording

pytestmark = pytest.mark.fast
STEPS, LAYERS = 30, 24
# Milliseconds over 30 steps, as the CS336 report prints them, and how often each range ran.
RANGES = {
    "BACKWARD": (1782.316, STEPS), "FORWARD": (1139.483, STEPS), "MHA(total)": (780.154, STEPS * LAYERS),
    "OPTIMIZER": (272.168, STEPS), "OPTIMIZER.step": (272.168 - 0.207, STEPS), "QKV projections": (220.429, STEPS * LAYERS),
    "RoPE(Q)": (142.246, STEPS * LAYERS), "RoPE(K)": (126.224, STEPS * LAYERS),
    "attn_logits (QK^T) + mask": (109.037, STEPS * LAYERS), "attn*V (context)": (89.342, STEPS * LAYERS),
    "output proj": (59.793, STEPS * LAYERS), "softmax": (22.079, STEPS * LAYERS),
}  # fmt: skip
KERNELS = {
    "Kernel2": (1004.806, 19_530),
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": (963.182, 60),
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>": (602.932, 30),
    "softmax_warp_backward": (72.982, 30), "softmax_warp_forward": (31.417, 30),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": (35.158, 30), "something_else": (2.243, 30),
}  # fmt: skip


def table(
    rows: dict[str, tuple[float, int]], calls: str, name: str, *, unit: str = "ns", prefix: str = ""
) -> str:
    """As nsys prints it; `unit` is that of the header."""
    each = {"ns": 1e6, "us": 1e3, "ms": 1, "s": 1e-3}[unit]
    total = sum(time for time, _ in rows.values())
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        [
            "Time (%)",
            f"Total Time ({unit})",
            calls,
            *(f"{each} ({unit})" for each in ("Avg", "Med", "Min", "Max", "StdDev")),
            name,
        ]
    )
    for text_, (time, count) in rows.items():
        shown = round(time * each) if unit == "ns" else f"{time * each:.9f}"
        mean = f"{time * each / count:.1f}"
        writer.writerow(
            [f"{100 * time / total:.1f}", shown, count, mean, mean, mean, mean, "0.0", prefix + text_]
        )
    return text.getvalue()


def seed_4(
    folder: Path,
    *,
    unit: str = "ns",
    kernels: str = "_cuda_gpu_kern_sum_base.csv",
    ranges: str = "_nvtx_pushpop_sum.csv",
) -> Path:
    """The CSVs of the report's recording; the path of one of them."""
    (folder / f"nsys_train{kernels}").write_text(table(KERNELS, "Instances", "Name", unit=unit))
    (folder / f"nsys_train{ranges}").write_text(table(RANGES, "Instances", "Range", unit=unit, prefix=":"))
    return folder / f"nsys_train{ranges}"


def check(path: Path) -> None:
    """The report's table, row by row."""
    trace = foretrace.open(path)
    result = analyze.run(trace, "sections")
    rows = {(row["part"], row["metric"]): row for row in result.table.iter_rows(named=True)}

    def total(part: str, metric: str) -> float:
        return round(rows[part, metric]["total_ns"] / 1e6, 3)

    def share(part: str, metric: str) -> float:
        return float(rows[part, metric]["share_pct"])

    assert rows["run", "steps"]["calls_count"] == 30
    assert total("ranges", "FORWARD") == 1139.483
    assert rows["ranges", "FORWARD"]["per_step_ns"] / 1e6 == pytest.approx(37.983, abs=5e-4)
    assert total("ranges", "BACKWARD") == 1782.316
    assert rows["ranges", "BACKWARD"]["per_step_ns"] / 1e6 == pytest.approx(59.411, abs=5e-4)
    assert total("ranges", "OPTIMIZER") == 272.168, "not 544.128: what is inside is not added again"
    assert total("ranges", "OPTIMIZER (exclusive)") == 0.207
    assert total("MHA(total)", "MHA(total)") == 780.154
    assert share("MHA(total)", "MHA(total)") == pytest.approx(68.47, abs=0.005)
    assert rows["MHA(total)", "MHA(total)"]["share_of"] == "FORWARD"
    printed = {"QKV projections": 28.25, "output proj": 7.66, "RoPE(Q)": 18.23, "RoPE(K)": 16.18,
               "attn_logits (QK^T) + mask": 13.98, "attn*V (context)": 11.45, "softmax": 2.83}  # fmt: skip
    for name, percent in printed.items():
        assert total("MHA(total)", name) == RANGES[name][0]
        assert share("MHA(total)", name) == pytest.approx(percent, abs=0.006)
        assert rows["MHA(total)", name]["share_of"] == "MHA(total)"
    parts = sum(rows["MHA(total)", name]["total_ns"] for name in printed)
    assert round(parts / 1e6, 3) == 769.150
    assert total("MHA(total)", "MHA(total): residual") == 11.004
    assert share("MHA(total)", "MHA(total): residual") == pytest.approx(1.41, abs=0.005)
    assert total("MHA(total)", "MHA(total): projections together") == 280.222
    assert share("MHA(total)", "MHA(total): projections together") == pytest.approx(35.9, abs=0.05)
    assert total("MHA(total)", "FORWARD without MHA(total)") == 359.329
    assert share("MHA(total)", "FORWARD without MHA(total)") == pytest.approx(31.5, abs=0.05)
    assert total("kernels", "all kernels") == 2712.720
    assert rows["kernels", "all kernels"]["per_step_ns"] / 1e6 == pytest.approx(90.424, abs=5e-4)
    categories = {"matmul": (1004.806, 37.04), "elementwise": (963.182, 35.51), "optimizer/multi_tensor": (602.932, 22.23),
                  "softmax (bwd)": (72.982, 2.69), "softmax (fwd)": (31.417, 1.16), "reduction": (35.158, 1.30),
                  "other": (2.243, 0.08)}  # fmt: skip
    for name, (time, percent) in categories.items():
        assert total("kernels", name) == time
        assert share("kernels", name) == pytest.approx(percent, abs=0.005)
    assert total("top kernel", "Kernel2") == 1004.806
    assert rows["top kernel", "Kernel2"]["calls_count"] == 19_530 == STEPS * 3 * (LAYERS * 9 + 1)
    assert "told by their names" in result.notes[0]


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_seed_4_from_tables_in_any_unit(tmp_path: Path, unit: str) -> None:
    check(seed_4(tmp_path, unit=unit))


@pytest.mark.parametrize(
    ("kernels", "ranges"),
    [
        ("_cuda_gpu_kern_sum.csv_cuda_gpu_kern_sum.csv", "_nvtx_pushpop_sum.csv_nvtx_pushpop_sum.csv"),
        ("_gpukernsum.csv", "_nvtxppsum.csv"),
    ],
)
def test_seed_4_under_other_names(tmp_path: Path, kernels: str, ranges: str) -> None:
    path = seed_4(tmp_path, kernels=kernels, ranges=ranges)
    check(path)
    assert set(siblings(path)) == set(tmp_path.iterdir())
    assert find_recording(tmp_path).path == tmp_path, "the folder means them all"
    check(tmp_path)


def test_seed_4_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "sections", str(seed_4(tmp_path)), "--limit", "0"]) == 0
    shown = capsys.readouterr().out
    for text in ("FORWARD", "1.14 s", "MHA(total): residual", "11.0 ms", "1.4 %", "Kernel2", "19,530"):
        assert text in shown, text


def test_lines_before_the_table_and_old_headers(tmp_path: Path) -> None:
    """`--output @"tee ..."` leaves what nsys says of its work; before 2021.5 columns were named in full."""
    path = tmp_path / "old.csv"
    path.write_text(
        "Processing [x.sqlite] with [/reports/gpukernsum.py]... \n\n"
        '"Time(%)","Total Time (ns)","Instances","Average","Minimum","Maximum","Name"\n'
        '75.0,300,2,150.0,100,200,"a, b"\n25.0,100,1,100.0,100,100,c\n\n'
    )
    found = analyze.run(foretrace.open(path), "durations").table
    columns = ("kind", "name", "calls_count", "total_ns", "min_ns", "max_ns")
    assert found.select(columns).rows() == [
        ("kernels", "a, b", 2, 300, 100, 200),
        ("kernels", "c", 1, 100, 100, 100),
    ]


def test_names_that_do_not_fit_are_not_nested(tmp_path: Path) -> None:
    """A range named like a part of attention that takes longer than attention is not inside it."""
    rows = {"forward": (10.0, 3), "attention": (5.0, 3), "softmax": (7.0, 3)}
    path = tmp_path / "nvtx_sum.csv"
    path.write_text(table(rows, "Instances", "Range"))
    found = analyze.run(foretrace.open(path), "sections").table
    assert found.select("part", "metric", "total_ns").rows() == [
        ("run", "steps", None), ("ranges", "forward", 10_000_000), ("ranges", "forward (exclusive)", 5_000_000),
        ("ranges", "softmax", 7_000_000), ("forward", "attention", 5_000_000),
    ]  # fmt: skip


def test_what_totals_cannot_tell_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = seed_4(tmp_path)
    with pytest.raises(MissingDataError, match="overview needs a timeline"):
        analyze.run(foretrace.open(path), "overview")
    assert main(["show", "idle", str(path)]) == 4
    assert "nsys export --type sqlite" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n",
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\nx,y,z,w,name\n",
        'Time (%),Total Time (ns),Instances,Avg (ns),Name\n1.0,nan,1,1,"\x00name\n',
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n1.0,1e300,1,1,name\n",
    ],
)
def test_tables_without_a_sound_row_are_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(text)
    with pytest.raises(FormatError, match="without a row that can be read"):
        foretrace.open(path)
    assert main(["show", "sections", str(path)]) == 3
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", "Name,Total Time\nx,3\n", "Time,Total Time (ns)\n"])
def test_other_csvs_are_no_tables_of_nsys(text: str, tmp_path: Path) -> None:
    assert not accepts(text.encode())
    path = tmp_path / "some.csv"
    path.write_text(text)
    with pytest.raises(ForetraceError, match="not a recording that Foretrace knows"):
        foretrace.open(path)


def test_kernels_are_shown_with_what_the_table_tells(tmp_path: Path) -> None:
    path = tmp_path / "x_cuda_gpu_kern_sum.csv"
    path.write_text(
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
        "75.0,300,2,150.0,140.0,100,200,70.7,a\n25.0,100,1,100.0,100.0,100,100,0.0,b\n"
    )
    result = analyze.run(foretrace.open(path), "kernels")
    columns = ("name", "calls_count", "total_ns", "total_pct", "median_ns", "deviation_ns", "max_ns")
    assert result.table.select(columns).rows() == [
        ("a", 2, 300, 75.0, 140.0, 70.7, 200),
        ("b", 1, 100, 25.0, 100.0, 0.0, 100),
    ]
    assert result.notes == ("sums by name, without a timeline: launch geometry is not known",)


def test_a_table_that_is_added_later_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "x_nvtx_pushpop_sum.csv"
    path.write_text(table({"forward": (10.0, 3)}, "Instances", "Range"))
    assert analyze.run(foretrace.open(path), "durations").table["kind"].to_list() == ["ranges"]
    (tmp_path / "x_cuda_gpu_kern_sum.csv").write_text(table({"k": (5.0, 3)}, "Instances", "Name"))
    assert analyze.run(foretrace.open(path), "durations").table["kind"].to_list() == ["kernels", "ranges"]


def test_a_folder_with_tables_of_two_recordings_asks_for_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}_nvtx_pushpop_sum.csv").write_text(table({"f": (1.0, 1)}, "Instances", "Range"))
    with pytest.raises(UsageError, match="2 recordings in this folder, name one"):
        find_recording(tmp_path)
