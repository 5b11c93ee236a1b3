"""Kernels of replayed CUDA graphs get the operators, modules and shapes of the capture, in hand-made recordings."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import schema
from foretrace.analyze.graphs import graphs
from foretrace.analyze.modules import modules
from foretrace.analyze.operators import operators
from foretrace.analyze.trust import trust
from foretrace.ingest import server_marks
from foretrace.trace import Trace
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.comparison import needs_native
from tests.ingest.graph_files import STEP, Launch, Program, layer

OPS = ["aten::mm", "aten::add", "aten::mm", "aten::add", "aten::argmax"]


def nodes(trace: Trace) -> pl.DataFrame:
    """The replayed kernels in order of start, with `op`, `shapes` and `modules` (innermost first)."""
    is_graph = trace.spans["name"].cast(pl.String) == "cudaGraphLaunch"
    launches = trace.spans.filter(is_graph)["id"]
    work = trace.device_spans.filter(pl.col("launch_id").is_in(launches.implode()))
    captured = work.select(pl.when(pl.col("op_id") > pl.col("launch_id")).then("op_id")).to_series()
    shapes = dict(trace.ops.select("span_id", pl.col("shapes").cast(pl.String)).iter_rows())
    return work.select("name", "step", "launch_id").with_columns(
        op=trace.spans["name"].gather(captured).cast(pl.String),
        shapes=pl.Series([None if op is None else shapes[op] for op in captured.to_list()], dtype=pl.String),
        modules=pl.Series([_modules(trace, op) for op in captured.to_list()], dtype=pl.List(pl.String)),
    )


def _modules(trace: Trace, span: int | None) -> list[str]:
    found = []
    while span is not None:
        name = str(trace.spans["name"][span])
        found += [name.removeprefix("nn.Module: ")] if name.startswith("nn.Module: ") else []
        span = trace.spans["parent_id"][span]
    return found


def rows_of(trace: Trace) -> list[int | None]:
    """The rows of the first tensor of each node's operator."""
    return [
        None if shapes is None else json.loads(shapes)[0][0] for shapes in nodes(trace)["shapes"].to_list()
    ]


def assert_sound(trace: Trace) -> None:
    """Ids are row numbers in order of start, and links lead to what they should."""
    spans = trace.spans
    assert spans["id"].to_list() == list(range(spans.height))
    assert spans["start_ns"].is_sorted()
    inner = spans.drop_nulls("parent_id")
    assert (inner["parent_id"] < inner["id"]).all()
    assert (spans["depth"].gather(inner["parent_id"]) + 1 == inner["depth"]).all()
    assert (spans["kind"].gather(spans["op_id"].drop_nulls()) == "op").all()
    assert (spans["kind"].gather(trace.ops["span_id"]) == "op").all()
    assert (spans["kind"].gather(trace.python["span_id"]) == "python").all()
    assert (spans["kind"].gather(trace.kernels["span_id"]) == "kernel").all()
    assert trace.ops["module_id"].drop_nulls().is_in(trace.modules["id"].implode()).all()
    for table in schema.TABLES:
        empty = pl.DataFrame(schema=schema.polars_schema(table))
        assert trace.table(table).schema == empty.schema, table


def test_a_capture_in_the_same_file_gives_operators_modules_and_shapes(tmp_path: Path) -> None:
    trace = Program().capture(STEP).replay(STEP).replay(STEP).recording.open(tmp_path)
    assert_sound(trace)
    found = nodes(trace)
    assert found["op"].to_list() == OPS * 2
    assert found["shapes"].to_list() == ["[[8, 16], [16, 32]]"] * 10
    assert found["modules"].to_list()[:2] == [["Linear_0", "Layer_0", "Model_0"], ["Layer_0", "Model_0"]]
    assert found["modules"].to_list()[7:] == [
        ["Linear_1", "Layer_1", "Model_0"],
        ["Layer_1", "Model_0"],
        ["Model_0"],
    ]
    values = graphs(trace).values
    assert (values["attributed_pct"], values["captured_pct"]) == (100, 100)


