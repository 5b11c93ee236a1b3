"""Collectives as they ran: one row per communication kernel, or per transfer that a host thread made.

What the recorded metadata does not contain is taken from the annotation or operator around the launch, and otherwise from
the kernel's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.work.tensor_shapes import MOST_ELEMENTS
from foretrace.trace import Trace

# Of libraries whose annotation lasts as long as the transfer; nccl's only covers its launch.
_HOST_TRANSFER = r"^(?:gloo|mpi|ucc):"
_AROUND_LAUNCH = r"^(?:nccl|rccl|xccl|gloo|mpi|ucc):|^c10d::|^_c10d_functional::"
_NOT_A_TRANSFER = ("wait", "init", "startcoalescing", "endcoalescing", "work_wait")
# In this order: "reduce" is part of two other names.
_COLLECTIVES = (
    ("all_reduce", r"all_?reduce|cross_device_reduce"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
    ("send_recv", r"send|recv"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
)
# Bus bandwidth over algorithm bandwidth for n ranks, as in NCCL's tests (doc/PERFORMANCE.md).
_SHARED_OUT = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")
_ONE_TO_ONE = ("broadcast", "reduce", "send_recv")
_ALGORITHM = r"(?i)_(ring|tree|nvls_?tree|nvls|collnet_?direct|collnet_?chain|pat)_(simple|ll128|ll)"
# Bytes of an element, by the C++ names that operators write.
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long": 8, "long int": 8,
    "unsigned char": 1, "signed char": 1, "char": 1, "bool": 1, "short": 2, "short int": 2,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
}  # fmt: skip
_PARTNERS = {"Src Rank": "source", "Dst Rank": "destination"}
_COLUMNS = {
    "on": pl.String, "device": pl.Int32, "step": pl.Int32, "start_ns": pl.Int64, "dur_ns": pl.Int64,
    "collective": pl.String, "group": pl.String, "ranks_count": pl.Int64, "dtype": pl.String,
    "algorithm": pl.String, "size_bytes": pl.Int64, "id": pl.UInt32, "ranks": pl.String, "seq": pl.Int64,
    "source": pl.Int64, "destination": pl.Int64, "received_bytes": pl.Int64, "direction": pl.String,
}  # fmt: skip


def find(trace: Trace) -> pl.DataFrame:
    """All collectives, in order of start: `on` (device, host or call), `dur_ns` (null for a call) and what is known.

    `id` is the span of the kernel or transfer, null for a call; `seq` counts within a group, and `ranks` names its members;
    `source` or `destination` is the other rank of a receive or a send, and `direction` says which it is, where a name tells.
    A "call" is one whose transfer was seen on no device or thread. Kernels launched before the recording began
    are left out.
    """
    kernels = device_time.device_work(trace).filter(pl.col("communication") & ~pl.col("orphan"))
    transfers = _transfers(trace)
    if kernels.is_empty() and transfers.is_empty() and trace.collectives.is_empty():
        return pl.DataFrame(schema=_COLUMNS)
    frames = [_of_kernels(trace, kernels), _of_transfers(trace, transfers)]
    if transfers.is_empty():
        frames.append(_bare_calls(trace, kernels))
    calls = pl.concat(frames)
    only = _only_group(trace)
    if only is not None:
        calls = calls.with_columns(
            pl.col("group").fill_null(pl.lit(only[0])), pl.col("ranks_count").fill_null(only[1])
        )
    return calls.sort("start_ns", maintain_order=True)


def _metadata(trace: Trace) -> pl.DataFrame:
    """Recorded metadata by span, with the bytes of the whole message as NCCL's tests count them."""
    table = trace.collectives.filter(~pl.col("collective").str.to_lowercase().is_in(_NOT_A_TRANSFER))
    kind = _collective(pl.col("collective"))
    sent, received, ranks = pl.col("in_count"), pl.col("out_count"), pl.col("group_size")
    element = pl.when(sent > 0).then(pl.col("size_bytes") // sent)
    gathered = pl.when(received > sent).then(received).otherwise(sent * ranks)
    scattered = pl.when(received < sent).then(sent).otherwise(received * ranks)
    elements = pl.when(kind == "all_gather").then(gathered).when(kind == "reduce_scatter").then(scattered)
    return table.select(
        "span_id",
        collective=pl.coalesce(kind, "collective"),
        group="group",
        ranks_count="group_size",
        dtype="dtype",
        size_bytes=elements.otherwise(sent) * element,
        ranks="ranks",
        seq="seq",
        received_bytes=received * element,
        direction=_direction(pl.col("collective")),
    ).join(_partners(trace), on="span_id", how="left", maintain_order="left")


def _partners(trace: Trace) -> pl.DataFrame:
    """The other rank of each receive and each send."""
    told = pl.coalesce("int", pl.col("text").cast(pl.String).cast(pl.Int64, strict=False))
    rows = trace.args.filter(pl.col("key").cast(pl.String).is_in(tuple(_PARTNERS))).select(
        "span_id", pl.col("key").cast(pl.String), told.alias("rank")
    )
    found = [
        rows.filter(pl.col("key") == key).select("span_id", pl.col("rank").alias(name))
        for key, name in _PARTNERS.items()
    ]
    return found[0].join(found[1], on="span_id", how="full", coalesce=True)


def _direction(text: pl.Expr) -> pl.Expr:
    """send or recv; null where the text names neither, or both."""
    lower = text.str.to_lowercase()
    sends, receives = lower.str.contains("send"), lower.str.contains("recv|receive")
    return pl.when(sends & ~receives).then(pl.lit("send")).when(receives & ~sends).then(pl.lit("recv"))


def _collective(text: pl.Expr) -> pl.Expr:
    """The usual name of a collective; null where the text names none."""
    lower = text.str.to_lowercase()
    chosen = pl.lit(None, pl.String)
    for name, pattern in reversed(_COLLECTIVES):
        chosen = pl.when(lower.str.contains(pattern)).then(pl.lit(name)).otherwise(chosen)
    return chosen


def _of_kernels(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    known = _metadata(trace)
    recorded = trace.collectives["span_id"].implode()
    # The kernel's own metadata, or that of its operator.
    key = pl.when(pl.col("id").is_in(recorded)).then("id").otherwise("op_id")
    rows = kernels.with_columns(key=key, around=_around(trace, kernels)).join(
        known, left_on="key", right_on="span_id", how="left", maintain_order="left"
    )
    labels = trace.spans["name"].gather(rows["around"]).cast(pl.String).alias("label")
    sizes = _input_sizes(trace, rows["around"].drop_nulls())
    rows = rows.with_columns(labels, pl.col("name").cast(pl.String)).join(
        sizes, left_on="around", right_on="span_id", how="left", maintain_order="left"
    )
    parts = pl.col("name").str.extract_groups(_ALGORITHM)
    algorithm = pl.concat_str(parts.struct[0], parts.struct[1], separator=" ").str.to_lowercase()
    # "coalesced" says how several were launched; what they are, the kernel's name tells.
    named = pl.coalesce(
        _collective(pl.col("collective")),
        _collective(pl.col("label")),
        _collective(pl.col("name")),
        "collective",
        pl.lit("unknown"),
    )
    return _shaped(
        rows.with_columns(
            on=pl.lit("device"),
            collective=named,
            dtype=pl.coalesce("dtype", "input_dtype"),
            size_bytes=pl.coalesce("size_bytes", _message(trace, named)),
            algorithm=algorithm,
            direction=pl.coalesce("direction", _direction(pl.col("label"))),
        )
    )


def _around(trace: Trace, kernels: pl.DataFrame) -> pl.Series:
    """For each kernel the annotation or operator of a collective around its launch; null where there is none."""
    if kernels.is_empty():
        return pl.Series("around", [], dtype=pl.UInt32)
    cause = kernels.select(pl.coalesce("launch_id", "op_id").cast(pl.Int64).fill_null(NOBODY)).to_series()
    rows = cause.to_numpy()
    parent = attribution.parents(trace)
    names = trace.spans["name"].to_physical().to_numpy()
    wanted = device_time.names_like(trace.spans, _AROUND_LAUNCH).explode().to_physical().to_numpy()
    inside: Array = rows.copy()
    while len(up := np.flatnonzero((inside != NOBODY) & ~np.isin(names[inside], wanted))):
        inside[up] = parent[inside[up]]
    around = pl.Series("around", inside, dtype=pl.Int64)
    return around.set(around == NOBODY, None).cast(pl.UInt32)


def _transfers(trace: Trace) -> pl.DataFrame:
    """Annotations of host threads that last as long as a transfer."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    spans = trace.spans[ids_like(trace, "annotation", _HOST_TRANSFER)]
    return spans.filter(~pl.col("track_id").is_in(on_device.implode()))


def _of_transfers(trace: Trace, transfers: pl.DataFrame) -> pl.DataFrame:
    sizes = _input_sizes(trace, transfers["id"])
    rows = transfers.join(sizes, left_on="id", right_on="span_id", how="left", maintain_order="left")
    label = pl.col("name").cast(pl.String)
    return _shaped(
        rows.with_columns(
            on=pl.lit("host"),
            collective=pl.coalesce(_collective(label), label),
            dtype="input_dtype",
            size_bytes=_message(trace, _collective(label)),
            direction=_direction(label),
        )
    )


def _message(trace: Trace, collective: pl.Expr) -> pl.Expr:
    """Bytes of the whole message from those of the input: of a gather the input is one rank's part."""
    only = _only_group(trace)
    ranks = pl.lit(only[1] if only else None, pl.Int64)
    return (
        pl.when(collective.is_in(("all_gather", "gather")))
        .then(pl.col("input_bytes") * ranks)
        .otherwise("input_bytes")
    )


def _bare_calls(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Recorded calls of collectives that started no communication kernel."""
    seen = pl.concat((kernels["id"], kernels["op_id"].drop_nulls())).implode()
    rows = _metadata(trace).filter(~pl.col("span_id").is_in(seen))
    rows = rows.join(trace.spans, left_on="span_id", right_on="id", how="inner", maintain_order="left")
    rows = rows.filter(pl.col("kind") == "op")
    return _shaped(rows.with_columns(on=pl.lit("call"), dur_ns=pl.lit(None, pl.Int64)))


def _shaped(rows: pl.DataFrame) -> pl.DataFrame:
    absent = {name: dtype for name, dtype in _COLUMNS.items() if name not in rows.columns}
    rows = rows.with_columns(pl.lit(None, dtype).alias(name) for name, dtype in absent.items())
    return rows.select(pl.col(name).cast(dtype) for name, dtype in _COLUMNS.items())


def _input_sizes(trace: Trace, spans: pl.Series) -> pl.DataFrame:
    """For each span with recorded tensors: their bytes and type, `input_bytes` and `input_dtype`."""
    wanted = spans.unique().implode()
    loose = trace.args.filter(pl.col("span_id").is_in(wanted))
    texts: dict[int, dict[str, str]] = {}
    for span, key, text in loose.select("span_id", "key", "text").drop_nulls().iter_rows():
        texts.setdefault(span, {})[key] = text
    ops = trace.ops.filter(pl.col("span_id").is_in(wanted)).select("span_id", "shapes", "dtypes").drop_nulls()
    for span, shapes, dtypes in ops.iter_rows():
        texts.setdefault(span, {}).update({"Input Dims": shapes, "Input type": dtypes})
    rows = [
        (span, *_tensor_size(arguments.get("Input Dims"), arguments.get("Input type")))
        for span, arguments in texts.items()
    ]
    schema = {"span_id": pl.UInt32, "input_bytes": pl.Int64, "input_dtype": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _tensor_size(shapes: str | None, dtypes: str | None) -> tuple[int | None, str | None]:
    """Bytes and type of the first tensor in an operator's recorded inputs; nulls where it is not that plain."""
    try:
        shape, dtype = json.loads(shapes or "")[0], json.loads(dtypes or "")[0]
    except (ValueError, LookupError, TypeError):
        return None, None
    element = _ELEMENT_BYTES.get(dtype) if isinstance(dtype, str) else None
    if element is None or not isinstance(shape, list) or not shape:
        return None, None
    if not all(isinstance(size, int) and size >= 0 for size in shape) or math.prod(shape) > MOST_ELEMENTS:
        return None, dtype
    return math.prod(shape) * element, dtype


def _only_group(trace: Trace) -> tuple[str | None, int] | None:
    """Name and size of the process group, where there was just one."""
    about: Any = trace.meta.get("distributed")
    groups = about.get("pg_config") if isinstance(about, Mapping) else None
    if not isinstance(groups, list) or len(groups) != 1 or not isinstance(groups[0], Mapping):
        return None
    name, size = groups[0].get("pg_name"), groups[0].get("pg_size")
    return (str(name) if name is not None else None, size) if isinstance(size, int) and size > 0 else None


def bus_factor() -> pl.Expr:
    """Bus bandwidth over algorithm bandwidth; null where the ranks or the collective's traffic are unknown."""
    ranks, name = pl.col("ranks_count"), pl.col("collective")
    many = ranks > 0
    return (
        pl.when(many & (name == "all_reduce")).then(2 * (ranks - 1) / ranks)
        .when(many & name.is_in(_SHARED_OUT)).then((ranks - 1) / ranks)
        .when(name.is_in(_ONE_TO_ONE)).then(pl.lit(1.0))
    )  # fmt: skip
