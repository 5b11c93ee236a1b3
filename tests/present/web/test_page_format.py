"""The page shows a value with the same text as the terminal: both read web/test/format.json."""

from __future__ import annotations

import json
from pathlib import Path

from foretrace.units import format_value

CASES = Path(__file__).parents[3] / "web" / "test" / "format.json"


def test_the_page_and_the_terminal_write_values_alike() -> None:
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    assert len(cases) > 100
    wrong = [(name, value, text) for name, value, text in cases if format_value(name, value) != text]
    assert not wrong
