"""torch.compile: the compiled regions, compilations inside the recording, and the kernels Inductor generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

Array = NDArray[Any]

NOBODY = -1
_REGION = r"^Torch-Compiled Region:? *(\S+)"
_LOOKUP = r"^TorchDynamo Cache Lookup"
_PROLOGUE = r"^AOTDispatcher Runtime Wrapper Prologue"
_BACKWARD = r"^CompiledFunctionBackward$"
_GRAPH = r"^## Call CompiledFxGraph (\w+)"
_TIMED = " (dynamo_timed)"
# Outermost spans of a compilation; torch marks those below it with the suffix above.
_COMPILING = r"\(dynamo_timed\)$|^(?:dynamo|entire_frame_compile|backend_compile|inductor_compile)$|_compile\.compile_inner"
_COMPILE_ID = r"compile_id=(\S+)"
_SOURCE = ("kernel_file", "kernel_hash", "kernel_backend", "kernel_kwargs", "num_warps", "num_stages")


@dataclass(frozen=True)
class Marks:
    """Host spans of torch.compile: rows with `id`, `track_id`, `name`, `start_ns`, `dur_ns`, `step`, `text`."""

    regions: pl.DataFrame  # with `region`
    lookups: pl.DataFrame
    prologues: pl.DataFrame
    backwards: pl.DataFrame
    graphs: pl.DataFrame  # with `hash`
    compilations: pl.DataFrame


@analysis(
    Subject.COMPILED,
    keep=("region", "calls_count", "device_ns", "host_ns", "total_pct", "kernels_count"),
    denominators={
        "total_pct": "of the summed duration of all launched GPU work",
        "compiled_pct": "GPU work launched from compiled code, of all launched GPU work",
        "compiling_pct": "of the time from the first to the last step (without steps, of the recording)",
    },
)
def compile(trace: Trace, *, by: Literal["region", "compilation", "kernel"] = "region") -> Result:
    """torch.compile regions, cache lookups, recompilations, and Inductor's kernels with their source files.

    Regions
        A region is one compiled version of one frame, numbered "frame/version" by Dynamo: version 1 of a frame is its
        first recompilation. Graphs called outside any region are listed by their hash.
        host_ns: host time inside the region.
        lookup_ns: time in the guard checks (TorchDynamo Cache Lookup) that selected it.
        prologue_ns: time in AOTDispatcher's prologue, part of host_ns.
        device_ns: GPU work launched inside the region.
        backward_host_ns, backward_device_ns: the same for its CompiledFunctionBackward.
        total_pct: device_ns and backward_device_ns, of the summed duration of all launched GPU work.
        graphs_count: distinct CompiledFxGraph hashes called; a changed hash is a recompilation.

    Compilations (--by compilation)
        Outermost spans in which Dynamo, AOTAutograd or Inductor compiled during the recording. Their cost is host
        time.
        recompile: whether the frame had been compiled before (its version is above 0).

    Kernels (--by kernel)
        Kernels launched through Inductor, with the operators they fuse (decoded from the name), source file, number of
        warps and stages. total_pct is again of all launched GPU work.

    What it cannot tell
        Why a guard failed (run with TORCH_LOGS=recompiles). Compilations before the recording, except that a
        region's version number counts them. Work inside a CUDA graph belongs to the region that launched the graph.
    """
    marks = _marks(trace)
    if all(spans.is_empty() for spans in (marks.regions, marks.graphs, marks.compilations)):
        raise MissingDataError(
            f"{trace.path.name}: no torch.compile region recorded; is the program compiled?"
        )
    work = _work(trace, marks)
    regions = _regions(trace, marks, work)
    compilations = _compilations(trace, marks)
    kernels = _kernels(trace, work)
    values = _values(trace, marks, regions, compilations, kernels)
    return Result(
        says=_says(values),
        table={"region": regions, "compilation": compilations, "kernel": kernels}[by],
        values=values,
        notes=_notes(values, regions),
    )


def _marks(trace: Trace) -> Marks:
    """The host spans that torch.compile records, by their names."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    host = trace.spans.lazy().filter(pl.col("kind").is_in(("op", "annotation")))
    spans = host.select("id", "track_id", "kind", "name", "start_ns", "dur_ns", "step").collect()
    every = "|".join((_REGION, _LOOKUP, _PROLOGUE, _BACKWARD, _GRAPH, _COMPILING))
    marks = spans.filter(pl.col("name").is_in(device_time.names_like(spans, every)))
    marks = marks.filter(~pl.col("track_id").is_in(on_device.implode())).with_columns(
        pl.col("dur_ns").fill_null(0)
    )
    marks = marks.with_columns(text=pl.col("name").cast(pl.String))

    def like(pattern: str) -> pl.DataFrame:
        return marks.filter(pl.col("text").str.contains(pattern))

    # The unsuffixed twin of a timed span encloses it: the name without the suffix is compiling, too.
    timed = like(_COMPILING)
    twins = timed["text"].filter(timed["text"].str.ends_with(_TIMED)).str.strip_suffix(_TIMED).unique()
    texts = pl.col("name").is_in(
        device_time.names_like(spans, f"^(?:{'|'.join(map(_escaped, twins)) or '$.'})$")
    )
    enclosing = spans.filter(texts & (pl.col("kind") == "op")).with_columns(
        text=pl.col("name").cast(pl.String)
    )
    compilations = pl.concat((timed, enclosing)).unique("id", maintain_order=True).sort("id")
    return Marks(
        regions=like(_REGION).with_columns(region=pl.col("text").str.extract(_REGION)),
        lookups=like(_LOOKUP),
        prologues=like(_PROLOGUE),
        backwards=like(_BACKWARD),
        graphs=like(_GRAPH).with_columns(hash=pl.col("text").str.extract(_GRAPH)),
        compilations=compilations,
    )


