"""The timeline's payload, decoded, is the trace span for span."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.diagnose.case import Case
from foretrace.errors import MissingDataError, UsageError
from foretrace.ingest import open_trace
from foretrace.present.web import binary, kinds, payload
from foretrace.present.web.binary import Column
from foretrace.present.web.owners import device_owners
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import lanes
from foretrace.present.web.resources.timeline import timeline
from foretrace.present.web.short_names import LONGEST, short
from tests.builders import Recording
from tests.present.web.contract import SAMPLES, same_fields

Columns = dict[str, NDArray[Any]]


@cache
def view(path: Path) -> RecordingView:
    return RecordingView(Case(open_trace(path, cache=False)))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name)
def sample(request: pytest.FixtureRequest) -> RecordingView:
    return view(request.param)


def decoded(answer: payload.Answer) -> tuple[dict[str, Any], Columns]:
    """Header and columns with true times, by the rules of web/src/data/payload.ts."""
    assert isinstance(answer, bytes)
    header, columns = binary.unpack(answer)
    start = columns["start"].astype(np.float64)
    start[columns["start"] == binary.ESCAPE] = columns.get("start:escapes", [])
    dur = columns["dur"].astype(np.float64)
    dur[columns["dur"] == binary.ESCAPE] = columns.get("dur:escapes", [])
    for track in header["tracks"]:
        for row in track["rows"]:
            here = slice(row["offset"], row["offset"] + row["count"])
            start[here] = header["from_ns"] + np.cumsum(start[here])
    return header, {**columns, "start": start, "dur": dur}


def rows_of(header: Mapping[str, Any]) -> list[tuple[str, slice]]:
    return [
        (track["group"], slice(row["offset"], row["offset"] + row["count"]))
        for track in header["tracks"]
        for row in track["rows"]
    ]


@pytest.mark.slow
def test_every_span_is_there_once_as_recorded(sample: RecordingView) -> None:
    header, columns = decoded(payload.resource(sample, "timeline"))
    same_fields(header, "Timeline")
    spans = sample.trace.spans
    recorded = columns["id"] < spans.height
    ids = columns["id"][recorded]
    assert sorted(ids.tolist()) == list(range(spans.height))
    assert (columns["start"][recorded] == spans["start_ns"].to_numpy()[ids]).all()
    dur = spans["dur_ns"].fill_null(0).to_numpy()[ids]
    drawn = columns["dur"][recorded]
    assert (drawn <= dur).all()
    names = spans["name"].cast(str).to_list()
    sorts = spans["kind"].cast(str).to_list()
    cut = drawn < dur
    assert {sorts[each] for each in ids[cut].tolist()} <= {"python"}, "only a lost return is cut"
    shown = [header["names"][place] for place in columns["name"][recorded].tolist()]
    assert shown == [short(names[each], sorts[each]) for each in ids.tolist()]
    assert header["spans_count"] == len(columns["id"])


def test_kinds_and_findings_are_those_of_the_spans(sample: RecordingView) -> None:
    _, columns = decoded(payload.resource(sample, "timeline"))
    words = (*kinds.KINDS, *kinds.HOST_KINDS)
    sorts = sample.trace.spans["kind"].cast(str).to_list()
    recorded = columns["id"] < sample.trace.spans.height
    for number, kind, finding in zip(
        *(columns[name][recorded].tolist() for name in ("id", "kind", "finding")), strict=True
    ):
        assert (words[kind] in kinds.WORK) == (sorts[number] in ("kernel", "copy", "set"))
        assert finding == sample.finding_of.get(number, 0)
    assert not columns["finding"][~recorded].any()


def test_no_span_of_a_row_covers_another(sample: RecordingView) -> None:
    header, columns = decoded(payload.resource(sample, "timeline"))
    end = columns["start"] + columns["dur"]
    covered = 0
    for _, here in rows_of(header):
        covered += here.stop - here.start
        assert (columns["start"][here][1:] >= end[here][:-1]).all()
    assert covered == len(columns["start"])
    offsets = sorted((here.start, here.stop) for _, here in rows_of(header))
    assert all(before[1] <= after[0] for before, after in pairwise(offsets))


def test_a_host_span_stands_below_what_is_around_it(sample: RecordingView) -> None:
    header, columns = decoded(payload.resource(sample, "timeline"))
    place: dict[int, tuple[str, int]] = {}
    for track in header["tracks"]:
        for number, row in enumerate(track["rows"]):
            for each in columns["id"][row["offset"] : row["offset"] + row["count"]].tolist():
                place[each] = track["group"], number
    parents = sample.trace.spans.select("id", "parent_id").drop_nulls()
    for number, parent in parents.iter_rows():
        group, row = place[number]
        if place[parent][0] == group and group in ("host", "python"):
            assert row == place[parent][1] + 1


def test_counters_are_steps_in_time(sample: RecordingView) -> None:
    header, columns = decoded(payload.resource(sample, "timeline"))
    for number, counter in enumerate(header["counters"]):
        same_fields(counter, "Counter")
        at, value = columns[f"counter:{number}:at"], columns[f"counter:{number}:value"]
        assert len(at) == len(value) > 0
        assert (np.diff(at) > 0).all()
        assert value.min() >= 0
        assert value.max() <= counter["most"] * 1.0001
    for step in header["steps"]:
        same_fields(step, "StepRange")
    shares = np.array(header["minimap"]["columns"])
    assert (shares.sum(axis=1) <= 1.01).all()


def test_a_window_shows_what_is_wide_and_the_longest_of_each_pixel(sample: RecordingView) -> None:
    whole, columns = decoded(payload.resource(sample, "timeline"))
    start, end, pixels = whole["to_ns"] // 4, whole["to_ns"] // 2 + 1, 50
    query = {"from": str(start), "to": str(end), "px": str(pixels)}
    part, shown = decoded(payload.resource(sample, "timeline/window", query))
    same_fields(part, "Timeline")
    width = (end - start) / pixels
    assert len(part["tracks"]) == len(whole["tracks"])
    for (_, here), (_, there) in zip(rows_of(whole), rows_of(part), strict=True):
        begin, dur = columns["start"][here], columns["dur"][here]
        visible = (begin < end) & ((begin + dur > start) | (begin >= start))
        kept = shown["start"][there].tolist()
        assert set(kept) <= set(begin[visible].tolist())
        assert set(begin[visible & (dur >= 1.5 * width)].tolist()) <= set(kept)
        small = visible & (dur < 1.5 * width) & (begin >= start)
        lengths = dict(zip(kept, shown["dur"][there].tolist(), strict=True))
        for pixel in range(pixels):
            inside = small & (begin >= start + pixel * width) & (begin < start + (pixel + 1) * width)
            if inside.any():
                drawn = [
                    lengths[each]
                    for each in kept
                    if start + pixel * width <= each < start + (pixel + 1) * width
                ]
                assert max(drawn, default=-1) >= dur[inside].max()


def test_a_large_recording_comes_in_tiles(sample: RecordingView) -> None:
    header, columns = decoded(timeline(sample, tiled_above=10))
    assert header["tiled"] == (header["spans_count"] > 10)
    assert len(columns["start"]) <= header["spans_count"]
    assert not decoded(payload.resource(sample, "timeline"))[0]["tiled"]


def test_without_findings_the_diagnosis_is_not_waited_for() -> None:
    run = RecordingView(Case(open_trace(SAMPLES[0], cache=False)))
    _, columns = decoded(payload.resource(run, "timeline", {"findings": "no"}))
    assert "finding" not in columns
    _, columns = decoded(
        payload.resource(run, "timeline/window", {"from": "0", "to": "1e7", "px": "50", "findings": "no"})
    )
    assert "finding" not in columns
    assert "diagnosis" not in run._made


def test_findings_alone_are_those_of_the_whole(sample: RecordingView) -> None:
    made = payload.resource(sample, "timeline", {"only": "finding"})
    assert isinstance(made, bytes)
    _, columns = binary.unpack(made)
    assert list(columns) == ["finding"]
    assert columns["finding"].tolist() == decoded(payload.resource(sample, "timeline"))[1]["finding"].tolist()


def test_what_is_drawn_first_comes_first(sample: RecordingView) -> None:
    made = payload.resource(sample, "timeline")
    assert isinstance(made, bytes)
    names = list(binary.unpack(made)[1])
    assert max(names.index(each) for each in ("start", "dur", "kind")) < names.index("name")
    assert names[-3:] == ["name", "id", "finding"]


@pytest.mark.parametrize("ids", [[], [0], [7, 8, 262, 517, 3, lanes.NO_SPAN, lanes.NO_SPAN, 0, 300, 301]])
def test_ids_travel_as_steps(ids: list[int]) -> None:
    made = binary.pack({}, binary.steps("id", np.array(ids, np.uint32)))
    assert binary.unpack(made)[1]["id"].tolist() == ids


@pytest.mark.parametrize(
    "query",
    [{}, {"from": "0", "to": "1"}, {"from": "5", "to": "5", "px": "10"}, {"from": "0", "to": "9", "px": "0"},
     {"from": "nan", "to": "9", "px": "5"}, {"from": "0", "to": "1e30", "px": "5"}, {"from": "0", "to": "9", "px": "1e9"}],
)  # fmt: skip
def test_a_window_that_makes_no_sense_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        payload.resource(view(SAMPLES[0]), "timeline/window", query)


TIMES = st.lists(st.integers(0, 2**40) | st.sampled_from((2**32 - 2, 2**32 - 1, 2**32)), max_size=30)


@given(TIMES)
def test_times_of_any_length_survive(values: list[int]) -> None:
    array = np.array(values, np.int64)
    header, columns = binary.unpack(binary.pack({"a": "é"}, binary.times("x", array, "shuffled")))
    found = columns["x"].astype(np.float64)
    found[columns["x"] == binary.ESCAPE] = columns.get("x:escapes", [])
    assert found.tolist() == array.tolist()
    assert header == {"a": "é"}


@given(st.lists(st.integers(0, 255), max_size=9), st.lists(st.floats(width=32, allow_nan=False), max_size=9))
def test_columns_of_every_type_survive(small: list[int], large: list[float]) -> None:
    given_columns = {
        **{f"u{width}": np.array(small, f"<u{width}") for width in (1, 2, 4)},
        **{f"f{width}": np.array(large, f"<f{width}") for width in (4, 8)},
    }
    for encoding in ("raw", "shuffled"):
        packed = binary.pack({}, {name: Column(each, encoding) for name, each in given_columns.items()})
        assert len(packed) % 8 == 0
        _, columns = binary.unpack(packed)
        assert all((columns[name] == each).all() for name, each in given_columns.items())


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=40)


@given(SPANS)
def test_rows_of_a_stream_are_as_few_as_there_can_be(drawn: list[tuple[int, int]]) -> None:
    ordered = sorted(drawn, key=lambda each: each[0])
    start, dur = (np.array(each, np.int64) for each in zip(*ordered, strict=True))
    lane = lanes.stacked(start, dur)
    for row in range(int(lane.max()) + 1):
        mine = lane == row
        assert mine.any()
        assert (start[mine][1:] >= (start + dur)[mine][:-1]).all()
    moments = np.arange(0, 81)[:, None]
    at_once = ((start <= moments) & (moments < start + dur)).sum(axis=1).max()
    assert lane.max() + 1 <= max(int(at_once), 1)


def test_kernels_that_overlap_on_a_stream_get_rows_of_their_own(tmp_path: Path) -> None:
    recording = Recording()
    recording.kernel("a", 0, 10).kernel("b", 8, 20).kernel("c", 20, 30).kernel("d", 5, 9, stream=8)
    run = RecordingView(Case(open_trace(recording.write(tmp_path, "overlap.json"), cache=False)))
    header, _ = decoded(payload.resource(run, "timeline"))
    counts = {track["subtitle"]: [row["count"] for row in track["rows"]] for track in header["tracks"]}
    assert counts["stream 7"] == [2, 1]
    assert counts["stream 8"] == [1]


@pytest.mark.slow
def test_gpu_work_is_projected_on_modules(tmp_path: Path) -> None:
    recording = Recording(with_stack=1)
    recording.step(1, 0, 1_000)
    for place, name in enumerate(("Block_0", "Block_1")):
        at = 100 + 400 * place
        recording.python(f"nn.Module: {name}", at, at + 300)
        for each in range(3):
            begin = at + 20 + 50 * each
            recording.op("aten::add", begin, begin + 30)
            recording.launch(begin + 5, "add_kernel", begin + 40, begin + 60, call=5)
    for number, event in enumerate(each for each in recording.events if each["cat"] == "python_function"):
        event.setdefault("args", {}).update(
            {"Python id": number + 1, "Python parent id": None, "Python module id": number}
        )
    run = RecordingView(Case(open_trace(recording.write(tmp_path, "modules.json"), cache=False)))
    header, columns = decoded(payload.resource(run, "timeline"))
    track = next(each for each in header["tracks"] if each["group"] == "modules")
    last = track["rows"][-1]
    here = slice(last["offset"], last["offset"] + last["count"])
    assert [header["names"][each] for each in columns["name"][here]] == ["Block_0", "Block_1"]
    assert columns["start"][here].tolist() == [160_000, 560_000]
    assert (columns["id"][here] == lanes.NO_SPAN).all()


def test_modules_of_device_work_are_those_of_the_analysis(sample: RecordingView) -> None:
    trace = sample.trace
    try:
        tree = module_tree.find(trace)
    except MissingDataError:
        return
    given_owners = attribution.device_owners(trace, attribution.attribute(trace, tree.carried))["owner"]
    found = device_owners(trace, sample.classified, tree.carried)
    assert found.tolist() == given_owners.fill_null(-1).to_list()


@given(st.text(max_size=200), st.sampled_from(("kernel", "op", "python", "runtime", "copy")))
def test_a_short_name_is_short_and_says_something(name: str, kind: str) -> None:
    found = short(name, kind)
    assert len(found) <= LONGEST
    assert bool(found) == bool(name) or not name.strip()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)", "add"),
        ("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous namespace)::masked_fill_kernel(at::TensorIterator&)::{lambda()#1}>(int)", "masked_fill"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 11, false, false>(float*)", "softmax_warp_forward"),
        ("nvjet_sm90_tst_64x256_64x5_1x2_h_bz_NNN", "nvjet_sm90_tst_64x256_64x5_1x2_h_bz_NNN"),
        ("Memcpy HtoD (Pageable -> Device)", "copy to device"),
    ],
)  # fmt: skip
def test_kernels_are_called_by_what_they_do(name: str, said: str) -> None:
    assert short(name, "kernel") == said
