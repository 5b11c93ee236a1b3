"""Exports of Nsight Systems: the same tables, findings and predictions as of Kineto's file of the same spans."""

from __future__ import annotations

import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze, schema
from foretrace.commands import main
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.errors import ForetraceError, FormatError, MissingDataError, UsageError
from foretrace.ingest import column_files, sqlite_native
from foretrace.ingest.recordings import find_recording
from tests.builders import Recording
from tests.diagnose.loops import H200, item
from tests.ingest.nsys_exports import Export, of_recording, process_id, thread_id

pytestmark = pytest.mark.fast
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)"
SHAPES = [[64, 128], [128, 32]]


def training() -> Recording:
    """Three steps: products with shapes, a range around them, a backward thread, a pageable copy and a wait."""
    recording = Recording(deviceProperties=[H200])
    geometry = {"grid": [132, 2, 1], "block": [256, 1, 1], "registers per thread": 40, "shared memory": 1024}
    geometry |= {"blocks per SM": 2.0, "warps per SM": 16.0}
    for number in range(3):
        at = number * 4_000.0
        recording.step(number, at, at + 4_000).annotation("forward", at + 10, at + 1_000)
        for place in range(8):
            begin = at + 20 + 100 * place
            op = {"Input Dims": SHAPES, "Sequence number": 100 * number + place}
            recording.op("aten::linear", begin, begin + 60, **op).op("aten::mm", begin + 5, begin + 55, **op)
            recording.launch(begin + 10, GEMM, begin + 30, begin + 110, **geometry)
        recording.op("aten::add", at + 1_100, at + 1_200, thread=200, **{"Input Dims": [[64, 32], [64, 32]]})
        recording.launch(at + 1_110, ADD, at + 1_130, at + 1_330, thread=200, **geometry)
        recording.op("aten::copy_", at + 1_400, at + 1_900)
        recording.launch(
            at + 1_410, "Memcpy HtoD (Pageable -> Device)", at + 1_420, at + 1_890, category="gpu_memcpy", call=480, bytes=1 << 20
        )  # fmt: skip
        recording.launch(
            at + 1_910, "Memset (Device)", at + 1_920, at + 1_925, category="gpu_memset", bytes=4096
        )
        item(recording, at + 2_000, at + 3_900)
        recording.launch(at + 1_930, GEMM, at + 1_950, at + 3_890, **geometry)
    return recording


@pytest.fixture
def twins(tmp_path: Path) -> tuple[foretrace.Trace, foretrace.Trace]:
    recording = training()
    exported = of_recording(recording).write(tmp_path / "trace.sqlite")
    return recording.open(tmp_path), foretrace.open(exported, cache=False)


