"""Linked rows of an Nsight Systems export as the tables of a Trace, each made when first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.ingest import nsys_rows
from foretrace.ingest.column_files import ColumnStore, blocks, series
from foretrace.ingest.columns import NULL_I64, NULL_U32, Array, nullable
from foretrace.ingest.nsys_link import Spans, forwards
from foretrace.ingest.nsys_rows import Part
from foretrace.ingest.secret_texts import mask_texts

_BACKWARD = r"^(?:autograd::engine::evaluate_function: |\w+Backward\d*$|torch::autograd::)"
_WARP = 32
_NULLABLE = {"dur": "dur_ns", "parent": "parent_id", "launch": "launch_id", "op": "op_id"}


class Frames:
    """The tables; columns of large ones are kept as they were read until their table is asked for."""

    def __init__(
        self, store: ColumnStore, parts: Sequence[Part], spans: Spans, names: list[str], shapes: list[str], geometry: Sequence[Any],
        tracks: pl.DataFrame, sm_counts: Mapping[int, int],
    ) -> None:  # fmt: skip
        self.masked = mask_texts(names)
        self._parts = [(part, ids) for part, ids in zip(parts, spans.ids, strict=True) if len(part)]
        self._shapes, self._geometry, self._sm_counts = shapes, geometry, sm_counts
        self._made = {"tracks": tracks, "spans": _spans(spans.columns, names, store)}
        self._made["spans"] = self._made["spans"].select(
            pl.col(name).cast(dtype) for name, dtype in schema.polars_schema("spans").items()
        )

    def __getitem__(self, table: str) -> pl.DataFrame:
        if table not in self._made:
            make = {"kernels": self._kernels, "copies": self._copies, "ops": self._ops}.get(table)
            columns = make() if make else {}
            types = schema.polars_schema(table)
            frame = pl.DataFrame(columns)
            absent = [pl.lit(None, dtype).alias(name) for name, dtype in types.items() if name not in columns]
            if not columns:
                self._made[table] = pl.DataFrame(schema=types)
            else:
                self._made[table] = frame.with_columns(absent).select(
                    pl.col(name).cast(dtype) for name, dtype in types.items()
                )
        return self._made[table]

    def _of(self, *kinds: int) -> list[tuple[Part, Array]]:
        return [(part, ids) for part, ids in self._parts if part.kind[0] in kinds and part.extra]

    def _kernels(self) -> dict[str, Any]:
        listed = self._of(nsys_rows.KERNEL)
        if not listed:
            return {}
        ids = np.concatenate([ids for _, ids in listed])
        kept = np.flatnonzero(ids != NULL_U32)
        order = kept[np.argsort(ids[kept])]
        codes = np.concatenate([part.extra["geometry"] for part, _ in listed])[order]
        nodes = np.concatenate(
            [part.extra.get("graphNodeId", np.full(len(ids), NULL_I64)) for part, ids in listed]
        )
        made = _geometry(self._geometry)[codes]
        columns = {name: made[name] for name in made.columns}
        columns["graph_node_id"] = nullable(nodes[order])
        return {"span_id": ids[order], **columns, **self._fill(ids[order], columns)}

    def _fill(self, ids: Array, kernels: Mapping[str, pl.Series]) -> dict[str, pl.Series]:
        """Blocks and warps per SM, where the number of SMs is known."""
        tracks = self._made["tracks"].select(pl.col("id").alias("track_id"), "device")
        device = (
            self._made["spans"]
            .select("track_id")[ids]
            .join(tracks, on="track_id", how="left", maintain_order="left")
        )
        count = device["device"].replace_strict(
            dict(self._sm_counts), default=None, return_dtype=pl.Float64
        ) if self._sm_counts else pl.Series([None] * len(ids), dtype=pl.Float64)  # fmt: skip
        frame = pl.DataFrame({**kernels, "count": count})
        blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z") / pl.col("count")
        threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
        made = frame.select(blocks_per_sm=blocks, warps_per_sm=blocks * threads / _WARP)
        return {name: made[name] for name in made.columns}

    def _copies(self) -> dict[str, Any]:
        listed = self._of(nsys_rows.COPY, nsys_rows.SET)
        if not listed:
            return {}
        ids = np.concatenate([ids for _, ids in listed])
        size = np.concatenate([part.extra["size"] for part, _ in listed])
        kinds = np.concatenate([part.extra["kinds"] for part, _ in listed])
        kept = np.flatnonzero(ids != NULL_U32)
        order = kept[np.argsort(ids[kept])]
        facts = {kind: nsys_rows.copy_facts(kind) for kind in np.unique(kinds).tolist() if kind >= 0}
        direction = {kind: way for kind, (way, _) in facts.items() if way in schema.DIRECTIONS} | {-1: "set"}
        pageable = {kind: held for kind, (_, held) in facts.items()} | {-1: None}
        coded = pl.Series(kinds[order])
        return {
            "span_id": ids[order],
            "size_bytes": nullable(np.where(size[order] < 0, NULL_I64, size[order])),
            "direction": coded.replace_strict(direction, default=None, return_dtype=pl.String),
            "pageable": coded.replace_strict(pageable, default=None, return_dtype=pl.Boolean),
        }

    def _ops(self) -> dict[str, Any]:
        listed = [(part, ids) for part, ids in self._parts if "sequence" in part.extra]
        if not listed:
            return {}
        ids = np.concatenate([ids for _, ids in listed])
        kind = np.concatenate([part.kind for part, _ in listed])
        kept = np.flatnonzero((ids != NULL_U32) & (kind == nsys_rows.OP))
        order = kept[np.argsort(ids[kept])]
        if not len(order):
            return {}
        sequence = np.concatenate([part.extra["sequence"] for part, _ in listed])[order]
        shapes = np.concatenate([part.extra["shapes"] for part, _ in listed])[order]
        span = ids[order]
        texts = pl.Series(self._shapes or [""], dtype=schema.TEXT)
        return {
            "span_id": span,
            "shapes": texts.gather(nullable(shapes)),
            "sequence": nullable(sequence),
            "forward_id": nullable(forwards(span, sequence, self._backward(span))),
        }

    def _backward(self, span: Array) -> Array:
        """Which operators are of a backward pass: named so, or inside one that is."""
        spans = self._made["spans"]
        names = spans["name"].gather(span).cast(pl.String)
        backward = names.str.contains(_BACKWARD).to_numpy().copy()
        place = np.full(spans.height + 1, -1, np.int64)
        place[span] = np.arange(len(span))
        parent = spans["parent_id"].gather(span).fill_null(spans.height).to_numpy()
        above = place[parent]
        # Parents begin before what is in them: one pass from the outside in for every level.
        while len(more := np.flatnonzero(~backward & (above >= 0) & backward[np.maximum(above, 0)])):
            backward[more] = True
        return backward


def _geometry(rows: Sequence[Any]) -> pl.DataFrame:
    """The distinct sizes of launches; a number that does not fit is null."""
    types = dict.fromkeys((*nsys_rows.GEOMETRY, "graph_id"), pl.Int64)
    frame = pl.DataFrame([list(row) for row in rows], schema=types, orient="row")
    sizes = [(f"{shape}{axis.upper()}", f"{shape}_{axis}") for shape in ("grid", "block") for axis in "xyz"]
    small = [pl.col(recorded).cast(pl.Int32, strict=False).alias(name) for recorded, name in sizes]
    shared = pl.sum_horizontal("staticSharedMemory", "dynamicSharedMemory", ignore_nulls=False).alias(
        "shared_bytes"
    )
    registers = pl.col("registersPerThread").cast(pl.Int32, strict=False).alias("registers")
    made = frame.select(*small, registers, shared, "graph_id")
    return made.select(pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in made.columns)


def track_table(keys: Sequence[Any], thread_names: Mapping[int, str]) -> pl.DataFrame:
    """The tracks: threads, streams, and one for the profiler's overhead."""
    rows = []
    for number, key in enumerate(keys):
        row: dict[str, Any] = {
            "id": number,
            "rank": None,
            "process": None,
            "device": None,
            "stream": None,
            "thread": None,
        }
        if key == "overhead":
            row |= {"process": -1, "thread": 0, "name": "thread 0"}
        elif key[0] == "stream":
            row |= {"device": key[1], "stream": key[2], "name": f"GPU {key[1]} stream {key[2]}"}
        else:
            thread = nsys_rows.thread_number(key[1])
            name = thread_names.get(key[1])
            row |= {"process": nsys_rows.process_number(key[1]), "thread": thread}
            row["name"] = f"thread {thread} ({name})" if name else f"thread {thread}"
        rows.append(row)
    return pl.DataFrame(rows, schema=schema.polars_schema("tracks"))


def _spans(columns: dict[str, Array], names: list[str], store: ColumnStore) -> pl.DataFrame:
    """The spans, of large columns without a copy; steps are not known yet."""
    kinds = pl.Series(schema.KINDS, dtype=schema.KIND)
    texts = pl.Series(names or [""], dtype=schema.TEXT)
    count = len(columns["start"])
    ids = store.kept(
        (np.arange(block.start, block.stop, dtype=np.uint32) for block in blocks(count)), np.uint32
    )
    made = [
        series("id", ids, nulls=False),
        series("track_id", columns["track"], nulls=False),
        kinds.gather(series("kind", columns["kind"], nulls=False)).alias("kind"),
        texts.gather(series("name", columns["name"], nulls=False)).alias("name"),
        series("start_ns", columns["start"], nulls=False),
        series("depth", columns["depth"], nulls=False),
        pl.Series("step", [None], pl.Int32).new_from_index(0, count),
    ]
    for column, name in _NULLABLE.items():
        store.release()  # to find the nulls, the column before was looked at
        made.append(series(name, columns[column]))
    store.release()
    return pl.DataFrame(made)
