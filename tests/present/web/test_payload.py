"""Every resource keeps the contract of web/src/data/types.ts, and its numbers are those of the trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from foretrace import analyze
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.opening import open_case
from foretrace.errors import MissingDataError, UsageError
from foretrace.ingest import open_trace
from foretrace.predict.prediction import predict
from foretrace.present.web import kinds, payload
from foretrace.present.web.recording_view import RecordingView, display_name
from foretrace.present.web.resources import step_time, table
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.test_nsys_stats import KERNELS, RANGES
from tests.ingest.test_nsys_stats import table as table_of_stats
from tests.present.web.contract import SAMPLES, listed, same_fields

ROOT = Path(__file__).parents[3]
UNITS = {"ns", "bytes", "flops", "pct", "count", "per_s", "flops_per_byte", "text", "number", "bool"}


@cache
def view(path: Path) -> RecordingView:
    return RecordingView(Case(open_trace(path, cache=False)))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name)
def sample(request: pytest.FixtureRequest) -> RecordingView:
    return view(request.param)


def plain(run: RecordingView, name: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A resource as the page gets it: through JSON."""
    answer = payload.resource(run, name, query, find=lambda _: run)
    assert not isinstance(answer, bytes)
    found: dict[str, Any] = json.loads(payload.to_bytes(answer))
    return found


def test_kinds_have_the_page_s_numbers() -> None:
    assert listed("KINDS") == kinds.KINDS
    assert listed("HOST_KINDS") == kinds.HOST_KINDS


@pytest.mark.slow
def test_the_overview_keeps_its_contract(sample: RecordingView) -> None:
    found = plain(sample, "overview")
    same_fields(found, "Overview")
    for part, name in (("trust", "Trust"), ("headline", "Headline"), ("waterfall", "Waterfall")):
        same_fields(found[part], name)
    same_fields(found["step_time"], "StepTime")
    for each in found["findings"]:
        same_fields(each, "Finding")
        if each["predicted"]:
            same_fields(each["predicted"], "Predicted")
        assert all(bar["kind"] in (*kinds.KINDS, *kinds.HOST_KINDS) and bar["ns"] > 0 for bar in each["bars"])
    for each in found["checked"]:
        same_fields(each, "Checked")
    if found["one_step"]:
        same_fields(found["one_step"], "OneStep")
    fitting = [rule.name for rule in RULES if rule.fits(sample.case)]
    assert len(found["checked"]) + len({each["rule"] for each in found["findings"]}) == len(fitting)
    assert len(fitting) < len(RULES), "rules for CPU programs stay silent"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "type_name"),
    [("waiting", "Waiting"), ("modules", "Trees"), ("sections", "Sections"), ("memory", "Memory"), ("roofline", "Roofline"), ("ranks", "Ranks"),
     ("compare/run", "Comparison"), ("predict", "WhatIf"), ("whatif", "WhatIfKernels"), ("span/0", "SpanDetail")],
)  # fmt: skip
def test_other_resources_keep_their_contract(sample: RecordingView, name: str, type_name: str) -> None:
    try:
        found = plain(sample, name)
    except MissingDataError:
        return
    same_fields(found, type_name)


@pytest.mark.slow
def test_sections_have_the_breakdown_of_the_run(tmp_path: Path) -> None:
    """The same rows as `show sections --breakdown`; a recording whose only ranges are steps has none."""
    recording = Recording()
    for number in range(3):
        at = number * 1_000.0
        recording.step(number, at, at + 1_000).annotation("FORWARD", at + 10, at + 610)
        recording.annotation("attention", at + 100, at + 400).op("aten::mm", at + 110, at + 200)
        recording.launch(at + 120, "gemm_kernel", at + 140, at + 300)
    view = RecordingView(Case(recording.open(tmp_path)))
    found = plain(view, "sections")
    same_fields(found, "Sections")
    assert "sections" not in plain(view, "overview")["missing"]
    columns = {column["name"]: at for at, column in enumerate(found["breakdown"]["columns"])}
    cells = [
        found["breakdown"]["data"][columns[name]]
        for name in ("part", "metric", "total_ns", "share_pct", "calls_count")
    ]
    rows = list(zip(*cells, strict=True))
    assert rows[0] == ("run", "steps", None, None, 3)
    assert ("ranges", "FORWARD", 1_800_000, None, 3) in rows
    assert ("ranges", "FORWARD (exclusive)", 900_000, 50.0, None) in rows
    assert ("top kernel", "gemm_kernel", 480_000, 100.0, 3) in rows
    assert found["sections"]["data"][0] == ["FORWARD", "FORWARD / attention"]
    only_steps = RecordingView(
        Case(Recording().step(0, 0, 100).op("aten::mm", 1, 50).open(tmp_path, "steps.json"))
    )
    assert "no ranges" in plain(only_steps, "overview")["missing"]["sections"].lower()