def test_analyses_know_the_operators_of_replays(tmp_path: Path) -> None:
    """Two replays of five nodes of 8 us each: 80 us, of which a layer has 32 and all products 32."""
    trace = Program().capture(STEP).replay(STEP).replay(STEP).recording.open(tmp_path)
    by_op = {row["name"]: row for row in operators(trace).table.iter_rows(named=True)}
    assert by_op["aten::mm"]["device_total_ns"] == 32_000
    by_module = {row["path"]: row for row in modules(trace).table.iter_rows(named=True)}
    assert by_module["Model_0/Layer_1"]["device_total_ns"] == 32_000
    assert by_module["Model_0"]["device_total_ns"] == 80_000
    # The operators of replays take no time of the host.
    assert by_op["aten::mm"]["host_total_ns"] == 2 * 6_000


def test_a_capture_in_another_file_gives_the_same(tmp_path: Path) -> None:
    capture = Program().capture(STEP).recording.write(tmp_path, "capture.json")
    replays = Program().replay(STEP, label="execute_context_0(0)_generation_8(8)").replay(STEP).recording
    path = replays.write(tmp_path)
    plain = foretrace.open(path, cache=False)
    assert nodes(plain)["op"].to_list() == [None] * 10
    trace = foretrace.open(path, cache=False, capture_traces=[capture])
    assert_sound(trace)
    together = Program().capture(STEP).replay(STEP).replay(STEP).recording.open(tmp_path, "together.json")
    assert (
        nodes(trace)
        .select("op", "shapes", "modules")
        .equals(nodes(together).select("op", "shapes", "modules"))
    )
    assert trace.modules["name"].to_list() == ["Model_0", "Layer_0", "Linear_0", "Layer_1", "Linear_1"]
    assert modules(trace).table.filter(pl.col("path") == "Model_0")["device_total_ns"].to_list() == [80_000]


def test_an_eager_run_in_another_file_gives_what_it_has(tmp_path: Path) -> None:
    """A run of four kernels in the same order tells their operators; a kernel that eager never ran has none."""
    eager = Program().eager([Launch("aten::zero_", "fill"), *STEP]).recording.write(tmp_path, "eager.json")
    path = Program().replay(STEP).replay([*STEP[:4], Launch("", "fused")]).recording.write(tmp_path)
    found = nodes(foretrace.open(path, cache=False, capture_traces=[eager]))
    assert found["op"].to_list() == [*OPS, *OPS[:4], None]
    assert found["modules"].to_list()[2] == ["Linear_1", "Layer_1", "Model_0"]


def test_a_capture_with_other_launches_is_not_used(tmp_path: Path) -> None:
    trace = Program().capture(STEP[:-1]).replay(STEP).recording.open(tmp_path)
    assert nodes(trace)["op"].to_list() == [None] * 5
    note = next(row for row in trust(trace).table.iter_rows(named=True) if row["code"] == "graph-operators")
    assert note["share_pct"] == 0
    assert "--capture-trace" in note["says"]


def test_fills_that_were_not_captured_as_such_have_no_operator(tmp_path: Path) -> None:
    fill = Launch("aten::zero_", "Memset", call="cudaMemsetAsync")
    trace = Program().capture(STEP).replay([fill, *STEP]).recording.open(tmp_path)
    assert nodes(trace)["op"].to_list() == [None, *OPS]


def test_node_ids_tell_branches_that_start_in_another_order(tmp_path: Path) -> None:
    started = [0, 2, 1, 4, 3]
    trace = Program().capture(STEP).replay(STEP, graph=3, order=started).recording.open(tmp_path)
    found = nodes(trace)
    assert found["op"].to_list() == [OPS[place] for place in started]
    assert found["name"].cast(pl.String).to_list() == [STEP[place].kernel for place in started]


def test_a_warm_up_tells_branches_without_ids(tmp_path: Path) -> None:
    """Captured: products a and b on one stream, then sums c and d on another; c and d start before b."""
    step = [Launch(f"aten::{name}", f"kernel_{name}") for name in "abcd"]
    program = Program().eager(step).capture(step)
    program.replay([step[0], step[2], step[3], step[1]], streams=[7, 9, 9, 7])
    assert nodes(program.recording.open(tmp_path))["op"].to_list() == [
        "aten::a",
        "aten::c",
        "aten::d",
        "aten::b",
    ]


