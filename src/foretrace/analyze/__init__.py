"""A Trace becomes Results: one analysis per file of this folder. ANALYSES lists them all."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
from foretrace.analyze.result import Analysis, Subject
from foretrace.errors import MissingDataError, unknown

if TYPE_CHECKING:
    from foretrace.analyze.result import Result
    from foretrace.trace import Trace


def _declared() -> list[Analysis]:
    """The analyses of all modules in this folder."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg]
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Analysis)]


# In the order in which they are listed to people.
ANALYSES: tuple[Analysis, ...] = tuple(
    sorted(
        {analysis.name: analysis for analysis in _declared()}.values(),
        key=lambda analysis: (list(Subject).index(analysis.subject), analysis.name),
    )
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
