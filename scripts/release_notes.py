"""Prints the release notes of a tag: what CHANGELOG.md says of that version.

    python3 scripts/release_notes.py v0.1.0

Fails where the tag is not the version of the package, or where the changelog does not date that version: then nothing may
be published. Needs the standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r'^__version__ = "(?P<version>[^"]+)"$', re.MULTILINE)
_SECTION = r"^## {} \((?P<when>[^)]*)\)\n(?P<text>.*?)(?=^## |\Z)"


def notes(tag: str, *, source: str, changelog: str) -> str:
    """The part of the changelog that is about the tag; source is the text of _version.py."""
    found = _VERSION.search(source)
    if found is None:
        raise SystemExit("release_notes: src/foretrace/_version.py names no version")
    version = found["version"]
    if tag != f"v{version}":
        raise SystemExit(f"release_notes: the tag is {tag}, but the package is {version}")
    section = re.search(_SECTION.format(re.escape(version)), changelog, re.MULTILINE | re.DOTALL)
    if section is None or not section["text"].strip():
        raise SystemExit(f"release_notes: CHANGELOG.md says nothing of {version}")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", section["when"]):
        raise SystemExit(
            f"release_notes: CHANGELOG.md calls {version} {section['when']}; write the day there"
        )
    return section["text"].strip() + "\n"


def main() -> None:
    """Prints them."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: release_notes.py TAG")
    source = (ROOT / "src" / "foretrace" / "_version.py").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sys.stdout.write(notes(sys.argv[1], source=source, changelog=changelog))


if __name__ == "__main__":
    main()
