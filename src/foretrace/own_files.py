"""Foretrace's own files: decoded into declared types with bounds, so that a damaged one costs a line and never a diagnosis."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_args, get_origin

import msgspec

from foretrace.errors import FormatError, InputError

T = TypeVar("T")

# Bounds also reject NaN, infinity and integers that no column can hold. 1e18 ns are 31 years.
MOST = 1e18
Positive = Annotated[float, msgspec.Meta(gt=0, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=MOST)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
Finite = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


def read_bytes(path: Path) -> bytes:
    """The bytes of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def parsed(data: bytes, where: object) -> Any:
    """Plain data from JSON text, without NaN and infinity; half a surrogate pair becomes a replacement character."""
    try:
        text = data.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse)
        return _whole_text(value) if r"\ud" in text.lower() else value
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: damaged: {_reason(error)}") from error


def converted(value: object, kind: type[T], where: object) -> T:
    """Plain data as an instance of `kind`; an error names the field."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise FormatError(f"{where}: damaged: {_reason(error)}") from error


def decoded(data: bytes, kind: type[T], where: object) -> T:
    """An instance of `kind` from JSON text."""
    return converted(parsed(data, where), kind, where)


def sections(
    document: Mapping[str, Any], kinds: Mapping[str, Any], where: object
) -> tuple[dict[str, Any], list[str]]:
    """The intact sections of a document, and what is wrong with the others; of a list, the intact items.

    Sections that `kinds` does not name are dropped: nobody has checked them.
    """
    intact: dict[str, Any] = {}
    problems: list[str] = []
    for name, kind in kinds.items():
        value = document.get(name)
        if value is None:
            continue
        items = value if get_origin(kind) is list and isinstance(value, list) else None
        (item_kind,) = get_args(kind) if items is not None else (kind,)
        checked = []
        for item in [value] if items is None else items:
            try:
                converted(item, item_kind, f"{where}: {name}")
                checked.append(item)
            except FormatError as error:
                problems.append(str(error))
                without = _without_damaged_object(item, str(error))
                with suppress(FormatError):
                    converted(without, item_kind, where)
                    checked.append(without)
        if items is not None:
            intact[name] = checked
        elif checked:
            intact[name] = value
    return intact, problems


def _without_damaged_object(section: object, problem: str) -> object:
    """The section without the object in it that is damaged: what it says of one thing does not spoil the rest."""
    field = re.search(r"`\$\.(\w+)\.", problem)
    if not isinstance(section, dict) or not field or not isinstance(section.get(field[1]), dict):
        return None
    return {name: value for name, value in section.items() if name != field[1]}


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def _whole_text(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_text(item) for item in value]
    if isinstance(value, dict):
        return {_whole_text(name): _whole_text(item) for name, item in value.items()}
    return value
