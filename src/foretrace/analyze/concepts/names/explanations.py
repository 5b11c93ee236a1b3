"""An Explanation says in plain words what a name in a recording means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretrace.analyze.concepts.names.kernel_facts import KernelName
from foretrace.analyze.concepts.names.kernel_names import decode
from foretrace.analyze.concepts.names.known_names import KNOWN
from foretrace.analyze.concepts.names.known_operators import OPERATORS

_LAYOUTS = {
    "tn": "A transposed, B not (column-major): usual for the forward of a Linear layer",
    "nn": "neither transposed (column-major): usual for the input gradient of a Linear layer",
    "nt": "B transposed, A not (column-major): usual for the weight gradient of a Linear layer",
    "tt": "both transposed (column-major)",
}
_WATCH = {
    "gemm": "large ones are bound by compute, narrow ones by memory; see `show roofline`",
    "attention": "occupancy near 12 % is normal: it relies on registers and shared memory",
    "elementwise": "bound by memory: fusing several into one saves memory traffic (torch.compile)",
    "copy": "only moves data: check whether the cast, copy or layout change can be avoided",
    "communication": "costs nothing while it overlaps with computation; see `show communication`",
}
_SLOW_GEMM = (
    "fp32 without TF32: torch.set_float32_matmul_precision('high') or autocast would use tensor cores"
)


@dataclass(frozen=True)
class Explanation:
    """What a name means; `facts` are what a kernel's name was decoded to."""

    name: str
    kind: str  # kernel, operator, runtime call, ..., unknown
    says: str
    watch: str | None = None
    facts: Mapping[str, str | int | bool | None] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        """Whether the name was recognised."""
        return self.kind != "unknown"


def explain(name: str) -> Explanation:
    """What this name means."""
    text = name.strip()
    for entry in (*KNOWN, *OPERATORS):
        if entry.pattern.search(text):
            return Explanation(text, entry.kind, entry.says, entry.watch)
    kernel = decode(text)
    if kernel.role == "unknown":
        says = "not known: a range or kernel of the program itself, or of a library not listed here"
        return Explanation(text, "unknown", says, facts=_facts(kernel) if kernel.family != "unknown" else {})
    return Explanation(text, "kernel", kernel.text, _watch(kernel), _facts(kernel))


def _watch(kernel: KernelName) -> str | None:
    if kernel.multiplies and kernel.tensor_cores is False and kernel.input_dtype == "fp32":
        return _SLOW_GEMM
    return _WATCH.get(kernel.role)


def _facts(kernel: KernelName) -> dict[str, str | int | bool | None]:
    """What was decoded from the name; for tensor cores, "unknown" is an answer too."""
    facts: dict[str, str | int | bool | None] = {
        "library": "cuBLAS (nvjet)" if kernel.family == "nvjet" else kernel.family,
        "role": kernel.role,
        "tensor_cores": {True: "yes", False: "no", None: "unknown: the name does not tell"}[
            kernel.tensor_cores
        ],
        "input_dtype": kernel.input_dtype,
        "accumulate_dtype": kernel.accumulate_dtype,
        "output_dtype": kernel.output_dtype,
        "tile": f"{kernel.tile}: what one block computes at a time, rows x columns x depth"
        if kernel.tile
        else None,
        "stages": f"{kernel.stages} tiles in flight from memory" if kernel.stages else None,
        "layout": f"{kernel.layout}: {_LAYOUTS[kernel.layout]}"
        if kernel.layout in _LAYOUTS
        else kernel.layout,
        "split_k": "yes: several blocks sum one tile of the result" if kernel.split_k else None,
        "direction": kernel.direction,
        "fused_ops": ", ".join(kernel.fused_ops) or None,
    }
    return {name: value for name, value in facts.items() if value is not None}
