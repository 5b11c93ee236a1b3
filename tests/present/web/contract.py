"""The page's types, read from their source, and the recordings that payloads are made from in tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from foretrace.present.web import payload
from foretrace.present.web.payload import View

ROOT = Path(__file__).parents[3]
TYPES = sorted((ROOT / "web" / "src" / "data").glob("*types.ts"))
SAMPLES = sorted(
    [Path(str(each)) for each in resources.files("foretrace").joinpath("samples").iterdir()]
    + [each for each in (ROOT / "tests" / "traces").glob("*/*.json.gz") if ".torch." not in each.name]
)
SAMPLES = [path for path in SAMPLES if path.name.endswith(".json.gz")]


def _types() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in TYPES)


def interface(name: str) -> set[str]:
    """The fields of an interface of the page's types."""
    text = _types()
    body = re.search(rf"export interface {name} \{{\n(.*?)\n\}}", text, re.DOTALL)
    assert body, f"no *types.ts has {name}"
    return set(re.findall(r"^  readonly (\w+):", body[1], re.MULTILINE))


def same_fields(value: Mapping[str, Any], name: str) -> None:
    assert set(value) == interface(name), name


def listed(name: str) -> tuple[str, ...]:
    found = re.search(rf"export const {name} = \[(.*?)\]", _types())
    assert found
    return tuple(re.findall(r'"(\w+)"', found[1]))


def document(view: View, name: str, query: dict[str, str] | None = None) -> dict[str, Any]:
    """A resource of a run that is JSON."""
    answer = payload.resource(view, name, query)
    assert isinstance(answer, dict)
    return answer