def _escaped(text: str) -> str:
    return pl.select(pl.lit(text).str.escape_regex()).item()  # type: ignore[no-any-return]


def _inside(marks: pl.DataFrame, track: Array, at_ns: Array) -> Array:
    """For each moment of a thread, the row of the mark around it, or NOBODY; marks of one kind do not nest.

    By time, not by parents: a Python frame that outlives the mark it began in breaks the chain of parents.
    """
    row = np.full(len(at_ns), NOBODY)
    start, own_track = marks["start_ns"].to_numpy(), marks["track_id"].to_numpy()
    end = start + marks["dur_ns"].to_numpy()
    for thread in np.unique(own_track).tolist():
        own = np.flatnonzero(own_track == thread)
        asked = np.flatnonzero(track == thread)
        place = np.searchsorted(start[own], at_ns[asked], side="right") - 1
        inside = place >= 0
        inside[inside] = end[own[place[inside]]] >= at_ns[asked[inside]]
        row[asked[inside]] = own[place[inside]]
    return row


def _named(marks: pl.DataFrame, rows: Array, column: str) -> pl.Series:
    """A column of the marks by row; null for NOBODY."""
    return marks[column].gather(pl.Series(rows, dtype=pl.Int64).replace(NOBODY, None)).alias(column)


def _owner(trace: Trace, marks: Marks, ids: pl.Series) -> pl.DataFrame:
    """For each of the host spans, the `region` and graph `hash` it runs for, and whether in the `backward`."""
    spans = trace.spans
    track, at = spans["track_id"].gather(ids).to_numpy(), spans["start_ns"].gather(ids).to_numpy()
    region = _named(marks.regions, _inside(marks.regions, track, at), "region")
    graph = _named(marks.graphs, _inside(marks.graphs, track, at), "hash")
    backward = _inside(marks.backwards, track, at)
    of_backward = _named(_backwards(trace, marks), backward, "region")
    return pl.DataFrame(
        {
            "region": region.zip_with(region.is_not_null(), of_backward),
            "hash": graph,
            "backward": backward != NOBODY,
        }
    )


