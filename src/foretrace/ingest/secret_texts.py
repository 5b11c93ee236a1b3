"""Secrets in the texts of a recording: masked as it is read, so that no table, page or report shows them."""

from __future__ import annotations

import polars as pl

from foretrace.ingest.columns import Columns
from foretrace.secret_formats import NEEDLES, without_known_secrets, without_known_secrets_in

_FEW_CHARACTERS = 2 << 20


def mask_secrets(columns: Columns) -> int:
    """Masks secrets that their form gives away, in each distinct text once; how many texts held one."""
    count = mask_texts(columns.names) + mask_texts(columns.texts)
    lanes = [(_lane(process), _lane(thread)) for process, thread in columns.lanes]
    header = without_known_secrets_in(columns.header)
    count += sum(before != after for before, after in zip(columns.lanes, lanes, strict=True))
    count += int(header != columns.header)
    columns.lanes, columns.header = lanes, header
    return count


def mask_texts(texts: list[str]) -> int:
    """Masks secrets in the list itself; how many texts held one."""
    # Most recordings hold none: one of these searches is all that they pay. The first loads nothing, the second is for many texts.
    if sum(map(len, texts)) < _FEW_CHARACTERS:
        together = "\n".join(texts).lower()
        if not any(needle.lower() in together for needle in NEEDLES):
            return 0
    suspected = pl.Series(texts, dtype=pl.String).str.contains_any(list(NEEDLES), ascii_case_insensitive=True)
    count = 0
    for at in suspected.arg_true().to_list():
        masked = without_known_secrets(texts[at])
        count += masked != texts[at]
        texts[at] = masked
    return count


def _lane(text: int | str) -> int | str:
    return without_known_secrets(text) if isinstance(text, str) else text
