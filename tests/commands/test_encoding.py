"""What an encoding lacks is spelled with what it has."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from foretrace.commands import _encoding


def written(text: str, encoding: str) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    _encoding.spell_out(stream)
    stream.write(text)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", "12.5 us -> 3 us (x 4.2), f~g - * ##. ?"),
        ("latin-1", "12.5 µs -> 3 µs (× 4.2), f~g - · ##. ?"),
        ("utf-8", "12.5 µs → 3 µs (× 4.2), f…g – · █▌▏ 語"),
    ],
)
def test_only_what_is_lacking_is_spelled(encoding: str, expected: str) -> None:
    assert written("12.5 µs → 3 µs (× 4.2), f…g – · █▌▏ 語", encoding) == expected


def test_every_sign_that_the_terminal_draws_has_a_spelling() -> None:
    package = Path(_encoding.__file__).parents[1]
    files = [*(package / "present" / "text").glob("*.py"), package / "units.py"]
    signs = {sign for file in files for sign in re.findall(r"[^\x00-\x7f]", file.read_text("utf-8"))}
    assert signs <= set(_encoding.SPELLINGS)
    assert all(spelled.isascii() for spelled in _encoding.SPELLINGS.values())
    assert [sign for sign, spelled in _encoding.SPELLINGS.items() if len(spelled) > 1] == ["→"]
