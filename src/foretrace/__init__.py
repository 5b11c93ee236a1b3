"""Foretrace: why is this PyTorch program slow, and what would each fix be worth?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrace._version import __version__

if TYPE_CHECKING:
    from foretrace.capture import callbacks
    from foretrace.capture.api import profile, region, step
    from foretrace.capture.notebook import load_ipython_extension as load_ipython_extension
    from foretrace.ingest import open_trace as open
    from foretrace.trace import Trace

__all__ = ["Trace", "__version__", "analyze", "callbacks", "open", "profile", "region", "step"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `import foretrace` and `foretrace --help` stay instant.
    import importlib

    if name == "open":
        return importlib.import_module("foretrace.ingest").open_trace
    if name == "Trace":
        return importlib.import_module("foretrace.trace").Trace
    if name in ("profile", "region", "step"):
        return getattr(importlib.import_module("foretrace.capture.api"), name)
    if name == "callbacks":
        return importlib.import_module("foretrace.capture.callbacks")
    if name == "load_ipython_extension":  # `%load_ext foretrace`
        return importlib.import_module("foretrace.capture.notebook").load_ipython_extension
    if name in ("analyze", "errors", "hardware", "intervals", "schema"):
        return importlib.import_module(f"foretrace.{name}")
    raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
