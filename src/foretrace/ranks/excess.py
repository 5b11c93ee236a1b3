"""Ranks that take longer than others of their role: by their computation, their input, or by what is neither."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foretrace.ranks import chance
from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.roles import Roles
from foretrace.ranks.summary import KIND_CODE
from foretrace.sourced import JUDGEMENT, Factor, Share
from foretrace.statistics import NORMAL, deviation_of

LEAST_SLOWER = Share(0.03, "the computation of a rank's role, by which it takes longer", JUDGEMENT)
LEAST_OTHER = Share(0.03, "the step, by which a rank does nothing longer than its role", JUDGEMENT)
LEAST_LATE = Share(0.01, "the step, by which input comes later than elsewhere in the role", JUDGEMENT)
LATE_FOR_SURE = Factor(
    3,
    "what input usually takes, by which it takes longer where it is late for sure, if it scatters little",
    JUDGEMENT,
)
LEAST_OF_ALL = Share(0.05, "the step, that all ranks lose alike or in turn", JUDGEMENT)
LEAST_ONCE = Share(0.05, "the step, by which a rank takes longer in single steps", JUDGEMENT)
LEAST_RARE = Share(
    0.05, "all steps, that a rank must lose in single ones where nobody else pauses at all", JUDGEMENT
)
ALSO_LATE = Share(
    0.5, "the limit beyond which a rank is late in a step, that its other steps count from", JUDGEMENT
)
MOST_STEPS = Share(0.67, "the steps, in which a rank takes longer where that is usual for it", JUDGEMENT)
LEAST_EXCESS = Share(0.003, "all steps, that a cause takes in sum", JUDGEMENT)
SPREADS = Factor(6, "robust standard deviations beyond which a rank differs from its role", JUDGEMENT)
_FEW = 4  # values, of which no spread can be told
_SOME = 16  # values, of which the spread is known well enough to judge single ones by
_LOWER_SIXTH_PCT = 100 * NORMAL.cdf(-1)  # one standard deviation below the mean
_ALL_TO_ALL = KIND_CODE["all_to_all"]


@dataclass(frozen=True)
class Slow:
    """A rank that takes longer at something: how many times as long in each step, or how much longer."""

    member: int
    part: str
    left: Array  # share of the part that would be left in each step, as long as its role's
    excess_ns: float  # a step
    ratio: float
    once: bool = False  # in single steps only
    among: str = "role"  # whose ranks it was compared with


def lower_median(values: Array, axis: int = 0) -> Array:
    """The median, of an even number of values the lower of the two in the middle; NaN where there is none."""
    ordered = np.sort(values, axis=axis)  # NaN last
    count = (~np.isnan(values)).sum(axis=axis)
    place = np.maximum((count - 1) // 2, 0)
    return np.take_along_axis(ordered, np.expand_dims(place, axis), axis).squeeze(axis)


def spread(deviations: Array) -> float:
    """A robust standard deviation from those at or below the middle, so that slow ones do not hide themselves.

    Each step's norm is one of the values, and so differs from itself by nothing: with few ranks those zeros are many, and
    the distance to the lower sixth tells more than the median of the distances.
    """
    known = np.sort(deviations[~np.isnan(deviations)])
    if len(known) < _FEW:
        return 0.0
    middle = known[(len(known) - 1) // 2]
    below = known[: (len(known) + 1) // 2]
    by_median = deviation_of(float(np.median(np.abs(below - middle))))
    return max(by_median, float(middle - np.percentile(known, _LOWER_SIXTH_PCT)))


def _by_chance(judged: Array, all_judged: Array) -> Array:
    """How far a rank's usual step may be off by chance: by how all ranks' steps scatter, and by how its own do.

    How well its own scatter is known is not asked: of a handful of steps that would leave nothing to be told.
    """
    ranks, steps = all_judged.shape
    of_all = chance.errors(ranks, ranks * (steps - 1)) * chance.scatter(all_judged)
    own = chance.errors(ranks) * chance.own_scatters(judged)
    limit: Array = chance.OF_MEDIAN * np.maximum(of_all, own) / np.sqrt(steps)
    # Of one step only the other ranks tell how much it may be off.
    return limit if steps > 1 else np.full(len(judged), chance.tail(all_judged))


def _beyond_roles(table: Array, roles: Roles) -> Array:
    """By how much each rank and step is above the norm of its role."""
    more = np.full_like(table, np.nan)
    for role in np.unique(roles.role):
        members = roles.members(role)
        more[members] = table[members] - lower_median(table[members])
    return more


def _over_roles(table: Array, roles: Roles) -> Array:
    """How many times as long as the norm of its role each rank and step takes."""
    times = np.full_like(table, np.nan)
    for role in np.unique(roles.role):
        members = roles.members(role)
        norm = lower_median(table[members])
        with np.errstate(invalid="ignore", divide="ignore"):
            times[members] = np.where(norm > 0, table[members] / norm, np.nan)
    return times


def over_roles(job: Gathered, roles: Roles) -> Array:
    """How many times as long as the norm of its role each rank computes, in each step that counts."""
    return counted_steps(_over_roles(job.per_step["computation_ns"], roles))


def usual_over_roles(job: Gathered, roles: Roles) -> Array:
    """How many times as long as the norm of its role each rank usually computes."""
    return median_of_steps(over_roles(job, roles))


def counted_steps(values: Array) -> Array:
    """Without the first step, where there are enough of them: what is only then is not the rank's."""
    return values[:, 1:] if values.shape[1] > 3 else values


