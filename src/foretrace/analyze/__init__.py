"""A Trace becomes Results: one analysis per file, all of them listed in ANALYSES."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrace.analyze import (
    cold_start,
    communication,
    compile_regions,
    counters,
    critical_path,
    durations,
    gpu_efficiency,
    graphs,
    idle,
    input_wait,
    kernels,
    launches,
    layers,
    memory,
    memory_access,
    memory_fit,
    modules,
    ncu_rules,
    operators,
    overview,
    profiled,
    roles,
    roofline,
    saved_activations,
    sections,
    sequences,
    stacks,
    steps,
    syncs,
    timeline,
    tracks,
    trust,
    warp_stalls,
)
from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
from foretrace.errors import MissingDataError, unknown

if TYPE_CHECKING:
    from foretrace.analyze.result import Analysis, Result
    from foretrace.trace import Trace

# In the order in which they are listed to people.
ANALYSES: tuple[Analysis, ...] = (
    trust.trust,
    overview.overview,
    steps.steps,
    timeline.timeline,
    idle.idle,
    critical_path.critical_path,
    operators.operators,
    kernels.kernels,
    durations.durations,
    roles.roles,
    sections.sections,
    modules.modules,
    layers.layers,
    stacks.stacks,
    gpu_efficiency.gpu_efficiency,
    roofline.roofline,
    profiled.profiled,
    warp_stalls.warp_stalls,
    memory_access.memory_access,
    ncu_rules.ncu_rules,
    counters.counters,
    launches.launches,
    syncs.syncs,
    input_wait.input,
    communication.communication,
    memory.memory,
    saved_activations.saved_activations,
    memory_fit.memory_fit,
    compile_regions.compile,
    graphs.graphs,
    sequences.sequences,
    cold_start.cold_start,
    tracks.tracks,
)


_RECORD_GPU = "; record with ProfilerActivity.CUDA"


def find(name: str) -> Analysis:
    """The analysis of that name."""
    known = {analysis.name: analysis for analysis in ANALYSES}
    if name not in known:
        raise unknown(f"no analysis named {name!r}", name, known)
    return known[name]


def run(trace: Trace, name: str, **options: Any) -> Result:
    """The result of one analysis by name, with its options."""
    chosen = find(name)
    strange = next((option for option in sorted(options) if option not in chosen.options), None)
    if strange is not None:
        raise unknown(f"{name} has no option {strange!r}", strange, chosen.options, listed="its options")
    try:
        return chosen(trace, **options)
    except MissingDataError as missing:
        if _RECORD_GPU in str(missing) and computes_on_cpu(trace):
            says = str(missing).replace(_RECORD_GPU, ": the program computes on the CPU")
            raise MissingDataError(says) from missing
        raise
