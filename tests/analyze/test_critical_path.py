"""The critical path: made-up programs whose path is known, random ones against a forward simulation, HTA's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace.analyze.concepts.host.dependency_graph import CLASSES
from foretrace.analyze.critical_path import critical_path
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

PARTS = tuple(f"{name}_ns" for name in CLASSES)


def parts(row: dict[str, int]) -> dict[str, int]:
    """The parts of a path in microseconds, without empty ones."""
    return {name: row[f"{name}_ns"] // 1000 for name in CLASSES if row[f"{name}_ns"]}


def test_a_queue_that_never_runs_dry_is_kernel_time(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 20)
    recording.launch(0, "a", 5, 45).launch(4, "b", 46, 86).launch(8, "c", 88, 100)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    assert row["length_ns"] == 100_000
    assert parts(row) == {"launch": 5, "kernel": 92, "gap": 3}


def test_each_kernel_that_waits_for_its_launch_is_host_and_launch_time(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 104)
    recording.launch(20, "a", 25, 28).launch(60, "b", 65, 69).launch(100, "c", 105, 112)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    # Back from c's end: 7 of kernel, 5 of launch, and the host for the rest; a and b are not on the path.
    assert parts(row) == {"host": 100, "launch": 5, "kernel": 7}


def test_the_headline_is_of_the_median_step_and_names_a_disturbed_one(tmp_path: Path) -> None:
    """Steps of 100, 400 and 110 us: their mean is 203, and the second is none that stands for the program."""
    recording = Recording()
    for number, (start, length) in enumerate(((0, 100), (100, 400), (500, 110))):
        recording.step(number, start, start + length)
        recording.launch(start, "a", start + 5, start + length)
    result = critical_path(recording.open(tmp_path))
    assert result.says.startswith("step 2, the median of 3, 110 µs: the critical path is")
    assert result.values["length_ns"] == 110_000
    assert result.notes[0] == "unlike the median step of 110 µs: step 1 (400 µs)"


def test_a_sync_leads_to_what_it_waited_for(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 100)
    recording.launch(10, "a", 15, 60).runtime("cudaStreamSynchronize", 20, 63)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    assert parts(row) == {"host": 37 + 10, "launch": 5, "kernel": 45, "sync": 3}


def test_a_sync_with_nothing_to_wait_for_is_all_sync(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 100)
    recording.launch(10, "a", 15, 20).runtime("cudaDeviceSynchronize", 40, 48)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    assert parts(row) == {"host": 92, "sync": 8}


def test_a_pageable_copy_holds_its_call_and_a_pinned_one_does_not(tmp_path: Path) -> None:
    for memory, expected in (
        ("Pageable", {"host": 54, "launch": 5, "copy": 35, "sync": 6}),
        ("Pinned", {"host": 100}),
    ):
        recording = Recording().step(0, 0, 100)
        name = f"Memcpy DtoH (Device -> {memory})"
        recording.launch(10, name, 15, 50, category="gpu_memcpy", call=46)
        row = critical_path(recording.open(tmp_path, f"{memory}.json")).table.row(0, named=True)
        assert parts(row) == expected


def test_a_stream_that_was_told_to_wait_continues_on_the_other(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 30)
    recording.launch(0, "first", 5, 6, stream=8).launch(2, "long", 7, 80, stream=7)
    recording.runtime("cudaStreamWaitEvent", 4, 5)
    recording.launch(6, "after", 82, 100, stream=8)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    assert parts(row) == {"host": 2, "launch": 5, "kernel": 73 + 18, "gap": 2}


def test_autograd_takes_turns_with_the_main_thread(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 100)
    recording.op("forward", 5, 20).launch(6, "f", 10, 12).runtime("cudaStreamSynchronize", 15, 18)
    recording.launch(50, "b", 55, 101, thread=7)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    # From b's launch on the other thread back to the main thread's sync, which waited for nothing.
    assert parts(row) == {"host": 15 + 32, "launch": 5, "kernel": 46, "sync": 3}


def test_communication_and_input_have_their_own_parts(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 60)
    recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 40)
    recording.launch(50, "ncclDevKernel_AllReduce_Sum", 55, 100)
    row = critical_path(recording.open(tmp_path)).table.row(0, named=True)
    assert parts(row) == {"host": 20, "input": 30, "launch": 5, "communication": 45}


def test_orphans_count_only_where_later_work_waited_for_them(tmp_path: Path) -> None:
    recording = Recording().step(0, 10, 30).kernel("old", 0, 50).launch(20, "new", 51, 61)
    result = critical_path(recording.open(tmp_path))
    # The step begins, on the GPU, when what was left over is done.
    assert parts(result.table.row(0, named=True)) == {"kernel": 10, "gap": 1}
    assert result.table["length_ns"].to_list() == [11_000, 11_000]


def test_the_stretches_of_an_annotation(tmp_path: Path) -> None:
    recording = Recording()
    recording.annotation("forward", 0, 20).launch(5, "a", 10, 30)
    recording.annotation("forward", 40, 60).launch(45, "b", 50, 55)
    trace = recording.open(tmp_path)
    result = critical_path(trace, annotation="forward")
    assert result.table["window"].to_list() == ["forward 0", "forward 1", "all"]
    assert parts(result.table.row(0, named=True)) == {"host": 5, "launch": 5, "kernel": 20}
    assert parts(result.table.row(1, named=True)) == {"host": 20}
    with pytest.raises(UsageError, match="no annotation named 'x'"):
        critical_path(trace, annotation="x")


def test_by_name_lists_what_is_on_the_path(tmp_path: Path) -> None:
    recording = Recording().step(0, 0, 20).launch(0, "a", 5, 45).launch(4, "b", 46, 86)
    table = critical_path(recording.open(tmp_path), by="name").table
    found = {(row["class"], row["name"]): row["total_ns"] for row in table.iter_rows(named=True)}
    assert found == {
        ("kernel", "a"): 40_000,
        ("kernel", "b"): 40_000,
        ("launch", "a"): 5_000,
        ("gap", "b"): 1_000,
    }


def test_without_device_work_or_links_it_says_what_to_record(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no GPU work recorded"):
        critical_path(Recording().op("a", 0, 1).open(tmp_path))
    with pytest.raises(MissingDataError, match="linked to its launch"):
        critical_path(Recording().kernel("a", 0, 1).open(tmp_path, "b.json"))


LATENCY, GAP, WAKE = 5_003, 1_001, 4_007
Node: TypeAlias = tuple[Any, ...] | None


def simulate(seed: int) -> tuple[Recording, dict[int, tuple[int, Node]], int, Node, int]:
    """A random program run forwards on two streams, in ns, with what each thing waited for; and its path."""
    random_ = random.Random(seed)
    recording = Recording()
    host = 0
    streams: dict[int, tuple[int, Node]] = {7: (0, None), 9: (0, None)}
    # A node is (class, start, end, link class, link start, node before): the path is read off the pointers.
    last_block: Node = None
    for number in range(random_.randint(1, 25)):
        host += random_.randrange(501, 30_000, 2)
        if random_.random() < 0.25:
            ends = max(streams.values(), key=lambda each: each[0])
            begin = host
            host = max(host + 2_003, ends[0] + WAKE)
            waited = ends[0] > begin
            last_block = (
                "sync",
                ends[0] if waited else begin,
                host,
                ends[1] if waited else last_block,
                waited,
            )
            recording.runtime("cudaDeviceSynchronize", begin / 1000, host / 1000)
            continue
        stream = random_.choice((7, 9))
        busy, before = streams[stream]
        by_launch = before is None or host + LATENCY > busy
        start = host + LATENCY if by_launch else busy + GAP
        end = start + random_.randrange(1_000, 60_000)
        node = (
            "kernel",
            start,
            end,
            by_launch,
            host if by_launch else busy,
            last_block if by_launch else before,
        )
        recording.launch(host / 1000, f"k{number}", start / 1000, end / 1000, stream=stream, call=0.25)
        streams[stream] = (end, node)
    finish = max(host, *(end for end, _ in streams.values()))
    recording.step(0, 0, (host + 1) / 1000)
    return recording, streams, finish, last_block, host


@settings(max_examples=60)
@given(st.integers(0, 2**31))
def test_random_programs_have_the_path_that_their_simulation_took(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    recording, streams, _, last_block, host = simulate(seed)
    if not any(node for _, node in streams.values()):
        return
    end, node = max(streams.values(), key=lambda each: each[0])
    at, expected = max(end, host + 1), dict.fromkeys(CLASSES, 0)
    if end < host + 1:
        node = last_block
        before = node[2] if node else 0
        expected["host"] += at - before
        at = before
    length = max(end, host + 1)
    while node is not None:
        if node[0] == "kernel":
            _, start, _, by_launch, link, before = node
            expected["kernel"] += at - start
            expected["launch" if by_launch else "gap"] += start - link
            at = link
            if by_launch:
                after = before[2] if before else 0
                expected["host"] += at - after
                at = after
        else:
            _, own, _, before, waited = node
            expected["sync"] += at - own
            at = own
            if not waited:
                after = before[2] if before else 0
                expected["host"] += at - after
                at = after
        node = before
    row = critical_path(recording.open(tmp_path_factory.mktemp("path"))).table.row(0, named=True)
    assert row["length_ns"] == length
    assert {name: row[f"{name}_ns"] for name in CLASSES} == expected


RECORDINGS = sorted(
    path for path in CORPUS.glob("**/*.json*") if path.parent.name in ("h200", "hta", "tracelens")
)


@needs_corpus
@pytest.mark.parametrize(
    "path", [p for p in RECORDINGS if "truth" not in p.name and "rich" not in p.name], ids=lambda p: p.name
)
def test_the_parts_sum_to_each_stretch(path: Path) -> None:
    try:
        table = critical_path(foretrace.open(path)).table
    except MissingDataError:
        return
    for row in table.iter_rows(named=True):
        assert sum(row[name] for name in PARTS) == row["length_ns"]
        assert all(row[name] >= 0 for name in PARTS)


@needs_corpus
def test_hta_finds_the_same_device_path_on_its_own_fixtures() -> None:
    # HTA 0.6.1, critical_path_analysis(...).get_critical_path_breakdown() on the same stretches, in us. Its own
    # rounding to whole us moves 1 us of alexnet's kernel-kernel delay; the rest agrees to the us.
    folder = CORPUS / "peers" / "hta"
    alexnet = foretrace.open(
        folder / "critical_path_alexnet__benchmark_result_2869224_1695835535_trace.json.gz"
    )
    forward = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
    for row in critical_path(alexnet, annotation=forward).table.head(2).iter_rows(named=True):
        assert row["kernel_ns"] == 3_712_000
        assert row["launch_ns"] == 30_000
        assert row["gap_ns"] == pytest.approx(50_000, abs=1_000)
    event = foretrace.open(folder / "critical_path_cuda_event_sync__event_sync_trace.json.gz")
    row = critical_path(event).table.row(0, named=True)
    assert row["kernel_ns"] + row["copy_ns"] == 38_000
    assert row["launch_ns"] == 28_000
    fine = foretrace.open(folder / "ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz")
    row = critical_path(fine).table.row(1, named=True)
    # HTA rounds each kernel inwards to whole us: 899 us that it calls kernel-kernel delay are kernel time.
    assert row["length_ns"] == pytest.approx(95_735_000, abs=3_000)
    assert row["host_ns"] == row["launch_ns"] == 0
