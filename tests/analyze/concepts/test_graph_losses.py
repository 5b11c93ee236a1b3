"""Replays of CUDA graphs with known losses; and intact ones that differ, because they should."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from foretrace.analyze.concepts.trust.evidence import Note
from foretrace.analyze.trust import judge
from foretrace.diagnose.opening import open_case
from foretrace.diagnose.promises import why_not
from foretrace.ingest import open_trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

CODES = ("graph-work-lost", "graph-work-few-lost", "graph-work-unclear")
KERNEL_US, GAP_US = 8, 1
NODES = [f"kernel_{number % 10}" for number in range(99)] + ["argmax"]


@dataclass
class Replays:
    """Steps that each replay graphs: kernels one behind the other, then a wait for the last, which ends 2 us after it."""

    ids: bool | str = False  # "small": ids of nodes do not contain that of their graph
    wait: bool = True
    idle_us: float = 500
    made: Recording = field(default_factory=lambda: Recording(record_shapes=1))
    at: float = 1000.0
    launches: int = 100_000

    def step(self, *graphs: Callable[[Replays], None]) -> Replays:
        """A step that launches these graphs."""
        begin = self.at
        self.at += 10
        for graph in graphs:
            graph(self)
        self.at += self.idle_us
        self.made.step(int(begin), begin, self.at - 1)
        return self

    def replay(
        self,
        nodes: Sequence[str],
        *,
        lost: Sequence[int] = (),
        skipped: Sequence[int] = (),
        graph: int = 3,
        bodies: dict[int, int] | None = None,
    ) -> None:
        """One launch; `lost` nodes run and are not recorded, `skipped` ones do not run, `bodies` are graphs of nodes."""
        self.launches += 1
        call = self.at
        self.made.op("graph_step", call, call + 8, **{"Input Dims": [[8, 8]]})
        self.made.runtime("cudaGraphLaunch", call + 1, call + 7, correlation=self.launches)
        start = call + 20
        for number, name in enumerate(nodes):
            if number in skipped:
                continue
            of = (bodies or {}).get(number, graph)
            node = number if self.ids == "small" else (of << 32) + number
            ids = {"graph id": of, "graph node id": node} if self.ids else {}
            if number not in lost:
                self.made.kernel(name, start, start + KERNEL_US, correlation=self.launches, **ids)
            start += KERNEL_US + GAP_US
        self.at = start
        if self.wait:
            self.made.runtime("cudaStreamSynchronize", call + 9, start + 2)
            self.at = start + 3


def notes(made: Recording, folder: Path) -> dict[str, Note]:
    return {note.code: note for note in judge(made.open(folder)).notes if note.code in CODES}


def replayed(lost: Sequence[Sequence[int]], *, ids: bool | str = False, wait: bool = True) -> Recording:
    """A step for each entry: one replay that lost these nodes."""
    program = Replays(ids=ids, wait=wait)
    for of_replay in lost:
        program.step(lambda run, of_replay=of_replay: run.replay(NODES, lost=of_replay))  # type: ignore[misc]
    return program.made


def scattered(count: int, seed: int) -> list[int]:
    return random.Random(seed).sample(range(len(NODES)), count)


@pytest.mark.parametrize("ids", [True, False, "small"])
@pytest.mark.parametrize("wait", [True, False])
def test_half_of_two_of_four_replays(ids: bool | str, wait: bool, tmp_path: Path) -> None:
    """100 of 400 kernels are gone, at random."""
    made = replayed([[], scattered(50, 1), [], scattered(50, 2)], ids=ids, wait=wait)
    found = notes(made, tmp_path)
    assert list(found) == ["graph-work-lost"]
    values = found["graph-work-lost"].values
    assert (values["affected_count"], values["kernels_count"]) == (100, 400)
    assert found["graph-work-lost"].severity == "care"
    assert "in 2 of 4 replays" in found["graph-work-lost"].says


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("half", [range(50), range(50, 100)])
def test_one_half_of_two_of_four_replays(ids: bool, half: range, tmp_path: Path) -> None:
    """At an end it might be a conditional node's body: the time for it is there in both cases."""
    found = notes(replayed([[], half, [], half], ids=ids), tmp_path)
    (note,) = found.values()
    assert note.code == "graph-work-unclear"
    assert note.severity == "care"
    assert note.values["affected_count"] == 100
    assert "cannot tell" in note.says


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize(
    ("lost", "code"), [(0, None), (1, "graph-work-few-lost"), (2, "graph-work-lost"), (4, "graph-work-lost")]
)
def test_from_two_percent_on_a_loss_is_named(lost: int, code: str | None, ids: bool, tmp_path: Path) -> None:
    """Of four replays of 100 kernels two lose twice as many each."""
    made = replayed([[], [*range(30, 30 + 2 * lost)], [], [*range(60, 60 + 2 * lost)]], ids=ids)
    found = notes(made, tmp_path)
    assert list(found) == ([code] if code else [])
    if code:
        assert found[code].values["share_pct"] == pytest.approx(lost)


