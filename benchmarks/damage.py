"""Damaged recordings: no gain above the range of the undamaged recording, no step time above the recorded one.

A step is compared with two: the recorded step that is shown beside it, and the same steps in the undamaged recording. Damage to
marks may leave only some of the steps to average, and their median is what was recorded of them, though all together took less.
Where no steps are marked any more, the time is that of the recording, and compared with the undamaged recording's.

    python benchmarks/damage.py [RECORDING ...] [--count 2000] [--seed 1] [--named] [--json FILE]

Each of `--count` recordings is made from one of the torch.profiler recordings by damaging one category of its events:
deleting, scaling, shifting, zeroing or negating all of them, some, those of a stretch of time, or one. With `--named` the
damages that found/security.md describes are made of each recording too. Prints a line for every violation, then the counts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import foretrace
from foretrace import zstd
from foretrace.analyze.steps import step_windows
from foretrace.analyze.trust import judge
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Alternative, Finding
from foretrace.diagnose.step_times import step_times
from foretrace.errors import ForetraceError
from foretrace.predict.prediction import Prediction

Event = dict[str, Any]
Damage = Callable[[list[Event]], list[Event]]
# What damage too small to be seen may add to the recorded step: a stream's last kernel, a few microseconds later.
TOLERANCE = 1.001


@dataclass(frozen=True)
class Answer:
    """What a diagnosis says of a recording: step times, predictions by rule and label, and the notes of trust that weigh."""

    recorded_ns: float | None
    length_ns: float  # of the recording
    steps: dict[int, float]  # each by its number, on the longer of its clocks
    averaged: tuple[int, ...]  # the steps that the recorded one is the median of
    step_ns: float | None
    predictions: dict[str, Prediction]
    notes: frozenset[tuple[str, str]]  # code and weight
    refused: str = ""


def answer(path: Path) -> Answer:
    """The diagnosis of one recording."""
    try:
        case = Case(foretrace.open(path, cache=False))
        notes = frozenset((note.code, note.severity) for note in judge(case.whole).notes)
        times = step_times(case)
        windows = step_windows(case.whole)
        steps = {window.number: float(max(window.gpu_ns or 0, window.host_ns)) for window in windows}
        averaged = tuple(window.number for window in windows if window.averaged)
        case.require_replay()
        diagnosis = diagnose(case, RULES)
    except ForetraceError as error:
        return Answer(None, 0.0, {}, (), None, {}, frozenset(), str(error) or type(error).__name__)
    predictions = {"all together": diagnosis.combined} if diagnosis.combined else {}
    for finding in diagnosis.findings:
        offers: tuple[Finding | Alternative, ...] = (finding, *finding.alternatives)
        for offer in offers:
            if offer.predicted:
                predictions[f"{finding.rule}:{offer.label}"] = offer.predicted
    length_ns = float(case.whole.duration_ns)
    return Answer(times.recorded_ns, length_ns, steps, averaged, times.estimated_ns, predictions, notes)


def violations(whole: Answer, damaged: Answer) -> Iterator[str]:
    """What a damaged recording promises, or says of its step, beyond the undamaged one."""
    if damaged.step_ns is not None:
        recorded_ns = damaged.recorded_ns or damaged.length_ns
        if damaged.step_ns > recorded_ns:
            yield f"step {damaged.step_ns / 1e6:.6g} ms, shown as recorded {recorded_ns / 1e6:.6g} ms"
        if damaged.step_ns > TOLERANCE * (undamaged_ns := recorded(whole, damaged)):
            yield f"step {damaged.step_ns / 1e6:.6g} ms, undamaged {undamaged_ns / 1e6:.6g} ms"
    for name, prediction in damaged.predictions.items():
        if prediction.verdict == "gain" and prediction.speedup.point > most(whole, name):
            yield f"{name} gains {prediction.speedup.point:.4g}, at most {most(whole, name):.4g} undamaged"


def recorded(whole: Answer, damaged: Answer) -> float:
    """What the undamaged recording says of the steps that the damaged one averages, or of all, whichever is longer."""
    if damaged.recorded_ns is None:
        return whole.length_ns
    same = [whole.steps[number] for number in damaged.averaged if number in whole.steps]
    return max(whole.recorded_ns or 0.0, float(np.median(same)) if same else 0.0)


def doubtful(whole: Answer, damaged: Answer) -> bool:
    """Whether a prediction that is not promised lies above the range of the undamaged recording."""
    return any(
        prediction.verdict == "uncertain" and prediction.speedup.point > most(whole, name)
        for name, prediction in damaged.predictions.items()
    )


def most(whole: Answer, name: str) -> float:
    """The end of the undamaged range; no gain where the rule finds nothing."""
    prediction = whole.predictions.get(name)
    return prediction.speedup.high if prediction else 1.0


def of_category(events: Sequence[Event], category: str) -> list[Event]:
    return [event for event in events if event.get("cat") == category and "ts" in event]


def scaled(category: str, factor: float, *, field: str = "dur") -> Damage:
    """Every duration (or start) of a category times a factor."""

    def damage(events: list[Event]) -> list[Event]:
        chosen = of_category(events, category)
        first = min((event["ts"] for event in chosen), default=0.0)
        for event in chosen:
            if field == "dur" and "dur" in event:
                event["dur"] *= factor
            elif field == "ts":
                event["ts"] = first + (event["ts"] - first) * factor
        return events

    return damage


def shifted(category: str, by_us: float) -> Damage:
    """A category that begins this much later."""

    def damage(events: list[Event]) -> list[Event]:
        for event in of_category(events, category):
            event["ts"] += by_us
        return events

    return damage


def deleted(*categories: str) -> Damage:
    return lambda events: [event for event in events if event.get("cat") not in categories]


def jumped(by_us: float) -> Damage:
    """All events after the middle one begin this much later."""

    def damage(events: list[Event]) -> list[Event]:
        timed = [event for event in events if "ts" in event]
        middle = sorted(event["ts"] for event in timed)[len(timed) // 2]
        for event in timed:
            event["ts"] += by_us if event["ts"] > middle else 0.0
        return events

    return damage


def together(*damages: Damage) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        for part in damages:
            events = part(events)
        return events

    return damage


def steps_set(dur_us: float) -> Damage:
    """Steps of this length."""

    def damage(events: list[Event]) -> list[Event]:
        for event in events:
            if str(event.get("name")).startswith("ProfilerStep#") and event.get("cat") == "user_annotation":
                event["dur"] = dur_us
        return events

    return damage


def all_times(factor: float) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        for event in events:
            for field in ("ts", "dur"):
                if field in event:
                    event[field] *= factor
        return events

    return damage


def halved(events: list[Event]) -> list[Event]:
    """Half of the events, chosen at random."""
    chance = random.Random(1)
    return [event for event in events if "dur" not in event or chance.random() < 0.5]


def one_step(events: list[Event]) -> list[Event]:
    """Only the first step is marked."""
    marks = [event for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    first = min((event["name"] for event in marks), default="")
    return [event for event in events if event not in marks or event["name"] == first]


def other_process(events: list[Event]) -> list[Event]:
    """Half of the host's events belong to another process."""
    for place, event in enumerate(events):
        if event.get("cat") in ("cpu_op", "cuda_runtime") and place % 2:
            event["pid"] = 424242
    return events


