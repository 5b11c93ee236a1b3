"""What the page calls each rule: the problem as a title, the topic as a label, and the headline that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foretrace.diagnose.finding import Finding
from foretrace.present.web.recording_view import RecordingView
from foretrace.units import counted, format_value

TITLES = {
    "unfused-attention": "Attention is not fused",
    "layout-conversions": "Layouts are converted back and forth",
    "no-tensor-cores": "Matrix multiplies do not use tensor cores",
    "unfused-elementwise": "Pointwise operators run one kernel each",
    "misaligned-gemm": "Matrix sizes do not fit the tensor cores",
    "dtype-casts": "The same tensors are converted every step",
    "redundant-copies": "Tensors are copied without need",
    "loop-optimizer": "The optimizer updates one tensor at a time",
    "recompute": "The forward pass is computed twice",
    "low-occupancy": "Kernels have too few blocks for this GPU",
    "pageable-copy": "Copies hold the host up",
    "host-stall": "The host stalls between launches",
    "launch-bound": "Launching takes longer than the work",
    "input-bound": "The GPU waits for its input",
    "host-sync": "The host waits for the GPU within a step",
    "tiny-copies": "Many tiny copies between host and GPU",
    "allocator-churn": "GPU memory is allocated and freed in the step",
    "recompilation": "Code is compiled again and again",
    "small-batch": "The batch is too small for this GPU",
    "cold-start": "The first steps are warming up",
    "exposed-communication": "Communication is not hidden",
    "straggler": "One rank keeps the others waiting",
    "memory-pressure": "GPU memory is nearly full",
    "profiler-overhead": "The profiler slows the host down",
}
LABELS = {
    "unfused-attention": "Attention",
    "layout-conversions": "Layouts",
    "no-tensor-cores": "Tensor cores",
    "unfused-elementwise": "Pointwise chains",
    "misaligned-gemm": "Matrix sizes",
    "dtype-casts": "Type conversions",
    "redundant-copies": "Needless copies",
    "loop-optimizer": "Optimizer",
    "recompute": "Recomputation",
    "low-occupancy": "Occupancy",
    "pageable-copy": "Blocking copies",
    "host-stall": "Host stalls",
    "launch-bound": "Launch overhead",
    "input-bound": "Input",
    "host-sync": "Host syncs",
    "tiny-copies": "Tiny copies",
    "allocator-churn": "Allocator",
    "recompilation": "Recompilation",
    "small-batch": "Batch size",
    "cold-start": "Cold start",
    "exposed-communication": "Communication",
    "straggler": "Stragglers",
    "memory-pressure": "Memory",
    "profiler-overhead": "Profiler",
}
# A sentence that says more than the title, from the finding's own numbers.
_HEADLINES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "unfused-attention": lambda e: (
        f"{e['attention_pct']:.0f} % of GPU time goes to attention that is not fused"
    ),
    "input-bound": lambda e: f"{e['wait_pct']:.0f} % of every step is spent waiting for data",
    "launch-bound": lambda e: f"The GPU is busy {e['busy_pct']:.0f} % of a step: launching cannot keep up",
    "unfused-elementwise": lambda e: (
        f"{e['chains_pct']:.0f} % of GPU time goes to chains of pointwise kernels"
    ),
    "layout-conversions": lambda e: f"{e['conversions_pct']:.0f} % of GPU time only changes layouts",
    "straggler": lambda e: (
        f"Rank {e['late_rank']} keeps {counted(e['waiting_ranks_count'], 'other')} waiting, "
        f"{format_value('_ns', e['late_ns'])} a step"
    ),
}


# Analyses that the rules and the page have made anyway: of a large recording, no other is made for one number.
_AT_HAND = ("overview", "cold-start", "communication", "memory")
_LARGE = 500_000


def title(rule: str) -> str:
    """The problem that the rule finds, as a short sentence."""
    return TITLES.get(rule, rule.replace("-", " ").capitalize())


def headline(finding: Finding) -> str:
    """The finding in one line, with its number where the rule has one."""
    words = _HEADLINES.get(finding.rule)
    try:
        return words(finding.evidence) if words else title(finding.rule)
    except (KeyError, TypeError, ValueError):
        return title(finding.rule)


def checked(session: RecordingView, rule: str) -> str:
    """What was seen where the rule found nothing: a number where one is at hand."""
    if rule == "recompilation" and session.maybe("compile", by="compilation") is None:
        return "no compiled region"
    source = _SEEN.get(rule)
    if source and (source[0] in _AT_HAND or session.trace.spans.height <= _LARGE):
        name, words = source
        result = session.maybe(name)
        said = words(result.values) if result is not None else None
        if said:
            return said
    return "nothing to gain"


def _launches(values: Mapping[str, Any]) -> str | None:
    count, deepest = values.get("launches_per_step_count"), values.get("queue_max_count")
    if count is None or deepest is None:
        return None
    return f"{count:,.0f} launches a step, queue up to {deepest:,} deep"


def _syncs(values: Mapping[str, Any]) -> str | None:
    count = values.get("per_step_count")
    if count is None:
        return None
    if not count:
        return "none inside a step"
    return f"{count:,.0f} a step" if count >= 1 else "less than one a step"


def _input(values: Mapping[str, Any]) -> str | None:
    wait = values.get("wait_per_step_ns")
    if not values.get("calls_count"):
        return "no DataLoader was waited for"
    return None if wait is None else f"{format_value('_ns', wait)} of waiting a step"


def _cores(values: Mapping[str, Any]) -> str | None:
    share = values.get("tensor_core_gemm_pct")
    return None if share is None else f"in {share:.0f} % of matrix multiply time"


def _memory(values: Mapping[str, Any]) -> str | None:
    peak, share = values.get("peak_bytes"), values.get("device_peak_pct")
    if peak is None or share is None:
        return None
    return f"{format_value('_bytes', peak)} at the peak, {share:.0f} % of the device's"


def _communication(values: Mapping[str, Any]) -> str | None:
    count, exposed = values.get("collectives_count"), values.get("exposed_ns")
    if not count:
        return "no collective on this rank"
    return None if exposed is None else f"{format_value('_ns', exposed)} exposed of all"


def _stalls(values: Mapping[str, Any]) -> str | None:
    """The GPU's idle time that Python, operators and calls of the host account for; other causes have their rules."""
    span = values.get("span_ns")
    if not span:
        return None
    names = ("host_operator_ns", "host_runtime_call_ns", "host_python_ns", "host_not_recorded_ns")
    share = 100 * sum(values.get(name) or 0 for name in names) / span
    return f"the GPU waits {share:.1f} % of the time for host work"


