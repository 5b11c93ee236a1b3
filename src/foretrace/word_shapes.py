"""How far a text is like words: what tells names that people make up from text that is random."""

from __future__ import annotations

import re

# The pairs of letters that the words of this project's sources and Python's library are mostly made of
# (nine of ten pairs; a random pair is among them one time in four).
_COMMON = (
    "ab ac ad ag ai al am an ap ar as at au ay ba be bl bu ca ce ch ck cl co ct cu da de di do ds du ea "
    "ec ed ee ef el em en ep er es et ev ex fa ff fi fo fr fu ge ha he hi ho ia ib ic id ie if ig il im "
    "in io ip ir is it iv ke la ld le li ll lo ls lt lu ly ma me mi mo mp na nc nd ne ng ni no ns nt nu "
    "oc od ol om on oo op or os ot ou ov ow pa pe pi pl po pp pr pt qu ra rd re rg ri rm rn ro rr rs rt "
    "ru ry sa sc se sh si so sp ss st su ta te th ti to tr ts tt tu ty ue ul um un up ur us ut va ve vi "
    "wa wh wi ze"
)
_PAIRS = frozenset(_COMMON.split())
_PAIRS_SHARE = 0.5
_ENOUGH_PAIRS = 8


def changes(text: str) -> int:
    """How often capitals, small letters and digits take turns otherwise than in CamelCase."""
    return len(re.findall(r"(?=[a-z][A-Z0-9]|[A-Z]\d|\d[A-Za-z]|[A-Z]{2}[a-z])", text))


def wordlike_characters(text: str) -> int:
    """How many characters stand in runs that a word or a number could be."""
    return sum(map(len, re.findall(r"[A-Z]?[a-z]{3,}|[A-Z]{3,}|\d{3,}", text)))


def unpronounceable(text: str) -> bool:
    """Whether the pairs of letters in it are not those of words."""
    runs = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text)
    pairs = [run[at : at + 2].lower() for run in runs for at in range(len(run) - 1)]
    common = sum(pair in _PAIRS for pair in pairs)
    return len(pairs) >= _ENOUGH_PAIRS and common < _PAIRS_SHARE * len(pairs)
