"""An Answer: what one question gets, as lines of JSON, the trust verdict first, cut by rows at a number of tokens.

All text that may come from a recording stands inside a JSON string, with what could act or hide spelled out: names in a
recording are data, whatever they say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foretrace.present.agent.tokens import token_count
from foretrace.secret_formats import without_known_secrets
from foretrace.units import shorten, visible

MOST_TOKENS = 8_000
NAME_WIDTH, TEXT_WIDTH, CODE_WIDTH = 120, 600, 2_400
_CODE = ("code", "patch")
_SENTENCES = ("says", "why", "fix", "unless", "basis", "not_promised", "watch")
_MOST_ITEMS, _MOST_FIELDS = 10, 60
_DIGITS = 5
_ROOM = 120  # tokens kept for the line that says what was cut


@dataclass(frozen=True)
class Next:
    """The question worth asking after this one: as a call of a tool, and as a command."""

    call: str
    command: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one question gets."""

    trust: str  # the verdict on the recording: yes, with care, no; or why there is none
    says: str
    reasons: tuple[str, ...] = ()  # why it is not trusted without care
    facts: Mapping[str, Any] = field(default_factory=dict)
    of: str = "rows"  # what the rows are
    columns: tuple[str, ...] = ()  # of rows that are lists
    rows: Sequence[Any] = ()
    total: int | None = None  # how many rows there are, where not all of them are in `rows`
    more: str = ""  # how to get the rows that are not shown
    next: Next | None = None
    document: Callable[[], str] | None = None  # the whole of it as JSON


@dataclass(frozen=True)
class Shown:
    """An Answer as text, and how much of it that is."""

    text: str
    shown: int
    total: int


def shown(answer: Answer, *, most_tokens: int = MOST_TOKENS, commands: bool = False) -> Shown:
    """The answer in at most so many tokens; `commands` names commands in place of tools."""
    total = len(answer.rows) if answer.total is None else answer.total
    head, tail = _head(answer, most_tokens), _tail(answer, commands=commands)
    columns = [_line(clean(list(answer.columns)))] if answer.columns and answer.rows else []
    room = most_tokens - sum(map(token_count, (*head, *columns, *tail))) - _ROOM
    lines: list[str] = []
    for row in answer.rows:
        line = _line(clean(row))
        if token_count(line) > room:
            break
        room -= token_count(line) + 1
        lines.append(line)
    count: dict[str, Any] = {"shown": len(lines), "total": total, "of": answer.of}
    if len(lines) < len(answer.rows):
        count["cut"] = f"at {most_tokens:,} tokens"
    if len(lines) < total and answer.more:
        count["more"] = answer.more
    counted = [_line(count)] if answer.rows or total else []
    text = "\n".join([*head, *counted, *columns, *lines, *tail])
    return Shown(text, len(lines), total)


def _head(answer: Answer, most_tokens: int) -> list[str]:
    """Trust, the answer and the facts: fields that do not fit into half of the room are left out, and named."""
    trust: dict[str, Any] = {"trust": answer.trust}
    if answer.reasons:
        trust["reasons"] = list(answer.reasons)
    lines = [_line(clean(trust, TEXT_WIDTH)), _line({"answer": clean(answer.says, TEXT_WIDTH)})]
    room = most_tokens // 2
    left_out = []
    for name, value in answer.facts.items():
        line = _line({name: clean(value, TEXT_WIDTH)})
        if token_count(line) > room:
            left_out.append(name)
            continue
        room -= token_count(line)
        lines.append(line)
    return [*lines, _line({"left_out": left_out})] if left_out else lines


def _tail(answer: Answer, *, commands: bool) -> list[str]:
    if answer.next is None:
        return []
    following = answer.next.command if commands else answer.next.call
    return [_line({"next": visible(without_known_secrets(following))})]


def clean(value: Any, width: int = NAME_WIDTH) -> Any:
    """A value as an answer shows it: text cut and harmless, numbers in five digits, long lists by their beginning."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return _rounded(value)
    if isinstance(value, Mapping):
        fields = list(value.items())[:_MOST_FIELDS]
        return {clean(str(name)): clean(each, _width_of(name, width)) for name, each in fields}
    if isinstance(value, list | tuple):
        kept = [clean(each, width) for each in value[:_MOST_FIELDS]]
        if len(value) > _MOST_ITEMS and all(isinstance(each, int | float) for each in value):
            kept = kept[:_MOST_ITEMS]
        left = len(value) - len(kept)
        return [*kept, f"and {left} more"] if left else kept
    return _text(str(value), width)


def _text(text: str, width: int) -> str:
    """Lines stay lines; every other character that could act or hide is spelled out."""
    text = without_known_secrets(text)
    if len(text) > 8 * width:
        text = f"{text[: 4 * width]}…{text[-4 * width :]}"
    spelled = "\n".join(visible(line) for line in text.split("\n"))
    return shorten(spelled, width)


def _width_of(name: object, width: int) -> int:
    """Code is worth nothing when it is cut; sentences are longer than names."""
    if name in _CODE:
        return CODE_WIDTH
    return max(width, TEXT_WIDTH) if name in _SENTENCES else width


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    if value == 0:
        return 0
    rounded = round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