def test_every_replay_lost_some(tmp_path: Path) -> None:
    """No replay is whole: the ids of nodes tell what each lacks."""
    made = replayed([scattered(40, seed) for seed in range(6)], ids=True)
    # What none of them recorded is not known of.
    unseen = set.intersection(*(set(scattered(40, seed)) for seed in range(6)))
    assert notes(made, tmp_path)["graph-work-lost"].values["affected_count"] == 6 * (40 - len(unseen))


def test_whole_replays_are_missing(tmp_path: Path) -> None:
    """Three of six launches have no kernels, beside many launches outside graphs."""
    made = replayed([[], NODES_GONE, [], NODES_GONE, NODES_GONE, []])
    for number in range(200):
        made.launch(9000 + 10 * number, "eager", 9003 + 10 * number, 9004 + 10 * number)
    note = notes(made, tmp_path)["graph-work-lost"]
    assert (note.values["affected_count"], note.values["kernels_count"]) == (300, 600)
    assert "3 of which have none at all" in note.says


NODES_GONE = list(range(len(NODES)))


def test_448_of_512(tmp_path: Path) -> None:
    """As ROCm 7.2 lost them: one of eight replays of 64 kernels is recorded, and the device was waited for at the end."""
    program = Replays()
    names = [f"k{number}" for number in range(64)]
    for number in range(8):
        program.step(lambda run, lost=range(64 * (number > 0)): run.replay(names, lost=lost))  # type: ignore[misc]
    program.made.runtime("cudaDeviceSynchronize", program.at, program.at + 5)
    lost = notes(program.made, tmp_path)["graph-work-lost"]
    assert (lost.values["affected_count"], lost.values["kernels_count"]) == (448, 512)
    assert lost.severity == "no"


def captured(kernels: int, replays: int, lost: Callable[[int], Sequence[int]]) -> Recording:
    """A capture, and replays of it by one stream."""
    program = Replays()
    program.made.runtime("cudaStreamBeginCapture", 100, 102)
    for number in range(kernels):
        program.made.runtime("cudaLaunchKernel", 110 + 2 * number, 111 + 2 * number, correlation=500 + number)
    program.made.runtime("cudaStreamEndCapture", 900, 902)
    for number in range(replays):
        program.step(lambda run, number=number: run.replay(NODES[:kernels], lost=lost(number)))  # type: ignore[misc]
    return program.made


@pytest.mark.slow
def test_a_capture_says_how_many_kernels_a_graph_has(tmp_path: Path) -> None:
    """All four replays lack the same ten of 100 kernels: their gaps have room for them."""
    lost = notes(captured(100, 4, lambda _: range(40, 80, 4)), tmp_path)["graph-work-lost"]
    assert (lost.values["affected_count"], lost.values["kernels_count"]) == (40, 400)
    (tmp_path / "trace.json").unlink()
    assert notes(captured(100, 4, lambda _: ()), tmp_path) == {}


def test_replays_without_the_end_of_their_capture_are_unclear(tmp_path: Path) -> None:
    unclear = notes(captured(100, 4, lambda _: range(90, 100)), tmp_path)
    assert list(unclear) == ["graph-work-unclear"]


def test_nothing_is_promised_of_a_lossy_recording(tmp_path: Path) -> None:
    lossy = replayed([[], scattered(50, 1), [], scattered(50, 2)])
    whole = replayed([[], [], [], []])
    assert "CUDA graphs were lost" in why_not(open_case(lossy.write(tmp_path, "lossy.json")))
    assert "CUDA graphs" not in why_not(open_case(whole.write(tmp_path, "whole.json")))


# --- intact ------------------------------------------------------------------------------------------------------


def conditional(*, ids: bool, body: range, own_graph: bool, wait: bool = True) -> Recording:
    """The body of a conditional node runs in every other replay."""
    program = Replays(ids=ids, wait=wait)
    bodies = dict.fromkeys(body, 9) if own_graph else {}
    for number in range(6):
        skipped = body if number % 2 else ()
        program.step(lambda run, skipped=skipped: run.replay(NODES, skipped=skipped, bodies=bodies))  # type: ignore[misc]
    return program.made


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("own_graph", [True, False])
def test_a_conditional_body_is_no_loss(ids: bool, wait: bool, own_graph: bool, tmp_path: Path) -> None:
    """What is not run takes no time."""
    assert notes(conditional(ids=ids, body=range(30, 60), own_graph=own_graph, wait=wait), tmp_path) == {}


@pytest.mark.parametrize("ids", [True, False])
def test_a_conditional_body_at_the_end_is_no_loss_where_a_wait_ends_with_it(
    ids: bool, tmp_path: Path
) -> None:
    assert notes(conditional(ids=ids, body=range(60, 100), own_graph=False), tmp_path) == {}


