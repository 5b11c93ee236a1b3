"""The trust report: each note on a recording made to deserve it, and sense on real ones."""

from __future__ import annotations

import ast
import gzip
import inspect
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace import analyze
from foretrace.analyze.concepts.trust import (
    completeness,
    consistency,
    contention,
    coverage,
    disturbance,
    graph_losses,
    marks,
    replays,
    settling,
    size,
)
from foretrace.analyze.concepts.trust.evidence import Note
from foretrace.analyze.trust import Trust, judge
from foretrace.ingest import kineto, open_trace
from tests.builders import MAIN_THREAD, PROCESS, Recording
from tests.corpus import CORPUS, needs_corpus

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "trust.md"
EPOCH = {"baseTimeNanoseconds": 1_700_000_000_000_000_000}


def steps(count: int = 3, *, launches: int = 10, **header: object) -> Recording:
    """Steps of 100 us, each with launches every 10 us whose kernels run for 4 us: the host decides."""
    made = Recording(**{**EPOCH, "record_shapes": 1, **header})
    for number in range(count):
        begin = 1000.5 + 100 * number
        made.step(number, begin, begin + 99)
        for place in range(launches):
            at = begin + 1 + 90 / launches * place
            made.op("aten::mm", at, at + 4, **{"Input Dims": [[2, 2], [2, 2]]}).launch(
                at + 1, "k", at + 3, at + 7
            )
    return made


def by_code(judged: Trust) -> dict[str, Note]:
    codes = [note.code for note in judged.notes]
    assert len(codes) == len(set(codes))
    return {note.code: note for note in judged.notes}


def notes(made: Recording, folder: Path, name: str = "trace.json") -> dict[str, Note]:
    return by_code(judge(made.open(folder, name)))


def test_a_healthy_recording_is_trusted(tmp_path: Path) -> None:
    judged = judge(steps().open(tmp_path))
    assert judged.verdict == "yes"
    assert [note.code for note in judged.notes] == [
        "steps-whole", "step-spread", "no-stacks", "no-modules", "no-memory",
    ]  # fmt: skip
    assert by_code(judged)["step-spread"].values["host_median_ns"] == 99_000


def test_an_empty_recording_is_not(tmp_path: Path) -> None:
    judged = judge(Recording().open(tmp_path))
    assert judged.verdict == "no"
    assert [note.code for note in judged.notes] == ["empty"]


def test_gravest_first_and_as_promised_in_json(tmp_path: Path) -> None:
    trace = steps(1, distributedInfo={"rank": 0, "world_size": 2}).open(tmp_path)
    judged = judge(trace)
    weights = [note.severity for note in judged.notes]
    assert weights == sorted(weights, key=("no", "care", "info").index)
    told = judged.to_dict()
    assert told["verdict"] == "with care"
    assert [set(note) for note in told["notes"]] == [{"code", "says", "values"}] * len(judged.notes)
    result = analyze.run(trace, "trust")
    assert result.values["verdict"] == "with care"
    assert result.values["care_count"] == 2
    assert result.table["code"].to_list() == [note.code for note in judged.notes]


def test_launches_without_gpu_work_in_the_middle_are_lost(tmp_path: Path) -> None:
    made = steps()
    kernels = [event for event in made.events if event["cat"] == "kernel"]
    for event in kernels[11:14]:  # three of the second step's ten
        made.events.remove(event)
    found = notes(made, tmp_path)
    assert found["launches-lost"].values == {
        "affected_count": 3, "launches_count": 30, "share_pct": pytest.approx(10),
    }  # fmt: skip
    assert found["launches-lost"].severity == "care"
    assert "step 1 (3 of 10 launches without GPU work)" in found["steps-cut"].says
    assert "launches-cut" not in found


def test_launches_after_the_last_gpu_work_are_cut(tmp_path: Path) -> None:
    made = steps()
    for event in [event for event in made.events if event["cat"] == "kernel"][-6:]:
        made.events.remove(event)
    found = notes(made, tmp_path)
    assert found["launches-cut"].values["affected_count"] == 6
    assert "launches-lost" not in found
    assert found["steps-cut"].values["affected_count"] == 1
    assert "step 2" in found["steps-cut"].says


def test_most_launches_lost_is_no(tmp_path: Path) -> None:
    made = steps()
    for event in [event for event in made.events if event["cat"] == "kernel"][:20]:
        made.events.remove(event)
    judged = judge(made.open(tmp_path))
    assert judged.verdict == "no"
    assert by_code(judged)["launches-lost"].severity == "no"


