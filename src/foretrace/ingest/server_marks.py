"""Server marks: the ranges that inference servers put around each batch they run, and what kind of step each is.

The names are those of vLLM (`execute_model`, `execute_new_1_cached_31`, `execute_context_1(888)_generation_0(0)`), SGLang
(`step[DECODE bs=32]`, `step[EXTEND bs=1 toks=512]`, with detailed annotations `step[DECODE bs=32 g_sq=32 ... g_sk=4096]`), and of
programs that call a range `prefill` or `decode`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

PREFILL, DECODE, MIXED = "prefill", "decode", "mixed"

_MODE = re.compile(r"step\[(?P<mode>[A-Z_]+)")
_COUNTS = re.compile(r"execute_(?:\d+_)?context_(?P<new>\d+)\(.*\)_generation_(?P<going>\d+)\(")
_REQUESTS = re.compile(r"execute_new_(?P<new>\d+)_cached_(?P<going>\d+)\b")
_TOKENS = re.compile(
    r"execute_(?:\d+_)?context_\d+\((?:sq)?(?P<new>\d+)[^)]*\)_generation_\d+\((?:sq)?(?P<going>\d+)"
    r"|execute_new_(?P<nobody>0)_cached_(?P<cached>\d+)\b"
)
# What attention works on, as annotated for rooflines: sums over the requests of query lengths (sq), key lengths (sk), and their
# products; or, shorter, of query lengths and of products of both.
_PART = r"(?P<{0}count>\d+)\((?:sq(?P<{0}sq>\d+)sk(?P<{0}sk>\d+)sqsq(?P<{0}sqsq>\d+)sqsk(?P<{0}sqsk>\d+)|(?P<{0}short>\d+)(?:_(?P<{0}pairs>\d+))?)\)"
_LENGTHS = re.compile(rf"execute_(?:\d+_)?context_{_PART.format('new_')}_generation_{_PART.format('going_')}")
# A batch of decodes has a token for each sequence; of other modes, only those have a count of tokens that name it.
_SIZES = re.compile(r"step\[(?:DECODE bs=(?P<bs>\d+)|[A-Z_]+ bs=\d+ toks=(?P<toks>\d+))")
# The same sums as vLLM's, as `name=number`: of prefills with c_ in front, of decodes with g_.
_SUM = re.compile(r" (?P<part>[cg])_(?P<name>sq|sk|sqsq|sqsk)=(?P<number>\d+)(?=[ \]])")
_PLAIN = re.compile(r"execute_model\b|gpu_model_runner: forward\Z")
_WORD = re.compile(r"(?P<mode>prefill|decode|extend)(?![A-Za-z])", re.IGNORECASE)
# SGLang's forward modes; any other is told by its own name.
_MODES = {"EXTEND": PREFILL, "PREFILL": PREFILL, "SPLIT_PREFILL": PREFILL, "DECODE": DECODE, "MIXED": MIXED}


# Whether a server calls its steps like this, one way of naming them after the other; those that tell the kind first.
SERVER_MARKS: tuple[Callable[[str], object], ...] = (
    _MODE.match,
    _COUNTS.match,
    _REQUESTS.match,
    _WORD.match,
    _PLAIN.match,
)
# Of these, the one that programs give to parts of a step too.
ANYBODYS_MARK: Callable[[str], object] = _WORD.match


def kind_of(name: str) -> str | None:
    """prefill, decode, mixed, or what else the name calls the step; None where it tells nothing."""
    if match := _COUNTS.match(name) or _REQUESTS.match(name):
        new, going = int(match["new"]), int(match["going"])
        return MIXED if new and going else PREFILL if new else DECODE if going else None
    if match := _MODE.match(name) or _WORD.match(name):
        mode = match["mode"].upper()
        return _MODES.get(mode, mode.lower().replace("_", " "))
    return None


def tokens_of(name: str) -> int | None:
    """Tokens that the step works on, where its name tells: all of a prefill's, one for each sequence of a decode."""
    if match := _TOKENS.match(name):
        return sum(int(number) for number in match.groups() if number is not None)
    if sums := _sums(name):
        return sum(part.get("sq", 0) for part in sums.values())
    if match := _SIZES.match(name):
        return int(match["toks"] or match["bs"])
    return None


def _sums(name: str) -> dict[str, dict[str, int]]:
    """What SGLang's detailed annotation counts, for c (prefills) and g (decodes); empty where there is none."""
    if not _MODE.match(name):
        return {}
    sums: dict[str, dict[str, int]] = {}
    for match in _SUM.finditer(name):
        sums.setdefault(match["part"], {})[match["name"]] = int(match["number"])
    return sums


@dataclass(frozen=True)
class Lengths:
    """What attention works on in a part of a step: sums over its requests."""

    tokens_count: int  # queries
    keys_count: int
    pairs_count: int  # of a query and a key that a causal mask leaves


def lengths_of(name: str) -> tuple[Lengths, Lengths] | None:
    """What the new requests of a step work on, and those that go on; None where the name does not tell."""
    if sums := _sums(name):
        if any(len(part) != 4 for part in sums.values()):
            return None
        nothing = dict.fromkeys(("sq", "sk", "sqsq", "sqsk"), 0)
        prefills, decodes = (sums.get(part, nothing) for part in "cg")
        return _causal(**prefills), _causal(**decodes)
    match = _LENGTHS.match(name)
    if match is None:
        return None
    parts = [_lengths(match, prefix) for prefix in ("new_", "going_")]
    new, going = parts
    return None if new is None or going is None else (new, going)


def _lengths(match: re.Match[str], prefix: str) -> Lengths | None:
    count, queries, keys, squares, products, short, pairs = (
        None if match[prefix + name] is None else int(match[prefix + name])
        for name in ("count", "sq", "sk", "sqsq", "sqsk", "short", "pairs")
    )
    if not count or 0 in (queries, short):
        return Lengths(0, 0, 0)
    if queries is None:
        if short is None or pairs is None:
            return None
        # Exact for one request. Of several, equal lengths are assumed, which read the fewest keys.
        queries, products, squares, keys = short, pairs, short * short // count, -(-pairs * count // short)
    assert keys is not None
    assert squares is not None
    assert products is not None
    return _causal(queries, keys, squares, products)


def _causal(sq: int, sk: int, sqsq: int, sqsk: int) -> Lengths:
    """Of the last `sq` tokens of a sequence each sees those before it and itself."""
    return Lengths(sq, sk, sqsk - (sqsq - sq) // 2)
