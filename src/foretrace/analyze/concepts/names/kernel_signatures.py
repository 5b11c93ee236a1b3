"""The signature of a kernel: its name in a form that torch.profiler (CUPTI) and Nsight Compute agree on.

Both demangle, each in its own way. What differs is left out: namespaces (ncu shortens them), parameter lists (ncu writes T1
for what a template gives), `const`, how a lambda is numbered, casts before numbers, `true` for 1. What is left is the
function's name and the words of its template arguments, in order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_UNNAMED = re.compile(r"<unnamed>|\(anonymous namespace\)|_GLOBAL__N__\w+")
_INSTANCE = re.compile(r"\(instance (\d+)\)")
_CALL = re.compile(r"operator\s*\(\s*\)")
_GROUP = re.compile(r"\([^()]*\)")
_WORD = re.compile(r"[A-Za-z_]\w*(?:\s*::)?|#?\d+[uUlL]*")
_SILENT = frozenset(("void", "const", "enum", "struct", "class", "unnamed", "type"))
_TRUTH = {"false": "0", "true": "1"}
_NESTED = re.compile(r"_ZN(?:K)?")
_LIST = "$"  # where a parameter list was: what stands before it is a function, not a namespace
_DEEPEST = 200  # parentheses within parentheses


@dataclass(frozen=True)
class Signature:
    """A kernel's function and the words of its template arguments; None where the name does not tell them."""

    function: str
    arguments: tuple[str, ...] | None

    def fits(self, other: Signature) -> bool:
        """Whether both may name the same kernel: arguments count where both names tell them."""
        if self.function != other.function:
            return False
        return self.arguments is None or other.arguments is None or self.arguments == other.arguments


@cache
def signature(name: str) -> Signature:
    """The signature of a kernel by its name, demangled or not."""
    if name.startswith("_Z"):
        return Signature(_mangled_function(name), None)
    text = _UNNAMED.sub("", name)
    text = _CALL.sub("operator", _INSTANCE.sub(r"#\1", text))
    for _ in range(_DEEPEST):
        text, count = _GROUP.subn(_LIST, text)
        if not count:
            break
    before, bracket, behind = text.partition("<")
    function = re.split(r"::|\s", before.strip(f" {_LIST}"))[-1] or name
    return Signature(function, tuple(_words(behind)) if bracket else None)


def _words(text: str) -> list[str]:
    found = []
    for word in _WORD.findall(text):
        if word.endswith("::") or word in _SILENT:
            continue
        found.append(word.strip("#uUlL") if word[:1] in "#0123456789" else _TRUTH.get(word, word))
    return found


def _mangled_function(name: str) -> str:
    """The last name before template arguments of a mangled one, by the lengths in it."""
    start = _NESTED.match(name)
    rest = name[start.end() :] if start else name[2:]
    function = name
    while found := re.match(r"(\d{1,4})", rest):
        size = int(found[1])
        function = rest[found.end() : found.end() + size]
        rest = rest[found.end() + size :]
        if len(function) < size:
            return name  # it breaks off
    return function
