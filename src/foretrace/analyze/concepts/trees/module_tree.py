"""The tree of modules and the spans that carry each: from module calls, otherwise from stacks or annotations."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.analyze.concepts.names.per_name import matching
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.errors import MissingDataError
from foretrace.trace import Trace

Source = Literal["auto", "modules", "stacks", "annotations"]

_MODULE_CALL = r"^nn\.Module: "
_OPTIMIZER = r"^Optimizer\.(?:step|zero_grad)#"
BACKWARD_NODE = r"^autograd::engine::evaluate_function: "
# Annotations of torch itself: none is a part of the model.
_NOT_THE_MODEL = (
    r"^ProfilerStep#|^enumerate\(Data|^(?:nccl|rccl|gloo|mpi|ucc|xccl):|^Distributed|^FullySharded|"
    r"^Torch-Compiled|^TorchDynamo|^AOTDispatcher|^CompiledFunction|^## Call |^Pregraph|^PyTorch Profiler|^autograd::"
)
# torch's own frames between a module and those it calls.
_PASSED_ON = r"torch/nn/modules/(?:container|module)\.py$"
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")


@dataclass(frozen=True)
class ModuleTree:
    """Modules, parents before children, and for each span of the trace the module that it carries."""

    source: str
    names: list[str]
    parent: Array  # per module, or NOBODY
    carried: Array  # per span: a module, `optimizer`, `backward`, or NOBODY
    calls: Array | None  # per module; null where calls were not recorded

    @property
    def optimizer(self) -> int:
        """The owner of what an optimizer does."""
        return len(self.names)

    @property
    def backward(self) -> int:
        """The owner of backward operators whose forward is in no module, or unknown."""
        return len(self.names) + 1

    @property
    def paths(self) -> list[str]:
        """Names from the root down, joined by slashes."""
        return paths(self.names, self.parent)


def paths(names: list[str], parent: Array) -> list[str]:
    """The names of a tree from the root down, joined by slashes."""
    found: list[str] = []
    for name, above in zip(names, parent.tolist(), strict=True):
        found.append(name if above == NOBODY else f"{found[above]}/{name}")
    return found


def find(trace: Trace, source: Source = "auto") -> ModuleTree:
    """The tree from the first source that the recording has, or from the one asked for."""
    for name, build in (
        ("modules", _from_modules),
        ("stacks", _from_stacks),
        ("annotations", _from_annotations),
    ):
        if source in ("auto", name) and (tree := build(trace)) is not None:
            return _with_the_rest(trace, tree)
    raise _missing(trace, source)


def _missing(trace: Trace, source: Source) -> MissingDataError:
    what = {
        "auto": "no modules, stacks or annotations recorded; record with with_stack=True",
        "modules": "no nn.Module calls recorded; record with with_stack=True",
        "stacks": "no stack with a forward function recorded; record with with_stack=True",
        "annotations": "no annotations recorded; mark parts with torch.profiler.record_function",
    }
    return MissingDataError(f"{trace.path.name}: {what[source]}")


def _module_calls(trace: Trace) -> pl.DataFrame:
    calls = trace.python.select("span_id", "module_id").drop_nulls()
    if calls.is_empty() or trace.modules.is_empty():
        return calls.clear()
    return calls.filter(matching(trace.spans["name"].gather(calls["span_id"]), _MODULE_CALL))


def module_calls(trace: Trace) -> pl.DataFrame:
    """The calls of nn.Modules in order, `span_id` and `module_id`; MissingDataError where none was recorded."""
    calls = _module_calls(trace)
    if calls.is_empty():
        raise _missing(trace, "modules")
    return calls.sort("span_id")


def _from_modules(trace: Trace) -> ModuleTree | None:
    calls = _module_calls(trace)
    if calls.is_empty():
        return None
    parent = trace.modules["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    rows, owner = calls["span_id"].to_numpy(), calls["module_id"].to_numpy()
    carried = np.full(trace.spans.height, NOBODY, np.int64)
    carried[rows] = owner
    count = np.bincount(owner, minlength=len(parent))
    return ModuleTree("modules", trace.modules["name"].to_list(), parent, carried, count)


def _from_stacks(trace: Trace) -> ModuleTree | None:
    stacks = trace.stacks
    file = pl.col("file")
    is_forward = (pl.col("function") == "forward") & file.is_not_null() & ~file.str.contains(_PASSED_ON)
    marked = stacks.select(is_forward.fill_null(value=False)).to_series().to_numpy()
    if not marked.any():
        return None
    above = stacks["parent_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    around = attribution.nearest(above, marked)
    frames = np.flatnonzero(marked)
    number = np.full(len(above) + 1, NOBODY)
    number[frames] = np.arange(len(frames))
    outer = np.where(above[frames] == NOBODY, NOBODY, around[above[frames]])
    carried = np.full(trace.spans.height, NOBODY, np.int64)
    called = trace.python.select("span_id", "stack_id").drop_nulls()
    if called.is_empty():
        called = trace.ops.select("span_id", "stack_id").drop_nulls()
        carried[called["span_id"].to_numpy()] = number[around[called["stack_id"].to_numpy()]]
        calls = None
    else:
        carried[called["span_id"].to_numpy()] = number[:-1][called["stack_id"].to_numpy()]
        calls = np.bincount(carried[carried != NOBODY], minlength=len(frames))
    if (carried == NOBODY).all():
        return None
    rows = stacks[frames]
    names = [
        _INSTALLED.sub("", file) + (f"({line})" if line is not None else "")
        for file, line in zip(rows["file"], rows["line"], strict=True)
    ]
    return ModuleTree("stacks", names, number[outer], carried, calls)


def _from_annotations(trace: Trace) -> ModuleTree | None:
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    spans = trace.spans.filter(
        (pl.col("kind") == "annotation") & ~pl.col("track_id").is_in(on_device.implode())
    )
    spans = spans.filter(~pl.col("name").is_in(device_time.names_like(spans, _NOT_THE_MODEL)))
    if spans.is_empty():
        return None
    ids = spans["id"].to_numpy()
    marked = np.zeros(trace.spans.height, bool)
    marked[ids] = True
    parent = attribution.parents(trace)
    around = attribution.nearest(parent, marked)
    place = np.full(trace.spans.height + 1, NOBODY)
    place[ids] = np.arange(len(ids))
    above = np.where(parent[ids] == NOBODY, NOBODY, around[parent[ids]])
    node, names, tree = _merge(place[above], spans["name"].cast(pl.String).to_list())
    carried = np.full(trace.spans.height, NOBODY, np.int64)
    carried[ids] = node
    return ModuleTree("annotations", names, tree, carried, np.bincount(node, minlength=len(names)))


def _merge(parent: Array, names: list[str]) -> tuple[Array, list[str], Array]:
    """Calls of one name under one node become a node: the node of each call, and the nodes' names and parents."""
    node = np.full(len(names), NOBODY)
    codes, code = np.unique(np.array(names, dtype=object), return_inverse=True)
    merged_names: list[str] = []
    merged_parent: list[int] = []
    for level in attribution.levels(parent):
        above = np.where(parent[level] == NOBODY, NOBODY, node[parent[level]])
        keys, which = np.unique(np.stack((above, code[level]), axis=1), axis=0, return_inverse=True)
        node[level] = len(merged_names) + which.reshape(-1)
        merged_parent += keys[:, 0].tolist()
        merged_names += [str(codes[code_of_name]) for code_of_name in keys[:, 1]]
    return node, merged_names, np.array(merged_parent, np.int64)


def _with_the_rest(trace: Trace, tree: ModuleTree) -> ModuleTree:
    """The tree with carriers for the optimizer and for backward operators, where nothing else is carried."""
    for kind, pattern, owner in (
        ("annotation", _OPTIMIZER, tree.optimizer), ("op", BACKWARD_NODE, tree.backward),
    ):  # fmt: skip
        rows = ids_like(trace, kind, pattern)
        rows = rows[tree.carried[rows] == NOBODY]
        tree.carried[rows] = owner
    return tree
