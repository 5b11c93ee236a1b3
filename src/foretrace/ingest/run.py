"""A Run as commands read it: which recording to open, and the step time that was measured without a profiler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace import own_files
from foretrace.errors import ForetraceError, InputError
from foretrace.ingest import companions, run_sections
from foretrace.ingest.companions import Companion
from foretrace.ingest.timed import Timed, bursty_step_ns, read_timed
from foretrace.kernel_profile import together
from foretrace.secret_formats import without_known_secrets_in
from foretrace.trace import Trace
from foretrace.urls import look_ahead

_RUN, _RANK = "run.json", "rank.json"
_USUAL_NAMES = {"light": "light.json*", "rich": "rich.json*", "memory": "memory.pickle*"}
_WAITING = 0.05  # of the step: waits for data that make it an uneven one


@dataclass(frozen=True)
class Recorded:
    """A recording to read, with what the rank of a Run that it is of knows of it."""

    path: Path  # the recording that times are taken from
    rich: Path | None = None  # the one that names are taken from
    step_ns: float | None = None  # measured without a profiler
    timed: Timed | None = None  # what else is known of those steps
    settling: Mapping[str, Any] | None = (
        None  # what the timings before and after the passes say of each other
    )
    beside: tuple[Companion, ...] = ()  # other recordings of the same program
    counters: tuple[Path, ...] = ()  # counters of its kernels that the user named
    environment: Mapping[str, str] = field(default_factory=dict)  # what it ran on and with
    damaged: tuple[str, ...] = ()  # what could not be read beside it, and why

    def told(self, trace: Trace) -> Trace:
        """The recording, read, with what only the Run knows of it in its `meta`."""
        loader = self.timed.loader if self.timed is not None else None
        core_use = self.timed.core_use if self.timed is not None else None
        known = {
            "settling": self.settling,
            "loader": loader,
            "core_use": core_use,
            "environment": self.environment or None,
            "damaged": self.damaged or None,
        }
        told = copy(trace)  # the recording itself may still go into the cache, which knows nothing of Runs
        told.meta = {**trace.meta, **{name: value for name, value in known.items() if value is not None}}
        if self.beside or self.counters:
            self._complete(told)
        return told

    def _complete(self, trace: Trace) -> None:
        """Adds what the other recordings of the program hold, and which file gave what."""
        files = companions.counters_among(self.beside)
        profile, notes = companions.read_counters(files, named=self.counters)
        own = [trace.profile] if trace.profile is not None else []
        more = [profile] if profile is not None else []
        trace.profile = together([*own, *more]) if own or more else None
        recordings = companions.told(self.path, trace.format, trace.profile, self.beside)
        trace.meta = {**trace.meta, "recordings": recordings, "unread": notes}
        trace._derived = {}  # what was worked out without them may be another answer now


def find_recorded(path: Path) -> Recorded | None:
    """The recording meant by a Run folder, a rank's folder, or a file in one; `None` if it is none of these."""
    if path.is_dir():
        if (path / _RANK).is_file():
            return _of_rank(path)
        if (path / _RUN).is_file() or any(path.glob(f"rank*/{_RANK}")):
            return _of_run(path)
        return None
    if (path.parent / _RANK).is_file() and path.is_file():
        return _of_file(path)
    return None


def _of_run(folder: Path) -> Recorded:
    """That of the lowest rank which recorded something."""
    reasons = []
    for rank in sorted(folder.glob("rank*"), key=rank_number):
        if not (rank / _RANK).is_file():
            continue
        try:
            return _of_rank(rank)
        except InputError as error:
            reasons.append(str(error))
    if reasons:
        more = f" (and {len(reasons) - 1} more ranks)" if len(reasons) > 1 else ""
        raise InputError(reasons[0] + more)
    notes = read_facts(folder / _RUN).get("notes") or ["the program took no step that Foretrace saw"]
    raise InputError(f"{folder}: this Run holds no recording: {notes[-1]}")


