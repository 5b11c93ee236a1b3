"""A JSON file that is read whole: profiles and tables of other tools, with one line for what cannot be read."""

from __future__ import annotations

import json
import re
from typing import Any

from foretrace.errors import InputError
from foretrace.ingest import lenient
from foretrace.ingest.source import Progress, Source
from foretrace.units import format_value

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
MOST_BYTES = 2 << 30  # unpacked: Python's objects take about ten times as much


def load(source: Source, progress: Progress | None = None) -> Any:
    """The document; InputError where it is damaged, breaks off or is too large."""
    name = source.path.name
    text = bytearray()
    for chunk in source.chunks(progress):
        text += chunk
        if len(text) > MOST_BYTES:
            limit = format_value("_bytes", MOST_BYTES)
            raise InputError(f"{name}: more than {limit} of JSON, which is read whole; record less")
    if source.broken:
        raise InputError(f"{name}: broken off: {source.broken[0][0]}")
    try:
        document = json.loads(text.decode("utf-8-sig", "replace"))
        return _cleaned(document) if _SURROGATE.search(text) else document
    except (ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise InputError(f"{name}: the JSON is damaged or breaks off: {what}") from error


def _cleaned(value: Any) -> Any:
    """The document without halves of characters, which no text can hold."""
    if isinstance(value, str):
        return lenient.clean(value)
    if isinstance(value, list):
        return [_cleaned(each) for each in value]
    if isinstance(value, dict):
        return {lenient.clean(key): _cleaned(each) for key, each in value.items()}
    return value


def mapping(value: object) -> dict[str, Any]:
    """The object, or an empty one where there is none."""
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; what is none is left out."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
