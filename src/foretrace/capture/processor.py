"""The processor that a program computes on: its model, what it can do in bf16, and the threads that torch uses.

Nothing here imports torch: what only torch knows is read from the module if the program has imported it.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

# Of all flags, those that decide what torch's operators run on.
_FLAGS = re.compile(r"amx\w*|avx\w*|fma|sve\w*|bf16|asimd\w*")
_CPUINFO = "/proc/cpuinfo"


def describe() -> dict[str, Any]:
    """What rank.json says of the processor: JSON values only; null where it is not known."""
    model, flags = _first_processor()
    return {
        "model": model or platform.processor() or platform.machine(),
        "flags": flags,
        "usable_cpu_count": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        **_threads(),
    }


def _first_processor() -> tuple[str | None, list[str] | None]:
    """Model and flags; the same for all processors of a machine but for rare ones."""
    try:
        text = Path(_CPUINFO).read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError:
        return None, None
    facts: dict[str, str] = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    words = str(facts.get("flags") or facts.get("Features") or "").split()
    return facts.get("model name"), sorted(word for word in words if _FLAGS.fullmatch(word)) or None


def _threads() -> dict[str, int | None]:
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "get_num_interop_threads"):  # not imported, or still being imported
        return {"torch_threads_count": None, "torch_interop_threads_count": None}
    return {
        "torch_threads_count": int(torch.get_num_threads()),
        "torch_interop_threads_count": int(torch.get_num_interop_threads()),
    }