def test_branches_without_ids_and_warm_up_have_no_operators(tmp_path: Path) -> None:
    """Their order of start is not that of the capture, and nothing tells which is which; on one stream it would be."""
    step = [Launch(f"aten::{name}", f"kernel_{name}") for name in "abcd"]
    started = [step[0], step[2], step[3], step[1]]
    branches = Program().capture(step).replay(started, streams=[7, 9, 9, 7]).recording
    assert nodes(branches.open(tmp_path))["op"].to_list() == [None] * 4
    chain = Program().capture(step).replay(step, streams=[7] * 4).recording
    assert nodes(chain.open(tmp_path, "chain.json"))["op"].to_list() == [f"aten::{name}" for name in "abcd"]


def test_kernels_that_captured_calls_name_are_matched_by_name(tmp_path: Path) -> None:
    """As on ROCm: a launch that the graph lost, and one whose kernel differs, have no node."""
    program = Program().capture(STEP, named=True).replay([STEP[0], *STEP[2:]])
    program.replay([STEP[0], Launch("", "other"), *STEP[2:]])
    found = nodes(program.recording.open(tmp_path))["op"].to_list()
    assert found == [OPS[0], *OPS[2:], OPS[0], None, *OPS[2:]]
    strange = Program().capture(STEP, named=True).replay([Launch("", "other")] * 5).recording
    assert nodes(strange.open(tmp_path, "strange.json"))["op"].to_list() == [None] * 5


def test_of_named_captures_the_one_with_the_same_kernels_is_taken(tmp_path: Path) -> None:
    """As vLLM's pieces on ROCm: the last one has most of the kernels of those before it."""
    program = Program().capture(STEP, named=True).capture(STEP[:3], named=True)
    found = nodes(program.replay(STEP).replay(STEP[:3]).recording.open(tmp_path))["op"].to_list()
    assert found == [*OPS, *OPS[:3]]


def test_a_copy_that_the_driver_made_into_a_kernel_keeps_its_place(tmp_path: Path) -> None:
    copy = Launch("aten::copy_", "copy_kernel", call="cudaMemcpyAsync")
    trace = (
        Program().capture([copy, *STEP]).replay([Launch("", "copy_kernel"), *STEP]).recording.open(tmp_path)
    )
    assert nodes(trace)["op"].to_list() == ["aten::copy_", *OPS]


def sizes(program: Program) -> Program:
    """As servers do: a graph for each batch size, the largest first."""
    for rows in (8, 4, 2):
        program.capture(layer(0, rows))
    return program


@pytest.mark.parametrize(
    ("label", "rows"),
    [
        ("execute_context_0(0)_generation_4(4)", 4),
        ("execute_context_0(0)_generation_3(3)", 4),  # padded to the next size
        ("execute_3_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq3sk90sqsq3sqsk90)", 4),
        ("execute_new_0_cached_2", 2),
        ("step[DECODE bs=7]", 8),
        ("decode", None),
    ],
)
def test_the_label_of_a_step_tells_which_size_runs(tmp_path: Path, label: str, rows: int | None) -> None:
    trace = sizes(Program()).replay(layer(0), label=label).recording.open(tmp_path)
    # Where nothing tells the size, the operators are known, and their shapes are not.
    assert nodes(trace)["op"].to_list() == OPS[:2]
    assert rows_of(trace) == [rows, rows]


def pieces(program: Program) -> Program:
    """As vLLM does for prefills: each layer is a graph of its own."""
    return program.capture(layer(0)).capture(layer(1)).capture(layer(2))


@pytest.mark.parametrize("ids", [(None, None, None), (4, 5, 6)])
def test_layers_that_are_graphs_of_their_own_keep_their_order(
    tmp_path: Path, ids: tuple[int | None, ...]
) -> None:
    program = pieces(Program())
    for number in range(2):
        program.recording.step(number, program.at, program.at + 600)
        for graph in ids:
            program.replay(layer(0), graph=graph)
    found = nodes(program.recording.open(tmp_path))["modules"].to_list()
    assert [chain[-2] for chain in found[::2]] == ["Layer_0", "Layer_1", "Layer_2"] * 2


def test_layers_whose_order_nothing_tells_have_no_modules(tmp_path: Path) -> None:
    trace = pieces(Program()).replay(layer(0)).replay(layer(0)).recording.open(tmp_path)
    assert nodes(trace)["op"].to_list() == OPS[:2] * 2
    assert nodes(trace)["modules"].to_list() == [[]] * 4
    assert rows_of(trace) == [8] * 4


