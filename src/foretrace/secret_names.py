"""Names that promise a secret: of variables, options and fields."""

from __future__ import annotations

import re
from itertools import pairwise


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A name promises a secret if one of these is among its words,
_SECRET_WORDS = _words(
    "accesskey apikey authtoken credential credentials creds passphrase passwd password passwords"
    " pgpassword privatekey secret secretkey secrets"
)
# or if it ends in one of these.
_SECRET_ENDINGS = _words(
    "auth authorization bearer cookie cookies key pass pat pin pwd sas sig signature token tokens"
)
_KEY_OWNERS = _words("access api auth encryption license private secret service sign signing ssh")
# `--pad-token`, `--max-tokens`: tokens of text.
_TEXT_TOKENS = _words(
    "avg batch begin bos cls context end eos image input mask max mean min n new num number of out output pad per"
    " prompt sep special stop sum target total unk vocab"
)
_TOKEN_QUALITIES = _words("dev file prod production secret staging test value")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def secret_name(name: str) -> bool:
    """Whether a variable, an option or a field of this name would hold a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while words and words[-1].isdigit():
        words.pop()
    if _SECRET_WORDS & set(words) or "".join(words) in _SECRET_WORDS:
        return True
    if any(word == "key" and before in _KEY_OWNERS for before, word in pairwise(words)):
        return True
    if words[-1:] and words[-1] in _TOKEN_QUALITIES:
        words.pop()
    if not words or words[-1] not in _SECRET_ENDINGS:
        return False
    return not (words[-1] in ("token", "tokens") and _TEXT_TOKENS & set(words[:-1]))
