"""What the page is given: the contract with `web/src/data/types.ts`.

A resource has a name and is made from a Session: plain data, which travels as JSON, or a binary payload. The
server and the report send the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from foretrace._version import __version__
from foretrace.errors import UsageError
from foretrace.present.web.recording_view import Session

Answer = dict[str, Any] | bytes
Query = Mapping[str, str | Sequence[str]]
Find = Callable[[str], Session]

SCHEMA = 1
# Resource -> module and function under present/resources; a name that ends in "/" takes what follows it.
RESOURCES: Mapping[str, tuple[str, str]] = {
    "overview": ("overview", "overview"),
    "timeline": ("timeline", "timeline"),
    "timeline/window": ("timeline", "window"),
    "table/": ("table", "table"),
    "span/": ("span", "span"),
    "modules": ("modules", "modules"),
    "memory": ("memory", "memory"),
    "roofline": ("roofline", "roofline"),
    "ranks": ("ranks", "ranks"),
    "compare/": ("compare", "compare"),
    "predict": ("whatif", "predict"),
    "whatif": ("whatif", "whatif"),
}
# Asked for while the view moves, or made from another run: not part of a report as they stand.
LIVE = ("timeline/window", "predict", "span/", "table/", "compare/")

# Made from the diagnosis; the first three also without it: `findings=no`.
DIAGNOSED = ("overview", "timeline", "timeline/window", "predict", "whatif")


def resource(
    session: Session,
    name: str,
    query: Query | None = None,
    *,
    find: Find | None = None,
    peers: Sequence[Session] = (),
) -> Answer:
    """One resource of a run; `find` gives another run by its id, `peers` are those loaded beside it."""
    key, rest = _split(name)
    arguments: list[Any] = [rest] if rest else []
    if key in _WITH_QUERY:
        arguments.append(dict(query or {}))
    if key == "ranks":
        arguments.append(peers)
    if key == "compare/":
        arguments = [_other(rest, find)]
    return _function(key)(session, *arguments)


def _other(run: str, find: Find | None) -> Session:
    if find is None:
        raise UsageError("there is no other run to compare with")
    try:
        return find(run)
    except KeyError:
        raise UsageError(f"no run {run[:200]!r} to compare with") from None


def _split(name: str) -> tuple[str, str]:
    """The registered name and what follows it."""
    if name in RESOURCES and not name.endswith("/"):
        return name, ""
    head, slash, rest = name.partition("/")
    if not rest or head + slash not in RESOURCES:
        raise UsageError(f"no resource {name[:200]!r}; there are: {', '.join(RESOURCES)}")
    return head + slash, rest


_WITH_QUERY = ("overview", "table/", "timeline", "timeline/window", "predict")


def _function(name: str) -> Callable[..., Answer]:
    module, function = RESOURCES[name]
    found: Callable[..., Answer] = getattr(
        import_module(f"foretrace.present.web.resources.{module}"), function
    )
    return found


def to_bytes(answer: Answer) -> bytes:
    """What travels: a payload as it is, plain data as JSON."""
    if isinstance(answer, bytes):
        return answer
    return json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def run_entry(session: Session) -> dict[str, Any]:
    """A run that is ready, as `runs` lists it."""
    step = session.step_ns
    return {
        "id": session.id,
        "name": session.name,
        "group": session.group,
        "label": session.label,
        "state": "ready",
        "progress_pct": None,
        "says": None,
        "step_ms": None if step is None else step / 1e6,
    }


def runs(entries: Iterable[Mapping[str, Any]], *, embedded: bool = False) -> dict[str, Any]:
    """`runs`: what the server or the report's file holds."""
    return {
        "schema": SCHEMA,
        "foretrace": __version__,
        "embedded": embedded,
        "runs": [dict(each) for each in entries],
    }