def _backwards(trace: Trace, marks: Marks) -> pl.DataFrame:
    """The spans of compiled backward functions, with the region of their forward."""
    forward = trace.ops.filter(pl.col("forward_id").is_not_null()).select(
        id="span_id", forward_id="forward_id"
    )
    spans = marks.backwards.join(forward, on="id", how="left", maintain_order="left")
    known = spans["forward_id"].fill_null(0)
    track, at = (trace.spans[name].gather(known).to_numpy() for name in ("track_id", "start_ns"))
    region = _named(marks.regions, _inside(marks.regions, track, at), "region")
    return spans.with_columns(region=pl.when(pl.col("forward_id").is_not_null()).then(region))


def _work(trace: Trace, marks: Marks) -> pl.DataFrame:
    """Device work launched from compiled code: its span, kind, duration, `label` and whether in the backward."""
    work = trace.device_spans.filter(~device_time.ORPHAN)
    owner = _owner(trace, marks, work.select(pl.coalesce("launch_id", "op_id")).to_series())
    owned = work.select("id", "kind", "dur_ns").hstack(owner)
    return owned.with_columns(label=pl.coalesce("region", "hash")).drop_nulls("label")


def _regions(trace: Trace, marks: Marks, work: pl.DataFrame) -> pl.DataFrame:
    """One row per region, and one per graph outside any region; the longest on the device first."""
    device = work.group_by(region="label").agg(
        kernels_count=(pl.col("kind") == "kernel").sum(),
        device_ns=pl.col("dur_ns").filter(~pl.col("backward")).sum(),
        backward_device_ns=pl.col("dur_ns").filter("backward").sum(),
    )
    graphs = marks.graphs.hstack(_owner(trace, marks, marks.graphs["id"]).rename({"hash": "own"}))
    loose = graphs.filter(pl.col("region").is_null()).with_columns(region="hash")
    times = {
        "calls_count": pl.len(),
        "host_ns": pl.col("dur_ns").sum(),
        "steps": pl.col("step").drop_nulls().unique(),
    }
    table = pl.concat(
        [spans.group_by("region", maintain_order=True).agg(**times) for spans in (marks.regions, loose)]
    )
    backward = _backwards(trace, marks).group_by("region").agg(backward_host_ns=pl.col("dur_ns").sum())
    hashes = graphs.group_by(pl.coalesce("region", "hash").alias("region")).agg(
        graphs_count=pl.col("hash").n_unique()
    )
    for columns in (_before_region(marks), _inside_region(marks), backward, hashes, device):
        table = table.join(columns, on="region", how="left", maintain_order="left")
    total = _launched_ns(trace)
    if trace.has_device:
        table = table.with_columns(pl.col("kernels_count", "device_ns", "backward_device_ns").fill_null(0))
    share = (
        100 * (pl.col("device_ns") + pl.col("backward_device_ns")) / total
        if total
        else pl.lit(None, pl.Float64)
    )
    table = table.with_columns(pl.col("steps").list.sort(), total_pct=share)
    return table.sort("device_ns", "host_ns", descending=True, maintain_order=True, nulls_last=True)


def _before_region(marks: Marks) -> pl.DataFrame:
    """Time of the cache lookups that selected each region: the next region on the thread."""
    regions = marks.regions.select("track_id", "region", at_ns="start_ns").sort("at_ns")
    lookups = marks.lookups.select("track_id", "dur_ns", at_ns=pl.col("start_ns")).sort("at_ns")
    joined = lookups.join_asof(regions, on="at_ns", by="track_id", strategy="forward", check_sortedness=False)
    return joined.drop_nulls("region").group_by("region").agg(lookup_ns=pl.col("dur_ns").sum())