def _of_rank(folder: Path) -> Recorded:
    facts = rank_facts(folder)
    light, rich = recording_of(folder, facts, "light"), recording_of(folder, facts, "rich")
    chosen = light or rich
    if chosen is None:
        if snapshot := recording_of(folder, facts, "memory"):
            raise InputError(f"{folder}: of this rank only memory was recorded: foretrace memory {snapshot}")
        reason = facts.get("reason") or "it ended too early"
        raise InputError(f"{folder}: this rank recorded nothing: {reason}")
    return Recorded(chosen, rich if light else None, **_known(folder, facts))


def _beside(folder: Path, facts: dict[str, Any]) -> tuple[Companion, ...]:
    """What else the Run recorded: a memory snapshot of this rank, and what other profilers left in the Run's folder."""
    snapshot = recording_of(folder, facts, "memory")
    found = [Companion(snapshot, "snapshot", companions.MEMORY)] if snapshot else []
    if not (folder.parent / _RUN).is_file():
        return tuple(found)
    files = (file for file in sorted(folder.parent.iterdir()) if file.is_file() and file.name != _RUN)
    return (*found, *(each for each in map(companions.companion, files) if each is not None))


def _of_file(path: Path) -> Recorded | None:
    """A recording of a rank, named itself: the measured step, and the rich pass of a light one, are known all the same."""
    try:
        facts = rank_facts(path.parent)
    except ForetraceError:
        return None  # what lies beside the recording is no Run, and need not be one
    if path.name not in {str(each.get("file")) for each in passes_of(facts)}:
        return None
    is_light = path == recording_of(path.parent, facts, "light")
    rich = recording_of(path.parent, facts, "rich") if is_light else None
    return Recorded(path, rich, **_known(path.parent, facts))


def other_ranks(path: Path) -> tuple[Path, ...] | None:
    """The recordings that the other ranks of a Run made in the same pass, by rank; `None` if `path` is of no Run."""
    own_folder = path.parent
    if not (own_folder / _RANK).is_file():
        return None
    kinds = [each.get("kind") for each in passes_of(rank_facts(own_folder)) if each.get("file") == path.name]
    if not kinds:
        return None
    ranks = sorted((file.parent for file in own_folder.parent.glob(f"rank*/{_RANK}")), key=rank_number)
    look_ahead(rank / _RANK for rank in ranks)
    recordings = []
    for rank in ranks:
        with suppress(InputError):  # a rank that left nothing readable is not compared with
            recordings.append(recording_of(rank, rank_facts(rank), str(kinds[-1])))
    return tuple(
        recording for recording in recordings if recording is not None and recording.parent != own_folder
    )


@dataclass(frozen=True)
class RunPass:
    """What one recording of a Run is: of which program, in which pass, by which rank."""

    run: Path  # the Run's folder
    program: str  # train.py
    kind: str  # light, rich, ...
    rank: int | None  # None where the Run has one rank
    main: bool  # the one that times are taken from


def pass_of(file: Path) -> RunPass | None:
    """Which pass of which Run a recording is; `None` if it is of no Run."""
    folder = file.parent
    if not (folder / _RANK).is_file():
        return None
    try:
        facts = read_facts(folder / _RANK)
        kinds = [str(each.get("kind")) for each in passes_of(facts) if each.get("file") == file.name]
        if not kinds:
            return None
        light, rich = recording_of(folder, facts, "light"), recording_of(folder, facts, "rich")
    except ForetraceError:
        return None  # what lies beside the recording is no Run, and need not be one
    several = len(list(folder.parent.glob(f"rank*/{_RANK}"))) > 1
    rank = rank_number(folder) if several else None
    program = _program(facts.get("command")) or folder.parent.name
    return RunPass(folder.parent, program, kinds[-1], rank, file == (light or rich))


def _program(command: object) -> str | None:
    """What a command runs: its script, its module, else its first word; without folders."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    for before, word in zip(["", *words], words, strict=False):
        if word.endswith(".py") or before == "-m":
            return Path(word).name
    return Path(words[0]).name if words else None


def passes_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The passes that a rank.json lists."""
    passes = facts.get("passes")
    return [each for each in passes if isinstance(each, dict)] if isinstance(passes, list) else []


