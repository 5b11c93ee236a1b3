"""`foretrace --version`, as a line or as JSON."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from foretrace._version import __version__
from foretrace.commands import _output

SCHEMA = "foretrace.version/1"
_FORMS = ("table", "json")


def is_asked_for(arguments: Sequence[str]) -> bool:
    """Whether the arguments are --version, and a format for it at most."""
    rest = [word for word in arguments if word != "--version"]
    forms = [[], *(["--format", form] for form in _FORMS), *([f"--format={form}"] for form in _FORMS)]
    return "--version" in arguments and rest in forms


def show(*, as_json: bool) -> None:
    """Prints the version."""
    if not as_json:
        print(f"foretrace {__version__}")
        return
    import json

    document = {
        "schema": SCHEMA,
        "foretrace": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "machine": platform.machine(),
        "reader": "native" if find_spec("foretrace._scan") else "python",
    }
    _output.print_document(json.dumps(document, indent=1))
