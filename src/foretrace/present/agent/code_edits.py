"""Code edits: fixes that are a change of one call, made in the program's own source, by its syntax tree.

An edit is made only where it is unmistakable: one call of that name in the file, or one at the line, with arguments that are
written out. Everything else stays a comment: what a program calls its variables is not in a recording.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from foretrace.diagnose.finding import Finding

_COPIES = ("contiguous", "clone")
_MOVES = ("to", "cuda")


@dataclass(frozen=True)
class Replaced:
    """A stretch of the source, in characters, and what stands there instead."""

    start: int
    end: int
    text: str


class Module:
    """A file of the program as a syntax tree, with places as offsets."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def start(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        """Where a node begins."""
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr | ast.keyword) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None  # of a tree that was parsed
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """Columns of a syntax tree count bytes."""
        before = self._lines[line - 1].encode("utf-8")[:column]
        return self._starts[line - 1] + len(before.decode("utf-8"))

    def after_line(self, line: int) -> int:
        """Where the next line begins."""
        return min(self._starts[line], len(self.text))

    def calls(self, *names: str, line: int | None = None) -> list[ast.Call]:
        """Calls of functions or methods of these names; at a line, those that lie there whole."""
        # Python 3.11 does not tell where in a formatted string something stands.
        strings = [each for each in ast.walk(self.tree) if isinstance(each, ast.JoinedStr)]
        within = {id(inner) for each in strings for inner in ast.walk(each)}
        nodes = [
            each for each in ast.walk(self.tree) if isinstance(each, ast.Call) and id(each) not in within
        ]
        found = [each for each in nodes if _name(each) in names]
        return [each for each in found if line is None or each.lineno == each.end_lineno == line]

    def statement_at(self, line: int) -> ast.stmt | None:
        """The one statement that is this line and no more."""
        found = [
            each
            for each in ast.walk(self.tree)
            if isinstance(each, ast.stmt) and each.lineno == each.end_lineno == line
        ]
        return found[0] if len(found) == 1 else None

    def stands_alone(self, statement: ast.stmt) -> bool:
        """Whether a block has no other statement."""
        blocks = [
            value for node in ast.walk(self.tree) for value in vars(node).values() if isinstance(value, list)
        ]
        return any(block == [statement] for block in blocks)


def edited(finding: Finding, text: str, line: int) -> str | None:
    """The source with the fix of a finding made; `None` where the fix is no change of a call, or not unmistakable."""
    edit = _EDITS.get(finding.rule)
    if edit is None:
        return None
    try:
        module = Module(text)
        replaced = edit(finding, module, line)
        if not replaced:
            return None
        for each in sorted(replaced, key=lambda other: -other.start):
            text = text[: each.start] + each.text + text[each.end :]
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):  # no Python that this Python reads
        return None
    return None if text == module.text else text


# --- the edits --------------------------------------------------------------------------------------------------


def _loader(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """The arguments of the DataLoader, as the fix has them."""
    wanted = _arguments(finding.fix.code, "DataLoader")
    return _with(module, module.calls("DataLoader"), wanted) if "num_workers" in wanted else None


def _pinned(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """Pinned memory, and a copy that is not waited for: one is worth nothing without the other."""
    if "non_blocking=True" not in finding.fix.code or "pin_memory=True" not in finding.fix.code:
        return None
    if "DataLoader(" not in finding.fix.code:
        return None
    loader = _with(module, module.calls("DataLoader"), {"pin_memory": "True"}, unchanged_is_done=True)
    copy = _with(module, module.calls(*_MOVES, line=line), {"non_blocking": "True"}, unchanged_is_done=True)
    return None if loader is None or copy is None else [*loader, *copy]


def _fused(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """The optimizer's constructor with fused=True."""
    made = [each for each in _calls_in(finding.fix.code) if any(key.arg == "fused" for key in each.keywords)]
    if not made:
        return None
    calls = module.calls(_name(made[0]))
    if any(key.arg in ("foreach", "differentiable") for call in calls for key in call.keywords):
        return None  # these exclude one another
    return _with(module, calls, {"fused": "True"})