def leads_per_step(job: Gathered) -> dict[str, Array]:
    """Input and what is neither that nor computation, in the leads of each rank's communications of each step.

    Leads that begin at the same communication overlap: the longest of them counts.
    """
    begin = np.where(job.before >= 0, job.before, len(job.member) + job.member)
    order = np.lexsort((job.lead_ns, begin))
    last = order[np.append(begin[order][1:] != begin[order][:-1], True)] if len(order) else order
    place = job.member[last], np.searchsorted(job.steps, job.step[last])
    tables = {}
    other = np.maximum(job.lead_ns - job.computation_ns - job.input_ns, 0.0)
    for name, values in (("input", job.input_ns), ("other", other)):
        table = np.where(np.isnan(job.per_step["computation_ns"]), np.nan, 0.0)
        np.add.at(table, place, values[last])
        tables[name] = table
    return tables


def slow_computation(job: Gathered, roles: Roles, step_ns: float) -> list[Slow]:
    """Ranks whose computation takes longer than that of their role in most steps, or much longer in some."""
    table = job.per_step["computation_ns"]
    beyond = counted_steps(_beyond_roles(table, roles))
    shares = over_roles(job, roles)
    found = []
    for role in np.unique(roles.role):
        members = roles.members(role)
        if len(members) < 2:
            continue
        norm = lower_median(table[members])
        judged = shares[members]
        usual = median_of_steps(judged)
        by_chance = np.maximum(SPREADS * spread(usual), _by_chance(judged, shares))
        limit = 1 + np.maximum(LEAST_SLOWER, by_chance)
        for place in np.flatnonzero(usual > limit):
            excess = float(np.nanmean((usual[place] - 1) * norm))
            left = np.full(table.shape[1], 1 / usual[place])
            found.append(Slow(int(members[place]), "computation", left, excess, float(usual[place])))
        usual_members = np.flatnonzero(~(usual > limit))
        found += _in_single_steps(table, members[usual_members], norm, "computation", step_ns, beyond)
    return [each for each in found if each.excess_ns >= LEAST_EXCESS * step_ns]


def slow_otherwise(table: Array, late_ns: Array, roles: Roles, step_ns: float) -> list[Slow]:
    """Ranks whose device is idle for longer than elsewhere in their role, and not for input or communication.

    Pauses of the host scatter much. Where they alone do not tell a rank from chance, its arrivals may: these were seen.
    """
    beyond = counted_steps(_beyond_roles(table, roles))
    late = counted_steps(late_ns)
    found = []
    for role in np.unique(roles.role):
        members = roles.members(role)
        if len(members) < 2:
            continue
        norm = lower_median(table[members])
        more = table[members] - norm
        judged = beyond[members]
        usual = median_of_steps(judged)
        limit = max(LEAST_OTHER * step_ns, SPREADS * spread(usual))
        by_chance = _by_chance(judged, beyond)
        arrives_late = median_of_steps(late[members]) > np.maximum(_by_chance(late[members], late), usual / 2)
        slow = (usual > limit) & ((usual > by_chance) | arrives_late)
        for place in np.flatnonzero(slow):
            slow[place] = usual[place] > _of_others(beyond, int(members[place]))
        for place in np.flatnonzero(slow):
            left = _left(table[members[place]], np.maximum(more[place], 0.0))
            excess = float(np.nanmean(np.maximum(more[place], 0.0)))
            in_turn = float(np.nanmean(judged[place] > limit / 2)) < MOST_STEPS
            found.append(Slow(int(members[place]), "other", left, excess, 1 + excess / step_ns, in_turn))
        found += _in_single_steps(table, members[~slow], norm, "other", step_ns, beyond)
    return [each for each in found if each.excess_ns >= LEAST_EXCESS * step_ns]