def test_graph_ids_tell_which_size_runs_where_all_ran(tmp_path: Path) -> None:
    program = sizes(Program())
    for graph in (9, 5, 7, 5):
        program.replay(layer(0), graph=graph)
    assert rows_of(program.recording.open(tmp_path)) == [2, 2, 8, 8, 4, 4, 8, 8]


def test_kernels_of_a_warm_up_tell_which_size_runs(tmp_path: Path) -> None:
    program = Program()
    for rows, name in ((8, "gemm_large"), (4, "gemm_small")):
        warm = [Launch("aten::mm", name, rows), Launch("aten::add", "plus", rows)]
        program.eager(warm).capture(warm)
    program.replay([Launch("aten::mm", "gemm_large"), Launch("aten::add", "plus")])
    program.replay([Launch("aten::mm", "gemm_small"), Launch("aten::add", "plus")])
    assert rows_of(program.recording.open(tmp_path)) == [8, 8, 4, 4]


def test_a_capture_right_before_its_first_launch_is_the_one(tmp_path: Path) -> None:
    other = [Launch("aten::bmm", "gemm", 4), Launch("aten::sub", "minus", 4)]
    program = Program().capture(layer(0)).replay(layer(0)).capture(other).replay(other).replay(layer(0))
    assert nodes(program.recording.open(tmp_path))["op"].to_list() == [
        "aten::mm", "aten::add", "aten::bmm", "aten::sub", "aten::mm", "aten::add"
    ]  # fmt: skip


def test_two_captures_of_other_operators_tell_nothing(tmp_path: Path) -> None:
    other = [Launch("aten::bmm", "gemm"), Launch("aten::sub", "minus")]
    trace = Program().capture(layer(0)).capture(other).replay(layer(0)).recording.open(tmp_path)
    assert nodes(trace)["op"].to_list() == [None, None]


def test_what_was_attributed_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    path = Program().capture(STEP).replay(STEP).recording.write(tmp_path)
    for _ in range(2):
        assert nodes(foretrace.open(path))["op"].to_list() == OPS


@needs_native
def test_both_readers_attribute_alike(tmp_path: Path) -> None:
    path = Program().capture(STEP).replay(STEP, graph=1).recording.write(tmp_path)
    first, second = (foretrace.open(path, reader=reader) for reader in ("native", "python"))
    for table in schema.TABLES:
        assert first.table(table).equals(second.table(table)), table


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("execute_context_2(512)_generation_30(30)", 542),
        ("step[EXTEND bs=1 toks=512]", 512),
        ("step[EXTEND bs=2 toks=512 c_sq=512 c_sqsq=131072 c_sqsk=131072 c_sk=512]", 512),
        ("step[DECODE bs=32]", 32),
        ("step[DECODE bs=4 g_sq=8 g_sqsq=16 g_sqsk=96 g_sk=48]", 8),  # two tokens a sequence, drafted
        ("step[TARGET_VERIFY bs=4]", None),  # of each sequence several tokens, how many is not told
        ("step[MIXED bs=4]", None),
        ("step[MIXED bs=2 c=1 g=1 c_sq=9 c_sk=9 c_sqsq=81 c_sqsk=81 g_sq=1 g_sk=30 g_sqsq=1 g_sqsk=30]", 10),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=2]", None),
        ("execute_model", None),
    ],
)
def test_tokens_of_a_step(name: str, tokens: int | None) -> None:
    assert server_marks.tokens_of(name) == tokens


@needs_corpus
def test_the_graph_of_a_real_decode_gets_its_eager_twin_s_layers() -> None:
    """On an H200: a GPT of 12 blocks, run eagerly and replayed as one graph of 150 nodes; blocks take about the same time."""
    folder = CORPUS / "h200"
    eager = folder / "decode_launch_bound.slow.rich.json.gz"
    trace = foretrace.open(
        folder / "decode_launch_bound.fixed.lite.json.gz", cache=False, capture_traces=[eager]
    )
    assert graphs(trace).values["captured_pct"] == 100
    table = modules(trace).table
    blocks = table.filter(pl.col("path").str.contains(r"^GPT_0/Block_\d+$"))
    assert blocks.height == 12
    assert max(blocks["device_total_ns"]) < 1.1 * min(blocks["device_total_ns"])
    assert table.filter(pl.col("path") == "GPT_0")["device_total_pct"].item() == pytest.approx(100)
