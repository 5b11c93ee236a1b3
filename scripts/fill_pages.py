"""Fills the first page and the tutorials with what commands print and with what stands on other pages.

A block that begins with `$ foretrace ...` holds what the command prints on a terminal of 88 columns; with `| sed -n 'A,Bp'`
behind it, only those lines, A and B a number or /words/. A part between `<!-- copied from PAGE: NAME -->` and `<!-- end of copy -->` holds what PAGE has between
`<!-- NAME -->` and `<!-- end of NAME -->`, or below the heading NAME. Between `<!-- measured: PROGRAM -->` and `<!-- end -->` is what was measured
without a profiler before and after the fix: docs/tutorials/recordings/PROGRAM.truth.json. The commands read recordings of this repository, so any machine prints the same.

python scripts/fill_pages.py [PAGE ...]           writes the pages
python scripts/fill_pages.py --check [PAGE ...]   exits with 1 and shows the difference if a page is not what they print
"""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

from foretrace import commands  # noqa: E402

COLUMNS = 88
PAGES = (ROOT / "docs" / "index.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
OUTPUT = re.compile(r"^```console\n\$ (?P<command>[^\n]*)\n(?P<shown>.*?)^```$", re.M | re.S)
COMMAND = re.compile(
    r"foretrace (?P<arguments>[^|]*?)(?: \| sed -n '(?P<first>\d+|/[^/]+/),(?P<last>\d+|/[^/]+/)p')?"
)
COPY = re.compile(
    r"(?P<begin><!-- copied from (?P<page>\S+): (?P<name>[\w -]+) -->\n).*?(?P<end><!-- end of copy -->)",
    re.S,
)
MEASURED = re.compile(r"(?P<begin><!-- measured: (?P<program>\S+) -->).*?(?P<end><!-- end -->)", re.S)
LINK = re.compile(r"(?<=\]\()(?!https?:|#)[^)\s]+(?=\))")


@contextlib.contextmanager
def terminal() -> Iterator[io.StringIO]:
    """The standard output as text, as on a terminal of `COLUMNS` columns without colour, in the repository's folder."""
    before, kept = Path.cwd(), dict(os.environ)
    os.chdir(ROOT)
    os.environ |= {"COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
    os.environ.pop("FORCE_COLOR", None)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()):
            yield printed
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(kept)


def selected(lines: list[str], first: str, last: str) -> list[str]:
    """The lines that `sed -n 'FIRST,LASTp'` prints the first time that FIRST is met."""

    def is_at(address: str, number: int) -> bool:
        if address.startswith("/"):
            return re.search(address[1:-1], lines[number]) is not None
        return number + 1 == int(address)

    numbers = range(len(lines))
    begin = next((number for number in numbers if is_at(first, number)), None)
    if begin is None:
        return []
    end = next((number for number in numbers[begin + 1 :] if is_at(last, number)), None)
    return [] if end is None else lines[begin : end + 1]


def output(command: str) -> str:
    """What `foretrace ...`, or `foretrace ... | sed -n 'A,Bp'`, prints."""
    match = COMMAND.fullmatch(command)
    if not match:
        raise SystemExit(f"a block with output runs foretrace, alone or with | sed -n 'A,Bp', not: {command}")
    with terminal() as printed:
        code = commands.main(shlex.split(match["arguments"]))
    if code:
        raise SystemExit(f"exit code {code}: {command}")
    lines = [line.rstrip() for line in printed.getvalue().rstrip("\n").splitlines()]
    if match["last"]:
        lines = selected(lines, match["first"], match["last"])
        if not lines:
            raise SystemExit(f"no such lines: {command}")
    return "".join(f"{line}\n" for line in lines)


def copied(page: Path, source: str, name: str) -> str:
    """A named part of another page, with its links as seen from `page`."""
    path = ROOT / source
    text = path.read_text(encoding="utf-8")
    between = rf"^<!-- {re.escape(name)} -->\n(.*?)^<!-- end of {re.escape(name)} -->"
    below = rf"^#+ {re.escape(name)}\n\n(.*?)\n(?=#|\Z)"
    found = re.search(between, text, re.M | re.S) or re.search(below, text, re.M | re.S)
    if not found:
        raise SystemExit(f"{page.name}: {source} has no part <!-- {name} --> and no heading {name}")

    def seen_from_page(link: re.Match[str]) -> str:
        return os.path.relpath(path.parent / link[0], page.parent)

    return LINK.sub(seen_from_page, found[1])


def measured(program: str) -> str:
    """How much faster the fixed program was, and its step before and after."""
    text = (ROOT / "docs" / "tutorials" / "recordings" / f"{program}.truth.json").read_text(encoding="utf-8")
    truth = json.loads(text)
    before, after = (f"{truth[side]['step_ms']:.3g} ms" for side in ("slow", "fixed"))
    return f"× {truth['speedup']:.2f}, from {before} to {after} a step"


def filled(page: Path) -> str:
    """The page as it should be."""
    text = COPY.sub(
        lambda part: part["begin"] + copied(page, part["page"], part["name"]) + part["end"],
        page.read_text(encoding="utf-8"),
    )
    text = MEASURED.sub(lambda part: part["begin"] + measured(part["program"]) + part["end"], text)
    return OUTPUT.sub(lambda block: f"```console\n$ {block['command']}\n{output(block['command'])}```", text)


def main(arguments: list[str]) -> int:
    """Writes or checks the pages; the exit code."""
    check = "--check" in arguments
    named = [Path(name).resolve() for name in arguments if name != "--check"]
    stale = 0
    for page in named or PAGES:
        is_now, should_be = page.read_text(encoding="utf-8"), filled(page)
        if is_now == should_be:
            continue
        stale = 1
        if check:
            name = page.name
            sys.stdout.writelines(
                difflib.unified_diff(
                    is_now.splitlines(keepends=True),
                    should_be.splitlines(keepends=True),
                    name,
                    f"{name}, filled",
                )
            )
            print(f"{name}: run python scripts/fill_pages.py")
        else:
            page.write_text(should_be, encoding="utf-8")
    return stale if check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
