"""Foretrace: why is this PyTorch program slow, and what would each fix be worth?"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foretrace._version import __version__

if TYPE_CHECKING:
    from inspect import Signature

    from foretrace import analyze, bench, errors
    from foretrace.api import compare, diagnose, memory, predict, ranks, sql
    from foretrace.capture import callbacks
    from foretrace.capture.api import profile, region, step
    from foretrace.capture.notebook import load_ipython_extension as load_ipython_extension
    from foretrace.ingest import open_trace as open
    from foretrace.trace import Trace

__all__ = [
    "Trace", "__version__", "analyze", "bench", "callbacks", "compare", "diagnose", "errors", "memory", "open", "predict", "profile", "ranks", "region", "sql", "step",
]  # fmt: skip

_FUNCTIONS_TOO = ("compare", "diagnose", "predict", "ranks")  # folders of the package that are called


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    # Loaded on first use: `import foretrace` and `foretrace --help` stay instant.
    import importlib

    if name == "open":
        return importlib.import_module("foretrace.ingest").open_trace
    if name == "Trace":
        return importlib.import_module("foretrace.trace").Trace
    if name in ("memory", "sql"):
        return getattr(importlib.import_module("foretrace.api"), name)
    if name in ("profile", "region", "step"):
        return getattr(importlib.import_module("foretrace.capture.api"), name)
    if name == "callbacks":
        return importlib.import_module("foretrace.capture.callbacks")
    if name == "load_ipython_extension":  # `%load_ext foretrace`
        return importlib.import_module("foretrace.capture.notebook").load_ipython_extension
    if name in ("analyze", "bench", "errors", "hardware", "intervals", "schema", *_FUNCTIONS_TOO):
        return importlib.import_module(f"foretrace.{name}")
    raise AttributeError(f"module 'foretrace' has no attribute {name!r}")


class _Called(ModuleType):
    """A folder of the package that is also the function of its name in api.py: `foretrace.diagnose(path)`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._function(*args, **options)

    @property
    def _function(self) -> Any:
        import importlib

        return getattr(importlib.import_module("foretrace.api"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> Signature:
        import inspect

        return inspect.signature(self._function)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # The import system sets a folder here once it is loaded, whoever imports it first.
        if name in _FUNCTIONS_TOO and isinstance(value, ModuleType):
            value.__class__ = _Called
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
