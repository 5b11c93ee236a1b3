"""How fast a DataLoader makes its input, how many workers would keep up, and what so many would leave of the step."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from foretrace.diagnose.case import Case
from foretrace.ingest.timed import LoaderTimes, Timed
from foretrace.predict import edits
from foretrace.predict.changes import Change
from foretrace.predict.costs import loading
from foretrace.predict.edits import Edit
from foretrace.predict.loading import Loaded
from foretrace.predict.steady import step_ns
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.units import format_value

WORKS_SHARE = Share(
    0.5, "the time that a batch takes, in which a processor works; below, something else may limit", JUDGEMENT
)
_TEN = Count(10, "steps, of which so many wait", JUDGEMENT)
_EVERY = Share(0.95, "the steps, from which every step is said to wait", JUDGEMENT)


@dataclass(frozen=True)
class Pace:
    """The input of a step: what making it takes, where, and what is left of the step without waiting for it."""

    loaded: Loaded
    most: int | None  # workers that leave the main process an idle core; None where the cores are not known
    rest_ns: float
    doubt: str = ""
    threads: int | None = None  # of the main process, where it computes on the same cores
    cores: int | None = None  # that other programs leave

    @property
    def workers(self) -> int | None:
        """Those that load now; none where the main process does, `None` where nobody says."""
        return self.loaded.workers

    @property
    def made_ns(self) -> float | None:
        """What one process needs for the input of a step."""
        return self.loaded.made_ns

    @property
    def wait_ns(self) -> float:
        """How long a step waits, at the mean."""
        return self.loaded.wait_ns

    @property
    def wanted(self) -> int | None:
        """Workers that keep up even where each further one brings as little as it may; `None` where that is not known."""
        if self.workers is None or self.made_ns is None or self.most is None:
            return None
        needed = self.made_ns / max(self.rest_ns, 1.0)
        further = (needed - self.workers) / loading.LEAST_OF_A_CORE
        return max(min(ceil(self.workers + further), self.most), 1)

    def beside(self, workers: int) -> float:
        """How much longer the rest of the step takes at worst, if workers take cores that its threads have now."""
        if self.threads is None or self.cores is None or self.threads + workers <= self.cores:
            return 1.0
        return max(self.threads / max(self.cores - workers, 1), 1.0)

    def shared(self, workers: int) -> float:
        """How much longer a worker needs for a batch at worst: threads that wait for each other spin, on its core too."""
        if self.threads is None or self.cores is None:
            return 1.0
        return max((self.threads + workers) / max(self.cores, 1), 1.0)

    def after(self, case: Case, made_ns: float, workers: float, *, slower: float = 1.0) -> Edit:
        """The waits gone, and what so many workers cannot deliver in time added to every step.

        `slower` is how much longer the rest of the step takes beside them.
        """
        taken = 0 if self.workers else loading.TAKEN_NS  # workers that are there hand over already
        late = max(max(made_ns / workers, self.rest_ns * slower) - self.rest_ns, taken)
        calls = [int(call) for call in case.program.step_calls if call < len(case.program.kind)]
        added = Edit(added_host_ns=dict.fromkeys(calls, round(late)) if late > 0 else {})
        return edits.merge((self.loaded.waits.gone(), added))


def pace(case: Case) -> Pace | None:
    """What is known of the loader from the unprofiled steps; `None` where they were not timed."""
    if case.loaded is None or case.timed is None:
        return None
    rest_ns = step_ns(edits.apply(case.program, case.loaded.waits.gone()))
    cores, most = case.timed.free_cores, most_workers(case)
    threads = case.processor.threads if case.on_cpu and case.processor is not None else None
    return Pace(case.loaded, most, rest_ns, _doubt(case.timed, case.loaded.workers), threads, cores)


def most_workers(case: Case) -> int | None:
    """Workers that leave the main process an idle core: none on contended ones; None where the cores are not known."""
    if case.timed is None or case.timed.free_cores is None:
        return None
    contended = case.timed.core_use is not None and case.timed.core_use.contended
    return 0 if contended else max(case.timed.free_cores - 1, 0)


def _doubt(timed: Timed, workers: int | None) -> str:
    """Why more workers may not help, by what was measured beside the waits."""
    loader, cores = timed.loader, timed.cores
    if loader is None or (not workers and _waits_itself(loader)):
        return ""  # who waits for a disk needs no core
    counted = timed.core_use is not None
    load = None if counted else loader.load_average
    if cores is not None and load is not None and load > timed.machine_cores:
        return f"{load:.0f} processes or threads compete for {timed.machine_cores:g} cores already"
    if not workers:
        return ""
    if cores is not None and workers >= int(cores) - 1:
        return f"{workers} workers have all of the {cores:g} cores already"
    if loader.made_ns and loader.made_cpu_ns is not None:
        share = loader.made_cpu_ns / loader.made_ns
        if share < WORKS_SHARE:
            return f"a processor works in {100 * share:.0f} % of the time that a worker needs for a batch: the disk, the network or other processes may limit it"
    return ""


def more_workers(case: Case, found: Pace) -> Change:
    """More workers where some load already: promised where their pace and the cores are known."""
    gone = found.loaded.waits.gone()
    wanted, now, made = found.wanted, found.workers, found.made_ns
    if wanted is None or now is None or made is None:
        twice = case.step_ns / 2
        return Change("twice the workers", found.after(case, twice, 1), others=(Edit(), gone))
    if wanted <= now:
        return Change(
            "nothing waited for",
            gone,
            others=(Edit(),),
            doubt=found.doubt or "the workers' pace would do: batches of uneven length are waited for",
        )
    least = now + (wanted - now) * loading.LEAST_OF_A_CORE
    beside, shared = (take(wanted) / take(now) for take in (found.beside, found.shared))
    return Change(
        f"{wanted} workers in place of {now}",
        found.after(case, made, wanted),
        others=(
            found.after(case, made, least),
            gone,
            *([found.after(case, made * shared, wanted, slower=beside)] if beside > 1 else []),
        ),
        doubt=found.doubt,
    )


@dataclass(frozen=True)
class First:
    """Workers where the main process loads now: how many, what they would leave, and what a batch's way takes them."""

    change: Change
    workers: int
    sent_ns: float