def test_no_gpu_work_at_all_is_no(tmp_path: Path) -> None:
    made = steps()
    made.events = [event for event in made.events if event["cat"] != "kernel"]
    judged = judge(made.open(tmp_path))
    assert judged.verdict == "no"
    assert by_code(judged)["gpu-missing"].values["affected_count"] == 30
    assert "steps-cut" not in by_code(judged)


def test_launches_into_a_graph_capture_are_not_lost(tmp_path: Path) -> None:
    made = steps()
    made.runtime("cudaStreamBeginCapture", 1300, 1302)
    for at in (1310, 1320):
        made.runtime("cudaLaunchKernel", at, at + 2)
    made.runtime("cudaStreamEndCapture", 1330, 1332).launch(1340, "k", 1345, 1350)
    found = notes(made, tmp_path)
    assert found["launches-captured"].values["affected_count"] == 2
    assert not {"launches-lost", "launches-cut"} & set(found)


def test_copy_calls_without_work_do_not_count_as_lost(tmp_path: Path) -> None:
    found = notes(steps().runtime("cudaMemsetAsync", 1050, 1052), tmp_path)
    assert found["copies-without-work"].values["affected_count"] == 1
    assert "launches-lost" not in found


def test_work_launched_before_the_recording_is_told_apart(tmp_path: Path) -> None:
    made = (
        steps().kernel("earlier", 900, 960, correlation=9001).kernel("stray", 1150.5, 1151, correlation=9002)
    )
    found = notes(made, tmp_path)
    # 30 kernels of 4 us, one of 60 and one of 0.5
    assert found["launched-before"].values == {
        "affected_count": 1, "affected_ns": 60_000, "share_pct": pytest.approx(100 * 60 / 180.5),
    }  # fmt: skip
    assert found["launched-before"].severity == "info"
    assert found["launch-unknown"].values["affected_ns"] == 500
    assert found["launch-unknown"].severity == "info"


def test_work_on_a_second_stream_may_start_later(tmp_path: Path) -> None:
    made = (
        steps()
        .kernel("earlier", 1010, 1070, correlation=9001, stream=20)
        .launch(1270, "k", 1275, 1278, stream=20)
    )
    assert notes(made, tmp_path)["launched-before"].values["affected_count"] == 1


def test_gpu_work_without_any_launch(tmp_path: Path) -> None:
    alone = Recording().kernel("a", 10, 15, correlation=1).kernel("b", 20, 25, correlation=2)
    assert notes(alone, tmp_path)["no-launch-calls"].values["affected_ns"] == 10_000
    waiting = alone.runtime("cudaDeviceSynchronize", 5, 35, correlation=77)
    assert notes(waiting, tmp_path)["launched-before"].values["affected_count"] == 2


def test_steps_not_marked_and_one_step(tmp_path: Path) -> None:
    assert notes(Recording().launch(1, "k", 5, 10), tmp_path)["no-steps"].severity == "care"
    assert notes(steps(1), tmp_path)["one-step"].severity == "care"


def test_an_empty_last_step_is_cut(tmp_path: Path) -> None:
    found = notes(steps().step(3, 1300.5, 1305.5), tmp_path)
    assert found["steps-cut"].values["affected_count"] == 1
    assert "step 3 (0 launches, the others 10)" in found["steps-cut"].says
    assert found["step-spread"].values["share_pct"] == 0


