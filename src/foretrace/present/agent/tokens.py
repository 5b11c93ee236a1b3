"""How many tokens a text is for a language model, without the vocabulary of any: an estimate that lies above the count.

docs/guide/agents.md has answers counted by a published tokenizer beside it.
"""

from __future__ import annotations

import re

_PIECES = re.compile(r"[A-Za-z]{1,5}|\d{1,3}|[!-/:-@\[-`{-~]{1,2}|[^\x00-\x7f]|\s{2,}")


def token_count(text: str) -> int:
    """About how many tokens the text is, rather more than fewer; what is not ASCII counts by its bytes."""
    pieces = len(_PIECES.findall(text))
    if text.isascii():
        return pieces
    return pieces + sum(len(each.encode("utf-8", "surrogatepass")) - 1 for each in text if each > "\x7f")