def _occupancy(values: Mapping[str, Any]) -> str | None:
    share = values.get("occupancy_pct")
    return None if share is None else f"{share:.0f} %, estimated"


def _efficiency(values: Mapping[str, Any]) -> str | None:
    share, busy = values.get("sm_efficiency_pct"), values.get("gpu_busy_pct")
    return f"kernels fill {100 * share / busy:.0f} % of the multiprocessors" if share and busy else None


def _cold(values: Mapping[str, Any]) -> str | None:
    return "the first step is like the others" if values.get("verdict") == "warm" else None


def _recompute(values: Mapping[str, Any]) -> str | None:
    share = values.get("recompute_pct")
    if share is None:
        return None
    return f"{share:.0f} % of GPU time" if share else "none"


def _moving(values: Mapping[str, Any]) -> str | None:
    share = values.get("moving_pct")
    return None if share is None else f"{share:.0f} % of GPU time only moves data"


def _optimizer(values: Mapping[str, Any]) -> str | None:
    share = values.get("optimizer_phase_pct")
    if share is None:
        return None
    return f"{share:.1f} % of GPU time" if share else "no optimizer step recorded"


def _attention(values: Mapping[str, Any]) -> str | None:
    fused, pieces = values.get("fused_attention_pct"), values.get("attention_pieces_pct")
    if fused is None or pieces is None:
        return None
    if not fused and not pieces:
        return "no attention seen"
    return f"fused, {fused:.0f} % of GPU time" if fused else f"{pieces:.0f} % of GPU time in pieces"


def _chains(values: Mapping[str, Any]) -> str | None:
    count = values.get("candidate_count")
    return None if count is None else f"{counted(count, 'chain')} of small kernels, little to save"


_SEEN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str | None]]] = {
    "launch-bound": ("launches", _launches),
    "host-sync": ("syncs", _syncs),
    "input-bound": ("input", _input),
    "no-tensor-cores": ("gpu-efficiency", _cores),
    "memory-pressure": ("memory", _memory),
    "exposed-communication": ("communication", _communication),
    "straggler": ("communication", _communication),
    "host-stall": ("idle", _stalls),
    "low-occupancy": ("overview", _occupancy),
    "small-batch": ("overview", _efficiency),
    "cold-start": ("cold-start", _cold),
    "recompute": ("roles", _recompute),
    "redundant-copies": ("gpu-efficiency", _moving),
    "loop-optimizer": ("roles", _optimizer),
    "unfused-attention": ("roles", _attention),
    "unfused-elementwise": ("sequences", _chains),
}