def test_a_mark_that_outlasts_the_recording(tmp_path: Path) -> None:
    made = Recording(**EPOCH).step(1, 10, 90_010).launch(20, "k", 25, 30)
    made.events.append({"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 100})
    judged = judge(made.open(tmp_path))
    assert judged.verdict == "no"
    assert "its annotation ends after the recording" in by_code(judged)["steps-cut"].says


def test_a_slow_first_step_costs_where_the_host_decides(tmp_path: Path) -> None:
    made = Recording(**EPOCH).step(0, 0, 300).launch(250, "k", 255, 259)
    for number in (1, 2, 3):
        begin = 200 + 100 * number
        made.step(number, begin, begin + 100 + number).launch(begin + 10, "k", begin + 15, begin + 19)
    found = notes(made, tmp_path)
    assert found["first-step-slow"].severity == "care"
    assert found["first-step-slow"].values["first_ns"] == 300_000
    assert found["first-step-slow"].values["others_ns"] == 102_000
    spread = found["step-spread"].values
    assert (spread["host_min_ns"], spread["host_max_ns"]) == (101_000, 103_000)
    assert spread["share_pct"] == pytest.approx(100 * 2 / 102)


def test_a_slow_first_step_costs_nothing_where_the_gpu_decides(tmp_path: Path) -> None:
    made = Recording(**EPOCH)
    for number, (begin, length) in enumerate(((0, 50), (50, 20), (70, 20))):
        runs = 100 + 1000 * number
        made.step(number, begin, begin + length).launch(begin + 1, "k", runs, runs + 1000)
    found = notes(made, tmp_path)
    assert found["first-step-slow"].severity == "info"
    assert found["first-step-slow"].values["clock"] == "host"
    assert found["step-spread"].values["clock"] == "GPU"


def test_a_wide_spread(tmp_path: Path) -> None:
    made = Recording(**EPOCH)
    for number, (begin, length) in enumerate(((0, 100), (100, 150), (250, 100))):
        made.step(number, begin, begin + length).launch(begin + 1, "k", begin + 5, begin + 9)
    found = notes(made, tmp_path)
    assert found["step-spread"].severity == "care"
    assert found["step-spread"].values["share_pct"] == pytest.approx(50)


def test_overhead_by_kind_and_step(tmp_path: Path) -> None:
    made = steps()
    for name, at, dur in (
        ("Activity Buffer Request", 1010.5, 50),
        ("Buffer Flush", 1110.5, 2),
        ("Lazy Function Loading", 1210.5, 1),
        ("Command Buffer Full", 1220.5, 30),
    ):
        made.add("overhead", name, at, dur, -1, 0)
    found = notes(made, tmp_path)
    request = found["activity-buffer-request"]
    assert request.severity == "care"
    assert request.values["step"] == 0
    assert request.values["step_share_pct"] == pytest.approx(100 * 50 / 99)
    assert found["profiler-overhead"].values["affected_ns"] == 2_000
    assert found["profiler-overhead"].severity == "info"
    assert found["module-loading"].values["step"] == 2
    assert found["launch-queue-full"].severity == "info"


def test_impossible_durations(tmp_path: Path) -> None:
    made = steps().op("aten::bad", 1050, 1045)
    assert notes(made, tmp_path)["impossible-durations"].values == {
        "affected_count": 1, "gpu_count": 0, "share_pct": pytest.approx(100 / 94),
    }  # fmt: skip
    made.launch(1280, "k", 1290, 800000001290)
    found = notes(made, tmp_path)
    assert found["impossible-durations"].values["gpu_count"] == 1
    assert found["impossible-durations"].severity == "care"
    assert not {"negative-duration", "absurd-duration"} & set(found)


def test_overlap_of_dependent_launches_is_legal_and_engulfing_is_not(tmp_path: Path) -> None:
    legal = steps().launch(1300, "k", 1310, 1320).launch(1302, "k", 1319, 1329).launch(1304, "k", 1329, 1339)
    found = notes(legal, tmp_path)
    assert found["stream-overlap"].values == {"affected_count": 1, "affected_ns": 1_000}
    assert "engulfing-kernels" not in found
    broken = steps().launch(1300, "k", 1310, 2210).launch(1302, "k", 1320, 1330).launch(1304, "k", 1330, 1340)
    judged = judge(broken.open(tmp_path))
    assert by_code(judged)["engulfing-kernels"].values["affected_ns"] == 900_000
    assert judged.verdict == "no"  # 900 of 1040 us


def test_branches_of_a_graph_may_run_side_by_side(tmp_path: Path) -> None:
    made = steps()
    made.runtime("cudaGraphLaunch", 1300, 1302, correlation=500)
    for at, length in ((1310, 100), (1320, 10), (1340, 10)):
        made.kernel("node", at, at + length, correlation=500, **{"graph id": 1, "graph node id": at})
    assert "engulfing-kernels" not in notes(made, tmp_path)


def test_clocks_that_disagree(tmp_path: Path) -> None:
    found = notes(steps().launch(1300, "k", 1290, 1295).launch(1310, "k", 1306, 1309), tmp_path)
    assert found["clocks-apart"].values["affected_count"] == 2
    assert found["clocks-apart"].values["worst_ns"] == 10_000


def test_whole_microseconds_and_no_time_of_day(tmp_path: Path) -> None:
    made = Recording().step(0, 0, 50).launch(1, "k", 5, 10, call=2).launch(10, "k", 15, 45, call=2)
    found = notes(made, tmp_path)
    assert found["whole-microseconds"].values["affected_count"] == 1
    assert "time-of-day-unknown" in found
    assert not {"whole-microseconds", "time-of-day-unknown"} & set(notes(steps(), tmp_path))


def test_what_was_not_recorded(tmp_path: Path) -> None:
    bare = Recording(profile_memory=1, with_flops=1).op("aten::add", 1, 6).launch(2, "k", 5, 10)
    found = notes(bare, tmp_path)
    assert found["no-memory"].values == {"asked": True}
    assert "profile_memory=True" in found["no-memory"].says
    assert found["no-shapes"].values == {"asked": False}
    assert {"no-stacks", "no-modules", "no-flops"} <= set(found)
    rich = bare.python("model.py(3): forward", 0.5, 8.5).python("nn.Module: Net_0", 0.6, 7.6)
    rich.op("aten::mm", 1.5, 3.5, **{"Input Dims": [[1]]})
    rich.events.append({
        "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PROCESS, "tid": MAIN_THREAD, "ts": 2,
        "args": {"Device Type": 0, "Device Id": -1, "Addr": 16, "Bytes": 64, "Total Allocated": 64},
    })  # fmt: skip
    found = notes(rich, tmp_path)
    assert not {"no-memory", "no-shapes", "no-stacks", "no-modules"} & set(found)
    assert found["costly-recording"].values["affected_count"] == 2


def test_a_graph_replay_has_no_operators(tmp_path: Path) -> None:
    found = notes(Recording().launch(2, "k", 5, 10), tmp_path)
    assert "no-operators" in found
    assert "no-shapes" not in found


@pytest.mark.slow
def test_host_only(tmp_path: Path) -> None:
    made = Recording().op("aten::add", 1, 6)
    assert notes(made, tmp_path)["cpu-only"].severity == "info"
    made.header["deviceProperties"] = [{"id": 0, "name": "NVIDIA H200"}]
    assert notes(made, tmp_path)["cpu-only"].severity == "care"


def test_ranks(tmp_path: Path) -> None:
    many = notes(steps(distributedInfo={"rank": 3, "world_size": 8}), tmp_path)
    assert many["one-rank-of-many"].values == {"rank": 3, "ranks_count": 8}
    assert "rank 3 of 8" in many["one-rank-of-many"].says
    assert "rank-from-name" in notes(steps(), tmp_path, "rank_5.json")
    assert not {"one-rank-of-many", "rank-from-name", "rank-unknown"} & set(notes(steps(), tmp_path))


def test_truncation_is_told_with_its_place(tmp_path: Path) -> None:
    whole = steps().to_bytes()
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: len(whole) // 2])
    judged = judge(open_trace(path, cache=False))
    note = by_code(judged)["truncated"]
    assert note.severity == "care"
    assert 0 < int(note.values["offset_bytes"] or 0) <= len(whole) // 2


def test_damage_weighs_by_what_is_lost(tmp_path: Path) -> None:
    whole = steps().to_bytes()
    at = whole.index(b'{"ph": "X"', len(whole) // 2)
    for garbage, weight in ((b"\x01%%", "care"), (b"\x01%% " * 20_000, "no")):
        path = tmp_path / "damaged.json"
        path.write_bytes(whole[:at] + garbage + b", " + whole[at:])
        note = by_code(judge(open_trace(path, cache=False)))["damaged"]
        assert note.severity == weight
        assert int(note.values["lost_bytes"] or 0) >= len(garbage) - 2


def test_texts_that_were_repaired_are_only_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    path.write_bytes(steps().to_bytes().replace(b"aten::mm", b"aten::\xffmm", 1))
    assert by_code(judge(open_trace(path, cache=False)))["not-utf8"].severity == "info"


FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ODD: tuple[object, ...] = (
    None,
    "",
    "x",
    -1,
    0,
    1e18,
    "7",
    [],
    {},
    {"correlation": 1},
    {"correlation": 0, "device": -1, "stream": "s"},
)


@pytest.mark.exhaustive
@given(
    st.lists(st.tuples(st.integers(0, 93), st.sampled_from(FIELDS), st.sampled_from(ODD)), max_size=12),
    st.sets(st.sampled_from(("cpu_op", "cuda_runtime", "kernel", "user_annotation")), max_size=3),
)
def test_no_recording_is_too_odd_to_be_judged(changes: list[tuple[int, str, object]], gone: set[str]) -> None:
    made = steps()
    for place, field, value in changes:
        made.events[place % len(made.events)] = {**made.events[place % len(made.events)], field: value}
    made.events = [event for event in made.events if str(event["cat"]) not in gone]
    with tempfile.TemporaryDirectory() as folder:
        judged = judge(made.open(Path(folder)))
    assert judged.verdict in ("yes", "with care", "no")
    by_code(judged)


def emitted_codes() -> set[str]:
    """Codes written in the checks: the first argument of every Note, and rows of the tables they come from."""
    codes = set()
    for module in (
        completeness,
        consistency,
        contention,
        coverage,
        disturbance,
        graph_losses,
        marks,
        replays,
        settling,
        size,
    ):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            first = node.args[0] if isinstance(node, ast.Call) and node.args else None
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Note":
                codes |= {first.value} if isinstance(first, ast.Constant) else set()
            if isinstance(node, ast.Tuple) and len(node.elts) > 2 and isinstance(node.elts[0], ast.Constant):
                codes.add(node.elts[0].value)
    return {code for code in codes if isinstance(code, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", code)}


def test_the_guide_describes_every_code_and_no_other() -> None:
    described = re.findall(r"^\| `([a-z0-9-]+)` \|", GUIDE.read_text(encoding="utf-8"), re.M)
    assert len(described) == len(set(described))
    # Told by impossible-durations and by several-processes.
    elsewhere = {"no-duration", "negative-duration", "absurd-duration", "other-processes"}
    assert set(described) == (emitted_codes() | set(kineto.REPAIRS)) - elsewhere


EXPECTED = {
    "h200/gpt_healthy.slow.lite.json.gz": ("yes", set()),
    "h200/elementwise_chain.fixed.lite.json.gz": ("yes", set()),
    "h200/decode_launch_bound.fixed.lite.json.gz": ("yes", set()),
    "h200/nchw_conv.fixed.lite.json.gz": ("yes", set()),
    "h200/item_sync.slow.rich.json.gz": ("with care", {"costly-recording"}),
    "other/cold_start/matmul_cold_wait0.json":
        ("with care", {"first-step-slow", "activity-buffer-request", "step-spread"}),
    "other/multirank_gloo/rank2.json.gz": ("with care", {"one-rank-of-many"}),
    "peers/hta/cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz":
        ("no", {"gpu-missing", "no-steps"}),
    "peers/hta/amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": ("with care", {"steps-cut", "one-step"}),
    "peers/hta/triton_example__triton_example.json.gz": ("no", {"steps-cut"}),
    "peers/tracelens/h100_qwen.json.gz": ("with care", {"one-step"}),
    "peers/tracelens/b200_eager.json.gz": ("with care", {"one-step", "costly-recording", "one-rank-of-many"}),
}  # fmt: skip


@needs_corpus
@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts_on_real_recordings(name: str) -> None:
    judged = judge(open_trace(CORPUS / name))
    assert (judged.verdict, {note.code for note in judged.notes if note.severity != "info"}) == EXPECTED[name]


@needs_corpus
def test_orphans_of_the_h100_recording_are_counted() -> None:
    """509 of 1,707 pieces, as TraceLens and HTA disagree on (peers-torch.md, 9)."""
    found = by_code(judge(open_trace(CORPUS / "peers/tracelens/h100_qwen.json.gz")))
    assert found["launched-before"].values["affected_count"] == 509


@needs_corpus
def test_legal_overlaps_of_the_b200_recording_are_not_faults() -> None:
    found = by_code(judge(open_trace(CORPUS / "peers/tracelens/b200_eager.json.gz")))
    assert found["stream-overlap"].values["affected_count"] == 74
    assert "engulfing-kernels" not in found


@needs_corpus
def test_every_truncation_of_a_recording_is_judged(tmp_path: Path) -> None:
    whole = gzip.decompress((CORPUS / "h200/matmul_add.slow.lite.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    events = whole.index(b'"ph"')
    for length in range(events + 400, len(whole), 2_999):
        path.write_bytes(whole[:length])
        judged = judge(open_trace(path, cache=False))
        assert judged.verdict != "yes"
        assert "truncated" in {note.code for note in judged.notes}
