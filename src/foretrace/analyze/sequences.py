"""Sequences: kernel sequences that repeat, and chains of kernels that could be fused into one."""

from __future__ import annotations

import heapq
import json
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_peaks import device_peaks
from foretrace.analyze.concepts.names.kernel_facts import COPY, ELEMENTWISE, NORM, REDUCTION, SOFTMAX
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError, UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

Array = NDArray[Any]
# Minus the time that it may hold, a number that breaks ties, its length, its first place, the runs by place.
Candidate = tuple[int, int, int, int, Array]
# First place, length, occurrences, time in its kernels, time between them.
Sequence = tuple[int, int, int, int, int]

_FUSABLE = (ELEMENTWISE, REDUCTION, NORM, SOFTMAX, COPY)
_LENGTHS = (*range(2, 13), 14, 16, 20, 24, 32, 40, 48)
_PER_LENGTH = 8  # candidates of each length that are looked at closely
_LEAST_SHARE = 0.002
_NAME_WIDTH = 40
_SHOWN = 1000
_NO_LIMIT = 1e30  # bytes a second
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Bytes per element, by the names that the profiler records for types.
_SIZES = {
    "float": 4, "c10::BFloat16": 2, "c10::Half": 2, "double": 8, "int": 4, "long int": 8, "long": 8, "short": 2,
    "signed char": 1, "unsigned char": 1, "bool": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8,
}  # fmt: skip


@analysis(
    Subject.COMPILED,
    denominators={
        "total_pct": "of the summed duration of all launched GPU work",
        "candidate_pct": "of the summed duration of all launched GPU work",
    },
)
def sequences(
    trace: Trace, *, by: Literal["sequence", "fusion"] = "sequence", min_repeats: int = 3, rows: int = 50
) -> Result:
    """Frequent sequences of kernels, and chains of small kernels that could be fused.

    Sequences
        Two or more consecutive kernels, copies or memsets of one stream and step whose names repeat at least
        min_repeats times. Sequences that occur more than once per step come first, then the others, each time by
        the time they take. Work already in a listed sequence does not count again, so shares add up. Repetitions of a
        shorter sequence, and sequences below 0.2 %, are not listed.
        total_ns: summed duration of the kernels in all occurrences.
        total_pct: of the summed duration of all launched work.
        gap_ns: time between the kernels.

    Fusion candidates (--by fusion)
        Chains of at least two consecutive elementwise, reduction, norm, softmax or copy kernels of one stream and
        step that no compiler generated, and of the same size where shapes were recorded. Chains do not overlap, so
        their total_pct add up to candidate_pct.
        saved_launches_count: launches saved if each chain were one kernel.
        saved_bytes: 2 times the largest input of each kernel after the first, which would not have to be written and
        read again, but no more than the device could move in the time of the two kernels; null where shapes were not
        recorded.

    What it cannot tell
        Whether a kernel reads what the previous one wrote: only names and sizes are compared. What fusing would gain
        is for `predict` to say.
    """
    if min_repeats < 2 or not 1 <= rows <= _SHOWN:
        raise UsageError(f"sequences needs min_repeats of 2 or more and 1 to {_SHOWN} rows")
    work = _work(trace)
    if work.is_empty():
        raise MissingDataError(f"{trace.path.name}: no kernels recorded; record with ProfilerActivity.CUDA")
    total = int(work["dur_ns"].sum())
    chains = _chains(trace, work, total)
    frequent = _frequent(work, total, min_repeats, rows) if by == "sequence" else None
    values: dict[str, Value] = {
        "kernel_count": work.height,
        "candidate_count": int(chains["repeats_count"].sum()),
        "candidate_ns": int(chains["total_ns"].sum()),
        "candidate_pct": 100 * int(chains["total_ns"].sum()) / total if total else None,
        "saved_launches_count": int(chains["saved_launches_count"].sum()),
        "saved_bytes": int(chains["saved_bytes"].sum()) if chains["saved_bytes"].count() else None,
    }
    return Result(
        says=_says(values, frequent),
        table=chains.head(rows) if frequent is None else frequent,
        values=values,
        notes=_notes(values),
    )


def _work(trace: Trace) -> pl.DataFrame:
    """Launched GPU work, stream by stream in order, with a number for each name."""
    spans = device_time.device_work(trace).filter(~pl.col("orphan"))
    spans = spans.select(
        "id", "track_id", "kind", "name", "start_ns", "end_ns", "dur_ns", "op_id", "step", "device"
    )
    return spans.sort("track_id", "start_ns", "id").with_columns(code=pl.col("name").to_physical())