def _to_none(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """zero_grad(set_to_none=False), which is written out, with True."""
    zeroing = [
        each
        for each in module.calls("zero_grad")
        if any(key.arg == "set_to_none" and _is(key.value, False) for key in each.keywords)
    ]
    return _with(module, zeroing, {"set_to_none": "True"})


def _read_later(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """`total += loss.item()` keeps a tensor; a synchronize that stands alone goes."""
    statement = module.statement_at(line)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        alone = ast.unparse(statement.value) in ("torch.cuda.synchronize()", "cuda.synchronize()")
        if not alone or "synchronize" not in finding.fix.says:
            return None
        if module.stands_alone(statement):
            return [Replaced(module.start(statement), module.end(statement), "pass")]
        return [Replaced(module.after_line(line - 1), module.after_line(line), "")]
    if not finding.fix.code.startswith("total += loss.detach()") or not isinstance(statement, ast.AugAssign):
        return None
    value = statement.value
    if not isinstance(statement.op, ast.Add) or not isinstance(value, ast.Call) or _name(value) != "item":
        return None
    if value.args or value.keywords or not isinstance(value.func, ast.Attribute):
        return None
    return [Replaced(module.end(value.func.value), module.end(value), ".detach()")]


def _without_copy(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """The one contiguous() or clone() of the line goes."""
    calls = [each for each in module.calls(*_COPIES, line=line) if not each.args and not each.keywords]
    if len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return None
    return [Replaced(module.end(calls[0].func.value), module.end(calls[0]), "")]


def _switched(finding: Finding, module: Module, line: int) -> list[Replaced] | None:
    """Lines that switch TF32 on, behind the imports at the top of the file, of which torch is one."""
    wanted = finding.fix.code.splitlines()
    if not wanted or not wanted[0].startswith("torch.set_float32_matmul_precision("):
        return None
    if any(name in module.text for name in ("set_float32_matmul_precision", "allow_tf32")):
        return None  # the program has a choice of its own
    last = None
    for statement in module.tree.body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not isinstance(statement, ast.Import | ast.ImportFrom) and not is_text:
            break
        last = statement if not is_text else last
    names = [
        alias.asname or alias.name
        for each in module.tree.body
        if isinstance(each, ast.Import)
        for alias in each.names
    ]
    if last is None or "torch" not in names or last.end_lineno is None:
        return None
    at = module.after_line(last.end_lineno)
    return [Replaced(at, at, "".join(f"{each}\n" for each in ("", *wanted)))]


_EDITS: dict[str, Callable[[Finding, Module, int], list[Replaced] | None]] = {
    "input-bound": _loader,
    "pageable-copy": _pinned,
    "loop-optimizer": _fused,
    "optimizer-loop": _fused,
    "foreach-temporaries": _fused,
    "zeroed-gradients": _to_none,
    "host-sync": _read_later,
    "redundant-copies": _without_copy,
    "no-tensor-cores": _switched,
}
RULES = tuple(_EDITS)


# --- calls ------------------------------------------------------------------------------------------------------


def _name(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr
        if isinstance(function, ast.Attribute)
        else function.id
        if isinstance(function, ast.Name)
        else ""
    )


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _calls_in(code: str) -> Iterator[ast.Call]:
    """The calls of a fix's code; none where that is a sketch and no Python."""
    for text in (code, *code.splitlines()):
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        yield from (each for each in ast.walk(tree) if isinstance(each, ast.Call))
        return


def _arguments(code: str, name: str) -> dict[str, str]:
    """The keyword arguments that a fix's code gives a call."""
    call = next((each for each in _calls_in(code) if _name(each) == name), None)
    return {} if call is None else {key.arg: ast.unparse(key.value) for key in call.keywords if key.arg}


def _with(
    module: Module, calls: list[ast.Call], wanted: dict[str, str], *, unchanged_is_done: bool = False
) -> list[Replaced] | None:
    """The one call with these arguments; `None` where there are several, or its own are not written out."""
    if len(calls) != 1 or any(key.arg is None for key in calls[0].keywords):
        return None
    (call,) = calls
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    given = {str(key.arg): key for key in call.keywords}
    replaced = []
    for name, text in wanted.items():
        if name in given and not isinstance(given[name].value, ast.Constant):
            return None  # the program works it out
        if name in given and ast.unparse(given[name].value) != text:
            value = given[name].value
            replaced.append(Replaced(module.start(value), module.end(value), text))
    added = ", ".join(f"{name}={text}" for name, text in wanted.items() if name not in given)
    if added:
        last = max([*call.args, *(key.value for key in call.keywords)], key=module.end, default=None)
        at = module.end(call) - 1 if last is None else module.end(last)
        if module.text[at : module.end(call) - 1].strip(" \n,"):
            return None  # a parenthesis or a comment behind the last argument
        replaced.append(Replaced(at, at, added if last is None else f", {added}"))
    return replaced if replaced or unchanged_is_done else None
