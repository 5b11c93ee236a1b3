"""rocprofv3's database, CSVs and JSON of the same program give the same tables, worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import polars as pl
import pytest

from foretrace import analyze
from foretrace.commands import main
from foretrace.errors import FormatError, InputError, MissingDataError
from foretrace.ingest import open_trace
from foretrace.ingest.recordings import find_recording
from foretrace.trace import Trace
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.rocprof_files import (
    COPY,
    COUNTED,
    COUNTER,
    KERNEL,
    LAUNCH,
    PROCESS,
    RANGE,
    START,
    THREAD,
    csv_folder,
    csv_tables,
    json_document,
    json_file,
    rocpd_file,
)  # fmt: skip

FORMS = ("csv", "json", "rocpd")


def opened(form: str, folder: Path) -> Trace:
    if form == "csv":
        path = find_recording(csv_folder(folder / "out")).path
    elif form == "json":
        path = json_file(folder)
    else:
        path = rocpd_file(folder / "4711_results.db")
    return open_trace(path, cache=False)


@pytest.mark.parametrize("form", FORMS)
def test_spans_are_linked_and_nested(form: str, tmp_path: Path) -> None:
    trace = opened(form, tmp_path)
    rows = trace.spans.with_columns(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
    assert rows.select("name", "kind", "start_ns", "dur_ns", "depth", "parent_id", "launch_id").rows() == [
        (RANGE, "annotation", 0, 50_000, 0, None, None),
        (LAUNCH, "runtime", 1_000, 4_000, 1, 0, None),
        ("hipMemcpyAsync", "runtime", 6_000, 3_000, 1, 0, None),
        (KERNEL, "kernel", 8_000, 20_000, 0, None, 1),
        (COPY, "copy", 30_000, 4_000, 0, None, 2),
    ]
    assert trace.meta["epoch_ns"] == START
    assert trace.tracks.select("process", "thread", "device", "stream").rows() == [
        (PROCESS, THREAD, None, None),
        (None, None, 0, 1),
    ]


@pytest.mark.parametrize("form", FORMS)
def test_the_grid_is_in_blocks_and_occupancy_estimated(form: str, tmp_path: Path) -> None:
    """4,096 x 4 work-items by 256 are 16 x 4 blocks; 64 blocks of 4 waves on 104 units of 32 waves are 7.69 %."""
    trace = opened(form, tmp_path)
    (row,) = trace.kernels.iter_rows(named=True)
    assert [row[f"grid_{axis}"] for axis in "xyz"] == [16, 4, 1]
    assert [row[f"block_{axis}"] for axis in "xyz"] == [256, 1, 1]
    assert (row["registers"], row["shared_bytes"]) == (128, 0)
    assert row["blocks_per_sm"] == pytest.approx(64 / 104)
    assert row["warps_per_sm"] == pytest.approx(256 / 104)
    assert row["occupancy_pct"] == pytest.approx(100 * 64 / 104 * 4 / 32)
    (device,) = trace.meta["devices"]
    assert (device["name"], device["numSms"], device["maxThreadsPerMultiprocessor"]) == (
        "AMD Instinct MI250X",
        104,
        2048,
    )


@pytest.mark.parametrize("form", FORMS)
def test_copies_and_counters(form: str, tmp_path: Path) -> None:
    trace = opened(form, tmp_path)
    size = None if form == "csv" else 1 << 20  # the CSV does not tell it
    assert trace.copies.select("span_id", "size_bytes", "direction").rows() == [(4, size, "HtoD")]
    args = trace.args.filter(pl.col("key") == COUNTER)
    assert args.select("span_id", "float").rows() == [(3, sum(COUNTED))]


@pytest.mark.parametrize("agent", ["4", '"Agent 4"', '"GPU 0"', '"Agent 1"'])
def test_agents_are_numbers_or_texts(agent: str, tmp_path: Path) -> None:
    """Node 4 is the first GPU, and so is logical node 1."""
    trace = open_trace(csv_folder(tmp_path, agent=agent), cache=False)
    assert trace.device_spans["device"].to_list() == [0, 0]


@pytest.mark.parametrize(("name", "kinds"), [
    ("kernel_trace", {"kernel"}), ("hip_api_trace", {"runtime"}), ("memory_copy_trace", {"copy"}),
    ("marker_api_trace", {"annotation"}), ("counter_collection", {"kernel"}),
])  # fmt: skip
def test_one_table_alone_tells_what_it_can(name: str, kinds: set[str], tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_text(csv_tables()[f"{PROCESS}_{name}.csv"])
    trace = open_trace(path, cache=False)
    assert set(trace.spans["kind"].cast(pl.String)) == kinds
    if kinds == {"kernel"}:
        assert trace.kernels["occupancy_pct"].to_list() == [None]  # the device is not told


def test_counters_alone_have_the_size_of_the_grid(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    path.write_text(csv_tables()[f"{PROCESS}_counter_collection.csv"])
    trace = open_trace(path, cache=False)
    assert trace.kernels.select("grid_x", "grid_y", "block_x").rows() == [(64, 1, 256)]
    assert trace.args.filter(pl.col("key") == COUNTER)["float"].to_list() == [sum(COUNTED)]


def test_capitals_do_not_matter(tmp_path: Path) -> None:
    """`rocpd convert` writes "Vgpr_Count" and a Guid before all."""
    header, rows = csv_tables()[f"{PROCESS}_kernel_trace.csv"].split("\n", 1)
    text = (
        '"Guid",'
        + header.replace("VGPR", "Vgpr").replace("LDS", "Lds").replace("SGPR", "Sgpr")
        + '\n"g",'
        + rows
    )
    (tmp_path / "out_kernel_trace.csv").write_text(text)
    assert open_trace(tmp_path / "out_kernel_trace.csv", cache=False).kernels["registers"].to_list() == [128]


@pytest.mark.slow
def test_statistics_are_sums_without_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = csv_tables()[f"{PROCESS}_kernel_stats.csv"].split("\n", 1)[0]
    path = tmp_path / "kernel_stats.csv"
    path.write_text(f'{header}\n"b",4,8000,2000.0,20,1000,4000,1.0\n"a",2,32000,16000.0,80,15000,17000,1.0\n')
    table = analyze.run(open_trace(path, cache=False), "kernels").table
    assert table.select(
        "name", "calls_count", "total_ns", "total_pct", "mean_ns", "median_ns", "max_ns", "min_ns"
    ).rows() == [
        ("a", 2, 32_000, 80.0, 16_000.0, None, 17_000, 15_000),
        ("b", 4, 8_000, 20.0, 2_000.0, None, 4_000, 1_000),
    ]
    found = analyze.run(open_trace(path, cache=False), "durations", of="kernels").table
    assert found.select(
        "kind", "name", "calls_count", "total_ns", "mean_ns", "median_ns", "max_ns"
    ).rows() == [
        ("kernels", "a", 2, 32_000, 16_000.0, None, 17_000),
        ("kernels", "b", 4, 8_000, 2_000.0, None, 4_000),
    ]
    for command in (
        ["diagnose"],
        ["show", "overview"],
        ["show", "idle"],
        ["predict", "--change", "scale host 0.5"],
    ):
        assert (
            main([*command, str(path)] if command[0] != "predict" else ["predict", str(path), *command[1:]])
            == 4
        )
        assert "holds sums by name" in capsys.readouterr().err


def test_of_several_processes_one_is_read(tmp_path: Path) -> None:
    csv_folder(tmp_path)
    tables = csv_tables(process=5000)
    longer = tables["5000_kernel_trace.csv"].replace(str(START + 28_000), str(START + 29_000))
    for name, text in {**tables, "5000_kernel_trace.csv": longer}.items():
        (tmp_path / "host" / name).write_text(text)
    trace = open_trace(tmp_path, cache=False)
    assert [(each["pid"], each["chosen"]) for each in trace.meta["processes"]] == [
        (5000, True),
        (PROCESS, False),
    ]
    assert trace.spans.height == 5
    assert open_trace(tmp_path, cache=False, pid=PROCESS).device_spans["dur_ns"].to_list() == [20_000, 4_000]


def test_ids_of_merged_databases_are_kept_apart(tmp_path: Path) -> None:
    """Both recordings use the same ids for other things: joins are on the guid too."""
    path = rocpd_file(tmp_path / "merged.db")
    rocpd_file(path, guid="0000bbbb-2", process=5000)
    trace = open_trace(path, cache=False, pid=5000)
    assert [each["pid"] for each in trace.meta["processes"]] == [5000, PROCESS]
    assert trace.spans["launch_id"].to_list() == [None, None, None, 1, 2]


def test_the_environment_is_not_kept(tmp_path: Path) -> None:
    trace = open_trace(rocpd_file(tmp_path / "x.db"), cache=False)
    assert "hunter2" not in str(trace.meta) + str(
        [trace.table(name).to_dicts() for name in ("spans", "args", "tracks")]
    )


def test_a_folder_is_one_recording_from_the_cache_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("foretrace.cache.MIN_SPANS", 1)
    folder = csv_folder(tmp_path / "out")
    first = open_trace(folder)
    again = open_trace(folder)
    assert again.spans.equals(first.spans)
    assert again.format == "rocprofv3-csv"


@pytest.mark.parametrize(("version", "without", "says"), [
    ("9", "", "schema version 9 is not known"), ("3", "kernel_dispatch", ""), ("3", "region", ""), ("3", "event", ""),
    ("3", "info_agent", ""), ("3", "info_process", ""), ("3", "string", ""), ("3", "metadata", ""),
])  # fmt: skip
def test_other_versions_and_missing_tables(version: str, without: str, says: str, tmp_path: Path) -> None:
    """An unknown version is refused; a table that is not there costs only what it holds."""
    path = rocpd_file(tmp_path / "x.db", version=version, without=without)
    if says:
        with pytest.raises(FormatError, match=says):
            open_trace(path, cache=False)
    else:
        assert open_trace(path, cache=False).spans.height >= 2


def test_a_database_without_work_says_what_to_record(tmp_path: Path) -> None:
    path = rocpd_file(tmp_path / "x.db")
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as database:
        for table in ("kernel_dispatch", "region"):
            database.execute(f"delete from rocpd_{table}_0000aaaa_1")
        database.commit()
    with pytest.raises(FormatError, match="record with rocprofv3 --sys-trace"):
        open_trace(path, cache=False)


@pytest.mark.parametrize("text", ['{"rocprofiler-sdk-tool": []}', '{"rocprofiler-sdk-tool": [{}]}',
                                  '{"rocprofiler-sdk-tool": [{"buffer_records": {"hip_api": [[], 5, {}]}}]}',
                                  '{"rocprofiler-sdk-tool": [{"buffer'])  # fmt: skip
def test_json_without_anything_to_read_is_told_in_a_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError) as told:
        open_trace(tmp_path / "x.json", cache=False)
    assert "\n" not in str(told.value)


def test_agents_alone_are_no_recording(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_tables()[f"{PROCESS}_agent_info.csv"])
    with pytest.raises(MissingDataError, match="only agents"):
        open_trace(tmp_path / "a.csv", cache=False)


def test_packed_files_are_read_too(tmp_path: Path) -> None:
    plain = rocpd_file(tmp_path / "x.db")
    (tmp_path / "x.db.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(json.dumps(json_document()).encode()))
    for name in ("x.db.gz", "x.json.gz"):
        assert open_trace(tmp_path / name, cache=False).spans.height == 5


@needs_corpus
def test_a_real_recording_of_an_mi350x() -> None:
    """Counted from the JSON itself: 43,915 dispatches, RCCL's kernel alone 4,158,756,678 ns."""
    trace = open_trace(CORPUS / "peers" / "rocprof" / "908_results.json.gz", cache=False)
    assert trace.kernels.height == 43_915
    table = analyze.run(trace, "kernels").table
    assert table.row(0, named=True)["total_ns"] == 4_158_756_678
    assert trace.kernels["occupancy_pct"].null_count() == 0
    assert max(trace.kernels["occupancy_pct"]) <= 100


@pytest.mark.slow
def test_a_folder_compares_with_a_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, database = csv_folder(tmp_path / "out"), rocpd_file(tmp_path / "x.db")
    assert main(["compare", str(folder), str(database), "--no-cache"]) == 0
    assert "same" in capsys.readouterr().out


def test_counters_without_times_are_named(tmp_path: Path) -> None:
    """ROCm documents this older form: kernels and counters, and no timestamps."""
    path = tmp_path / "1_counter_collection.csv"
    path.write_text(
        '"Dispatch_Id","Agent_Id","Kernel_Name","Counter_Name","Counter_Value"\n1,1,"add",SQ_WAVES,16\n'
    )
    with pytest.raises(MissingDataError, match="counters of kernels without start and end times"):
        open_trace(path, cache=False)
