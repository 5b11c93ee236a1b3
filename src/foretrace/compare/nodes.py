"""The parts of a step that two recordings have in common: aligned by type and name, per whole step.

The types are those of the TensorBoard plugin's diff: the step itself, waiting for the DataLoader, modules, autograd nodes
and the optimizer. A part's time on the host is from its start to its end; its GPU time is that of all work it launched.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees import call_tree
from foretrace.analyze.steps import step_windows
from foretrace.trace import Trace

STEP, LOADER, MODULE, BACKWARD, OPTIMIZER = "step", "DataLoader", "module", "backward", "optimizer"
# What tells each type, and what of the name is left: the same module or node has one name on both sides.
_PATTERNS = (
    (STEP, r"^ProfilerStep#\d+$"),
    (LOADER, r"^enumerate\((?:DataLoader|DataPipe)\)#(.+)$"),
    (MODULE, r"^nn\.Module: (.+)$"),
    (BACKWARD, r"^autograd::engine::evaluate_function: (.+)$"),
    (OPTIMIZER, r"^Optimizer\.(.+)$"),
)
_SCHEMA = {
    "type": pl.String, "name": pl.String, "count": pl.Float64, "host_ns": pl.Float64, "gpu_ns": pl.Float64,
}  # fmt: skip


def nodes(trace: Trace) -> pl.DataFrame:
    """One row per type and name, in order of first start: count, host_ns and gpu_ns, per whole step where there are steps."""
    windows = [window.number for window in step_windows(trace) if window.averaged]
    tree = call_tree.build(trace, python=trace.modules.height > 0)
    names = trace.spans["name"].gather(tree.span_id).cast(pl.String)
    kinds = pl.DataFrame({"name": names.unique()}).with_columns(*_typed()).drop_nulls("type")
    rows = pl.DataFrame(
        {
            "text": names,
            "step": trace.spans["step"].gather(tree.span_id),
            "start_ns": tree.start_ns,
            "host_ns": tree.end_ns - tree.start_ns,
            "gpu_ns": tree.with_callees(tree.device_ns),
            "outermost": _outermost(tree, names),
        }
    ).join(kinds.rename({"name": "text"}), on="text", maintain_order="left")
    if windows:
        rows = rows.filter(pl.col("step").is_in(windows))
    share = max(len(windows), 1)
    # A module that calls itself counts once.
    once = pl.col("outermost")
    sums = rows.group_by("type", "part").agg(
        pl.col("start_ns").min(),
        count=pl.len() / share,
        host_ns=pl.col("host_ns").filter(once).sum() / share,
        gpu_ns=pl.col("gpu_ns").filter(once).sum() / share,
    )
    ordered = sums.sort("start_ns", "part").rename({"part": "name"})
    return ordered.select(*_SCHEMA).cast(_SCHEMA)  # type: ignore[arg-type]


def _typed() -> tuple[pl.Expr, pl.Expr]:
    """The type of a name, and what it is called there; null where it is no part of a step."""
    kind, part = pl.lit(None, pl.String), pl.lit(None, pl.String)
    for label, pattern in reversed(_PATTERNS):
        fits = pl.col("name").str.contains(pattern)
        called = pl.lit(label) if label == STEP else pl.col("name").str.extract(pattern)
        kind = pl.when(fits).then(pl.lit(label)).otherwise(kind)
        part = pl.when(fits).then(called).otherwise(part)
    return kind.alias("type"), part.alias("part")


def _outermost(tree: call_tree.CallTree, names: pl.Series) -> call_tree.Array:
    """Whether no call around it has the same name."""
    code = names.cast(pl.Categorical).to_physical().to_numpy()
    outermost = np.ones(len(code), bool)
    above = tree.parent.copy()
    while (inside := above != call_tree.NOBODY).any():
        outermost &= ~(inside & (code == code[above]))
        above = np.where(inside, tree.parent[above], call_tree.NOBODY)
    return outermost
