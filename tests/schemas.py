"""Checks JSON by the schemas of the package: every document that a command prints inside a test, and files by name.

The schemas let fields in that they do not name, since new ones may come without a new version. Here they do not: a field that is
printed stands in its schema.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest

from foretrace import commands
from foretrace.commands import _output
from foretrace.commands._call import Call
from foretrace.present import schema

HAS_VALIDATOR = find_spec("jsonschema") is not None
_MOST_TRIED = 30_000  # characters: every change is checked by reading all of them
_TRIED: set[tuple[str, ...]] = set()  # forms of documents whose schema was shown to notice changes
_OWN = {"demo": "diagnose", "sql": "table"}


def check(document: Any, name: str) -> None:
    """Fails the test where a document is not what a schema says, or the schema would let it through with a field changed."""
    found = problems(document, name)
    if found:
        pytest.fail(
            f"not as {name} says: {'; '.join(found[:5])}"
        )  # an AssertionError would be told as an internal error
    form = (name, *(document if isinstance(document, dict) else ()))
    if form not in _TRIED and len(json.dumps(document)) < _MOST_TRIED:
        _TRIED.add(form)
        loose = list(let_through(document, name))
        if loose:
            pytest.fail(f"{name} lets through: {'; '.join(loose[:5])}")


def let_through(document: Any, name: str) -> Iterator[str]:
    """Changes of a document that its schema, as it is published, does not notice: a field that is gone, or of another type."""
    import jsonschema

    root = schema.load(name)
    valid = jsonschema.Draft202012Validator(root).is_valid
    document = copy.deepcopy(document)
    for holder, key, required in _fields(root, document, root):
        kept = holder.pop(key)
        if required and valid(document):
            yield f"no {key}"
        if all(_fits(valid, document, holder, key, other) for other in ("text", 0.5, {"of": "another type"})):
            yield f"{key} of any type"
        holder[key] = kept


def _fits(valid: Callable[[Any], bool], document: Any, holder: dict[str, Any], key: str, value: Any) -> bool:
    holder[key] = value
    return valid(document)


def _fields(part: Any, document: Any, root: Any) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Every field of a document that its schema names: what holds it, its name, and whether it must be there."""
    import jsonschema

    if "$ref" in part:
        yield from _fields(root["$defs"][part["$ref"].rpartition("/")[2]], document, root)
    for other in (*part.get("oneOf", ()), *part.get("anyOf", ())):
        if jsonschema.Draft202012Validator({**other, "$defs": root.get("$defs", {})}).is_valid(document):
            yield from _fields(other, document, root)
            break
    if isinstance(document, dict):
        for key in [key for key in part.get("properties", ()) if key in document]:
            yield document, key, key in part.get("required", ())
            yield from _fields(part["properties"][key], document[key], root)
        if isinstance(part.get("additionalProperties"), dict):
            for value in list(document.values())[:1]:
                yield from _fields(part["additionalProperties"], value, root)
    if isinstance(document, list) and document and "items" in part:
        yield from _fields(part["items"], document[0], root)


def problems(document: Any, name: str) -> list[str]:
    """Where and how a document differs from a schema."""
    errors = validator(name).iter_errors(document)
    return [f"{error.json_path}: {_why(error)}" for error in errors]


def _why(error: Any) -> str:
    best = min(error.context, key=lambda each: len(each.context), default=error)
    return f"{error.message[:300]} ({best.json_path}: {best.message[:300]})"


@cache
def validator(name: str) -> Any:
    import jsonschema

    strict = _closed(schema.load(name))
    jsonschema.Draft202012Validator.check_schema(strict)
    return jsonschema.Draft202012Validator(strict)


def _closed(part: Any) -> Any:
    """A schema whose objects hold no field that it does not name."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    closed = {key: _closed(value) for key, value in part.items()}
    names_fields = part.get("type") == "object" and isinstance(part.get("properties"), dict)
    return {"additionalProperties": False, **closed} if names_fields else closed


def name_of(command: str, args: argparse.Namespace | None) -> str | None:
    """The schema of what a command prints, as docs/guide/json.md lists them."""
    if command == "schema":
        return "schemas" if args is None or args.name is None else None
    if command == "ledger":
        return "ledger-records" if args is not None and args.records else "ledger"
    if command == "compare" and args is not None and args.by != "causes" and len(args.paths) == 2:
        return "compare" if args.by == "memory" and all(map(_is_snapshot, args.paths)) else "table"
    if command == "memory" and args is not None and (args.other is not None or args.by in ("step", "layer")):
        return "table"
    if command == "ranks" and args is not None and args.table != "findings":
        return "table"
    return _OWN.get(command, command)


def _is_snapshot(path: Any) -> bool:
    from foretrace.ingest.snapshot_files import is_snapshot_file

    return path.is_file() and is_snapshot_file(path)


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, every JSON document that a command prints in this process is checked."""
    calls: list[Call] = []
    run, print_document, print_error = commands._run, _output.print_document, _output.print_error

    def running(call: Call) -> int:
        calls.append(call)
        return run(call)

    def printing(text: str) -> None:
        print_document(text)
        call = calls[-1]
        command = next((word for word in call.arguments if not word.startswith("-")), "")
        name = "version" if "--version" in call.arguments else name_of(command, call.parsed)
        if name is not None:
            check(json.loads(text), name)

    def failing(code: int, kind: str, says: str, near: Any = ()) -> None:
        print_error(code, kind, says, near)
        check(_output.error_document(code, kind, says, near), "error")

    monkeypatch.setattr(commands, "_run", running)
    monkeypatch.setattr(_output, "print_document", printing)
    monkeypatch.setattr(_output, "print_error", failing)