def test_a_body_with_a_graph_of_its_own_is_known_without_times(tmp_path: Path) -> None:
    made = conditional(ids=True, body=range(60, 100), own_graph=True, wait=False)
    assert notes(made, tmp_path) == {}


def test_a_body_that_lost_some_is_told_from_one_that_did_not_run(tmp_path: Path) -> None:
    """Of a body of 30 nodes, ten are missing where it ran, and time is left for them."""
    program = Replays(ids=True)
    bodies = dict.fromkeys(range(30, 60), 9)
    for number in range(6):
        skipped = range(30, 60) if number % 2 else ()
        lost = range(40, 50) if number == 2 else ()
        program.step(lambda run, s=skipped, m=lost: run.replay(NODES, skipped=s, lost=m, bodies=bodies))  # type: ignore[misc]
    found = notes(program.made, tmp_path)
    assert list(found) == ["graph-work-lost"] or list(found) == ["graph-work-few-lost"]
    # 3 x 100 + 3 x 70 kernels ran.
    (note,) = found.values()
    assert (note.values["affected_count"], note.values["kernels_count"]) == (10, 510)


@pytest.mark.parametrize("ids", [True, False, "small"])
def test_batch_sizes_have_graphs_of_their_own(ids: bool | str, tmp_path: Path) -> None:
    """Three sizes in turn: other kernels, or the same beside one more."""
    sizes = [NODES, [f"{name}_large" for name in NODES], [*NODES[:50], "split_k", *NODES[50:]]]
    program = Replays(ids=ids)
    for number in range(9):
        program.step(lambda run, n=number: run.replay(sizes[n % 3], graph=3 + n % 3))  # type: ignore[misc]
    assert notes(program.made, tmp_path) == {}


@pytest.mark.parametrize("steps", [1, 4])
def test_pieces_of_a_model_may_begin_alike(steps: int, tmp_path: Path) -> None:
    """Piecewise graphs: the last is the beginning of the others, in every step."""
    program = Replays(wait=False)
    for _ in range(steps):
        program.step(*[lambda run: run.replay(NODES[:20])] * 5, lambda run: run.replay(NODES[:12]))
    assert notes(program.made, tmp_path) == {}


def test_the_last_replay_may_be_cut_off(tmp_path: Path) -> None:
    """The recording ends while it runs: that is no loss of the profiler."""
    made = replayed([[], [], []], wait=False)
    assert notes(replayed([[], [], range(60, 100)], wait=False), tmp_path) == {}
    assert notes(made, tmp_path) == {}


def test_branches_may_start_in_any_order(tmp_path: Path) -> None:
    """Two streams: which of two kernels starts first differs from replay to replay."""
    made = Recording()
    for number in range(4):
        begin = 1000 + 1000 * number
        made.step(number, begin, begin + 900).runtime(
            "cudaGraphLaunch", begin + 1, begin + 5, correlation=number + 1
        )
        for place in range(20):
            at = begin + 20 + 10 * place
            swap = (number + place) % 2
            made.kernel("left", at + swap, at + 8, correlation=number + 1, stream=7)
            made.kernel("right", at + 1 - swap, at + 8, correlation=number + 1, stream=8)
    assert notes(made, tmp_path) == {}


@needs_corpus
@pytest.mark.parametrize(
    "name",
    [
        "h200/decode_launch_bound.fixed.lite.json.gz", "h200/decode_launch_bound.fixed.rich.json.gz",
        "peers/tracelens/vllm_decode_graph_execution.json.gz",
    ],
)  # fmt: skip
def test_real_replays_are_whole(name: str) -> None:
    assert [note.code for note in judge(open_trace(CORPUS / name)).notes if note.code in CODES] == []


@needs_corpus
@pytest.mark.parametrize("lost", [0.03, 0.5])
def test_a_loss_in_one_of_three_real_replays_is_named(lost: float, tmp_path: Path) -> None:
    """150 kernels each, without ids of nodes; gaps differ as they do on an H200."""
    with gzip.open(CORPUS / "h200" / "decode_launch_bound.fixed.lite.json.gz") as file:
        document = json.load(file)
    events = document["traceEvents"]
    calls = [event for event in events if event.get("name") == "cudaGraphLaunch"]
    correlation = sorted(calls, key=lambda call: call["ts"])[1]["args"]["correlation"]
    kernels = [
        place
        for place, event in enumerate(events)
        if event.get("cat") == "kernel" and event["args"].get("correlation") == correlation
    ]
    gone = set(
        random.Random(7).sample(kernels, round(3 * lost * len(kernels)) if lost < 0.1 else len(kernels) // 2)
    )
    document["traceEvents"] = [event for place, event in enumerate(events) if place not in gone]
    path = tmp_path / "lossy.json"
    path.write_text(json.dumps(document))
    notes_of = {note.code: note for note in judge(open_trace(path)).notes}
    assert notes_of["graph-work-lost"].values["affected_count"] == len(gone)
