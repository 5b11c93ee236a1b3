"""The user's own functions: `FILE.py::function`, or any callable from Python."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from foretrace.bench.against import against
from foretrace.bench.benchmark import OK, Benchmark
from foretrace.bench.clocks import Function
from foretrace.bench.sweep import Case, Progress, Row, Trial, collect, sweep
from foretrace.bench.timing import Timing
from foretrace.bench.turns import rows_in_turns
from foretrace.errors import InputError, UsageError, unknown

_SETUP = "setup"


def functions(
    *targets: str | Callable[[], object], timing: Timing | None = None, progress: Progress | None = None
) -> Benchmark:
    """Times functions of your own: callables, or texts such as "kernels.py::fused". Several take turns, and are compared with the first.

    Where the file has a function `setup`, it is called first, and what it returns (or yields, to clean up after that) is given to a
    function that takes an argument.
    """
    timing = timing or Timing()
    if not targets:
        raise UsageError("name a function: FILE.py::function")
    if timing.apart and any(map(callable, targets)):
        raise UsageError("a function of this process cannot run in another: name it as FILE.py::function")
    for target in targets:
        if not callable(target):
            split(target)
    names = _distinct([_name(target) if callable(target) else target for target in targets])
    given = dict(zip(names, targets, strict=True))
    cases = [{"function": name} for name in names]
    if timing.apart:
        return sweep("functions", run_case, cases, timing, progress=progress, finish=finish)

    def opened(case: Case) -> AbstractContextManager[Function]:
        target = given[case["function"]]
        return nullcontext(target) if callable(target) else found(*split(target))

    def rows(cases: Sequence[Case]) -> Iterator[Row]:
        yield from rows_in_turns(cases, opened, timing)

    return collect("functions", rows, cases, timing, progress=progress, finish=finish)


def finish(rows: Sequence[Row]) -> list[str]:
    """Compares every function with the first."""
    first = rows[0]
    if first["status"] != OK:
        return []
    for row in rows[1:]:
        if row["status"] == OK:
            row |= against(first, row)
    return [f"speedup: against {first['function']}."] if len(rows) > 1 else []


def run_case(case: Case, trial: Trial) -> None:
    """One function of a file, in a process of its own."""
    with found(*split(case["function"])) as function:
        measured, peak = trial.time_and_peak(function)
        trial.row |= peak | measured.columns()


def split(target: str) -> tuple[Path, str]:
    """File and function of "FILE.py::function"."""
    file, _, name = target.partition("::")
    if not name or not file:
        raise UsageError(f"{target!r}: write FILE.py::function")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"{file}: no such file")
    return path, name


@contextmanager
def found(path: Path, name: str) -> Iterator[Callable[[], object]]:
    """The function, ready to be called without arguments; what `setup` holds is given back afterwards."""
    module = _load(path)
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value) and key != _SETUP]
        raise unknown(f"{path}: no function {name!r}", name, names)
    takes = _needed_arguments(function)
    if takes > 1 or (takes and not hasattr(module, _SETUP)):
        raise UsageError(f"{path}::{name} needs {takes} arguments: give it none, or one that setup() makes")
    made = module.setup() if hasattr(module, _SETUP) else None
    if not inspect.isgenerator(made):
        yield (lambda: function(made)) if takes else function
        return
    value = next(made)
    try:
        yield (lambda: function(value)) if takes else function
    finally:
        next(made, None)  # what stands after its yield
        made.close()


def _needed_arguments(function: Callable[..., object]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C code, which does not tell: taken to need none
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in parameters)


def _load(path: Path) -> ModuleType:
    """The file as a module; its folder is where it finds its neighbours."""
    folder = str(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(f"foretrace_bench_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number where one was there before: several lambdas."""
    made: list[str] = []
    for name in names:
        same = sum(other == name or other.startswith(f"{name} #") for other in made)
        made.append(f"{name} #{same + 1}" if same else name)
    return made


def _name(target: Any) -> str:
    return str(getattr(target, "__qualname__", None) or type(target).__name__)