def recording_of(folder: Path, facts: dict[str, Any], kind: str) -> Path | None:
    """The file of the last pass of a kind that is there."""
    for each in reversed(passes_of(facts)):
        # Only the name: a Run that someone sent must not point out of its folder.
        path = folder / Path(str(each.get("file"))).name
        if each.get("kind") == kind and path.is_file():
            return path
    return None


def _step_ns(facts: dict[str, Any]) -> float | None:
    """Of the timing that the recorder chose; `loader` is of that one too."""
    times = facts.get("unprofiled")
    value = times.get("median_ns") if isinstance(times, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    value = bursty_step_ns(facts, _WAITING) or value
    return float(value) if math.isfinite(value) and value > 0 else None


def _settling(facts: dict[str, Any]) -> dict[str, Any] | None:
    """As the recorder wrote it, with both times; `None` for Runs of versions that timed only once."""
    found = facts.get("settling")
    if not isinstance(found, dict):
        return None
    times = {name: facts.get(name) for name in ("timed_first", "timed_again")}
    known = {f"{name}_ns": each.get("median_ns") for name, each in times.items() if isinstance(each, dict)}
    return {**found, **known}


def _known(folder: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """What rank.json says of its recordings, with what run.json says of the machine; a rank's folder may lie alone."""
    run: dict[str, Any] = {"damaged": []}
    if (folder.parent / _RUN).is_file():
        try:
            run = read_facts(folder.parent / _RUN)
        except ForetraceError as error:
            run = {"damaged": [str(error)]}
    return {
        "step_ns": _step_ns(facts),
        "timed": read_timed(facts, run),
        "settling": _settling(facts),
        "beside": _beside(folder, facts),
        "environment": _environment(facts),
        "damaged": (*facts["damaged"], *run["damaged"]),
    }


def _environment(facts: dict[str, Any]) -> dict[str, str]:
    """The processor and the versions that may explain a difference between two Runs of one program."""
    versions, processor = facts.get("versions"), facts.get("processor")
    found = dict(versions) if isinstance(versions, dict) else {}
    found.pop("platform", None)  # names the machine's own kernel build
    machine = processor if isinstance(processor, dict) else {}
    found |= {
        "processor": machine.get("model"),
        "processor_cores": machine.get("usable_cpu_count"),
        "torch_threads": machine.get("torch_threads_count"),
    }
    return {str(name): str(value) for name, value in found.items() if isinstance(value, str | int) and value}


def rank_number(folder: Path) -> int:
    """Of a rank's folder; folders of other names come last."""
    digits = folder.name.removeprefix("rank")
    return int(digits) if digits.isdigit() else 1 << 30


def read_facts(path: Path) -> dict[str, Any]:
    """The intact sections of a run.json or rank.json, without what looks like a secret; `damaged` says what is wrong with others."""
    document = own_files.parsed(own_files.read_bytes(path), path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: damaged: not a JSON object")
    kinds = run_sections.RUN if path.name == _RUN else run_sections.RANK
    facts, problems = own_files.sections(document, kinds, path.name)
    # A Run that an older version or somebody else wrote may hold what this one leaves out.
    masked: dict[str, Any] = without_known_secrets_in({**facts, "damaged": problems})
    return masked


def rank_facts(folder: Path) -> dict[str, Any]:
    """The facts of a rank; where its file lists no recording that exists, those with their usual names."""
    try:
        facts = read_facts(folder / _RANK)
    except InputError as error:
        facts = {"damaged": [str(error)]}
    if not any(recording_of(folder, facts, kind) for kind in _USUAL_NAMES):
        facts["passes"] = [
            {"kind": kind, "file": file.name}
            for kind, pattern in _USUAL_NAMES.items()
            for file in sorted(folder.glob(pattern))
        ]
    return facts