def _of_others(beyond: Array, member: int) -> float:
    """How far the usual step of a rank may be above its role by chance, as the steps of each other rank scatter."""
    others = np.delete(beyond, member, axis=0)
    usual = median_of_steps(others)
    centred = others - usual[:, None] + float(np.nanmedian(usual))
    return chance.median_tail(centred, beyond.shape[1], len(beyond))


def late_input(table: Array, roles: Roles, step_ns: float) -> list[Slow]:
    """Ranks that wait for input clearly longer than their role usually does: in some steps, or a little in most."""
    found = []
    for role in np.unique(roles.role):
        members = roles.members(role)
        rows = table[members]
        usual = float(np.nan_to_num(lower_median(rows.ravel())))
        norm = np.maximum(lower_median(rows), usual) if len(members) > 1 else np.full(table.shape[1], usual)
        more = rows - norm
        limit = np.maximum(LEAST_LATE * step_ns, _usual_input(rows - usual, norm))
        # Where many are late, the upper quarter is theirs: what comes early tells how late one may come by chance.
        times = max(LATE_FOR_SURE, chance.times_tail(rows))
        surely = np.maximum(times * norm, LEAST_ONCE * step_ns)
        limit = np.maximum(limit, np.minimum(chance.tail(more), surely))
        if len(members) > 1:  # in the first step all may wait, and some longer than others
            limit = np.maximum(limit, [_usual_input(*each) for each in zip(more.T, norm, strict=True)])
        elif table.shape[1] > 2:  # compared with its own steps, of which the first tells nothing
            more[:, 0] = 0.0
        late = _beyond(more, limit)
        late = np.where(_in_most(more, step_ns)[:, None], np.maximum(more, late), late).clip(0.0)
        for place in np.flatnonzero(late.sum(axis=1) > 0):
            excess = float(late[place].mean())
            left = _left(rows[place], late[place])
            found.append(Slow(int(members[place]), "input", left, excess, 1 + excess / step_ns))
    return [each for each in found if each.excess_ns >= LEAST_EXCESS * step_ns]