def _inside_region(marks: Marks) -> pl.DataFrame:
    """Time of AOTDispatcher's prologue in each region."""
    own = marks.prologues
    rows = _inside(marks.regions, own["track_id"].to_numpy(), own["start_ns"].to_numpy())
    own = own.with_columns(_named(marks.regions, rows, "region")).drop_nulls("region")
    return own.group_by("region").agg(prologue_ns=pl.col("dur_ns").sum())


def _compilations(trace: Trace, marks: Marks) -> pl.DataFrame:
    """The outermost compile spans, in order, with Dynamo's id of what was compiled."""
    spans = marks.compilations.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")).sort(
        "start_ns", "end_ns", descending=(False, True)
    )
    reached = pl.col("end_ns").cum_max().shift(1).over("track_id")
    outer = spans.filter((pl.col("start_ns") >= reached).fill_null(value=True)).with_columns(at_ns="start_ns")
    notes = (
        trace.spans.lazy().filter(pl.col("kind") == "annotation").select("name", "track_id", at_ns="start_ns")
    )
    noted = notes.collect()
    ids = noted.filter(pl.col("name").is_in(device_time.names_like(noted, _COMPILE_ID)))
    ids = ids.with_columns(
        compile_id=pl.col("name").cast(pl.String).str.extract(_COMPILE_ID), noted_ns="at_ns"
    )
    compiled = outer.sort("at_ns").join_asof(
        ids.drop("name").sort("at_ns"), on="at_ns", by="track_id", strategy="forward", check_sortedness=False
    )
    known = pl.when(pl.col("noted_ns") <= pl.col("end_ns")).then("compile_id")
    version = known.str.extract(r"/(\d+)").cast(pl.Int64, strict=False)
    return compiled.select("name", "step", "start_ns", "dur_ns", compile_id=known, recompile=version > 0)


