from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from foretrace.commands.demo import SAMPLE
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.present.export import perfetto, perfetto_page, track_rows
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus


def training() -> Recording:
    made = Recording(baseTimeNanoseconds=1_700_000_000_000_000_000)
    for step in (1, 2):
        at = 1000.0 * step
        made.step(step, at, at + 900).op("aten::mm", at + 10, at + 40)
        made.launch(at + 20, 'void gemm<"quoted">', at + 50.125, at + 800)
    return made


def written(path: Path) -> Any:
    return json.loads(b"".join(perfetto.chunks(RecordingView(Case(open_trace(path, cache=False))))))


def ours(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["pid"] == perfetto.PROCESS]


def tracks(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_the_recording_stays_as_it_is(tmp_path: Path) -> None:
    recording = training()
    made = written(recording.write(tmp_path))
    own = ours(made["traceEvents"])
    assert made["traceEvents"][: len(own)] == own
    assert made["traceEvents"][len(own) :] == recording.events
    assert made["schemaVersion"] == 1


@pytest.mark.slow
def test_steps_stand_on_the_clock_of_the_recording(tmp_path: Path) -> None:
    own = ours(written(training().write(tmp_path))["traceEvents"])
    assert {
        perfetto.STEPS_ON_HOST: "Steps on the host",
        perfetto.STEPS_ON_GPU: "Steps on the GPU",
    }.items() <= (tracks(own).items())
    spans = [(each["tid"], each["name"], each["ts"], each["dur"]) for each in own if each["ph"] == "X"]
    assert spans[:4] == [
        (perfetto.STEPS_ON_HOST, "Step 1", 1000.0, 900.0),
        (perfetto.STEPS_ON_HOST, "Step 2", 2000.0, 900.0),
        (perfetto.STEPS_ON_GPU, "Step 1", 1050.125, 749.875),
        (perfetto.STEPS_ON_GPU, "Step 2", 2050.125, 749.875),
    ]


def test_counters(tmp_path: Path) -> None:
    own = ours(written(training().write(tmp_path))["traceEvents"])
    values: dict[str, list[tuple[float, int]]] = {}
    for event in own:
        if event["ph"] == "C":
            values.setdefault(event["name"], []).append((event["ts"], *event["args"].values()))
    assert values["GPU 0 busy"] == [(1050.125, 1), (1800.0, 0), (2050.125, 1), (2800.0, 0)]
    assert values["Launch queue, GPU 0 stream 7"] == [(1020.0, 1), (1050.125, 0), (2020.0, 1), (2050.125, 0)]


@pytest.mark.slow
def test_findings_of_the_sample_have_tracks() -> None:
    view = RecordingView(Case(open_trace(SAMPLE, cache=False)))
    own = ours(json.loads(b"".join(perfetto.chunks(view)))["traceEvents"])
    named = [name for name in tracks(own).values() if name.startswith("Finding")]
    shown = [number for number, spans in enumerate(view.finding_spans, 1) if len(spans)]
    assert shown
    assert named == [f"Finding {number}: {view.diagnosis.findings[number - 1].rule}" for number in shown]
    assert dropped(own) == []


def dropped(events: list[dict[str, Any]]) -> list[str]:
    """The slices that Perfetto's importer drops, by its own rule: begun inside an open slice of the track, ended after it.

    It takes the slices by their time, the longer first; `SliceTracker::MaybeCloseStack` of its source.
    """

    def ns(event: dict[str, Any], name: str) -> int:
        return round(Decimal(str(event[name])) * 1000)

    lost = []
    open_ends: dict[tuple[Any, Any], list[int]] = {}
    for event in sorted(
        (event for event in events if event["ph"] == "X"), key=lambda each: (ns(each, "ts"), -ns(each, "dur"))
    ):
        start, opened = ns(event, "ts"), open_ends.setdefault((event["pid"], event["tid"]), [])
        while opened and opened[-1] <= start:
            opened.pop()
        end = start + ns(event, "dur")
        if opened and end > opened[-1]:
            lost.append(event["name"])
        else:
            opened.append(end)
    return lost


def overlapping() -> Recording:
    """Three kernels of stream 7 at once, one inside another, arrows to them; a range that crosses a Python call."""
    made = Recording(trace_id="x").step(1, 0, 1_000)
    for number, (start, end) in enumerate([(100, 200), (150, 300), (180, 190), (250, 400)]):
        made.launch(10.0 + 20 * number, f"k{number}", start, end)
    made.events += [
        {"ph": flow, "cat": "ac2g", "name": "ac2g", "id": 2, "pid": pid, "tid": tid, "ts": at, **more}
        for flow, pid, tid, at, more in (("s", 100, 100, 30.0, {}), ("f", 0, 7, 150.0, {"bp": "e"}))
    ]
    made.python("train.py(3): enter", 500, 600).annotation("mine", 550, 700)
    named = {"name": 'stream "7"\n', "tid": 5}  # a member of that name inside is not the thread
    made.events.append({"ph": "M", "name": "thread_name", "args": named, "pid": 0, "tid": 7, "ts": 0})
    sorting = {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 7, "args": {"sort_index": 9}}
    made.events.append(sorting)
    made.events[-3]["args"] = {"tid": 12, "deep": {"tid": ["}", '"'], "more": {"x": {}}}}
    return made


@pytest.mark.parametrize("piece", [1 << 20, 7], ids=["whole", "pieces"])
def test_what_overlaps_gets_a_row_of_its_own(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = overlapping()
    assert dropped(recording.events) == ["k1", "mine"], "k3 overlaps k1, which is gone by then"
    path = recording.write(tmp_path)
    text = path.read_bytes()
    cut = [text[at : at + piece] for at in range(0, len(text), piece)]
    monkeypatch.setattr(
        perfetto, "open_source", lambda _: type("Source", (), {"chunks": lambda self: iter(cut)})()
    )
    if piece < 100:
        monkeypatch.setattr(track_rows, "_AT_ONCE", 40)
        assert max(len(json.dumps(each)) for each in recording.events) < 250
        monkeypatch.setattr(track_rows, "_LONGEST", 250)
    made = written(path)
    assert made["trace_id"] == "x"
    events = made["traceEvents"]
    assert dropped(events) == []
    theirs = [each for each in events if each["pid"] != perfetto.PROCESS and not _names_a_row(each)]
    rows = {each["name"]: each["tid"] for each in theirs if each["ph"] == "X"}
    first = track_rows.FIRST_ROW
    assert {name: rows[name] for name in ("k0", "k1", "k2", "k3")} == {
        "k0": 7, "k1": first + 1, "k2": first + 2, "k3": 7
    }  # fmt: skip
    assert rows["mine"] == first
    assert [each["tid"] for each in theirs if each["ph"] in "sf"] == [100, first + 1], (
        "the arrow follows its kernel"
    )
    unmoved = [{**each, "tid": None} for each in theirs]
    assert unmoved == [{**each, "tid": None} for each in recording.events], "nothing else changes"
    named = [each for each in events if _names_a_row(each)]
    assert {(each["pid"], each["tid"], *each["args"].values()) for each in named} == {
        (0, first + 1, 'GPU 0 stream "7" (row 2: overlapping)'), (0, first + 1, 7),
        (0, first + 2, 'GPU 0 stream "7" (row 3: overlapping)'), (0, first + 2, 7),
        (100, first, "thread 100 (row 2: overlapping)"), (100, first, 100),
    }  # fmt: skip


def _names_a_row(event: dict[str, Any]) -> bool:
    return event["ph"] == "M" and event["pid"] != perfetto.PROCESS and event["tid"] >= track_rows.FIRST_ROW


def test_rows_of_a_recording_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(with_bare_words(overlapping().op("aten::mm", 800.0, 830.0).to_bytes()))
    events = written(path)["traceEvents"]
    assert {"k0", "k1", "k2", "k3", "mine"} <= {each["name"] for each in events}
    assert dropped(events) == []
    assert 'GPU 0 stream "7" (row 3: overlapping)' in tracks(events).values()


def test_rows_by_brute_force() -> None:
    """Of random slices, none crosses another of its row, no work lies in other work, and no row could be spared before it."""
    import numpy as np

    random = np.random.default_rng(5)
    for _ in range(60):
        count = 40
        starts = random.integers(0, 60, count)
        ends = starts + random.integers(1, 25, count)
        works, tracks_ = random.random(count) < 0.5, random.integers(0, 2, count)
        rows = track_rows.rows_of(tracks_, starts, ends, works)

        def collide(one: int, other: int) -> bool:
            if max(starts[one], starts[other]) >= min(ends[one], ends[other]):  # noqa: B023
                return False
            inside = (starts[one] - starts[other]) * (ends[one] - ends[other]) <= 0  # noqa: B023
            return not inside or bool(works[one] and works[other])  # noqa: B023

        pairs = [
            (one, other)
            for one in range(count)
            for other in range(one)
            if tracks_[one] == tracks_[other] and rows[one] == rows[other]
        ]
        assert not any(collide(*pair) for pair in pairs)
        for place in np.flatnonzero(rows):
            below = [
                each
                for each in range(count)
                if tracks_[each] == tracks_[place] and rows[each] == rows[place] - 1
            ]
            assert any(collide(int(place), each) for each in below), "it would have fitted one row higher"


@needs_corpus
def test_the_overlapping_kernels_of_a_b200_are_all_shown(tmp_path: Path) -> None:
    """A recording in which Perfetto drops 38 kernels and 4 ranges; the arrows end at the kernels that they lead to."""
    path = CORPUS / "peers" / "tracelens" / "b200_eager.json.gz"
    before = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert len(dropped(before)) == 42
    after = written(path)["traceEvents"]
    assert dropped(after) == []
    trace = open_trace(path)
    spans = trace.spans.select("track_id", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    columns = [column.cast(pl.Int64).to_numpy() for column in spans.get_columns()]
    of_all = track_rows.rows_of(columns[0], columns[1], columns[2], track_rows.is_work(trace.spans))
    assert (track_rows.rows_of_spans(trace) == of_all).all(), "looking only where spans overlap is enough"
    theirs = [each for each in after if each["pid"] != perfetto.PROCESS and not _names_a_row(each)]
    assert [{**each, "tid": 0} for each in theirs] == [{**each, "tid": 0} for each in before]
    slices = {(each["pid"], each["tid"], each["ts"]) for each in theirs if each["ph"] == "X"}
    ends = [each for each in theirs if each["ph"] == "f" and each["cat"] == "ac2g" and each["pid"] == 0]
    assert len(ends) > 900
    assert [each for each in ends if (each["pid"], each["tid"], each["ts"]) not in slices] == []


def truncated(data: bytes) -> bytes:
    return data[:-60]


def with_bare_words(data: bytes) -> bytes:
    return data.replace(b'"dur": 30.0', b'"dur": 30.0, "args": {"x": NaN, "y": N/A}', 1)


def bare_list(data: bytes) -> bytes:
    return json.dumps(json.loads(data)["traceEvents"], indent=1).encode()


def with_a_mark(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def with_a_bare_list_and_a_mark(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + bare_list(data)


@pytest.mark.parametrize(
    "change", [truncated, with_bare_words, bare_list, with_a_mark, with_a_bare_list_and_a_mark],
    ids=lambda each: each.__name__,
)  # fmt: skip
def test_whatever_the_recording_is_the_result_is_json(
    change: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(change(training().to_bytes()))
    made = written(path)
    events = made if isinstance(made, list) else made["traceEvents"]
    assert {"Step 1", "ProfilerStep#1", "aten::mm", 'void gemm<"quoted">'} <= {
        event["name"] for event in events
    }
    assert next(event["ts"] for event in events if event["name"] == 'void gemm<"quoted">') == 1050.125


def test_a_recording_without_events(tmp_path: Path) -> None:
    made = written(Recording().write(tmp_path))
    assert [event["name"] for event in made["traceEvents"]] == ["process_name", "process_sort_index"]


@pytest.mark.slow
def test_no_nanosecond_is_lost(tmp_path: Path) -> None:
    def late(match: re.Match[bytes]) -> bytes:
        return b'"ts": %s,' % str(Decimal("3848947630725.981") + Decimal(match[1].decode())).encode()

    path = tmp_path / "trace.json"
    path.write_bytes(re.sub(rb'"ts": ([\d.]+),', late, training().to_bytes()))
    raw = b"".join(perfetto.chunks(RecordingView(Case(open_trace(path, cache=False)))))
    assert raw.count(b"3848947631725.981") == 2, "the step as recorded, and on our track"


def test_large_counters_are_thinned_to_their_highest(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    monkeypatch.setattr(perfetto, "_COUNTER_POINTS", 3)
    at, value = perfetto._thinned(np.arange(8), np.array((0, 9, 1, 1, 2, 1, 7, 3)))
    assert (at.tolist(), value.tolist()) == ([1, 4, 6, 7], [9, 2, 7, 3])


def test_the_page_shows_a_hostile_name_as_text() -> None:
    made = perfetto_page.page("<script>alert(1)</script>.json")
    assert "<script>alert" not in made
    assert perfetto_page.hash_of(perfetto_page.SCRIPT) in perfetto_page.policy()
