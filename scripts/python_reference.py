"""The page docs/reference/python.md: the public names of the package, from their signatures and docstrings."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterator

from foretrace import analyze, api, ingest
from foretrace.capture.api import profile, region, step
from foretrace.capture.profile_options import ProfileOptions
from foretrace.trace import Trace


def python_page(made_by: str) -> str:
    """The page; `made_by` says that nobody edits it."""
    lines = [
        "# Python", "", made_by, "",
        "`import foretrace` loads none of torch, polars and rich: each name is loaded when it is first used. Wrong calls and "
        "unreadable files raise the errors of `foretrace.errors`, with the text that the command line prints.", "",
    ]  # fmt: skip
    for name, function in (
        ("open", ingest.open_trace),
        ("diagnose", api.diagnose),
        ("predict", api.predict),
        ("compare", api.compare),
        ("sql", api.sql),
    ):
        lines += [f"## foretrace.{name}", "", *_signature(name, function), *_documented(function)]
    lines += [
        "## foretrace.analyze.run",
        "",
        *_signature("analyze.run", analyze.run),
        *_documented(analyze.run),
    ]
    lines += [
        "A Result has `says`, `table` (a polars frame), `values`, `denominators`, `notes`, `to_dict()` and `to_pandas()`.",
        "",
    ]
    lines += ["## foretrace.Trace", "", *_documented(Trace)]
    lines += [f"- `{name}`: {says}" for name, says in _members(Trace)]
    lines += [
        "",
        "## foretrace.profile",
        "",
        *_documented(profile),
        "```python",
        "foretrace.profile(output=None, **options)",
        "```",
        "",
    ]
    lines += ["| option | type | what it does |", "|---|---|---|"]
    for name, hint in typing.get_type_hints(ProfileOptions, include_extras=True).items():
        kind, says = typing.get_args(hint)[:2]
        shown = re.sub(
            r"\b(?:collections\.abc|foretrace\.capture\.options|typing)\.", "", inspect.formatannotation(kind)
        )
        lines.append(f"| `{name}` | `{_escape(shown)}` | {_escape(says)} |")
    lines += ["", "## foretrace.region, foretrace.step", ""]
    lines += [f"- `region(name)`: {inspect.getdoc(region)}", f"- `step()`: {inspect.getdoc(step)}"]
    lines += [
        "- `foretrace.callbacks`: for Lightning, Hugging Face and Accelerate; [how to record](../guide/record.md#from-python)"
    ]
    lines += ["- `foretrace.bench`: times functions, products and parts of models; [how](../guide/bench.md)"]
    return "\n".join(lines) + "\n"


def _signature(name: str, function: Callable[..., object]) -> list[str]:
    """How a function is called, as code."""
    parts = [str(parameter) for parameter in inspect.signature(function).parameters.values()]
    keywords = [
        number for number, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.kind is parameter.KEYWORD_ONLY
    ]  # fmt: skip
    if keywords and not any(part.startswith("*") for part in parts[: keywords[0]]):
        parts.insert(keywords[0], "*")
    returns = inspect.signature(function).return_annotation
    body = ",\n    ".join(part.replace("'", "") for part in parts)
    return ["```python", f"foretrace.{name}(\n    {body},\n) -> {returns}".replace("'", ""), "```", ""]


def _documented(thing: object) -> list[str]:
    """A docstring as paragraphs of Markdown."""
    return [_escape_html(inspect.getdoc(thing) or ""), ""]


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """The public properties and methods of a class, each with the first line of its docstring."""
    for name, member in vars(kind).items():
        says = (inspect.getdoc(member) or "").partition("\n")[0]
        if not name.startswith("_") and says and not isinstance(member, str | int):
            yield name, _escape_html(says)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _escape_html(text: str) -> str:
    return text.replace("<", "&lt;")
