"""Sections: host and GPU time of the ranges that a program marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_roles, device_time
from foretrace.analyze.concepts.trees import range_breakdown, range_projection, section_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.trees.scope_sums import has_scopes, scope_sums
from foretrace.analyze.concepts.trees.section_tree import SectionTree
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import step_windows
from foretrace.errors import MissingDataError
from foretrace.ingest import totals
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_ROLES_SHOWN = 3


@analysis(
    Subject.CODE,
    keep=("section", "device_ns", "device_pct", "host_ns", "host_pct", "calls_count", "top_kernel"),
    denominators={
        "host_pct": "of the section around it; for outermost sections, and with flat, of all outermost sections",
        "residual_pct": "of the section's inclusive host time",
        "device_pct": "of the summed duration of the kernels, copies and memsets launched in the recording",
        "outside_pct": "of the summed duration of the kernels, copies and memsets launched in the recording",
        "host_per_step_ns": "a mean over complete steps",
        "device_per_step_ns": "a mean over complete steps, by the step that launched the work",
        "roof_pct": "of the device's peak, the nearer one of FLOPs and bytes",
        "share_pct": "of the range or time in the column beside it",
        "per_step_ns": "the total over the number of steps",
    },
    of_totals=True,
)
def sections(trace: Trace, *, flat: bool = False, breakdown: bool = False) -> Result:
    """Host and GPU time of the ranges marked with record_function or NVTX, with and without the ranges inside them.

    One row per section: the names of a range and of those around it ("forward / attention"). With flat, one row per
    name, wherever it occurs. Step marks (ProfilerStep#) are not sections. A range nested in one of the same name is
    part of it: it counts in calls and exclusive time, but adds nothing to the inclusive time, which already contains
    it. (torch nests Optimizer.step this way; a plain sum would double its time.)

    With breakdown, the run in one table instead: its steps, each range with and without those inside, what a range such
    as attention consists of, with what its parts leave, kernel time by kind, and the kernel with most of it. Tables of
    `nsys stats` give this one alone: they do not tell which range is inside which, so that names have to.

    Columns:
        calls_count: ranges, including nested ones of the same name.
        host_ns: inclusive: the summed duration of the outermost ranges. This is host time: a range that only
            enqueues GPU work ends before that work does.
        host_exclusive_ns: host_ns minus the ranges directly inside: time that no inner section explains.
        residual_pct: host_exclusive_ns, of host_ns.
        host_pct: of the section around it; for outermost sections, and with flat, of all outermost sections.
        device_ns: inclusive: summed duration of the kernels, copies and memsets launched inside. Work launched by
            another thread of the process (autograd's backward) belongs to the section open on the marking thread.
        device_exclusive_ns: the part launched in no inner section.
        device_pct: of all GPU work launched in the recording.
        work_count: kernels, copies and memsets launched inside.
        projected_ns: the range as the GPU saw it, as `nsys stats` projects it: from the first start to the last end of the
            work whose calls lie inside the range, summed over the outermost ranges.
        projected_count: kernels, copies and memsets that were projected; one inside two ranges that overlap counts in both.
        host_per_step_ns, device_per_step_ns: means over complete steps; null without steps.
        roles: the largest roles of device_ns, each with its share.
        top_kernel, top_kernel_calls_count: the kernel with the largest total inside.

    Of Proton's files the sections are its scopes. They have no host time, but work_flops and traffic_bytes where the program
    counted them, achieved_flops_per_s and achieved_bytes_per_s from these and device_ns, roof_pct, which is the larger share of
    the device's peaks, and cycles_count where cycles were measured inside kernels.

    The value outside_ns is the GPU work outside all sections.

    What it cannot tell: the GPU time of a section whose work was launched elsewhere, as by a CUDA graph whose capture is not known.
    """
    if listed := totals.stats(trace):
        return _of_stats(trace, listed)
    if has_scopes(trace):
        if breakdown:
            raise MissingDataError(f"{trace.path.name}: scopes of kernels have no host time to break down")
        return scope_sums(trace)
    tree = section_tree.build(trace)
    if not len(tree.span_id):
        raise MissingDataError(
            f"{trace.path.name}: no ranges recorded; mark parts of the program with torch.profiler.record_function or "
            "torch.cuda.nvtx.range"
        )
    work = device_roles.classified(trace)
    section = section_tree.sections_of_work(trace, tree, work)
    whole = [window.number for window in step_windows(trace) if window.averaged]
    launched = work.select("kind", "name", "dur_ns", "step", "role").with_columns(own=pl.Series(section))
    table = _host_table(trace, tree, whole)
    if breakdown:
        return _broken_down(trace, table, launched, len(whole))
    outermost = int(table.filter(pl.col("above") == NOBODY)["host_ns"].sum())
    group = _grouping(tree, flat=flat)
    table = _joined(table, group, whole, flat=flat).join(
        _device_table(tree, launched, group, whole), on="place", how="left"
    )
    table = table.join(_projected(trace, tree, work, group), on="place", how="left")
    total = int(work["dur_ns"].sum())
    table = _with_shares(table, outermost, total, has_device=trace.has_device)
    outside = int(work["dur_ns"].filter(pl.Series(section == NOBODY)).sum())
    values: dict[str, Value] = {
        "section_count": table.height,
        "range_count": len(tree.span_id),
        "device_ns": total if trace.has_device else None,
        "outside_ns": outside if trace.has_device else None,
        "outside_pct": 100 * outside / total if total else None,
    }
    return Result(
        says=_says(table, values), table=table.drop("place"), values=values, notes=_notes(trace, work)
    )


def _of_stats(trace: Trace, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> Result:
    """The breakdown of the tables of `nsys stats`."""
    listed = [(row["name"], row["calls_count"], row["total"]) for row in tables.get("ranges", ())]
    if not listed:
        raise MissingDataError(
            f"{trace.path.name}: no table of ranges; print one with `nsys stats --report nvtx_pushpop_sum --format csv`"
        )
    kernels = [(row["name"], row["calls_count"], row["total"]) for row in tables.get("kernels", ())]
    ranges = range_breakdown.from_totals(listed)
    table = range_breakdown.breakdown(
        ranges, _kernel_totals(kernels), steps_count=range_breakdown.steps_of_totals(listed), wrapper=None
    )
    inferred = any(each.above is not None for each in ranges)
    notes = (
        ("which range is inside which is told by their names: the tables do not say it",) if inferred else ()
    )
    return _breakdown_result(table, len(ranges), sum(calls for _, calls, _ in listed), notes)


def _broken_down(trace: Trace, table: pl.DataFrame, launched: pl.DataFrame, steps_count: int) -> Result:
    """The breakdown of a recording."""
    ranges = [
        range_breakdown.Range(name, None if above == NOBODY else above, calls, host_ns, exclusive_ns)
        for name, above, calls, host_ns, exclusive_ns in table.select(
            "name", "above", "calls_count", "host_ns", "host_exclusive_ns"
        ).iter_rows()
    ]
    names = launched.filter(pl.col("kind") == "kernel").group_by("name").agg(pl.len(), pl.col("dur_ns").sum())
    kernels = [(str(name), calls, total) for name, calls, total in names.iter_rows()]
    marks = trace.meta.get("step_marks") or {}
    wrapper = (
        re.sub(r"[0-9]+", "#", str(marks["name"])) if marks.get("source") in ("range", "chosen") else None
    )
    made = range_breakdown.breakdown(
        ranges, _kernel_totals(kernels), steps_count=steps_count or None, wrapper=wrapper
    )
    return _breakdown_result(made, len(ranges), int(table["calls_count"].sum()), ())


def _kernel_totals(rows: Sequence[tuple[str, int, int]]) -> pl.DataFrame:
    schema = {"name": pl.String, "calls_count": pl.Int64, "total_ns": pl.Int64}
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def _breakdown_result(
    table: pl.DataFrame, section_count: int, range_count: int, notes: tuple[str, ...]
) -> Result:
    values: dict[str, Value] = {"section_count": section_count, "range_count": range_count}
    steps = table.filter(pl.col("metric") == "steps")["calls_count"][0]
    says = f"{counted(section_count, 'section')}" + (
        f" in {counted(steps, 'step')}" if steps else ", steps not known"
    )
    kernels = table.filter((pl.col("part") == "kernels") & (pl.col("metric") == "all kernels"))["total_ns"]
    if len(kernels):
        says += f"; kernels take {format_value('_ns', int(kernels[0]))}"
    keep = ("part", "metric", "total_ns", "per_step_ns", "share_pct", "share_of", "calls_count")
    return Result(says=says, table=table, values=values, notes=notes, keep=keep)


def _projected(trace: Trace, tree: SectionTree, work: pl.DataFrame, group: Array) -> pl.DataFrame:
    """Per row shown: how long its outermost ranges last on the GPU, and the work in them."""
    length, count = range_projection.projected(trace, tree, work)
    rows = pl.DataFrame({"place": group[tree.section], "length": length, "count": count}).filter(
        pl.Series(tree.outer)
    )
    return rows.group_by("place").agg(
        projected_ns=pl.col("length").sum(), projected_count=pl.col("count").sum()
    )


def _host_table(trace: Trace, tree: SectionTree, whole: list[int]) -> pl.DataFrame:
    """Per section: its path, calls and times on the host."""
    dur = trace.spans["dur_ns"].gather(tree.span_id).to_numpy()
    inside = np.zeros(len(dur), np.int64)
    nested = tree.parent != NOBODY
    np.add.at(inside, tree.parent[nested], dur[nested])
    stepped = trace.spans["step"].gather(tree.span_id).is_in(whole).fill_null(value=False).to_numpy()
    count = len(tree.paths)

    def sums(amount: Array, chosen: Array) -> Array:
        return np.bincount(tree.section[chosen], weights=amount[chosen], minlength=count).astype(np.int64)

    everything = np.ones(len(dur), bool)
    per_step = sums(dur, tree.outer & stepped) / len(whole) if whole else [None] * count
    return pl.DataFrame(
        {
            "place": np.arange(count),
            "section": [" / ".join(path) for path in tree.paths],
            "name": [path[-1] for path in tree.paths],
            "above": list(tree.above),
            "calls_count": np.bincount(tree.section, minlength=count),
            "host_ns": sums(dur, tree.outer),
            # Ranges that overlap without nesting would subtract more than there is.
            "host_exclusive_ns": sums(np.maximum(dur - inside, 0), everything),
            "host_per_step_ns": pl.Series(per_step, dtype=pl.Float64),
        }
    )


def _grouping(tree: SectionTree, *, flat: bool) -> Array:
    """For each section the row that shows it: by path, inner sections after outer ones, or by name."""
    if flat:
        order = {path[-1]: place for place, path in reversed(list(enumerate(tree.paths)))}
        first = sorted(order, key=order.__getitem__)
        return np.array([first.index(path[-1]) for path in tree.paths])
    ordered = sorted(range(len(tree.paths)), key=lambda section: tree.line(section)[::-1])
    return np.argsort(ordered)


def _joined(table: pl.DataFrame, group: Array, whole: list[int], *, flat: bool) -> pl.DataFrame:
    """The host's table by the rows shown; no path contains a name twice, so no time is in a row twice."""
    place = {section: int(row) for section, row in enumerate(group)} | {NOBODY: NOBODY}
    above = pl.col("above").first().replace_strict(place, return_dtype=pl.Int64)
    per_step = pl.col("host_per_step_ns").sum() if whole else pl.lit(None, pl.Float64)
    return (
        table.with_columns(place=pl.Series(group))
        .group_by("place")
        .agg(
            pl.col("calls_count", "host_ns", "host_exclusive_ns").sum(),
            section=pl.col("name" if flat else "section").first(),
            above=pl.lit(NOBODY, pl.Int64) if flat else above,
            host_per_step_ns=per_step,
        )
        .sort("place")
    )


def _device_table(tree: SectionTree, work: pl.DataFrame, group: Array, whole: list[int]) -> pl.DataFrame:
    """Per row shown: the device work launched inside, inner sections included."""
    lines = {
        (inner, int(group[outer]), bool(group[inner] == group[outer]))
        for inner in range(len(tree.paths))
        for outer in tree.line(inner)
    }
    pairs = pl.DataFrame(
        sorted(lines), schema={"own": pl.Int64, "place": pl.Int64, "direct": pl.Boolean}, orient="row"
    )
    return _summed(work.filter(pl.col("own") != NOBODY), pairs, whole)


def _summed(work: pl.DataFrame, pairs: pl.DataFrame, whole: list[int]) -> pl.DataFrame:
    """GPU work by section: summed in small groups first, then added to all sections around each."""
    in_step = pl.col("dur_ns").filter(pl.col("step").is_in(whole)).sum()
    small = work.group_by("own", "name", "role").agg(
        pl.len().alias("calls"), pl.col("dur_ns").sum().alias("ns"), in_step.alias("in_step")
    )
    spread = small.join(pairs, on="own", how="inner")
    per_step = pl.col("in_step").sum() / len(whole) if whole else pl.lit(None, pl.Float64)
    table = spread.group_by("place").agg(
        work_count=pl.col("calls").sum(),
        device_ns=pl.col("ns").sum(),
        device_exclusive_ns=pl.col("ns").filter("direct").sum(),
        device_per_step_ns=per_step,
    )
    top = (
        spread.group_by("place", "name")
        .agg(pl.col("calls").sum(), pl.col("ns").sum())
        .sort("ns", pl.col("name").cast(pl.String), descending=[True, False])
        .group_by("place", maintain_order=True)
        .first()
        .select("place", pl.col("name").alias("top_kernel"), pl.col("calls").alias("top_kernel_calls_count"))
    )
    shares = (
        spread.group_by("place", "role")
        .agg(pl.col("ns").sum())
        .with_columns(share=(100 * pl.col("ns") / pl.col("ns").sum().over("place")).fill_nan(0))
        .sort("ns", "role", descending=[True, False])
        .with_columns(
            text=pl.format("{} {} %", device_roles.role_names(), pl.col("share").round(0).cast(pl.Int64))
        )
        .group_by("place", maintain_order=True)
        .agg(roles=pl.col("text").head(_ROLES_SHOWN).str.join(", "))
    )
    return table.join(shares, on="place").join(top, on="place")


def _with_shares(table: pl.DataFrame, outermost: int, device_total: int, *, has_device: bool) -> pl.DataFrame:
    """The table with its shares, the columns in order, sections in order of their path."""
    whole = dict(zip(table["place"].to_list(), table["host_ns"].to_list(), strict=True)) | {NOBODY: outermost}
    around = pl.col("above").replace_strict(whole, return_dtype=pl.Int64)
    measures = ("work_count", "device_ns", "device_exclusive_ns", "device_per_step_ns")
    if has_device:
        # A section without launches has zero GPU work; without a recorded GPU it is not known.
        table = table.with_columns(pl.col(*measures[:3], "projected_ns", "projected_count").fill_null(0))
        known = (
            table["device_per_step_ns"].is_not_null().any() or table["host_per_step_ns"].is_not_null().any()
        )
        table = table.with_columns(pl.col("device_per_step_ns").fill_null(0)) if known else table
    table = table.with_columns(
        host_pct=pl.when(around > 0).then(100 * pl.col("host_ns") / around),
        residual_pct=pl.when(pl.col("host_ns") > 0).then(
            100 * pl.col("host_exclusive_ns") / pl.col("host_ns")
        ),
        device_pct=pl.when(pl.lit(device_total > 0)).then(100 * pl.col("device_ns") / device_total),
    )
    return table.select(
        "place", "section", "calls_count", "host_ns", "host_pct", "host_exclusive_ns", "residual_pct",
        "host_per_step_ns", "device_ns", "device_pct", "device_exclusive_ns", "device_per_step_ns", "work_count",
        "projected_ns", "projected_count", "roles", "top_kernel", "top_kernel_calls_count",
    )  # fmt: skip


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    if values["device_ns"]:
        top = table.sort("device_exclusive_ns", descending=True).row(0, named=True)
        most = f"{format_value('_ns', top['device_exclusive_ns'])} of GPU time"
    else:
        top = table.sort("host_exclusive_ns", descending=True).row(0, named=True)
        most = f"{format_value('_ns', top['host_exclusive_ns'])} of host time"
    outside = values["outside_pct"]
    left = f"; {outside:.1f} % of GPU time is outside all sections" if isinstance(outside, float) else ""
    return f"{counted(table.height, 'section')}; {top['section']} has the most exclusive time, {most}{left}"


def _notes(trace: Trace, work: pl.DataFrame) -> tuple[str, ...]:
    orphans = trace.device_spans.height - work.height
    if not orphans:
        return ()
    return (f"{device_time.queued_before(orphans)}: excluded from all totals",)
