from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands.demo import SAMPLE
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.present.export import perfetto, perfetto_page
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording


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


def test_findings_of_the_sample_have_tracks() -> None:
    view = RecordingView(Case(open_trace(SAMPLE, cache=False)))
    own = ours(json.loads(b"".join(perfetto.chunks(view)))["traceEvents"])
    named = [name for name in tracks(own).values() if name.startswith("Finding")]
    shown = [number for number, spans in enumerate(view.finding_spans, 1) if len(spans)]
    assert shown
    assert named == [f"Finding {number}: {view.diagnosis.findings[number - 1].rule}" for number in shown]
    for tid in tracks(own):
        spans = [(each["ts"], each["dur"]) for each in own if each["ph"] == "X" and each["tid"] == tid]
        crossing = [b for a, b in pairwise(spans) if b[0] < a[0] + a[1] - 0.002]
        assert crossing == [], "slices of one track that cross are dropped by Perfetto"


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
