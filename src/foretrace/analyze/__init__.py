"""A Trace becomes Results: one analysis per file, all of them listed in REGISTRY.

An analysis is imported when it is asked for: one command needs one of them, and all together take longer to
import than a small recording to read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foretrace.errors import UsageError

if TYPE_CHECKING:
    from foretrace.analyze.result import Analysis, Result
    from foretrace.trace import Trace

    ANALYSES: tuple[Analysis, ...]  # every analysis, in the order of REGISTRY

# Name -> module; the function is called as the analysis is.
REGISTRY = {
    "trust": "trust",
    "overview": "overview",
    "steps": "steps",
    "timeline": "timeline",
    "idle": "idle",
    "critical-path": "critical_path",
    "operators": "operators",
    "kernels": "kernels",
    "roles": "roles",
    "sections": "sections",
    "modules": "modules",
    "stacks": "stacks",
    "gpu-efficiency": "gpu_efficiency",
    "roofline": "roofline",
    "launches": "launches",
    "syncs": "syncs",
    "input": "input_wait",
    "communication": "communication",
    "memory": "memory",
    "compile": "compile_regions",
    "graphs": "graphs",
    "sequences": "sequences",
    "cold-start": "cold_start",
    "tracks": "tracks",
}


def __getattr__(name: str) -> object:
    if name != "ANALYSES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    loaded = globals()["ANALYSES"] = tuple(_load(each) for each in REGISTRY)
    return loaded


def _load(name: str) -> Analysis:
    module = import_module(f"foretrace.analyze.{REGISTRY[name]}")
    found: Analysis = getattr(module, name.replace("-", "_"))
    return found


def find(name: str) -> Analysis:
    """The analysis of that name."""
    for each in globals().get("ANALYSES", ()):
        if each.name == name:
            known: Analysis = each
            return known
    if name not in REGISTRY:
        raise UsageError(f"no analysis named {name!r}; there are: {', '.join(REGISTRY)}")
    return _load(name)


def run(trace: Trace, name: str, **options: Any) -> Result:
    """One analysis by name, with its options."""
    chosen = find(name)
    unknown = sorted(set(options) - set(chosen.options))
    if unknown:
        takes = ", ".join(chosen.options) or "none"
        raise UsageError(f"{name} has no option {unknown[0]!r}; its options: {takes}")
    return chosen(trace, **options)
