"""Modules: the tree of nn.Modules with the host and GPU time of each, forward and backward."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees import attribution, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.analyze.concepts.trees.module_tree import ModuleTree
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import UsageError
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_LAUNCHED = "of the summed duration of all GPU work launched in the recording"
_INSTANCE = re.compile(r"_\d+$")
_OUTSIDE = "(outside modules)"
_REST = ("(optimizer)", "(backward of no module)", _OUTSIDE)
_SOURCES = {
    "modules": "tree built from recorded nn.Module calls",
    "stacks": "no module calls recorded: tree built from functions named forward in the Python stacks",
    "annotations": "no modules or stacks recorded: tree built from the program's own annotations",
}


@dataclass(frozen=True)
class _Times:
    """Times by owner: modules, then the optimizer, backward work of no module, and everything outside."""

    host: Array
    host_backward: Array
    device: Array
    device_backward: Array
    calls: Array | None


@analysis(
    Subject.CODE,
    keep=(
        "module",
        "device_total_ns",
        "device_total_pct",
        "host_total_ns",
        "device_self_ns",
        "device_backward_ns",
        "calls_count",
    ),
    denominators={
        "host_self_pct": "of the time of the threads that ran modules, their backward or the optimizer",
        "device_self_pct": _LAUNCHED,
        "device_total_pct": _LAUNCHED,
        "device_in_modules_pct": _LAUNCHED,
    },
)
def modules(
    trace: Trace,
    *,
    group_by: Literal["tree", "class"] = "tree",
    source: module_tree.Source = "auto",
    max_depth: int | None = None,
) -> Result:
    """The nn.Module tree with host and GPU time, self and total, forward and backward; or one row per class.

    Rows are in tree order; `depth` and `path` give a row's position. With group_by="class", all instances of a class
    are one row, and modules nested inside one of the same class count once. Modules deeper than max_depth are added to
    the module around them.

    Columns:
        host_self_ns: time in the module's calls, excluding its submodules, plus the backward operators of its own
            forward operators (matched by autograd's sequence number). Includes waiting.
        host_total_ns: self plus the totals of the submodules, exactly.
        host_forward_ns, host_backward_ns: the two parts of host_total_ns.
        device_self_ns, device_total_ns, device_forward_ns, device_backward_ns: the same for the kernels, copies and memsets that those
            operators launched. Durations are summed, so work on several streams at once counts several times.
        host_self_pct: of the time of all threads that ran modules, their backward or the optimizer.
        device_self_pct, device_total_pct: of all GPU work launched in the recording.
        calls_count: calls of the module.
        instances_count: modules of the class.

    The self columns sum to the whole, and their shares to 100 %. Rows in parentheses hold what belongs to no module:
    the optimizer, backward operators whose forward is in no module (gradient accumulation, the loss), and the
    remaining time of the threads that ran modules. GPU work queued before the recording is excluded.

    The tree comes from recorded nn.Module calls (with_stack=True), otherwise from functions named `forward` in the
    stacks, otherwise from the program's annotations. A note says which.

    What it cannot tell: modules inside a compiled region, or in a CUDA graph whose capture is not known
    (`--capture-trace`), which run without Python calls; their time belongs to the module around the region.
    """
    if max_depth is not None and max_depth < 0:
        raise UsageError(f"max_depth must not be negative, not {max_depth}")
    tree = module_tree.find(trace, source)
    times = _times(trace, tree)
    table = _by_class(tree, times) if group_by == "class" else _by_tree(tree, times, max_depth)
    table = _with_shares(table, has_device=trace.has_device)
    values = _values(tree, times, has_device=trace.has_device)
    return Result(says=_says(table, values), table=table, values=values, notes=_notes(trace, tree))


def _times(trace: Trace, tree: ModuleTree) -> _Times:
    given = attribution.attribute(trace, tree.carried)
    count = len(tree.names) + 3
    outside = count - 1
    host = given.host_ns(count, backward=False)
    host_backward = given.host_ns(count, backward=True)
    # A wrapper whose forward is in no module is still backward work.
    host_backward[tree.backward] += host[tree.backward]
    host[tree.backward] = 0
    host[outside] = max(_thread_ns(trace, given.carriers) - int(host.sum() + host_backward.sum()), 0)
    work = attribution.device_owners(trace, given)
    owner = work["owner"].fill_null(outside).to_numpy()
    dur = work["dur_ns"].to_numpy()
    backward = work["backward"].to_numpy() | (owner == tree.backward)
    return _Times(
        host + host_backward,
        host_backward,
        attribution.sums(owner, dur, count),
        attribution.sums(owner[backward], dur[backward], count),
        None if tree.calls is None else np.append(tree.calls, (0, 0, 0)),
    )


def _thread_ns(trace: Trace, carriers: Array) -> int:
    """Time of the outermost spans of the threads that the carriers ran on."""
    spans = trace.spans
    tracks = spans["track_id"].gather(carriers).unique().implode()
    outermost = spans.lazy().filter(pl.col("parent_id").is_null() & pl.col("track_id").is_in(tracks))
    return int(outermost.filter(pl.col("kind") != "overhead").select(pl.col("dur_ns").sum()).collect().item())


def _by_tree(tree: ModuleTree, times: _Times, max_depth: int | None) -> pl.DataFrame:
    """One row per module in tree order, then what belongs to no module."""
    parent = np.append(tree.parent, (NOBODY,) * len(_REST))
    depth = attribution.depths(parent)
    fold = np.arange(len(parent))
    if max_depth is not None:
        while (depth[fold] > max_depth).any():
            fold = np.where(depth[fold] > max_depth, parent[fold], fold)
    own = {name: _folded(fold, getattr(times, name)) for name in ("host", "device")}
    total = {
        name: attribution.with_descendants(parent, getattr(times, name))
        for name in ("host", "host_backward", "device", "device_backward")
    }
    names = [*tree.names, *_REST]
    frame = pl.DataFrame(
        {
            "module": ["  " * int(level) + name for level, name in zip(depth, names, strict=True)],
            "calls_count": _calls(times, len(tree.names)),
            **_columns(own, total),
            "depth": depth,
            "path": [*tree.paths, *_REST],
        }
    )
    order = attribution.tree_order(parent)
    used = (total["host"] > 0) | (total["device"] > 0) | (np.arange(len(parent)) < len(tree.names))
    shown = used & (fold == np.arange(len(parent)))
    rows: pl.DataFrame = frame[order[shown[order]]]
    return rows


def _folded(fold: Array, amount: Array) -> Array:
    return attribution.sums(fold, amount, len(amount))


def _calls(times: _Times, module_count: int) -> pl.Series:
    """Calls per owner; null where not recorded, and for what belongs to no module."""
    if times.calls is None:
        return pl.Series([None] * len(times.host), dtype=pl.Int64)
    calls = pl.Series(times.calls).cast(pl.Int64)
    return calls.set(pl.Series(np.arange(len(calls)) >= module_count), None)


def _columns(own: dict[str, Array], total: dict[str, Array]) -> dict[str, Array]:
    return {
        "device_total_ns": total["device"], "device_self_ns": own["device"],
        "device_forward_ns": total["device"] - total["device_backward"],
        "device_backward_ns": total["device_backward"], "host_total_ns": total["host"],
        "host_self_ns": own["host"], "host_forward_ns": total["host"] - total["host_backward"],
        "host_backward_ns": total["host_backward"],
    }  # fmt: skip


def _by_class(tree: ModuleTree, times: _Times) -> pl.DataFrame:
    """One row per class, the most GPU time first; a module nested in one of its class adds nothing to totals."""
    classes = [_INSTANCE.sub("", name) for name in tree.names]
    names, code = np.unique(np.array([*classes, *_REST], dtype=object), return_inverse=True)
    parent = np.append(tree.parent, (NOBODY,) * len(_REST))
    inner = np.zeros(len(parent), bool)
    above = parent.copy()
    while (above != NOBODY).any():
        inner |= (above != NOBODY) & (code == code[above])
        above = np.where(above == NOBODY, NOBODY, parent[above])
    own = {name: attribution.sums(code, getattr(times, name), len(names)) for name in ("host", "device")}
    total = {}
    for name in ("host", "host_backward", "device", "device_backward"):
        amount = attribution.with_descendants(parent, getattr(times, name))
        total[name] = attribution.sums(code[~inner], amount[~inner], len(names))
    instances = np.bincount(code[: len(classes)], minlength=len(names))
    frame = pl.DataFrame({"module": [str(name) for name in names], "instances_count": instances})
    calls = pl.DataFrame({"code": code, "calls": _calls(times, len(classes))})
    summed = calls.group_by("code", maintain_order=True).agg(
        pl.when(pl.col("calls").count() > 0).then(pl.col("calls").sum())
    )
    frame = frame.with_columns(summed.sort("code")["calls"].alias("calls_count"), **_columns(own, total))
    frame = frame.filter(
        (pl.col("instances_count") > 0) | (pl.col("host_total_ns") + pl.col("device_total_ns") > 0)
    )
    return frame.sort(
        ("device_self_ns", "host_self_ns", "module"), descending=(True, True, False), maintain_order=True
    )


def _with_shares(table: pl.DataFrame, *, has_device: bool) -> pl.DataFrame:
    device, host = int(table["device_self_ns"].sum()), int(table["host_self_ns"].sum())
    shares = {
        "device_total_pct": ("device_total_ns", device), "device_self_pct": ("device_self_ns", device),
        "host_self_pct": ("host_self_ns", host),
    }  # fmt: skip
    table = table.with_columns(
        (100 * pl.col(column) / total if total else pl.lit(None, pl.Float64)).alias(share)
        for share, (column, total) in shares.items()
    )
    if not has_device:
        unknown = [name for name in table.columns if name.startswith("device_") and name.endswith("_ns")]
        table = table.with_columns(pl.lit(None, pl.Int64).alias(name) for name in unknown)
    first = [name for name in ("module", "instances_count", "calls_count") if name in table.columns]
    measures = (
        "device_total_ns", "device_total_pct", "device_self_ns", "device_self_pct", "device_forward_ns",
        "device_backward_ns", "host_total_ns", "host_self_ns", "host_self_pct", "host_forward_ns", "host_backward_ns",
    )  # fmt: skip
    return table.select(*first, *measures, *(name for name in ("depth", "path") if name in table.columns))


def _values(tree: ModuleTree, times: _Times, *, has_device: bool) -> dict[str, Value]:
    count = len(tree.names)
    device = int(times.device.sum()) if has_device else None
    inside = int(times.device[:count].sum()) if has_device else None
    return {
        "module_count": count,
        "calls_count": None if times.calls is None else int(times.calls.sum()),
        "source": tree.source,
        "device_ns": device,
        "device_in_modules_ns": inside,
        "device_in_modules_pct": 100 * inside / device if inside is not None and device else None,
        "device_backward_ns": int(times.device_backward[:count].sum()) if has_device else None,
        "host_ns": int(times.host.sum()),
        "host_in_modules_ns": int(times.host[:count].sum()),
    }


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    count, share = values["module_count"], values["device_in_modules_pct"]
    assert isinstance(count, int)
    what = counted(count, "module")
    by = "device_self_ns" if values["device_ns"] else "host_self_ns"
    owned = table.filter(~pl.col("module").is_in(_REST)).sort(by, descending=True, maintain_order=True)
    top = owned.row(0, named=True)
    name = str(top.get("path") or top["module"]).strip()
    most = f"largest self time: {name}, {format_value('_ns', top[by])}"
    if isinstance(share, float):
        return f"{share:.1f} % of GPU time is in {what}; {most}"
    return f"{format_value('_ns', values['host_in_modules_ns'])} of host time is in {what}; {most}"


def _notes(trace: Trace, tree: ModuleTree) -> tuple[str, ...]:
    notes = [_SOURCES[tree.source]]
    if tree.source == "stacks" and tree.calls is None:
        notes.append(
            "Python calls were not recorded: host time covers operators only, not the Python between them"
        )
    return (*notes, *attribution.limits(trace, "modules"))
