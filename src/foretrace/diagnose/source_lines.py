"""The line within a function, from its source where that lies on this machine.

torch records the first line of a function, not the line that called an operator. Where the file is at hand and the
function still begins on that line, what its lines call tells which of them it was.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import polars as pl

from foretrace.diagnose.finding import Place

_LIBRARY = re.compile(
    r"site-packages|dist-packages|/torch/|lib/python|^torch/|<frozen|<string>|(?:^|/)foretrace/capture/"
)


def of_library(file: str) -> bool:
    """Whether a frame's file is torch's, an installed package's or Python's own: the line to change is the user's.

    torch records files relative to where modules are found, so that `selectors.py` is Python's.
    """
    top = file.partition("/")[0].removesuffix(".py")
    return bool(_LIBRARY.search(file)) or top in sys.stdlib_module_names


Functions = dict[tuple[int, str], dict[str, tuple[int, ...]]]

_MOST_BYTES = 4 << 20
_SYNTAX: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "matmul", ast.Pow: "pow",
    ast.Mod: "remainder", ast.FloorDiv: "floor_divide", ast.BitAnd: "bitwise_and", ast.BitOr: "bitwise_or",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne", ast.USub: "neg",
    ast.Invert: "bitwise_not",
}  # fmt: skip
_BUILTINS = ("float", "int", "bool")  # of Python: another thing than a tensor's method
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
    "index_put": ("[]=",),
    "copy": ("[]=", "copy_"),
    "lift_fresh": ("tensor", "as_tensor"),
}  # fmt: skip


def exact_line(place: Place, operators: Mapping[str, int], folders: Sequence[Path]) -> Place:
    """The place with the line that calls most of these operators; as it is where the source cannot tell."""
    if place.file is None or place.line is None:
        return place
    for path in (folder / place.file for folder in folders):
        called = _functions(path).get((place.line, place.function))
        line = _line(called, operators) if called else None
        if line is not None:
            return replace(place, line=line)
    return place


def _line(called: Mapping[str, tuple[int, ...]], operators: Mapping[str, int]) -> int | None:
    score: Counter[int] = Counter()
    for operator, count in operators.items():
        name = operator.rpartition("::")[2].strip("_")
        lines = {line for each in (name, *_ALSO.get(name, ())) for line in called.get(each, ())}
        for line in sorted(lines):
            score[line] += count / len(lines)  # type: ignore[assignment]
    return score.most_common(1)[0][0] if score else None


def _functions(path: Path) -> Functions:
    """For each function of a file, by its first line and name: what it calls, and on which lines."""
    try:
        facts = path.stat()
    except (OSError, ValueError):  # a name that is too long, or holds a zero byte
        return {}
    return _parsed(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _parsed(path: Path, size: int, _changed_ns: int) -> Functions:
    try:
        if not path.is_file() or size > _MOST_BYTES:
            return {}
        tree = ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}  # the function's own line is what remains
    found = {(1, "<module>"): _called(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            decorators = [] if isinstance(node, ast.Lambda) else [each.lineno for each in node.decorator_list]
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            found[min([node.lineno, *decorators]), name] = _called(node)
    return found


def _called(function: ast.AST) -> dict[str, tuple[int, ...]]:
    lines: dict[str, list[int]] = {}
    for node in _own(function):
        for name, line in _names(node):
            lines.setdefault(name, []).append(line)
    return {name: tuple(sorted(set(found))) for name, found in lines.items()}


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
        yield from ((_SYNTAX[type(each)], node.lineno) for each in node.ops if type(each) in _SYNTAX)
    elif isinstance(node, ast.Subscript):
        yield ("[]=" if isinstance(node.ctx, ast.Store) else "[]"), node.lineno
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield "if", node.test.lineno


def with_forward_stack(ops: pl.DataFrame, forward: pl.Series) -> pl.DataFrame:
    """Operators with their stack, or that of the forward operator (`asked_id`): autograd's thread runs no Python."""
    own = pl.col("stack_id").is_not_null()
    return ops.with_columns(
        asked_id=pl.when(own).then("span_id").otherwise("forward_id"),
        stack_id=pl.coalesce("stack_id", forward),
    )