def longest_kernel(factor: float) -> Damage:
    def damage(events: list[Event]) -> list[Event]:
        max(of_category(events, "kernel"), key=lambda event: event["dur"])["dur"] *= factor
        return events

    return damage


HOST = ("cpu_op", "cuda_runtime", "python_function")
# What found/security.md describes.
NAMED: dict[str, Damage] = {
    "norun": deleted("cuda_runtime"),
    "kneg": scaled("kernel", -1.0),
    "kx0": scaled("kernel", 0.0),
    "hx1e5": together(*(scaled(category, 1e5) for category in HOST)),
    "gap": jumped(6e8),
    "rtx1e4": scaled("cuda_runtime", 1e4),
    "kx1e5": scaled("kernel", 1e5),
    "onekx1e5": longest_kernel(1e5),
    "half": halved,
    "step0": steps_set(0.0),
    "step1ns": steps_set(0.001),
    "stepsx1e5": scaled("user_annotation", 1e5),
    "onestep": one_step,
    "stepsatonce": scaled("user_annotation", 0.0, field="ts"),
    "twoprocesses": other_process,
    "timesx1e3": all_times(1e3),
    "timesx1e-6": all_times(1e-6),
    "noop": deleted("cpu_op"),
    "nokernel": deleted("kernel"),
    "nodriver": deleted("cuda_driver"),
    "nopython": deleted("python_function"),
    "nosteps": deleted("user_annotation"),
    "nocopies": deleted("gpu_memcpy", "gpu_memset"),
    "opx0": scaled("cpu_op", 0.0),
    "rtx0": scaled("cuda_runtime", 0.0),
    "opneg": scaled("cpu_op", -1.0),
}  # fmt: skip


