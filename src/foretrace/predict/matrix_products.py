"""Matrix products of a recording: the kernels that multiply or convolve, with what their operators computed."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.named_spans import rows_of
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.analyze.concepts.work import flops
from foretrace.trace import Trace

_CORES = {True: 1, False: 0, None: -1}


def product_kernels(trace: Trace, tasks: pl.DataFrame) -> pl.DataFrame:
    """Tasks that multiply matrices or convolve: with text (the kernel's name), tensor_cores, op, shapes, strides, operand_dtype, op_flops and op_bytes."""
    multiplies = by_name(
        tasks["name"], lambda names: np.array([decode(name).multiplies for name in names], bool)
    )
    products = tasks.filter(pl.Series(multiplies, dtype=pl.Boolean))
    cores = by_name(
        products["name"],
        lambda names: np.array([_CORES[decode(name).tensor_cores] for name in names], np.int8),
    )
    tensor_cores = pl.Series(cores == 1, dtype=pl.Boolean).set(pl.Series(cores < 0, dtype=pl.Boolean), None)
    products = products.with_columns(text=pl.col("name").cast(pl.String), tensor_cores=tensor_cores)
    owners = flops.kernel_owners(trace)
    work = flops.work_of(trace, owners).select(
        pl.col("span_id").alias("owner_id"),
        pl.col("flops").alias("op_flops"),
        pl.col("bytes").alias("op_bytes"),
        pl.col("dtype").alias("operand_dtype"),
    )
    products = products.join(owners.select("id", "owner_id"), on="id", how="left", maintain_order="left")
    products = products.join(work, on="owner_id", how="left", maintain_order="left")
    rows = rows_of(trace, "ops", products["owner_id"])
    products = products.hstack(trace.ops.select(pl.col("shapes", "strides").gather(rows).cast(pl.String)))
    return products.with_columns(op=trace.spans["name"].gather(products["owner_id"]).cast(pl.String))