def test_tables_of_nsys_stats_have_sections_and_kernels(tmp_path: Path) -> None:
    """They hold no timeline: every other page says so, and nothing is said of the GPU or of steps."""
    ranges = table_of_stats(RANGES, "Instances", "Range", unit="ms", prefix=":")
    (tmp_path / "nvtx_pushpop_sum.csv").write_text(ranges)
    (tmp_path / "cuda_gpu_kern_sum.csv").write_text(table_of_stats(KERNELS, "Instances", "Name"))
    view = RecordingView(open_case(tmp_path / "nvtx_pushpop_sum.csv", of_sums=True))
    found = plain(view, "overview")
    same_fields(found, "Overview")
    assert {"timeline", "findings", "waiting", "operators", "memory"} <= set(found["missing"])
    assert {"kernels", "sections"}.isdisjoint(found["missing"])
    assert all("hold no timeline" in says for says in found["missing"].values())
    assert found["facts"] == [f"{len(RANGES) + len(KERNELS)} sums by name, of nsys stats"]
    assert (found["trust"]["verdict"], found["checked"], found["findings"]) == ("with care", [], [])
    shown = plain(view, "sections")
    assert shown["sections"] is None
    assert "MHA(total): residual" in shown["breakdown"]["data"][1]
    assert plain(view, "table/kernels")["rows_count"] == len(KERNELS)
    with pytest.raises(MissingDataError, match="needs a timeline"):
        open_case(tmp_path / "nvtx_pushpop_sum.csv")


def test_runs_keep_their_contract(sample: RecordingView) -> None:
    found = payload.runs([payload.run_entry(sample)], embedded=True)
    same_fields(found, "Runs")
    same_fields(found["runs"][0], "RunEntry")


@pytest.mark.slow
@pytest.mark.parametrize("name", [each.name for each in analyze.ANALYSES])
def test_every_analysis_is_a_table_whose_units_are_known(sample: RecordingView, name: str) -> None:
    try:
        found = plain(sample, f"table/{name}")
    except MissingDataError:
        return
    same_fields(found, "Table")
    result = sample.result(name)
    marks = ["per_step_ns", "per_step_count", "kind", "title", "tensor_cores", "span"]  # of the page
    more = marks if name == "kernels" else []
    assert [each["name"] for each in found["columns"]] == [*result.table.columns, *more]
    for column, cells in zip(found["columns"], found["data"], strict=True):
        same_fields(column, "TableColumn")
        assert column["unit"] in UNITS
        assert len(cells) == min(result.table.height, table.LIMIT)
        if column["unit"] == "text":
            assert all(each is None or isinstance(each, str) for each in cells)
    assert found["rows_count"] == result.table.height