def _frequent(work: pl.DataFrame, total_ns: int, min_repeats: int, rows: int) -> pl.DataFrame:
    """The sequences that take the most time, each without the work of those before it."""
    bounds = np.concatenate(([0], np.cumsum(work["dur_ns"].to_numpy())))
    free = np.ones(work.height, bool)
    sequences: list[Sequence] = []
    # A sequence once per step may be the step itself: sequences within a step are taken first.
    steps = work["step"].drop_nulls().n_unique()
    for least in (max(min_repeats, steps + 1), min_repeats):
        queue = _candidates(work, bounds, least, free)
        sequences += _taken(work, queue, bounds, free, least, max(int(_LEAST_SHARE * total_ns), 1))
    return _listed(work["name"], sequences[:rows], total_ns)


def _taken(
    work: pl.DataFrame, queue: list[Candidate], bounds: Array, free: Array, min_repeats: int, least_ns: int
) -> list[Sequence]:
    """The best of the candidates one after another; `free` is cleared where each lies."""
    starts, ends, codes = (work[name].to_numpy() for name in ("start_ns", "end_ns", "code"))
    part = _parts(work)
    sequences: list[Sequence] = []
    heapq.heapify(queue)
    while queue:
        limit, tie, length, first, runs = heapq.heappop(queue)
        places = _apart(np.flatnonzero(runs == runs[first]), length, free)
        held = int((bounds[places + length] - bounds[places]).sum())
        if len(places) < min_repeats or held < least_ns or _repeats(codes[first : first + length]):
            continue
        if queue and held < -queue[0][0]:
            if held < -limit:  # others took part of it: back into the queue
                heapq.heappush(queue, (-held, tie, length, first, runs))
            continue
        places, length = _extended(codes, part, free, places, length)
        held = int((bounds[places + length] - bounds[places]).sum())
        span = int(np.maximum(ends[places + length - 1] - starts[places], 0).sum())
        sequences.append((int(places[0]), length, len(places), held, max(span - held, 0)))
        free[(places[:, None] + np.arange(length)).ravel()] = False
    return sequences


def _listed(names: pl.Series, sequences: list[Sequence], total_ns: int) -> pl.DataFrame:
    """The sequences as rows."""
    listed = [
        (_chain_text(names.slice(first, length).to_list()), length, *rest)
        for first, length, *rest in sequences
    ]
    schema = {"sequence": pl.String} | dict.fromkeys(
        ("length_count", "repeats_count", "total_ns", "gap_ns"), pl.Int64
    )
    frame = pl.DataFrame(listed, schema=schema, orient="row")
    share = 100 * pl.col("total_ns") / total_ns if total_ns else pl.lit(None, pl.Float64)
    return frame.with_columns(total_pct=share).select(*list(schema)[:4], "total_pct", "gap_ns")


def _chain_text(names: list[str]) -> str:
    """Names in order, shortened; adjacent equal names as one, with their number."""
    parts: list[tuple[str, int]] = []
    for name in names:
        if parts and parts[-1][0] == name:
            parts[-1] = (name, parts[-1][1] + 1)
        else:
            parts.append((name, 1))
    return " > ".join(
        shorten(name, _NAME_WIDTH) + (f" x{count}" if count > 1 else "") for name, count in parts
    )