def first_workers(
    case: Case, found: Pace, slower: tuple[float, float], otherwise: tuple[int, int, int]
) -> First:
    """`slower` is how much longer a worker needs, likely and at worst, where the threads of loading were not counted.

    `otherwise` are workers, at worst and at best, where the cores are not known.
    """
    made, loader = found.made_ns or found.wait_ns, case.timed.loader if case.timed else None
    sent = loading.sent_ns(loader.batch_bytes or 0) * loader.batches if loader else float(loading.SENT_NS)
    if loader and loader.made_ns and loader.made_cpu_ns is not None:
        # So many cores were busy; threads that wait for one another are busy too, so that alone it takes less than all of that.
        threads = max(loader.made_cpu_ns / loader.made_ns, 1.0)
        slower = (sqrt(threads), threads)
    likely, worst = (made * factor + sent for factor in slower)
    workers, fewest, most = _first_count(found, worst) or otherwise
    fewest = 1 if loader and _waits_itself(loader) else fewest
    # That a batch takes a worker longest, and that workers count for fewest, seldom meet.
    ends = ((worst, workers), (likely, fewest), (made + sent, most))
    beside = found.beside(workers)
    change = Change(
        f"data loaded by {workers} workers ({fewest} to {most})",
        found.after(case, likely, workers),
        others=(
            *(found.after(case, *end) for end in ends),
            *(
                [found.after(case, likely * found.shared(workers), workers, slower=beside)]
                if beside > 1
                else []
            ),
        ),
        doubt=found.doubt,
    )
    return First(change, workers, sent)


def _first_count(found: Pace, made_ns: float) -> tuple[int, int, int] | None:
    """How many workers to begin with, and as how many they may count; `None` where the cores are not known."""
    if found.most is None:
        return None
    wanted = max(min(ceil(made_ns / max(found.rest_ns, 1.0) / loading.LEAST_OF_A_CORE), found.most), 1)
    return wanted, max(int(wanted * loading.LEAST_OF_A_CORE), 1), wanted


def _waits_itself(loader: LoaderTimes) -> bool:
    """Whether making a batch is mostly waiting, as for a disk: how many can wait at once is not known."""
    if loader.made_cpu_ns is None or not loader.made_ns:
        return False
    return loader.made_cpu_ns / loader.made_ns < WORKS_SHARE


def sentence(case: Case, found: Pace) -> str:
    """How steps wait: in bursts, or all alike."""
    timed = case.timed
    mean = f"{format_value('_ns', found.wait_ns)} a step, {100 * found.wait_ns / case.step_ns:.0f} % of it"
    if timed is None or timed.loader is None:
        blocks = timed.blocks_ns if timed else (0.0,)
        low, high = (format_value("_ns", block) for block in (min(blocks), max(blocks)))
        return f"Unprofiled steps took {low} to {high}; what they take longer than the quickest, {mean}, is waiting for the DataLoader"
    loader = timed.loader
    if loader.waiting_steps >= _EVERY * loader.steps:
        return f"Every step waits for the DataLoader, {mean}"
    part = round(_TEN * loader.waiting_steps / loader.steps)
    some = f"{part} of {_TEN}" if part else f"{loader.waiting_steps} of {loader.steps}"
    long = format_value("_ns", loader.waiting_mean_ns)
    return f"{some} steps wait {long} for the DataLoader ({mean} on average)"


def evidence(case: Case, found: Pace, wanted: int | None) -> dict[str, float | int]:
    """What was measured, as numbers."""
    timed = case.timed
    loader = timed.loader if timed else None
    known = {
        "workers_count": found.workers,
        "workers_wanted_count": wanted,
        "cores_count": timed.cores if timed else None,
        "input_made_ns": found.made_ns,
        "rest_ns": found.rest_ns,
        "timed_steps_count": loader.steps if loader else None,
        "waiting_steps_count": loader.waiting_steps if loader else None,
        "waiting_step_ns": loader.waiting_mean_ns if loader else None,
        "longest_wait_ns": max(loader.waits_ns) if loader else None,
        "runnable_count": loader.load_average if loader else None,
    }
    return {name: value for name, value in known.items() if value is not None}
