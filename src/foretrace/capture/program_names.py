"""The names of a program's own modules, classes and functions: whatever they look like, they are no secrets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from inspect import getattr_static
from types import ModuleType

# Fields of rank.json and run.json that hold nothing but such names.
NAME_FIELDS = frozenset({"step_source", "step_function"})

_DOTTED = re.compile(r"[^\W\d]\w*(?:[.:][^\W\d]\w*)*")
_MISSING = object()


def named_in_program(texts: Iterable[str]) -> set[str]:
    """Those of the texts that name a module of this process, or what one of its modules defines."""
    return {text for text in texts if _DOTTED.fullmatch(text) and _is_named(re.split("[.:]", text))}


def _is_named(parts: list[str]) -> bool:
    for count in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:count]))
        if isinstance(module, ModuleType) and _holds(module, parts[count:]):
            return True
    return any(
        _holds(module, parts) for module in list(sys.modules.values()) if isinstance(module, ModuleType)
    )


def _holds(owner: object, parts: list[str]) -> bool:
    """Whether the attributes lead somewhere; looking runs no code of the program."""
    for part in parts:
        # A module's own dictionary: some modules import what they are asked for.
        found = (
            vars(owner).get(part, _MISSING)
            if isinstance(owner, ModuleType)
            else getattr_static(owner, part, _MISSING)
        )
        if found is _MISSING:
            return False
        owner = found
    return True