def _kernels(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Inductor's kernels by name, with what they fuse and their source file; the longest total first."""
    sources = _sources(trace)
    kernels = trace.device_spans.filter(pl.col("kind") == "kernel")
    named = kernels["name"].unique().cast(pl.String)
    fused = {name: decode(name).fused_ops for name in named.to_list()}
    made = pl.Series([name for name, ops in fused.items() if ops], dtype=pl.String)
    through = sources["op_id"].implode() if sources.height else pl.Series([[]], dtype=pl.List(pl.UInt32))
    generated = kernels.with_columns(text=pl.col("name").cast(pl.String)).filter(
        pl.col("text").is_in(made.implode()) | pl.col("op_id").is_in(through).fill_null(value=False)
    )
    generated = (
        generated.filter(~device_time.ORPHAN)
        .join(work.select("id", "label"), on="id", how="left")
        .join(sources, on="op_id", how="left")
    )
    table = generated.group_by("text", maintain_order=True).agg(
        pl.len().alias("calls_count"),
        pl.col("dur_ns").sum().alias("total_ns"),
        pl.col("dur_ns").mean().alias("mean_ns"),
        pl.col("label").drop_nulls().unique().sort().str.join(", ").alias("region"),
        *(pl.col(name).drop_nulls().first() for name in _SOURCE),
    )
    total = _launched_ns(trace)
    ops = pl.col("text").replace_strict(
        {name: ", ".join(names) or None for name, names in fused.items()},
        default=None,
        return_dtype=pl.String,
    )
    share = 100 * pl.col("total_ns") / total if total else pl.lit(None, pl.Float64)
    table = table.with_columns(fused_ops=ops, total_pct=share).rename({"text": "name"})
    return table.select(
        "name", "calls_count", "total_ns", "total_pct", "mean_ns", "fused_ops", "region", *_SOURCE
    ).sort("total_ns", descending=True, maintain_order=True)


def _sources(trace: Trace) -> pl.DataFrame:
    """What Inductor wrote beside its operators, one row per operator span."""
    args = trace.args
    wanted = args.filter(
        pl.col("key").is_in(device_time.names_like(args.select(name="key"), f"^(?:{'|'.join(_SOURCE)})$"))
    )
    value = pl.coalesce(pl.col("text").cast(pl.String), pl.col("int").cast(pl.String))
    empty = pl.DataFrame(schema={"op_id": pl.UInt32, **dict.fromkeys(_SOURCE, pl.String)})
    if wanted.is_empty():
        return empty
    keyed = wanted.select(op_id="span_id", key=pl.col("key").cast(pl.String), value=value)
    columns = [pl.col("value").filter(pl.col("key") == name).first().alias(name) for name in _SOURCE]
    rows = keyed.group_by("op_id", maintain_order=True).agg(*columns)
    return rows.filter(pl.any_horizontal(pl.col("kernel_file", "kernel_hash").is_not_null()))


def _launched_ns(trace: Trace) -> int:
    return int(trace.device_spans.filter(~device_time.ORPHAN)["dur_ns"].sum())


def _values(
    trace: Trace, marks: Marks, regions: pl.DataFrame, compilations: pl.DataFrame, kernels: pl.DataFrame
) -> dict[str, Value]:
    steps = trace.steps
    start, end = (
        (min(step.start_ns for step in steps), max(step.end_ns for step in steps))
        if steps
        else (0, trace.duration_ns)
    )
    inside = compilations.filter(pl.col("start_ns").is_between(start, end))
    compiling = int(inside["dur_ns"].sum())
    versions = marks.regions["region"].unique().str.split("/")
    frames = versions.list.first()
    compiled = int(regions["device_ns"].sum()) + int(regions["backward_device_ns"].sum())
    total = _launched_ns(trace)
    return {
        "regions_count": marks.regions["region"].n_unique(),
        "frames_count": frames.n_unique(),
        "calls_count": marks.regions.height,
        "lookups_count": marks.lookups.height,
        "lookup_ns": int(marks.lookups["dur_ns"].sum()),
        "compilations_count": compilations.height,
        "recompilations_count": int(compilations["recompile"].sum()),
        "compiling_ns": compiling,
        "compiling_pct": min(100 * compiling / (end - start), 100.0) if end > start else None,
        "frames_recompiled_count": int((frames.value_counts()["count"] > 1).sum()) if len(frames) else 0,
        "compiled_pct": min(100 * compiled / total, 100.0) if total else None,
        "inductor_kernels_count": kernels.height,
    }


def _says(values: dict[str, Value]) -> str:
    regions, calls = int(values["regions_count"] or 0), int(values["calls_count"] or 0)
    says = f"{counted(regions, 'compiled region')} called {counted(calls, 'time')}"
    if isinstance(values["compiled_pct"], float):
        says += f", launching {values['compiled_pct']:.1f} % of GPU time"
    count = int(values["compilations_count"] or 0)
    if not count:
        return f"{says}; nothing was compiled during the recording"
    again = counted(int(values["recompilations_count"] or 0), "recompilation")
    length = format_value("_ns", values["compiling_ns"])
    return f"{says}; {counted(count, 'compilation')} during the recording ({again}) took {length}"


def _notes(values: dict[str, Value], regions: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    if values["frames_recompiled_count"]:
        notes.append(
            f"{counted(int(values['frames_recompiled_count']), 'frame')} ran in more than one version: "
            "guards failed during the recording"
        )
    versions = regions["region"].str.extract(r"^\d+/(\d+)").cast(pl.Int64, strict=False)
    older = max(versions.drop_nulls().to_list(), default=0)
    if older and not values["recompilations_count"]:
        notes.append(f"a region has version {older}: its frame was recompiled before the recording")
    if regions.filter(pl.col("graphs_count") > 2).height:
        notes.append("a region calls more than two graphs: graph breaks, or a changed forward or backward")
    return tuple(notes)