def _usual_input(values: Array, norm: Array) -> Array:
    """How much longer than the norm input may take and be usual: by how it scatters, or as long again where few values tell that.

    Only what is below the middle tells the spread, half of the values, and of these the median distance.
    """
    count = int((~np.isnan(values)).sum())
    scatter = spread(values.ravel())
    by_chance = chance.errors(count, count // 4) * scatter if count >= _SOME else np.inf
    limit: Array = np.maximum(SPREADS * scatter, np.minimum(by_chance, norm))
    return limit


def _in_most(more: Array, step_ns: float) -> Array:
    """Ranks that wait longer than their role in most steps, if there are enough to tell."""
    judged = counted_steps(more)
    if judged.shape[1] < 3 or len(more) < 2:
        return np.zeros(len(more), bool)
    usual = median_of_steps(judged)
    limit = np.maximum(_by_chance(judged, judged), max(LEAST_LATE * step_ns, SPREADS * spread(usual)))
    late: Array = usual > limit
    return late


def late_for_all(table: Array, step_ns: float) -> Slow | None:
    """Input that all ranks wait for, in every step or in the same ones; the first step is not counted."""
    if np.isnan(table).all(axis=0).any():
        return None
    together = lower_median(table)
    usual = float(np.median(together[1:] if len(together) > 1 else together))
    if usual >= LEAST_OF_ALL * step_ns:
        return Slow(-1, "input", np.zeros_like(together), float(together.mean()), 1 + usual / step_ns)
    if table.shape[1] < 3:
        return None
    late = np.where(together - usual > LEAST_ONCE * step_ns, together - usual, 0.0)
    late[0] = 0.0
    excess = float(late.mean())
    if excess < LEAST_EXCESS * step_ns:
        return None
    return Slow(-1, "input", _left(together, late), excess, 1 + excess / step_ns)


def without_pauses(table: Array) -> Array:
    """What is left of each rank's idle time in each step if none is longer than in the rank's median step."""
    usual = np.nan_to_num(median_of_steps(table))[:, None]
    return _left(table, np.nan_to_num(np.maximum(table - usual, 0.0)))


def expert_rows(job: Gathered) -> Array:
    """Rows between two all-to-alls: what leads to them is the experts' work."""
    before = np.maximum(job.before, 0)
    inside: Array = (job.kind == _ALL_TO_ALL) & (job.before >= 0) & (job.kind[before] == _ALL_TO_ALL)
    # Between one layer's second all-to-all and the next layer's first there is no expert: every other one counts.
    turn = np.zeros(len(job.member), np.int64)
    rows = np.flatnonzero(job.kind == _ALL_TO_ALL)
    if len(rows):
        keys = np.stack((job.member[rows], job.step[rows]))
        new = np.append(True, np.any(keys[:, 1:] != keys[:, :-1], axis=0))
        begins = np.flatnonzero(new)
        turn[rows] = np.arange(len(rows)) - np.repeat(begins, np.diff(np.append(begins, len(rows))))
    of_experts: Array = inside & (turn % 2 == 1)
    return of_experts


def of_experts(job: Gathered, roles: Roles, slow: Slow, rows: Array) -> float | None:
    """How many times as long the rank's experts take, if it is them alone that take longer; else None."""
    if slow.part != "computation" or not rows.any():
        return None
    members = roles.members(roles.role[slow.member])
    inside, outside = (
        _lead_ratio(job, members, slow.member, rows),
        _lead_ratio(job, members, slow.member, ~rows & (job.kind == _ALL_TO_ALL)),
    )
    if inside is None or outside is None or inside <= 1 + LEAST_SLOWER:
        return None
    return inside if outside - 1 < (inside - 1) / 3 else None


def _lead_ratio(job: Gathered, members: Array, own: int, rows: Array) -> float | None:
    sums = np.bincount(job.member[rows], job.computation_ns[rows], len(job.ranks))[members]
    norm = float(lower_median(sums))
    return float(sums[members == own][0]) / norm if norm > 0 else None


def _in_single_steps(
    table: Array, members: Array, norm: Array, part: str, step_ns: float, beyond: Array
) -> list[Slow]:
    """Ranks of a role that take much longer in some steps only, beyond what steps of all ranks scatter by.

    The first step tells nothing, unless all others do.
    """
    if not len(members):
        return []
    whole = table[members] - norm
    more = whole.copy()
    more[:, 0] = np.where(table.shape[1] > 2, 0.0, more[:, 0])
    scatter = max(spread(counted_steps(more).ravel()), chance.scatter(beyond))
    scatter *= max(SPREADS, chance.errors(beyond.size, beyond.size))
    limit = max(LEAST_ONCE * step_ns, scatter, chance.tail(beyond))
    late = _beyond(more, limit)
    always = np.count_nonzero(late[:, 1:], axis=1) >= max(table.shape[1] - 1, 2)
    late[always, 0] = np.where(whole > ALSO_LATE * limit, whole, 0.0)[always, 0]
    found = []
    for place in np.flatnonzero(late.sum(axis=1) > 0):
        excess = float(late[place].mean())
        if not always[place] and _now_and_then(more, late[place] > 0, int(place), scatter, excess / step_ns):
            continue
        left = _left(table[members[place]], late[place])
        found.append(Slow(int(members[place]), part, left, excess, 1 + excess / step_ns, not always[place]))
    return found


def _now_and_then(more: Array, late: Array, place: int, scatter: float, share: float) -> bool:
    """Whether a rank is late in some steps as any may be now and then: pauses of hosts are rare, and some are long."""
    others = np.delete(counted_steps(more), place, axis=0)
    others = others[~np.isnan(others)]
    own = counted_steps(more[place : place + 1])[0][counted_steps(late[None])[0]]
    beyond = np.maximum(others - scatter, 0.0)
    if not (beyond > 0).any() and share >= LEAST_RARE:
        return False
    tries = counted_steps(more).shape[1]
    return chance.surprise(np.maximum(own - scatter, 0.0), beyond, tries) < -math.log(chance.FLAGGED)


def _beyond(more: Array, limit: Array | float) -> Array:
    """By how much ranks take longer, in steps in which they do so beyond a limit; of those that do, also in steps in which they nearly do."""
    over = more > limit
    nearly = np.any(over, axis=1, keepdims=True) & (more > ALSO_LATE * limit)
    counted: Array = np.where(over | nearly, more, 0.0)
    return counted


def _left(whole: Array, gone: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore"):
        left = np.where(whole > 0, 1 - gone / whole, 1.0)
    clipped: Array = np.clip(np.nan_to_num(left, nan=1.0), 0.0, 1.0)
    return clipped


def median_of_steps(values: Array) -> Array:
    """Over steps, of those that were recorded; NaN where none was."""
    known = ~np.isnan(values).all(axis=1)
    result = np.full(len(values), np.nan)
    result[known] = np.nanmedian(values[known], axis=1)
    return result