def test_the_span_of_a_kernel_is_the_longest_of_its_middle_step(sample: RecordingView) -> None:
    try:
        found = plain(sample, "table/kernels")
    except MissingDataError:
        return
    columns = {column["name"]: cells for column, cells in zip(found["columns"], found["data"], strict=True)}
    spans = sample.trace.spans
    for name, span in zip(columns["name"], columns["span"], strict=True):
        if span is None:
            continue
        assert spans["name"][span] == name
        calls = spans.filter((pl.col("name").cast(str) == name) & pl.col("launch_id").is_not_null())
        if calls.height:
            steps = sorted(set(calls["step"].drop_nulls()))
            middle = steps[len(steps) // 2] if steps else None
            assert spans["step"][span] == middle
            same = calls.filter(pl.col("step").eq_missing(middle))
            assert spans["dur_ns"][span] == same["dur_ns"].max()


def test_a_table_takes_options_and_a_limit(sample: RecordingView) -> None:
    try:
        found = plain(sample, "table/roles", {"by": "role", "limit": "1"})
    except MissingDataError:
        return
    assert "phase" not in [each["name"] for each in found["columns"]]
    assert len(found["data"][0]) == 1
    for query in ({"by": "nothing"}, {"limit": "0"}, {"limit": "x"}, {"other": "1"}):
        with pytest.raises(UsageError):
            plain(sample, "table/roles", query)


def test_options_whose_choices_have_a_name_are_taken_too(sample: RecordingView) -> None:
    with suppress(MissingDataError):
        assert plain(sample, "table/memory", {"by": "op"})["columns"][1]["name"] == "op"
    with pytest.raises(UsageError, match="category"):
        plain(sample, "table/memory", {"by": "nothing"})


def test_the_parts_of_a_step_sum_to_it(sample: RecordingView) -> None:
    found = plain(sample, "overview")["step_time"]
    for step in found["steps"]:
        assert sum(step["parts_ns"]) == step["total_ns"]
        assert min(step["parts_ns"]) >= 0
    if found["parts"]:
        assert sum(part["pct"] for part in found["parts"]) == pytest.approx(100)
        assert len(found["parts"]) == len(found["steps"][0]["parts_ns"])


def test_a_column_of_one_step_is_never_more_than_full(sample: RecordingView) -> None:
    found = plain(sample, "overview")["one_step"]
    if found is None:
        return
    columns = np.array(found["columns"])
    assert columns.shape[1] == len(found["kinds"])
    assert (columns.sum(axis=1) <= 1.001).all()
    assert (columns >= 0).all()
    ends = [edge for phase in found["phases"] for edge in (phase["from"], phase["to"])]
    assert ends == sorted(ends)
    assert all(-1e-9 <= edge <= 1 + 1e-9 for edge in ends)


def test_each_row_of_the_waterfall_is_replayed_with_those_above(sample: RecordingView) -> None:
    found = plain(sample, "overview")["waterfall"]
    before = found["now_ms"]
    made: tuple[Any, ...] = ()
    for row in found["rows"]:
        made = (*made, sample.changes[row["finding"]])
        assert row["before_ms"] == pytest.approx(before)
        together = predict(sample.case.calibration, made)
        assert row["after_ms"]["point"] == pytest.approx(together.after_ns.point / 1e6)
        assert row["after_ms"]["low"] <= row["after_ms"]["point"] <= row["after_ms"]["high"]
        before = row["after_ms"]["point"]
    if found["rows"]:
        assert found["together_ms"] == found["rows"][-1]["after_ms"]


@pytest.mark.slow
def test_ticked_findings_give_the_same_answer_ready_or_live(sample: RecordingView) -> None:
    ready = plain(sample, "whatif")
    for key, answer in ready["combinations"].items():
        live = plain(sample, "predict", {"findings": key})
        assert live == answer
    for kernel in ready["kernels"][:1]:
        for factor, after in zip(ready["factors"], kernel["after_ms"], strict=True):
            live = plain(sample, "predict", {"scale": f"{kernel['name']}:{factor}"})
            assert live["predicted"]["after_ms"]["point"] == pytest.approx(after)


@pytest.mark.slow
def test_a_finding_ticked_alone_promises_what_it_says() -> None:
    """Also where the fix leaves the GPU little but products, which then slow down."""
    run = view(ROOT / "tests/accuracy/j/inflow_ensemble.slow.lite.json.zst")
    finding = run.diagnosis.findings[0]
    assert finding.predicted is not None
    assert "clocks lower" in finding.predicted.basis
    ticked = plain(run, "predict", {"findings": "1"})["predicted"]
    assert ticked["after_ms"]["point"] == pytest.approx(finding.predicted.after_ns.point / 1e6)


def test_predict_refuses_what_it_cannot_replay(sample: RecordingView) -> None:
    for query in (
        {"findings": "99"},
        {"findings": "x"},
        {"scale": "no such kernel:0.5"},
        {"scale": "a"},
        {"b": "1"},
    ):
        with pytest.raises(UsageError):
            plain(sample, "predict", query)
    assert plain(sample, "predict")["predicted"] is None


def test_own_times_of_a_tree_sum_to_its_roots(sample: RecordingView) -> None:
    try:
        trees = plain(sample, "modules")["trees"]
    except MissingDataError:
        return
    for tree in trees:
        same_fields(tree, "Tree")
        roots = [total for total, parent in zip(tree["total"], tree["parent"], strict=True) if parent < 0]
        assert sum(tree["self"]) == sum(roots)
        assert all(parent < place for place, parent in enumerate(tree["parent"]))
        inside = np.zeros(len(tree["name"]))
        for total, parent in zip(tree["total"], tree["parent"], strict=True):
            if parent >= 0:
                inside[parent] += total
        assert (inside <= np.array(tree["total"])).all()


def test_memory_sums_to_its_curve(sample: RecordingView) -> None:
    try:
        found = plain(sample, "memory")
    except MissingDataError:
        return
    stacked = np.sum([each["bytes"] for each in found["series"]], axis=0)
    assert stacked.max() == found["peak"]["bytes"]
    assert sum(part["bytes"] for part in found["peak"]["parts"]) == found["peak"]["bytes"]
    assert found["at_ns"] == sorted(found["at_ns"])
    same_fields(found["largest"], "Table")


def test_shares_of_a_rank_sum_to_its_time(sample: RecordingView) -> None:
    try:
        found = plain(sample, "ranks")
    except MissingDataError:
        return
    for shares in found["share_pct"]:
        assert sum(shares) == pytest.approx(100)
    same_fields(found["table"], "Table")


def test_marks_lie_on_kernels_of_the_recording(sample: RecordingView) -> None:
    try:
        found = plain(sample, "roofline")
    except MissingDataError:
        return
    spans = sample.trace.spans
    for mark in found["marks"]:
        assert spans["kind"][mark["span"]] == "kernel"
        assert mark["flops_per_byte"] > 0
        assert mark["flops_per_s"] > 0


def test_findings_point_at_spans_and_a_stretch_of_time(sample: RecordingView) -> None:
    for each in plain(sample, "overview")["findings"]:
        assert all(0 <= span < sample.trace.spans.height for span in each["spans"])
        if each["from_ns"] is not None:
            assert 0 <= each["from_ns"] < each["to_ns"] <= sample.trace.duration_ns
        assert each["manual"]


def test_a_span_knows_what_is_linked_to_it(sample: RecordingView) -> None:
    device = sample.trace.device_spans.drop_nulls("launch_id")
    if device.is_empty():
        return
    row = device.row(0, named=True)
    found = plain(sample, f"span/{row['id']}")
    assert found["name"] == row["name"]
    assert (found["from_ns"], found["to_ns"]) == (row["start_ns"], row["end_ns"])
    assert row["launch_id"] in [link["id"] for link in found["links"]]
    back = plain(sample, f"span/{row['launch_id']}")
    assert row["id"] in [link["id"] for link in back["links"]]


def test_unknown_names_are_refused(sample: RecordingView) -> None:
    for name in (
        "",
        "nothing",
        "table/",
        "table/nothing",
        "span/",
        "span/x",
        "span/-1",
        "span/999999999",
        "../x",
    ):
        with pytest.raises(UsageError):
            plain(sample, name)
    with pytest.raises(UsageError):
        payload.resource(sample, "compare/other")


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from strings(each)


HOSTILE = (
    "<script>alert(1)</script>",
    "a" * 10_000,
    "\u202egnp.exe",
    "</script><!--",
    "\"'&;`",
    "日本\U0001f600",
)


def hostile(tmp_path: Path) -> RecordingView:
    recording = Recording(deviceProperties=[{"id": 0, "name": HOSTILE[0], "numSms": 10}])
    for step in range(3):
        at = step * 10_000.0
        recording.step(step + 1, at, at + 9_000)
        for place, name in enumerate(HOSTILE):
            begin = at + 1_000 * place
            recording.annotation(name, begin - 1, begin + 950)
            recording.op(name, begin, begin + 500)
            recording.launch(begin + 100, name, begin + 200, begin + 900, call=10)
    return RecordingView(Case(open_trace(recording.write(tmp_path, "hostile.json"), cache=False)))


@pytest.mark.slow
def test_hostile_strings_pass_through_as_text(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    kernels = plain(run, "table/kernels")
    names = kernels["data"][[each["name"] for each in kernels["columns"]].index("name")]
    assert set(HOSTILE) <= set(names)
    shown = plain(run, f"span/{run.trace.device_spans['id'][0]}")
    assert shown["name"] in HOSTILE
    for name in ("overview", "modules", "whatif", "compare/run", "table/operators"):
        for text in strings(plain(run, name)):
            assert "\\u003c" not in text
            assert "&lt;" not in text


def test_a_program_on_the_cpu_is_told_of_no_gpu(tmp_path: Path) -> None:
    recording = Recording()
    for step in range(3):
        at = step * 1_000.0
        recording.step(step, at, at + 900).op("aten::mm", at + 10, at + 600)
    run = RecordingView(Case(open_trace(recording.write(tmp_path, "host.json"), cache=False)))
    found = plain(run, "overview")
    assert found["headline"]["after_ms"] is None
    assert found["headline"]["before_ms"] == pytest.approx(0.9, rel=0.01)
    assert found["one_step"] is None
    assert {"kernels", "memory", "roofline"} <= set(found["missing"])
    assert "findings" not in found["missing"]
    assert "computes on the CPU" in found["missing"]["kernels"]
    assert {each["rule"] for each in found["checked"] if each["looked"]} >= {
        "copied-tensors",
        "needless-autograd",
    }
    assert sum(part["ns"] for part in found["step_time"]["parts"]) == pytest.approx(900_000)
    assert plain(run, "whatif")["kernels"] == []


def test_an_empty_recording_has_an_overview(tmp_path: Path) -> None:
    run = RecordingView(Case(open_trace(Recording().write(tmp_path, "empty.json"), cache=False)))
    found = plain(run, "overview")
    assert found["headline"]["before_ms"] is None
    assert found["findings"] == []
    for name in payload.RESOURCES:
        if not name.endswith("/") and name not in ("timeline/window",):
            with suppress(MissingDataError):
                payload.to_bytes(payload.resource(run, name))


def test_what_is_taken_once_is_not_given_twice(tmp_path: Path) -> None:
    run = hostile(tmp_path)
    with pytest.raises(UsageError, match="given more than once: limit"):
        payload.resource(run, "table/kernels", {"limit": ["1", "2"]})


def test_waiting_for_data_is_a_part_of_the_step(tmp_path: Path) -> None:
    recording = Recording()
    for step in range(3):
        at = step * 1_000.0
        recording.step(step, at, at + 900)
        recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 5, at + 605)
        recording.launch(at + 610, "ampere_sgemm_128x64_tn", at + 650, at + 800, call=10)
    run = RecordingView(Case(open_trace(recording.write(tmp_path, "loader.json"), cache=False)))
    parts = {part["kind"]: part["ns"] for part in step_time.step_time(run)["parts"]}
    assert parts["wait"] == pytest.approx(600_000)
    assert parts["gemm"] == pytest.approx(150_000)


@pytest.mark.slow
def test_the_measured_step_is_weighed_against_the_recorded_one(tmp_path: Path) -> None:
    path = hostile(tmp_path).trace.path
    facts = {
        step_ms: {
            each["label"]: each
            for each in plain(
                RecordingView(Case(open_trace(path), step_ns=step_ms and step_ms * 1e6)), "overview"
            )["trust"]["facts"]
        }
        for step_ms in (None, 10.0)
    }
    assert facts[None]["Profiler overhead"]["mark"] == "unknown"
    assert facts[10.0]["Profiler overhead"]["value"].endswith("%")


def test_names_of_files_lose_their_format() -> None:
    assert display_name("naive.slow.rich.json.gz") == "naive.slow.rich"
    assert display_name("a.pt.trace.json") == "a"
    assert display_name(".json") == ".json"


def test_a_column_without_values_keeps_its_unit() -> None:
    frame = pl.DataFrame({"idle_pct": [None], "name": ["a"], "odd_ns": [float("nan")], "whole": [True]})
    found = table.of_frame(frame, {})
    assert [each["unit"] for each in found["columns"]] == ["pct", "text", "ns", "bool"]
    assert found["data"] == [[None], ["a"], [None], [True]]


@needs_corpus
def test_ranks_of_one_run_stand_side_by_side() -> None:
    ranks = [
        RecordingView(Case(open_trace(path)), run_id=path.name, group="gloo")
        for path in sorted((CORPUS / "other" / "multirank_gloo").glob("rank*.json.gz"))
    ]
    alone = RecordingView(Case(ranks[0].trace), group="another")
    found = payload.resource(ranks[1], "ranks", peers=(*ranks, alone))
    assert isinstance(found, dict)
    assert found["ranks"] == [0, 1, 2, 3]
    assert found["table"]["rows_count"] == 4
    assert found["says"].startswith(
        "4 ranks, 59.2 ms a step: rank 2 arrives 7.59 ms late"
    )  # it sleeps 8 ms a step
    assert next(finding[:2] for finding in found["findings"]) == ["slow-rank", "rank 2"]
    assert (found["stack"]["longest"]["last_rank"], found["stack"]["ranks"]) == (2, [0, 1, 2, 3])
    step = {"step": str(found["stack"]["step"])}
    assert payload.resource(ranks[1], "ranks/stack", step, peers=ranks) == found["stack"]
    # Of one rank alone, with the others beside its file: the same answer, and the names of their runs.
    others = [each.trace for each in ranks[1:]]
    one = RecordingView(Case(ranks[0].trace, open_ranks=lambda: others), group="gloo")
    of_folder = payload.resource(one, "ranks")
    assert isinstance(of_folder, dict)
    assert (of_folder["says"], of_folder["job"], of_folder["ranks"]) == (found["says"], [0, 1, 2, 3], [0])
    assert len(set(of_folder["runs"])) == 4
    # Collectives run on the host: what the GPU waits for is communication in the bars, as it is in the table.
    shares = dict(zip(found["parts"], zip(*found["share_pct"], strict=True), strict=True))
    assert min(shares["exposed communication"]) > 70
    assert all(sum(row) == pytest.approx(100) for row in found["share_pct"])


@needs_corpus
@pytest.mark.parametrize(
    "path",
    ["h200/naive_attention.slow.rich.json.gz", "h200/slow_dataloader.slow.rich.json.gz",
     "peers/tracelens/vllm_decode_graph_execution.json.gz", "peers/hta/rank_unavailable__rank_not_found.json.gz",
     "peers/tracelens/b200_eager.json.gz", "other/multirank_gloo/rank0.json.gz"],
)  # fmt: skip
def test_recordings_of_the_corpus_have_every_resource(path: str) -> None:
    run = RecordingView(Case(open_trace(CORPUS / path)))
    step = plain(run, "overview")["step_time"]
    assert all(sum(each["parts_ns"]) == each["total_ns"] for each in step["steps"])
    for name in payload.RESOURCES:
        if not name.endswith("/") and name != "timeline/window":
            with suppress(MissingDataError):
                assert payload.to_bytes(payload.resource(run, name))


@needs_corpus
def test_the_naive_attention_is_told_as_in_the_design() -> None:
    path = CORPUS / "h200" / "naive_attention.slow.rich.json.gz"
    found = plain(RecordingView(Case(open_trace(path), step_ns=50.5e6)), "overview")
    first = found["findings"][0]
    assert first["title"] == "Attention is not fused"
    assert found["headline"]["after_ms"]["low"] < 16.5 < found["headline"]["after_ms"]["high"], "as measured"
    facts = {each["label"]: each["value"] for each in found["trust"]["facts"]}
    assert facts["Launch known"] == "1,572 of 2,572"
    assert facts["Traced to source"] == "100 %"
    parts = {each["kind"]: each["pct"] for each in found["step_time"]["parts"]}
    assert parts["gemm"] == pytest.approx(18.5, abs=0.1)
    assert parts["idle"] == pytest.approx(1.6, abs=0.1)
    assert [each["label"] for each in found["one_step"]["phases"]] == ["forward", "backward", "optimizer"]
