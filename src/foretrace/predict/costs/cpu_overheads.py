"""What a processor spends around the work of operators: autograd's nodes, threads, loops over parameters, compiled code."""

from __future__ import annotations

from foretrace.sourced import JUDGEMENT, Factor, Nanoseconds, Share

_EPYC = "benchmarks/cpu_rates.py; torch 2.13, EPYC 9004"

NODE_NS = Nanoseconds(
    3_500,
    "a node of autograd that no backward pass uses, with the memory that it keeps",
    f"{_EPYC}: 3.4 to 4.6 µs",
)
LEAST_NODE_NS = Nanoseconds(300, "such a node, without the memory", f"{_EPYC}: 0.3 to 0.4 µs")
CROWDED = Factor(
    0.095,
    "the step, added for each thread more than one that a core has",
    f"{_EPYC}: 1.10 and 1.24, 1.31 and 1.27, 1.67 and 1.64 times with 2, 4 and 8 threads on a core",
)
BY_CORES = Share(
    0.8,
    "the time that another core takes over of the operators that use all threads",
    f"{_EPYC}: 1.36 times by a second core",
)
FUSED_PARAMETER_NS = Nanoseconds(2_500, "a parameter in a fused optimizer step, besides its elements", _EPYC)
FUSED_NS_PER_ELEMENT = Factor(
    0.9, "nanoseconds an element of a parameter in a fused step of Adam: 28 bytes", f"{_EPYC}: 30 GB/s"
)
COMPILED_NS = Nanoseconds(3_000, "a kernel that torch.compile makes for a CPU, besides its work", JUDGEMENT)
LEFT_AROUND = Share(
    0.85,
    "the time around operators that is left with torch.compile: guards, autograd and Python outside",
    _EPYC,
)