def _candidates(work: pl.DataFrame, bounds: Array, min_repeats: int, free: Array) -> list[Candidate]:
    """The runs of each length, over places that are free, that may hold the most time."""
    codes = work["code"].to_numpy()
    part = _parts(work)
    busy = np.concatenate(([0], np.cumsum(~free)))
    mixed = (codes.astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    hashes = np.zeros(len(codes), np.uint64)
    queue: list[Candidate] = []
    for length in range(1, min(_LENGTHS[-1], len(codes)) + 1):
        count = len(codes) - length + 1
        hashes = hashes[:count] * _MULTIPLIER + mixed[length - 1 :]
        if length not in _LENGTHS:
            continue
        inside = (part[:count] == part[length - 1 :]) & (busy[length:] == busy[:count])
        frame = pl.DataFrame(
            {"run": hashes, "held": bounds[length:] - bounds[:count], "at": np.arange(count)}
        )
        often = (
            frame.filter(pl.Series(inside))
            .group_by("run")
            .agg(pl.len(), pl.col("held").sum(), pl.col("at").min())
            .filter(pl.col("len") >= min_repeats)
        )
        runs = np.where(inside, hashes, np.uint64(0))
        for held, first in often.top_k(_PER_LENGTH, by="held").sort("at").select("held", "at").iter_rows():
            queue.append((-held, len(queue), length, first, runs))
    return queue


def _parts(work: pl.DataFrame) -> Array:
    """A number for each stretch of one stream and step: no sequence leaves it."""
    return work.select(pl.struct("track_id", "step").rle_id()).to_series().to_numpy()


def _extended(codes: Array, part: Array, free: Array, places: Array, length: int) -> tuple[Array, int]:
    """The sequence extended on both sides for as long as all its occurrences agree."""
    room = int(np.diff(places).min()) if len(places) > 1 else len(codes)
    while length < room:
        for start, edge in ((places, places + length), (places - 1, places - 1)):
            inside = edge[0] >= 0 and edge[-1] < len(codes)
            if (
                inside
                and free[edge].all()
                and (part[edge] == part[places]).all()
                and (codes[edge] == codes[edge[0]]).all()
            ):
                places, length = start, length + 1
                break
        else:
            return places, length
    return places, length


def _apart(places: Array, length: int, free: Array) -> Array:
    """Of sorted places, those whose run is free and does not overlap the previous one."""
    taken_before = np.concatenate(([0], np.cumsum(~free)))
    places = places[taken_before[places + length] == taken_before[places]]
    if len(places) < 2 or (np.diff(places) >= length).all():
        return places
    taken = []
    after = -1
    for place in places.tolist():
        if place >= after:
            taken.append(place)
            after = place + length
    return np.array(taken, np.int64)


def _repeats(codes: Array) -> bool:
    """Whether it is a shorter sequence repeated."""
    length = len(codes)
    return any(
        length % period == 0 and (codes[period:] == codes[:-period]).all()
        for period in range(1, length // 2 + 1)
    )


def _chains(trace: Trace, work: pl.DataFrame, total_ns: int) -> pl.DataFrame:
    """Chains of fusable kernels, by names and size, the longest total first."""
    rows = work.hstack(_sizes(trace, work))
    can = rows["name"].is_in(_fusable(work))
    # Work of unknown size ends a chain of known size.
    part = rows.select(pl.struct("track_id", "step", "elements", can=can).rle_id()).to_series().to_numpy()
    begins = np.flatnonzero(np.append(True, part[1:] != part[:-1]))
    sizes = np.diff(np.append(begins, len(part)))
    place = np.arange(len(part)) - np.repeat(begins, sizes)
    mixed = (rows["code"].to_numpy().astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
    mixed = (mixed ^ (mixed >> np.uint64(29))) * (2 * place.astype(np.uint64) + np.uint64(1))
    unknown = rows["bytes"].is_null().to_numpy() & (place > 0)
    chains = pl.DataFrame(
        {
            "key": np.add.reduceat(mixed ^ (mixed >> np.uint64(31)), begins),
            "first": begins,
            "can": can.to_numpy()[begins],
            "length_count": sizes,
            "total_ns": np.add.reduceat(rows["dur_ns"].to_numpy(), begins),
            "elements_count": rows["elements"].gather(begins),
            "saved": np.add.reduceat(_saved(trace, rows) * (place > 0), begins),
            "unknown": np.add.reduceat(unknown.astype(np.int64), begins),
        }
    ).filter(pl.col("can") & (pl.col("length_count") > 1))
    return _grouped(rows["name"], chains, total_ns)


def _fusable(work: pl.DataFrame) -> pl.Series:
    """The names of kernels that could be fused, unless a compiler generated them, and of copies on the device."""
    names = work.filter(pl.col("kind") != "set")["name"].unique()
    able = []
    for name in names.cast(pl.String).to_list():
        known = decode(name)
        made = known.family == "Triton" and bool(known.fused_ops)
        able.append("DtoD" in name if name.startswith("Memcpy") else known.role in _FUSABLE and not made)
    return names.filter(pl.Series(able, dtype=pl.Boolean)).implode()


def _saved(trace: Trace, rows: pl.DataFrame) -> Array:
    """Bytes of memory traffic that each kernel would save if fused into the previous one; 0 where not known.

    A kernel may hardly touch its operator's largest input: where the device's bandwidth is known, no more counts than the
    two kernels could move in their time.
    """
    speeds = {device: peaks.memory_bytes_per_s for device, peaks in device_peaks(trace).items()}
    speed = rows["device"].replace_strict(speeds, default=None, return_dtype=pl.Float64).fill_null(_NO_LIMIT)
    durations = rows["dur_ns"] + rows["dur_ns"].shift(1).fill_null(0)
    limit = np.minimum(durations.to_numpy() / 1e9 * speed.to_numpy(), 2.0**62)
    saved: Array = np.minimum(2 * rows["bytes"].fill_null(0).to_numpy(), limit.astype(np.int64))
    return saved


def _grouped(names: pl.Series, chains: pl.DataFrame, total_ns: int) -> pl.DataFrame:
    """Chains of the same names and size as one row."""
    table = chains.group_by("key", "elements_count", maintain_order=True).agg(
        pl.col("first", "length_count").first(),
        pl.len().alias("repeats_count"),
        pl.col("total_ns").sum(),
        saved_launches_count=(pl.col("length_count") - 1).sum(),
        saved_bytes=pl.when(pl.col("unknown").sum() == 0).then(pl.col("saved").sum()),
    )
    table = table.sort("total_ns", descending=True, maintain_order=True)
    texts = [
        _chain_text(names.slice(first, length).to_list())
        for first, length in table.head(_SHOWN).select("first", "length_count").iter_rows()
    ]
    texts += [""] * (table.height - len(texts))
    share = 100 * pl.col("total_ns") / total_ns if total_ns else pl.lit(None, pl.Float64)
    table = table.with_columns(sequence=pl.Series(texts, dtype=pl.String), total_pct=share)
    first = ("sequence", "length_count", "repeats_count", "total_ns", "total_pct", "elements_count")
    return table.select(*first, "saved_launches_count", "saved_bytes")


def _sizes(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """For each row the elements and bytes of the largest input of its operator; null where not recorded."""
    ops = trace.ops.select("span_id", shapes=pl.col("shapes"), dtypes=pl.col("dtypes"))
    wanted = ops.filter(pl.col("span_id").is_in(work["op_id"].unique().drop_nulls().implode()))
    known = (
        wanted.select("shapes", "dtypes").unique().with_columns(pl.all().cast(pl.String).name.suffix("_text"))
    )
    sizes = [
        _largest(shapes, dtypes) for shapes, dtypes in known.select("shapes_text", "dtypes_text").iter_rows()
    ]
    known = known.select("shapes", "dtypes").with_columns(
        elements=pl.Series([size[0] for size in sizes], dtype=pl.Int64),
        bytes=pl.Series([size[1] for size in sizes], dtype=pl.Int64),
    )
    of_op = wanted.join(known, on=("shapes", "dtypes"), how="left", nulls_equal=True)
    return (
        work.select("op_id")
        .join(
            of_op.select("elements", "bytes", op_id="span_id"), on="op_id", how="left", maintain_order="left"
        )
        .select("elements", "bytes")
    )


def _largest(shapes: str | None, dtypes: str | None) -> tuple[int | None, int | None]:
    """Elements and bytes of the largest tensor among recorded inputs."""
    try:
        dims = json.loads(shapes) if shapes else []
        kinds = json.loads(dtypes) if dtypes else []
    except ValueError:
        return None, None
    best: tuple[int | None, int | None] = (None, None)
    for place, shape in enumerate(dims if isinstance(dims, list) else []):
        if not isinstance(shape, list) or not shape or not all(isinstance(size, int) for size in shape):
            continue
        elements = int(np.prod(shape, dtype=np.int64))
        size = _SIZES.get(kinds[place]) if place < len(kinds) and isinstance(kinds[place], str) else None
        if best[0] is None or elements > best[0]:
            best = (elements, elements * size if size else None)
    return best


def _says(values: dict[str, Value], frequent: pl.DataFrame | None) -> str:
    share = float(values["candidate_pct"] or 0)
    chains = f"{counted(int(values['candidate_count'] or 0), 'chain')} of small kernels take {share:.1f} % of GPU time"
    if frequent is None:
        launches = counted(int(values["saved_launches_count"] or 0), "launch call")
        return f"{chains}; fusing each into one kernel would save {launches}"
    if frequent.is_empty():
        return f"no sequence of kernels repeats often enough to be listed; {chains}"
    top = frequent.row(0, named=True)
    length, count = top["length_count"], top["repeats_count"]
    held = format_value("_ns", top["total_ns"])
    return f"a sequence of {length} kernels runs {count:,} times: {held}, {top['total_pct'] or 0:.1f} % of GPU time; {chains}"


def _notes(values: dict[str, Value]) -> tuple[str, ...]:
    if values["candidate_count"] and values["saved_bytes"] is None:
        return ("no shapes recorded, so chains may mix sizes; record with record_shapes=True",)
    return ()
