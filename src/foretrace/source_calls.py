"""What each function of a source file calls, and on which lines: which of them may have run an operator.

Loaded in the program that is recorded: standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

MOST_BYTES = 4 << 20  # of a file

_SYNTAX: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
    ast.Mod: "remainder", ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne", ast.USub: "neg",
    ast.Invert: "bitwise_not",
}  # fmt: skip
_BUILTINS = ("float", "int", "bool")  # of Python: another thing than a tensor's method
_PROPERTIES = ("T", "mT", "H", "mH", "real", "imag", "data")  # that run an operator
# What else an operator is called in a program.
_ALSO: Mapping[str, tuple[str, ...]] = {
    "to": ("float", "half", "bfloat16", "double", "int", "long", "bool", "cuda", "cpu", "type", "type_as", "tensor"),
    "item": ("float()", "int()", "bool()", "tolist", "is_nonzero"),
    "is_nonzero": ("if", "bool()"),
    "matmul": ("mm", "bmm", "einsum"),
    "bmm": ("matmul", "einsum"),
    "rsub": ("sub",),
    "cat": ("concat", "concatenate"),
    "reshape": ("flatten", "view"),
    "nonzero": ("where", "argwhere"),
    "index": ("[]", "masked_select"),
    "select": ("[]",),
    "slice": ("[]",),
    "unsqueeze": ("[]",),
    "index_put": ("[]=",),
    "copy": ("[]=", "copy_"),
    "fill": ("[]=",),
    "lift_fresh": ("tensor", "as_tensor"),
    "numpy_T": ("T",), "mT": ("mT",), "matrix_H": ("H",), "adjoint": ("mH",), "detach": ("data",),
    "__next__": ("for", "next"),
}  # fmt: skip
_COMPREHENSIONS: Mapping[type[ast.AST], str] = {
    ast.ListComp: "<listcomp>", ast.SetComp: "<setcomp>", ast.DictComp: "<dictcomp>", ast.GeneratorExp: "<genexpr>",
}  # fmt: skip
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Loop:
    """The lines of a loop, and those of them that each turn passes."""

    first: int
    last: int
    always: frozenset[int]


@dataclass(frozen=True)
class Function:
    """A function of a source file, or the file's own code."""

    name: str
    first: int  # of its decorators, as the interpreter counts
    last: int
    called: Mapping[str, tuple[int, ...]]  # the lines of each call and operator
    loops: tuple[Loop, ...]  # outer ones first

    def lines_of(self, operator: str) -> tuple[int, ...]:
        """The lines that may call an operator or function of this name."""
        name = operator.rpartition("::")[2].strip("_") if "::" in operator else operator
        name = name if name.startswith("__") else name.strip("_")
        return tuple(
            sorted({line for alias in (name, *_ALSO.get(name, ())) for line in self.called.get(alias, ())})
        )

    def between(self, lines: Sequence[int], before: int | None, after: int | None) -> tuple[int, ...]:
        """Of some lines those that ran after a call on one line and before the next on another; all where that proves nothing."""
        return tuple(line for line in lines if self._possible(line, before, after)) or tuple(lines)

    def _possible(self, line: int, before: int | None, after: int | None) -> bool:
        first, last = before or self.first, after or self.last
        loop = next((loop for loop in reversed(self.loops) if loop.first <= first and last <= loop.last
                     and loop.first <= last and first <= loop.last), None)  # fmt: skip
        if loop is None:
            return self._reaches(line, before, after)
        if not (first in loop.always or last in loop.always):
            return True
        if first < last:
            return first <= line <= last
        return first <= line <= loop.last or loop.first <= line <= last

    def _reaches(self, line: int, before: int | None, after: int | None) -> bool:
        """The same where no loop holds both calls; the loop of either may have gone on."""
        first, last = before or self.first, after or self.last
        around = [
            loop for loop in self.loops if loop.first <= first <= loop.last or loop.first <= last <= loop.last
        ]
        return first <= line <= last or any(loop.first <= line <= loop.last for loop in around)


def functions_of(source: bytes | str) -> tuple[Function, ...]:
    """All functions of a source text; none where it is no Python of this version."""
    try:
        tree = ast.parse(source)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    last = max((node.end_lineno or 1 for node in tree.body), default=1)
    functions = [Function("<module>", 1, last, _called(tree), _loops(tree))]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            name = node.name
        elif isinstance(node, ast.Lambda):
            first, name = node.lineno, "<lambda>"
        elif type(node) in _COMPREHENSIONS:
            assert isinstance(node, ast.expr)
            first, name = node.lineno, _COMPREHENSIONS[type(node)]
        else:
            continue
        functions.append(Function(name, first, node.end_lineno or first, _called(node), _loops(node)))
    return tuple(functions)


def function_at(functions: Sequence[Function], name: str, line: int, *, begins: bool) -> Function | None:
    """The function of this name that begins on a line or, unless it `begins` there, has it; None where that is not one."""
    same = [function for function in functions if function.name == name]
    there = [function for function in same if function.first == line]
    if not there and not begins:
        there = [function for function in same if function.first <= line <= function.last]
        there = [function for function in there if function.first == max(inner.first for inner in there)]
    return there[0] if len(there) == 1 else None


def _called(function: ast.AST) -> dict[str, tuple[int, ...]]:
    lines: dict[str, list[int]] = {}
    for node in _own(function):
        for name, line in _names(node):
            lines.setdefault(name, []).append(line)
    return {name: tuple(sorted(set(numbers))) for name, numbers in lines.items()}


def _loops(function: ast.AST) -> tuple[Loop, ...]:
    return tuple(
        Loop(node.lineno, node.end_lineno or node.lineno, frozenset(_always(node.body)))
        for node in _own(function)
        if isinstance(node, _LOOPS)
    )


def _always(body: Sequence[ast.stmt]) -> Iterator[int]:
    """The lines of statements that are not behind a condition."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield from _always(statement.body)
        elif isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return):
            yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        elif any(isinstance(node, ast.Continue) for node in ast.walk(statement)):
            return  # what follows may be passed over


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions within it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from _own(node)


def _names(node: ast.AST) -> Iterator[tuple[str, int]]:
    """What operators a node may call, by the names that torch gives them, without underscores around."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Attribute):
            yield function.attr.strip("_"), function.end_lineno or node.lineno
        elif isinstance(function, ast.Name):
            builtin = function.id in _BUILTINS
            yield f"{function.id}()" if builtin else function.id.strip("_"), node.lineno
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.UnaryOp) and type(node.op) in _SYNTAX:
        yield _SYNTAX[type(node.op)], node.lineno
    elif isinstance(node, ast.Compare):
        yield from ((_SYNTAX[type(kind)], node.lineno) for kind in node.ops if type(kind) in _SYNTAX)
    elif isinstance(node, ast.Subscript):
        yield ("[]=" if isinstance(node.ctx, ast.Store) else "[]"), node.lineno
    elif isinstance(node, ast.Attribute) and node.attr in _PROPERTIES:
        yield node.attr, node.end_lineno or node.lineno
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "if", node.test.lineno
    elif isinstance(node, ast.For):
        yield "for", node.iter.lineno
