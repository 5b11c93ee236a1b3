"""The Sweep: a program as it is twice, then each change in turn with the program as it is between, then the best together.

What one process leaves open is run again, in further rounds.

What was run is kept in try.json, after every process anew: the same command in the same folder goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from foretrace.capture import known_secrets
from foretrace.capture.secret_shapes import without_secret_arguments
from foretrace.capture.trial_options import TrialOptions
from foretrace.errors import MissingDataError, UsageError
from foretrace.sourced import JUDGEMENT, Count
from foretrace.trial import judgement, process, results, scratch
from foretrace.trial.candidates import Proposal, together
from foretrace.trial.process import MEASURED, Limits
from foretrace.whole_files import replace_text

STATE = "try.json"
BASE, TOGETHER = "base", "together"
MOST_ROUNDS = Count(3, "processes of a change, where fewer leave open whether it is faster", JUDGEMENT)
_SAVED = 2  # the version of the state file


@dataclass(frozen=True)
class Settings:
    """How a sweep is run."""

    options: TrialOptions = field(default_factory=lambda: TrialOptions(output=""))
    limits: Limits = field(default_factory=Limits)
    budget_s: float | None = None  # no process is started that would end later
    base_every: int = 1  # changes between two runs of the program as it is; 0: only at the beginning
    rounds: int = 1  # processes of each change; more where these leave it open
    in_place: bool = False  # run in the program's own folder, not in a scratch folder
    together: bool = True  # measure the best changes together


@dataclass(frozen=True)
class Swept:
    """What came of a sweep."""

    runs: tuple[Mapping[str, Any], ...]  # in order, each with its `variant`
    not_tried: tuple[str, ...] = ()  # for want of time

    @property
    def base(self) -> list[Mapping[str, Any]]:
        """The runs of the program as it is that were measured."""
        return self.counted(BASE)

    def of(self, variant: str) -> Mapping[str, Any] | None:
        """The first run of a variant."""
        return next((run for run in self.runs if run["variant"] == variant), None)

    def counted(self, variant: str) -> list[Mapping[str, Any]]:
        """The runs of a variant that were measured with the change in effect."""
        return [run for run in self.runs if run["variant"] == variant and counts(run)]

    def measured(self, variant: str) -> judgement.Measured:
        """What a variant brings."""
        return judgement.measure(self.base, self.counted(variant))


class Sweep:
    """Of one program."""

    def __init__(
        self,
        command: Sequence[str],
        proposals: Sequence[Proposal],
        settings: Settings,
        folder: Path,
        *,
        say: Callable[[str], None],
    ) -> None:
        self.command, self.proposals, self.settings, self.folder = list(command), proposals, settings, folder
        self._say = say
        self._began = time.monotonic()
        self._longest_s = 0.0
        self._runs: list[dict[str, Any]] = []
        self._before: list[dict[str, Any]] = []  # runs from before, when this goes on

    def run(self) -> Swept:
        """Runs what is left to run: A A B A C A ..., and the best together."""
        self._before = self._saved()
        if self._before:
            self._say(f"{len(self._before)} runs are there already: going on")
        left = []
        for _ in range(2):
            left += [] if self._turn(BASE, {}) else [BASE]
            self._check_base()
        done = 0  # changes that were measured
        for proposal in self._in_rounds():
            if left or not self._turn(proposal.name, proposal.changes):
                left.append(proposal.name)
                continue
            done += counts(self._runs[-1])
            every = self.settings.base_every
            if every and counts(self._runs[-1]) and done % every == 0:
                self._turn(BASE, {})
        best = self._best() if not left and self.settings.together else []
        if len(best) > 1 and not self._turn(TOGETHER, together(best, "").changes):
            left.append(TOGETHER)
        swept = Swept(tuple(self._runs))
        return replace(swept, not_tried=tuple(name for name in dict.fromkeys(left) if swept.of(name) is None))

    def _in_rounds(self) -> Iterator[Proposal]:
        """Each change, then again those that the settings or what was measured so far ask for."""
        for number in range(max(self.settings.rounds, MOST_ROUNDS)):
            for proposal in self.proposals:
                if not number or self._again(proposal.name, number):
                    yield proposal

    def _again(self, variant: str, rounds: int) -> bool:
        """Whether a change needs another process after this many rounds."""
        swept = Swept(tuple(self._runs))
        run = swept.of(variant)
        if run is None or not counts(run):
            return False
        return rounds < self.settings.rounds or swept.measured(variant).verdict == "inconclusive"

    def _turn(self, variant: str, changes: Mapping[str, Any]) -> bool:
        """Takes the run from before, or makes it; whether there was time."""
        place = len(self._runs)
        if place < len(self._before) and self._before[place]["variant"] == variant:
            self._runs.append(self._before[place])
            return True
        del self._before[place:]
        budget_s = self.settings.budget_s
        if budget_s is not None and time.monotonic() - self._began + self._longest_s > budget_s:
            return False
        self._one(variant, changes)
        return True

    def _one(self, variant: str, changes: Mapping[str, Any]) -> None:
        number = len(self._runs) + 1
        label = f"{number:02d}-{variant}"
        work = self.folder / "scratch"
        place = Path.cwd()
        if not self.settings.in_place:
            place = scratch.linked(place, work / "here", leave_out=self.folder)
        work.mkdir(parents=True, exist_ok=True)
        options = replace(
            self._same_steps(), output=str(self.folder / f"{label}.json"), changes=changes, scratch=str(work)
        )
        run = process.run(
            self.command,
            options,
            log=self.folder / f"{label}.log",
            folder=place,
            environment=scratch.environment(work, changes),
            limits=self.settings.limits,
        )
        self._longest_s = max(self._longest_s, run["took_s"])
        self._runs.append({"variant": variant, **run})
        self._save()
        self._say(f"{variant}: {said(run)}")

    def _same_steps(self) -> TrialOptions:
        """The same steps are timed in all variants: those of the first run."""
        first = next((run for run in self._runs if run["status"] == MEASURED), None)
        options = self.settings.options
        return (
            replace(options, block_steps=first["block_steps"], let_by=first["let_by"]) if first else options
        )

    def _check_base(self) -> None:
        """Without the program as it is there is nothing to compare with."""
        if not self._runs:
            raise UsageError("--budget is too short for a single run")
        failed = self._runs[-1]
        if failed["status"] == MEASURED:
            return
        if failed["status"] == process.NO_STEPS:
            raise MissingDataError(
                f"{failed['error']}: call foretrace.step() at the end of each step, or name the function that makes a "
                "step: --step-function MODULE:NAME"
            )
        what = {
            process.TOO_LONG: "takes too long (--timeout)",
            process.TOO_LARGE: "takes too much memory (--memory)",
        }
        says = what.get(failed["status"], "fails")
        raise MissingDataError(f"the program as it is {says}: {failed['error']} (its output: {self.folder})")

    def _best(self) -> list[Proposal]:
        """The changes that are faster and keep what is computed; of those that exclude each other the fastest."""
        swept = Swept(tuple(self._runs))
        fast: list[tuple[float, Proposal]] = []
        for proposal in self.proposals:
            run = swept.of(proposal.name)
            if run is None or not counts(run):
                continue
            told = swept.measured(proposal.name)
            kept = kept_results(swept.base, run, proposal)
            if told.verdict == "faster" and kept.verdict != "diverges":
                fast.append((told.speedup.point, proposal))
        fast.sort(key=lambda item: -item[0])
        best: list[Proposal] = []
        for _, proposal in fast:
            if not any(_exclude(proposal, other) for other in best):
                best.append(proposal)
        order = [proposal.name for proposal in self.proposals]
        return sorted(best, key=lambda proposal: order.index(proposal.name))

    # --- what was run before -----------------------------------------------------------------------------------

    def _key(self) -> dict[str, Any]:
        """What must be the same for runs to be taken over."""
        return {
            "saved": _SAVED,
            "command": shown(self.command),
            "changes": {proposal.name: proposal.changes for proposal in self.proposals},
            "base_every": self.settings.base_every,
            "rounds": self.settings.rounds,
            "seed": self.settings.options.seed,
            "blocks": self.settings.options.blocks,
        }

    def _saved(self) -> list[dict[str, Any]]:
        try:
            text = (self.folder / STATE).read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        try:
            state = json.loads(text)
            known, runs = state["key"], list(state["runs"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.folder / STATE}: cannot be gone on with: {error}; name another folder with -o"
            ) from error
        if known != json.loads(json.dumps(self._key())):
            raise UsageError(f"{self.folder}: holds what another command tried; name another folder with -o")
        return runs

    def _save(self) -> None:
        state = {"key": self._key(), "runs": self._runs}
        replace_text(self.folder / STATE, json.dumps(state, indent=1) + "\n")


def shown(command: Sequence[str]) -> list[str]:
    """A command line as it may be written down: without the folder of its program, and without secrets."""
    words = without_secret_arguments([os.path.basename(command[0]), *command[1:]])
    return list(known_secrets.without_values(words))


def applied(run: Mapping[str, Any]) -> bool:
    """Whether every change of a run took effect."""
    return all(proof["applied"] for proof in run["proofs"].values())


def counts(run: Mapping[str, Any]) -> bool:
    """Whether a run was measured with all of its changes in effect."""
    return run["status"] == MEASURED and applied(run)


def kept_results(
    base: Sequence[Mapping[str, Any]], run: Mapping[str, Any], proposal: Proposal
) -> results.ResultsKept:
    """What a run says of the results, with these changes made in it."""
    return results.judge(
        [{**one["results"], "workers": one.get("batches_ahead")} for one in base],
        run["results"],
        precision=proposal.precision,
        redraws=proposal.redraws,
    )


def _exclude(one: Proposal, other: Proposal) -> bool:
    """Whether two cannot be made together, or are the same in part."""
    names = {*one.changes, *(name for candidate in one.candidates for name in candidate.excludes)}
    return bool(names & set(other.changes))


def said(run: Mapping[str, Any]) -> str:
    """One run in a few words."""
    if run["status"] != MEASURED:
        return f"{run['status']}: {run['error']}"
    step_ms = judgement.step_of(run, mean=judgement.uneven([run])) / 1e6
    wrong = [proof["says"] for proof in run["proofs"].values() if not proof["applied"]]
    return f"step {step_ms:.4g} ms in {run['took_s']:.1f} s" + (f"; not applied: {wrong[0]}" if wrong else "")
