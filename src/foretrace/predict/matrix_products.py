"""Matrix products of a recording: the kernels that multiply or convolve, with what their operators computed."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.work import flops
from foretrace.trace import Trace


def product_kernels(trace: Trace, tasks: pl.DataFrame) -> pl.DataFrame:
    """Tasks that multiply matrices or convolve: with tensor_cores, op, shapes, strides, operand_dtype, op_flops and op_bytes."""
    names = tasks["name"].unique().cast(pl.String)
    facts = [decode(name) for name in names]
    decoded = pl.DataFrame(
        {"text": names, "multiplies": pl.Series([fact.multiplies for fact in facts], dtype=pl.Boolean),
         "tensor_cores": pl.Series([fact.tensor_cores for fact in facts], dtype=pl.Boolean)}
    )  # fmt: skip
    products = tasks.with_columns(text=pl.col("name").cast(pl.String)).join(
        decoded, on="text", maintain_order="left"
    )
    products = products.filter("multiplies")
    owners = flops.kernel_owners(trace)
    work = flops.work_of(trace, owners).select(
        pl.col("span_id").alias("owner_id"),
        pl.col("flops").alias("op_flops"),
        pl.col("bytes").alias("op_bytes"),
        pl.col("dtype").alias("operand_dtype"),
    )
    products = products.join(owners.select("id", "owner_id"), on="id", how="left", maintain_order="left")
    products = products.join(work, on="owner_id", how="left", maintain_order="left")
    arguments = trace.ops.select(
        pl.col("span_id").alias("owner_id"), pl.col("shapes", "strides").cast(pl.String)
    )
    products = products.join(arguments, on="owner_id", how="left", maintain_order="left")
    return products.with_columns(op=trace.spans["name"].gather(products["owner_id"]).cast(pl.String))
