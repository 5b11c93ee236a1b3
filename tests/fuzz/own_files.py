"""Foretrace's own files, damaged by structure and by bytes: the ledger, baselines, benchmarks, Runs, rank summaries, the cache."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from foretrace.commands import main
from tests.fuzz.mutations import value
from tests.ingest.fuzz import mutate as mutate_bytes
from tests.trial.waiting import waiting

DIAGNOSED = 10  # every so many cases go through the whole of `foretrace diagnose`
FORMS = ("table", "json", "md")
CONFLICT = b"<<<<<<< HEAD\n=======\n>>>>>>> theirs\n"


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with every key or index in it."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, item in list(items):
        yield document, key
        if isinstance(item, dict | list):
            yield from _places(item)


def damaged(document: Any, chance: random.Random) -> bytes:
    """JSON text of a document with one to three values replaced, removed, renamed or repeated, or with damaged bytes."""
    document = copy.deepcopy(document)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(document))
        if not places:
            break
        inside, key = chance.choice(places)
        choice = chance.random()
        if choice < 0.7:
            inside[key] = copy.deepcopy(value(chance))
        elif choice < 0.85:
            del inside[key]
        elif isinstance(inside, dict):
            inside[f"{key}x"] = inside.pop(key)
        else:
            inside.append(copy.deepcopy(inside[key]))
    data = json.dumps(value(chance) if chance.random() < 0.02 else document).encode()
    return mutate_bytes(data, chance) if chance.random() < 0.2 else data


def _ran(*command: str | Path, folder: Path, lines: int | None = 1) -> tuple[int, str, str | None]:
    """Exit code, what was printed, and what is wrong with that."""
    out, said = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = main([*map(str, command)])
    finally:
        os.chdir(before)
    text = said.getvalue()
    sound = (
        code in (0, 2, 3, 4)
        and "Traceback" not in text
        and (code == 0 or lines is None or text.count("\n") <= lines)
    )
    sound = sound and "\0" not in out.getvalue() + text
    return code, out.getvalue(), None if sound else f"{command[0]}: exit code {code}: {text[-3000:]}"


def _diagnosed(path: Path, folder: Path, chance: random.Random) -> str | None:
    """What is wrong with a diagnosis beside a damaged file: there must be one."""
    code, out, problem = _ran("diagnose", path, "--format", chance.choice(FORMS), "--no-cache", folder=folder)
    return problem or (None if code == 0 and out.strip() else f"no diagnosis: exit code {code}")


@cache
def _recording(folder: Path) -> Path:
    return waiting(folder)


RECORD = {
    "rule": "host-sync", "change": "", "device": "NVIDIA H200", "by": "verify", "predicted_low": 1.1, "predicted": 1.2,
    "predicted_high": 1.4, "measured_low": 1.25, "measured": 1.3, "measured_high": 1.35, "inside": True, "promised": True,
    "at": "2026-11-19T12:00:00+00:00",
}  # fmt: skip


def ledger(case: int, chance: random.Random, folder: Path) -> str | None:
    """A ledger with sound lines and damaged ones."""
    whole = json.dumps(RECORD).encode()
    lines = [whole] * chance.choice((0, 5)) + [damaged(RECORD, chance) for _ in range(chance.randint(1, 3))]
    chance.shuffle(lines)
    data = b"\n".join(lines) + b"\n" + (CONFLICT if chance.random() < 0.1 else b"")
    recording = _recording(folder)
    (folder / ".foretrace").mkdir(exist_ok=True)
    (folder / ".foretrace" / "ledger.jsonl").write_bytes(data)
    if case % DIAGNOSED == 0:
        return _diagnosed(recording, folder, chance)
    options = ["--records"] if chance.random() < 0.5 else []
    return _ran("ledger", *options, "--format", chance.choice(FORMS), folder=folder, lines=None)[2]


@cache
def _baselines(folder: Path) -> Any:
    _, _, problem = _ran(
        "compare",
        _recording(folder),
        "--save-baseline",
        "a",
        "--baselines",
        "saved.json",
        "--force",
        folder=folder,
    )
    assert problem is None, problem
    return json.loads((folder / "saved.json").read_bytes())


def baselines(case: int, chance: random.Random, folder: Path) -> str | None:
    """A damaged file of baselines: compared with, or saved into."""
    (folder / "b.json").write_bytes(damaged(_baselines(folder), chance))
    how = ("--save-baseline", "b") if case % 5 == 0 else ("--baseline", "a", "--format", chance.choice(FORMS))
    return _ran("compare", _recording(folder), *how, "--baselines", "b.json", "--no-cache", folder=folder)[2]


def _benchmark() -> Any:
    rows = [
        {
            "impl": "naive", "precision": "fp32", "seq_len": size, "status": "OK", "reason": None, "fwd_ms": ms, "median_ms": ms,
            "low_ms": 0.99 * ms, "high_ms": 1.02 * ms, "avg_ms": ms, "std_ms": 0.1 * ms, "clock_mhz": 1980, "slowed_by": None,
            "samples_ms": [ms, 1.01 * ms, 0.99 * ms], "calls": 1, "stopped": "precise", "tflops": 3.5, "speedup": 1.0,
        }
        for size, ms in ((64, 1.0), (128, 2.0), (256, 8.0))
    ]  # fmt: skip
    return {
        "schema": "foretrace.bench/1", "foretrace": "0.1.0", "kind": "attention", "device": "NVIDIA H200", "torch": "2.13.0",
        "began": "2026-11-16T22:58:03+00:00", "command": "foretrace bench attention", "timing": {"how": "single", "seconds": 1.0},
        "clock": {"by": "pynvml", "slowed_by": []}, "case": ["impl", "precision", "seq_len"], "rows": rows, "notes": ["A note."],
    }  # fmt: skip


def benchmark(case: int, chance: random.Random, folder: Path) -> str | None:
    """A damaged benchmark: compared, or on the page."""
    (folder / "good.json").write_text(json.dumps(_benchmark()))
    (folder / "bad.json").write_bytes(damaged(_benchmark(), chance))
    if case % 2:
        command: tuple[str, ...] = ("compare", "good.json", "bad.json", "--format", chance.choice(FORMS))
    else:
        command = ("report", "bad.json", "-o", "out.html", "--force")
    return _ran(*command, folder=folder)[2]


def _rank() -> Any:
    times = {
        "median_ns": 1_504_000, "low_ns": 1_500_000, "high_ns": 1_510_000, "steps": 40, "blocks_ns": [1_504_000, 1_500_000, 1_510_000],
        "stopped_because": "agrees", "host_ns": 1_400_000, "host_low_ns": 1_390_000, "host_high_ns": 1_410_000, "host_blocks": 4,
    }  # fmt: skip
    loader = {
        "workers": 2, "steps": 40, "calls": 40, "step_ns": 1_504_000, "mean_ns": 200_000, "waits_ns": [0, 100_000, 500_000],
        "waiting_steps": 20, "waiting_mean_ns": 300_000, "batch_bytes": 1_000, "made": {"mean_ns": 3_000_000, "mean_cpu_ns": 2_000_000},
        "load_average": 1.5,
    }  # fmt: skip
    oom = {"file": "oom.pickle", "why_no_file": None, "at_ns": 5, "step": 3, "device": 0, "asked_bytes": 100, "limit_bytes": None,
           "driver_free_bytes": 50, "history": True, "stack": [{"file": "a.py", "line": 3, "function": "f"}], "count": 1}  # fmt: skip
    return {
        "schema": 1, "rank": 0, "world_size": 2, "pid": 7, "host": "a", "device": {"type": "cuda", "name": "NVIDIA H200"}, "clocks": None,
        "processor": {"model": "EPYC", "flags": ["avx2"], "usable_cpu_count": 2, "load_average": 0.5, "torch_threads_count": 2},
        "versions": {"torch": "2.13.0", "python": "3.11"}, "command": ["python", "train.py", "--workers", "2"], "step_source": "x",
        "unprofiled": times, "timed_first": times, "timed_again": times, "loader": loader, "out_of_memory": oom,
        "settling": {"verdict": "steady", "says": "", "light_ns": 1_504_000, "light_settled": True},
        "device_time": {"step_ns": 1_504_000, "busy_ns": 1_000_000}, "cost_s": 1.0, "peak_host_bytes": 1, "steps_seen": 60,
        "passes": [{"kind": "light", "file": "light.json", "steps": 4, "file_bytes": 10}], "notes": [], "status": "complete", "reason": "",
        "groups": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1], "seq": 1}],
        "clock": {"boot": "b", "monotonic_ns": 5, "epoch_ns": 1_700_000_000_000_000_000},
    }  # fmt: skip


RUN = {
    "schema": 1,
    "limits": {"cpu_count": 4, "usable_cpu_count": 4, "quota_cpu_count": None},
    "notes": ["a note"],
    "options": {},
}


def run_folder(case: int, chance: random.Random, folder: Path) -> str | None:
    """A Run whose rank.json or run.json is damaged: its recording is diagnosed all the same."""
    from foretrace import ingest
    from foretrace.analyze.trust import judge
    from foretrace.ingest.run import find_recorded
    from foretrace.ingest.run_memory import read_run_memory

    rank = folder / "run" / "rank0"
    rank.mkdir(parents=True, exist_ok=True)
    if not (rank / "light.json").exists():
        shutil.copy(_recording(folder), rank / "light.json")
    which = chance.random()
    (rank / "rank.json").write_bytes(
        damaged(_rank(), chance) if which < 0.8 else json.dumps(_rank()).encode()
    )
    (folder / "run" / "run.json").write_bytes(
        damaged(RUN, chance) if which > 0.7 else json.dumps(RUN).encode()
    )
    kept = chance.choice((folder / "run", rank, rank / "light.json"))
    if case % DIAGNOSED == 0:
        return _diagnosed(kept, folder, chance)
    recorded = find_recorded(kept)
    if recorded is None and kept.is_dir():
        return "no recording"
    if recorded is not None:
        judge(recorded.told(ingest.open_trace(_recording(folder), cache=False)))
    read_run_memory(kept)
    return None


@cache
def _summary(folder: Path) -> tuple[Any, bytes]:
    """The header of a summary, and what follows it."""
    from foretrace.ranks.summarise import summarise
    from foretrace.ranks.summary import _parts

    header, *tables = _parts(summarise(_recording(folder), rank=0).to_bytes(), "a")
    return json.loads(header), b"".join(struct.pack("<I", len(table)) + table for table in tables)


def summary(_: int, chance: random.Random, folder: Path) -> str | None:
    """A summary whose header is damaged, with a checksum that is right; or damaged bytes."""
    from foretrace import zstd
    from foretrace.deflate import stream
    from foretrace.ranks.summary import _MAGIC

    document, tables = _summary(folder)
    header = damaged(document, chance)
    body = struct.pack("<I", len(header)) + header + tables
    data = zstd.compress(_MAGIC + struct.pack("<I", stream.crc32(body)) + body)
    path = folder / "a.ranksummary"
    path.write_bytes(mutate_bytes(data, chance) if chance.random() < 0.2 else data)
    return _ran("ranks", path, "--format", chance.choice(("table", "json")), folder=folder, lines=None)[2]


def cache_entry(case: int, chance: random.Random, folder: Path) -> str | None:
    """A damaged entry of the cache: it is rebuilt, and the recording reads as before."""
    from foretrace import cache as stored
    from foretrace import ingest

    recording = _recording(folder)
    before = os.environ.get("FORETRACE_CACHE"), stored.MIN_SPANS
    os.environ["FORETRACE_CACHE"], stored.MIN_SPANS = str(folder / "cache"), 1
    try:
        ingest.open_trace(recording)
        (entry,) = (folder / "cache").glob("*/entry.json")
        whole = json.loads(entry.read_bytes())
        entry.write_bytes(
            damaged(whole if chance.random() < 0.2 else whole[1], chance)
            if case % 3
            else damaged(whole, chance)
        )
        again = ingest.open_trace(recording)
        plain = ingest.open_trace(recording, cache=False)
        return None if again.meta == plain.meta and again.spans.equals(plain.spans) else "another recording"
    finally:
        stored.MIN_SPANS = before[1]
        os.environ.pop("FORETRACE_CACHE") if before[0] is None else os.environ.update(
            FORETRACE_CACHE=before[0]
        )


KINDS: dict[str, Callable[[int, random.Random, Path], str | None]] = {
    "ledger": ledger,
    "baselines": baselines,
    "benchmark": benchmark,
    "run-folder": run_folder,
    "summary": summary,
    "cache-entry": cache_entry,
}