def spans_of(trace: foretrace.Trace) -> pl.DataFrame:
    """The spans, with their track by what it is: the tracks' numbers are of no meaning."""
    tracks = trace.tracks.select(pl.col("id").alias("track_id"), "process", "device", "stream", "thread")
    named = trace.spans.with_columns(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
    return named.join(tracks, on="track_id", how="left", maintain_order="left").drop("track_id")


def test_the_tables_are_the_same(twins: tuple[foretrace.Trace, foretrace.Trace]) -> None:
    kineto, nsys = twins
    assert nsys.format == "nsys"
    assert spans_of(nsys).equals(spans_of(kineto))
    assert nsys.spans["launch_id"].drop_nulls().len() == 36
    for table in ("kernels", "copies"):
        assert nsys.table(table).equals(kineto.table(table)), table
    columns = ("span_id", "sequence", "forward_id", "module_id")
    assert nsys.ops.select(columns).equals(kineto.ops.select(columns))
    assert nsys.ops["shapes"].cast(pl.String).to_list() == kineto.ops["shapes"].cast(pl.String).to_list()
    assert nsys.ops["shapes"][0] == "[[64, 128], [128, 32]]"
    assert nsys.steps == kineto.steps
    assert nsys.meta["devices"] == kineto.meta["devices"]
    for table in schema.TABLES:
        assert nsys.table(table).schema == kineto.table(table).schema, table


@pytest.mark.slow
def test_columns_in_files_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a large export: some rows at a time, columns mapped, device work of another process left out."""
    exports = [of_recording(training()), two_processes()]
    paths = [export.write(tmp_path / f"{place}.sqlite") for place, export in enumerate(exports)]
    plain = [foretrace.open(path, cache=False) for path in paths]
    monkeypatch.setattr(column_files, "LEAST_BYTES", 1)
    monkeypatch.setattr(column_files, "BLOCK_ROWS", 8)
    monkeypatch.setattr(sqlite_native, "_ROWS", 5)
    for path, expected in zip(paths, plain, strict=True):
        trace = foretrace.open(path, cache=False)
        assert (trace.meta, trace.repairs) == (expected.meta, expected.repairs)
        for table in schema.TABLES:
            assert trace.table(table).equals(expected.table(table)), table


@pytest.mark.slow
@pytest.mark.slow
def test_findings_and_predictions_are_the_same(twins: tuple[foretrace.Trace, foretrace.Trace]) -> None:
    kineto, nsys = (diagnose(Case(trace), RULES) for trace in twins)
    assert [found.rule for found in kineto.findings], "there is something to find"
    assert [(found.rule, found.says, dict(found.evidence)) for found in nsys.findings] == [
        (found.rule, found.says, dict(found.evidence)) for found in kineto.findings
    ]
    assert [found.predicted for found in nsys.findings] == [found.predicted for found in kineto.findings]
    assert any(found.predicted for found in kineto.findings)


@pytest.mark.parametrize(
    "analysis", ["overview", "steps", "kernels", "launches", "idle", "syncs", "sections", "operators"]
)
def test_analyses_are_the_same(twins: tuple[foretrace.Trace, foretrace.Trace], analysis: str) -> None:
    kineto, nsys = (foretrace.analyze.run(trace, analysis) for trace in twins)
    assert nsys.values == kineto.values
    assert nsys.table.equals(kineto.table)


@pytest.mark.slow
def test_a_folder_of_tables_is_the_same(tmp_path: Path) -> None:
    export = of_recording(training())
    whole = spans_of(foretrace.open(export.write(tmp_path / "trace.sqlite"), cache=False))
    for kind in ("parquet", "arrow"):
        folder = tmp_path / f"trace_{kind}dir"
        folder.mkdir()
        with closing(sqlite3.connect(tmp_path / "trace.sqlite")) as database:
            for table in export.rows:
                frame = pl.read_database(f"select * from {table}", database, infer_schema_length=None)
                file = folder / f"{table}.{kind}"
                frame.write_parquet(file) if kind == "parquet" else frame.write_ipc(file)
        assert find_recording(folder).path == folder
        assert spans_of(foretrace.open(folder)).equals(whole)
        assert main(["show", "overview", str(folder)]) == 0
        (folder / f"NVTX_EVENTS.{kind}").write_bytes(b"PAR1 not a table")
        with pytest.raises(ForetraceError, match=f"NVTX_EVENTS.{kind}: cannot be read"):
            foretrace.open(folder)


def test_a_compressed_export_is_read(tmp_path: Path) -> None:
    path = of_recording(training()).write(tmp_path / "trace.sqlite")
    packed = tmp_path / "packed.sqlite.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert spans_of(foretrace.open(packed, cache=False)).equals(spans_of(foretrace.open(path, cache=False)))


def two_processes() -> Export:
    """Two processes that use one correlation id; the second has more device work, and device 1."""
    export = Export()
    for process, end in ((100, 60), (300, 90)):
        thread = thread_id(process, process)
        export.call("cudaLaunchKernel", 10, 12, 5, thread=thread).range("step", 0, 50, thread=thread)
        export.kernel(f"kernel{process}", 20, end, 5, process=process_id(process), device=int(process == 300))
    return export


def test_one_process_is_read_and_links_stay_in_it(tmp_path: Path) -> None:
    path = two_processes().write(tmp_path / "two.sqlite")
    trace = foretrace.open(path, cache=False)
    (kernel,) = trace.kernel_spans.iter_rows(named=True)
    assert kernel["name"] == "kernel300"
    launch = trace.spans.row(kernel["launch_id"], named=True)
    assert trace.tracks["process"][launch["track_id"]] == 300
    assert [
        (process["pid"], process["device_ns"], process["chosen"]) for process in trace.meta["processes"]
    ] == [
        (300, 70, True),
        (100, 40, False),
    ]
    assert [repair.code for repair in trace.repairs] == ["other-processes"]
    other = foretrace.open(path, cache=False, pid=100)
    assert other.kernel_spans["name"].to_list() == ["kernel100"]
    with pytest.raises(UsageError, match="no process 7 in it; there are: "):
        foretrace.open(path, cache=False, pid=7)


def test_graphs_that_were_recorded_as_a_whole_are_busy_and_told(tmp_path: Path) -> None:
    export = Export().call("cudaGraphLaunch", 0, 10, 1)
    export.work("GRAPH_TRACE", 20, 1020, 1, graphId=3, graphExecId=4)
    trace = foretrace.open(export.write(tmp_path / "graph.sqlite"), cache=False)
    assert trace.kernel_spans.select("name", "dur_ns", "launch_id", "graph_id").row(0) == (
        "CUDA graph 3",
        1000,
        0,
        3,
    )
    notes = foretrace.analyze.run(trace, "trust").table
    (said,) = notes.filter(pl.col("code") == "graphs-whole")["says"]
    assert "--cuda-graph-trace=node" in said


def test_registered_texts_domains_and_unclosed_ranges(tmp_path: Path) -> None:
    export = Export()
    export.add("NVTX_EVENTS", start=0, eventType=75, text="NCCL", domainId=9, globalTid=thread_id(100))
    registered = export.text("allreduce")
    export.add(
        "NVTX_EVENTS", start=5, end=9, eventType=59, textId=registered, domainId=9, globalTid=thread_id(100)
    )
    export.add(
        "NVTX_EVENTS", start=6, end=None, eventType=59, text="open", domainId=0, globalTid=thread_id(100)
    )
    export.range("whole", 1, 20, kind=60).range("mark", 7, 7, kind=34)
    trace = foretrace.open(export.write(tmp_path / "nvtx.sqlite"), cache=False)
    found = trace.spans.select(pl.col("name").cast(pl.String), "start_ns", "dur_ns", "depth").rows()
    assert found == [("whole", 0, 19, 0), ("NCCL:allreduce", 4, 4, 1)]


def test_older_schemas_lack_columns_and_tables(tmp_path: Path) -> None:
    """Schema 2 has neither shared memory nor a process in some tables: null, and linked all the same."""
    export = Export("2.4.1").call("cudaLaunchKernel", 0, 10, 1).kernel("kernel", 20, 30, 1)
    columns = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "deviceId", "streamId", "correlationId", "shortName", "demangledName"),
    }  # fmt: skip
    trace = foretrace.open(export.write(tmp_path / "old.sqlite", columns=columns), cache=False)
    assert trace.kernel_spans.select("name", "launch_id", "grid_x", "shared_bytes").row(0) == (
        "kernel",
        0,
        None,
        None,
    )


def test_environment_variables_are_read_into_nothing(tmp_path: Path) -> None:
    secret = "hunter2-very-secret"
    export = of_recording(training())
    export.add("META_DATA_CAPTURE", name="ENVIRONMENT:DATABASE_PASSWORD", value=secret)
    trace = foretrace.open(export.write(tmp_path / "trace.sqlite"), cache=False)
    assert secret not in repr(trace.meta)
    for table in schema.TABLES:
        frame = trace.table(table).with_columns(pl.selectors.categorical().cast(pl.String))
        texts = frame.select(pl.selectors.string())
        assert not any(secret in str(text) for row in texts.iter_rows() for text in row), table


def test_a_secret_in_a_range_is_masked(tmp_path: Path) -> None:
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    export = Export().range(f"upload {token}", 0, 10)
    trace = foretrace.open(export.write(tmp_path / "trace.sqlite"), cache=False)
    assert token not in str(trace.spans["name"].cast(pl.String).to_list())
    assert trace.meta["masked_texts"] == 1


def test_what_is_missing_is_told_as_nsys_records_it(tmp_path: Path) -> None:
    trace = foretrace.open(Export().range("step", 0, 10).write(tmp_path / "trace.sqlite"), cache=False)
    with pytest.raises(
        MissingDataError, match=r"no kernels recorded; record with `nsys profile --trace=cuda,nvtx`"
    ):
        foretrace.analyze.run(trace, "kernels")
    notes = foretrace.analyze.run(trace, "trust").table["says"].to_list()
    assert any("Python stacks are not recorded by nsys" in note for note in notes)
    assert not any("need with_stack=True" in note for note in notes)


def nameless() -> Export:
    """Kernels whose names are nowhere."""
    export = Export().kernel("kernel", 0, 10, 1)
    del export.rows["StringIds"]
    return export


@pytest.mark.parametrize(
    ("export", "said"),
    [
        (Export("4.0.0").range("step", 0, 10), "schema 4.0.0; Foretrace reads 2 and 3"),
        (Export("1.2").range("step", 0, 10), "schema 1.2; Foretrace reads 2 and 3"),
        (Export().add("StringIds", id=1, value="x"), "without CUDA calls, kernels or NVTX ranges"),
        (nameless(), "without its table StringIds"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    export: Export, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = export.write(tmp_path / "trace.sqlite")
    with pytest.raises(FormatError, match=said.replace("(", r"\(")):
        foretrace.open(path, cache=False)
    assert main(["show", "overview", str(path)]) == 3
    printed = capsys.readouterr().err.strip()
    assert said in printed
    assert "\n" not in printed
    assert "Traceback" not in printed


def test_a_report_needs_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without nsys one line says what to run where there is one; with it, the export is read."""
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2026@4@1\n\x0b")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["show", "overview", str(report)]) == 3
    assert "nsys export --type sqlite run.nsys-rep" in capsys.readouterr().err
    exported = of_recording(training()).write(tmp_path / "made.sqlite")
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "export --type sqlite" ] && /bin/cp {exported} "$7"\n')
    program.chmod(0o755)
    trace = foretrace.open(report, cache=False)
    assert trace.path == report
    assert len(trace.steps) == 3
    program.write_text("#!/bin/sh\necho 'cannot open the report'\n")
    with pytest.raises(ForetraceError, match="could not read it; it said: cannot open the report"):
        foretrace.open(report, cache=False)


@pytest.mark.parametrize("lossy", [False, True])
def test_nodes_that_replays_of_a_graph_lost_are_named(lossy: bool, tmp_path: Path) -> None:
    """Of 20 nodes, two of four replays lack every other one."""
    export = Export()
    for replay in range(4):
        begin = 100_000 * replay
        export.call("cudaGraphLaunch", begin, begin + 5_000, replay + 1)
        for node in range(20):
            if lossy and replay % 2 and node % 2:
                continue
            start = begin + 10_000 + 2_000 * node
            export.kernel(f"k{node % 3}", start, start + 1_900, replay + 1, graphNodeId=(5 << 32) + node)
    trace = foretrace.open(export.write(tmp_path / "graph.sqlite"), cache=False)
    notes = analyze.run(trace, "trust").table
    lost = notes.filter(pl.col("code") == "graph-work-lost")["affected_count"].to_list()
    assert lost == ([20] if lossy else [])
