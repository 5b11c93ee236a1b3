"""The JSON Schemas (2020-12) of what Foretrace prints and writes as JSON: one file each, NAME.vVERSION.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from foretrace.errors import unknown

FOLDER = Path(__file__).parent


def names() -> dict[str, str]:
    """Each schema's name, with the file's version, and what it is of."""
    return {path.name.partition(".")[0]: path.name for path in sorted(FOLDER.glob("*.json"))}


def text(name: str) -> str:
    """A schema as its file has it; `NAME` or `NAME.v1`."""
    files = names()
    file = files.get(name) or next(
        (each for each in files.values() if each.removesuffix(".json") == name), None
    )
    if file is None:
        raise unknown(f"no schema named {name!r}", name, files)
    return (FOLDER / file).read_text(encoding="utf-8")


def load(name: str) -> dict[str, Any]:
    """A schema."""
    document: dict[str, Any] = json.loads(text(name))
    return document