def random_damage(events: list[Event], chance: random.Random) -> tuple[str, list[Event]]:
    """One category, damaged in one way; and in words what was done."""
    categories = sorted({event["cat"] for event in events if "cat" in event and "ts" in event})
    category = chance.choice(categories)
    chosen = of_category(events, category)
    which = chance.choice(("all", "all", "all", "some", "stretch", "one"))
    if which == "some":
        share = chance.uniform(0.05, 0.95)
        chosen = [event for event in chosen if chance.random() < share]
    elif which == "stretch":
        times = sorted(event["ts"] for event in chosen)
        first, last = sorted((chance.choice(times), chance.choice(times)))
        chosen = [event for event in chosen if first <= event["ts"] <= last]
    elif which == "one":
        chosen = [chance.choice(chosen)]
    how = chance.choice(("delete", "scale", "shift", "zero", "negate"))
    if how == "delete":
        gone = {id(event) for event in chosen}
        return f"delete {which} of {category}", [event for event in events if id(event) not in gone]
    if how == "shift":
        by_us = chance.choice((-1, 1)) * 10 ** chance.uniform(0, 9)
        for event in chosen:
            event["ts"] += by_us
        return f"shift {which} of {category} by {by_us:.3g} us", events
    factor = {"zero": 0.0, "negate": -1.0}.get(how, 10 ** chance.uniform(-6, 6))
    for event in chosen:
        if "dur" in event:
            event["dur"] *= factor
    return f"durations of {which} of {category} times {factor:.3g}", events


def read(path: Path) -> tuple[dict[str, Any], list[Event]]:
    """The header of a recording, and its events."""
    packed = path.read_bytes()
    if path.suffix == ".zst":
        packed = zstd.decompress(packed)
    document = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    return document, document.pop("traceEvents")


def write(path: Path, header: dict[str, Any], events: list[Event]) -> None:
    """A recording of these events."""
    path.write_text(json.dumps({**header, "traceEvents": events}))


def main() -> int:
    """Prints violations and counts; 1 where there are violations."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "recordings", nargs="+", type=Path, metavar="RECORDING", help="Kineto JSON, or .gz of it"
    )
    parser.add_argument("--count", type=int, default=2000, help="random damages in all")
    parser.add_argument("--first", type=int, default=0, help="begin with this one, to repeat a violation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--named", action="store_true", help="also the damages with a name, of each recording"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a line for each recording")
    options = parser.parse_args()
    read_once = [(path, *read(path)) for path in options.recordings]
    wholes = [answer(path) for path in options.recordings]
    counts: Counter[str] = Counter()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="damage-") as scratch:
        for label, which, events in damages(read_once, options):
            path = Path(scratch) / "damaged.json"
            write(path, read_once[which][1], events)
            damaged, whole = answer(path), wholes[which]
            broken = list(violations(whole, damaged))
            counts["recordings"] += 1
            counts["refused"] += bool(damaged.refused)
            counts["step times above"] += sum(says.startswith("step") for says in broken)
            counts["gains above"] += sum(not says.startswith("step") for says in broken)
            counts["still promise a gain"] += any(p.verdict == "gain" for p in damaged.predictions.values())
            counts["named by trust"] += bool(damaged.refused or damaged.notes - whole.notes)
            counts["unpromised points above"] += doubtful(whole, damaged)
            line = f"{options.recordings[which].name}: {label}"
            lines.append(
                json.dumps(
                    {
                        "made": line,
                        "broken": broken,
                        "notes": sorted(damaged.notes - whole.notes),
                        "doubtful": doubtful(whole, damaged),
                        "refused": damaged.refused,
                    }
                )
            )
            for says in broken:
                print(f"{line}: {says}")
    if options.json:
        options.json.write_text("\n".join(lines) + "\n")
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    return int(counts["step times above"] + counts["gains above"] > 0)


def damages(
    recordings: Sequence[tuple[Path, dict[str, Any], list[Event]]], options: argparse.Namespace
) -> Iterator[tuple[str, int, list[Event]]]:
    """What was done, of which recording, and its events after that."""
    for which, (_, _, events) in enumerate(recordings if options.named else ()):
        for name, damage in NAMED.items():
            yield name, which, damage([dict(event) for event in events])
    for number in range(options.first, options.count):
        chance = random.Random(f"{options.seed} {number}")
        which = number % len(recordings)
        label, events = random_damage([dict(event) for event in recordings[which][2]], chance)
        yield f"{number}: {label}", which, events


if __name__ == "__main__":
    sys.exit(main())
