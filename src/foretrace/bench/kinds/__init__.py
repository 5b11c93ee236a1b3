"""What can be timed by name: one kind per file, each with a function of that name; `run_case` times one case."""

from __future__ import annotations

from types import ModuleType

from foretrace.bench.kinds import attention, collectives, functions, latency, matmul, precision, transformer

KINDS: dict[str, ModuleType] = {
    "transformer": transformer,
    "attention": attention,
    "matmul": matmul,
    "precision": precision,
    "latency": latency,
    "collectives": collectives,
    "functions": functions,
}
