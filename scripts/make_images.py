"""Writes docs/images/ from what the commands print: `foretrace demo` as an SVG, fonts left to the viewer.

python scripts/make_images.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS = 112
DARK = TerminalTheme(
    (22, 24, 29), (214, 218, 226), [(22, 24, 29), *[(214, 218, 226)] * 7], [(138, 143, 152)] * 8
)


def screen(*arguments: str) -> str:
    """What a command prints on a terminal with colours."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"), "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "COLORTERM": "truecolor",
    }  # fmt: skip
    command = [sys.executable, "-m", "foretrace", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def svg(text: str, title: str) -> str:
    """The text as a picture of a terminal, without links to fonts elsewhere."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text.from_ansi(text), end="")
    drawn = console.export_svg(title=title, theme=DARK, unique_id="foretrace")
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in drawn.replace("Fira Code", "monospace").splitlines()) + "\n"


def main() -> None:
    """Writes the pictures."""
    target = ROOT / "docs" / "images" / "demo.svg"
    target.parent.mkdir(parents=True, exist_ok=True)
    shown = re.sub(r"\n[^\n]*this recording:[^\n]*(\n\s+[^\n]*)?", "", screen("demo"))
    target.write_text(svg(shown, "foretrace demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
