"""Every rule explains itself: its manual page has all its parts, and its numbers are declared with their source."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose.rule import SECTIONS
from foretrace.sourced import Bytes, Count, Factor, Nanoseconds, Share

FOLDER = Path(foretrace.__file__).parent / "diagnose"
SOURCED = {kind.__name__ for kind in (Bytes, Count, Factor, Nanoseconds, Share)}
# Halves, pairs and the last of something; per cent; nanoseconds in a micro-, milli- or second.
PLAIN = {0, 1, 2, 100, 1e3, 1e6, 1e9}
PLACES = range(5)  # of an operator's arguments, in a table of operators


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def bare_numbers(source: str) -> Iterator[tuple[int, float]]:
    """Lines and values of numbers that say neither what they are of nor where they come from."""
    tree = ast.parse(source)
    for statement in tree.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield from _in_assignment(statement.value)
        else:
            yield from _in_code(statement)


def _in_assignment(value: ast.AST) -> Iterator[tuple[int, float]]:
    """A module's own value: a bare number is one whatever it is; a table may name places of arguments."""
    if is_number(value):
        yield value.lineno, value.value  # type: ignore[attr-defined]
        return
    if isinstance(value, ast.Tuple) and value.elts and all(is_number(each) for each in value.elts):
        yield from ((each.lineno, each.value) for each in value.elts)  # type: ignore[attr-defined]
        return
    yield from ((line, number) for line, number in _in_code(value) if number not in PLACES)


def _in_code(node: ast.AST) -> Iterator[tuple[int, float]]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SOURCED:
        return
    if isinstance(node, ast.Constant):
        if is_number(node) and node.value not in PLAIN:
            yield node.lineno, node.value  # type: ignore[misc]
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(node, ast.Subscript) and child is node.slice:
            continue  # a place
        if isinstance(node, ast.keyword) and node.arg == "maxsize":
            continue  # of a cache
        if isinstance(node, ast.Compare) and _counts_dimensions(node) and is_number(child):
            continue
        yield from _in_code(child)


def _counts_dimensions(node: ast.Compare) -> bool:
    sides = (node.left, *node.comparators)
    return any(
        isinstance(side, ast.Call) and isinstance(side.func, ast.Name) and side.func.id == "len"
        for side in sides
    )


@pytest.mark.slow
def test_no_bare_number_in_a_rule() -> None:
    bare = [
        f"{path.relative_to(FOLDER)}:{line}: {number:g}: declare it as a Share, Count, Nanoseconds, Bytes or Factor with its source"
        for folder in ("rules", "patterns")
        for path in sorted((FOLDER / folder).rglob("*.py"))
        for line, number in bare_numbers(path.read_text(encoding="utf-8"))
    ]
    assert bare == []


def test_a_bare_number_is_found() -> None:
    source = (
        "LEAST = 2\nMOST = Share(0.3, 'x', 'y')\nTABLE = {'aten::mm': (0, 3)}\n"
        "def f(x, shape):\n    if len(shape) == 4 and x[3] > 0.3 * 2:\n        return 100 * x\n"
    )
    assert list(bare_numbers(source)) == [(1, 2), (5, 0.3)]


def test_every_rule_has_all_parts_of_its_page() -> None:
    for rule in RULES:
        lines = rule.manual.splitlines()
        assert [line for line in lines if line in SECTIONS] == list(SECTIONS), f"{rule.name}: {SECTIONS}"
        assert rule.help.endswith("."), f"{rule.name}: the docstring's first line is a sentence"
        before = lines[1 : lines.index(SECTIONS[0])]
        assert len(" ".join(before).split()) >= 10, f"{rule.name}: what does it find?"
        for name, after in zip(SECTIONS, [*SECTIONS[1:], None], strict=True):
            start = lines.index(name) + 1
            part = lines[start : lines.index(after) if after else None]
            assert any(line.strip() for line in part), f"{rule.name}: nothing under {name!r}"


def test_no_page_repeats_a_limit_by_hand() -> None:
    """A number that is typed into the docstring stays when the limit changes: {NAME} does not."""
    typed = [
        f"{rule.name}: write {{{name.upper()}}} instead of {limit}"
        for rule in RULES
        for name, limit in rule.limits.items()
        if not isinstance(limit, Count | Factor) and f"{limit}" in (inspect.getdoc(rule.function) or "")
    ]
    assert typed == []


def test_every_number_has_a_source() -> None:
    for rule in RULES:
        for name, limit in rule.limits.items():
            assert limit.of, f"{rule.name}: {name}"
            assert limit.source, f"{rule.name}: {name}"


@pytest.mark.slow
def test_no_rule_imports_a_rule() -> None:
    importing = [
        f"{path.relative_to(FOLDER)} imports {name}"
        for folder in ("rules", "patterns")
        for path in sorted((FOLDER / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (name := node.module or "").startswith("foretrace.diagnose.rules")
    ]
    assert importing == []
