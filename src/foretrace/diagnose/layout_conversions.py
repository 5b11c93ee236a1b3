"""Convolutions convert between memory layouts at every layer."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_CONVERTS = r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|convertTensor_kernel|batched_transpose_\d+x\d+"
_LEAST_SHARE = 0.02
_FASTER_KERNELS = 1.15  # normalisation and pooling have faster kernels for channels-last tensors too


@rule
def layout_conversions(case: Case) -> Iterator[Finding]:
    """Kernels that turn NCHW tensors into NHWC and back around convolutions.

    What it does
    Looks for cuDNN's and MIOpen's layout conversion kernels that take at least 2 % of the GPU's time.

    Why it matters
    Tensor cores want channels last. A model in the default layout pays for the conversion at every layer,
    forward and backward.

    Use instead
    model = model.to(memory_format=torch.channels_last), and the input likewise.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    mine = case.tasks.filter(pl.col("name").cast(pl.String).str.contains(_CONVERTS))
    device_ns = int(case.program.task_dur_ns.sum())
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * max(device_ns, 1):
        return
    yield Finding(
        rule="layout-conversions",
        says=f"{mine.height / case.step_count:.0f} conversions between layouts a step take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They move every activation without computing anything.",
        fix=Fix(
            "Keep model and input in channels-last order.",
            "model = model.to(memory_format=torch.channels_last)\n"
            "x = x.to(memory_format=torch.channels_last)",
        ),
        evidence={
            "conversions_ns": spent // case.step_count,
            "conversions_pct": 100 * spent / device_ns,
            "conversions_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].drop_nulls().unique().to_list()),
        change=Change(
            "conversions removed", Edit(removed_tasks=mine["task"].to_numpy()), upside=_FASTER_KERNELS
        ),
        unless="a layer has no channels-last kernel: then its conversion stays.",
    )
