"""What can be timed by name: one kind per file, each with a function of that name and `run_case`, which times one case."""

from __future__ import annotations

from types import ModuleType

from foretrace.bench.kinds import functions, matmul

KINDS: dict[str, ModuleType] = {
    "matmul": matmul,
    "functions": functions,
}
