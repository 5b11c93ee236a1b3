"""Foretrace: why is this PyTorch program slow, and what would each fix be worth?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrace._version import __version__

if TYPE_CHECKING:
    from foretrace.ingest import open_trace as open
    from foretrace.trace import Trace

__all__ = ["Trace", "__version__", "analyze", "open"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `import foretrace` and `foretrace --help` stay instant.
    import importlib

    if name == "open":
        return importlib.import_module("foretrace.ingest").open_trace
    if name == "Trace":
        return importlib.import_module("foretrace.trace").Trace
    if name in ("analyze", "errors", "hardware", "intervals", "schema"):
        return importlib.import_module(f"foretrace.{name}")
    raise AttributeError(f"module 'foretrace' has no attribute {name!r}")
