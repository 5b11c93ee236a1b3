"""The built page: three files that the install makes of web/, or what to say where it did not.

They are read from one folder by their names: no request names a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from foretrace.deflate import stream

HTML, SCRIPT, STYLE = "index.html", "app.js", "app.css"
_TYPES = {
    HTML: "text/html; charset=utf-8",
    SCRIPT: "text/javascript; charset=utf-8",
    STYLE: "text/css; charset=utf-8",
}

HOW_TO_GET_IT = (
    "this install has no page: it was built without npm, or with FORETRACE_SKIP_WEB set. "
    "With a connection to an npm registry, run `pip install --force-reinstall --no-deps .` in the source tree, "
    "or install a released wheel, which carries the page"
)

_WITHOUT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Foretrace: no page</title></head>
<body>
<h1>This install of Foretrace has no page</h1>
<p>It was built without npm, or with FORETRACE_SKIP_WEB set. To get the page, with a connection to an npm registry,
run this in the source tree and start <code>foretrace serve</code> again:</p>
<pre>pip install --force-reinstall --no-deps .</pre>
<p>Or install a released wheel, which carries the page. The command line has everything that the page shows:</p>
<pre>foretrace diagnose PATH
foretrace show --list</pre>
</body>
</html>
"""


@dataclass(frozen=True)
class StaticFile:
    """One file as it is sent."""

    compressed: bytes
    media_type: str
    status: int = 200


def built() -> bool:
    """Whether the page is there."""
    return all(_folder().joinpath(name).is_file() for name in _TYPES)


def text(name: str) -> str:
    """One file of the built page."""
    return _folder().joinpath(name).read_text(encoding="utf-8")


def load() -> dict[str, StaticFile]:
    """Every path that a file is served at."""
    if not built():
        return {"/": StaticFile(_gzip(_WITHOUT), _TYPES[HTML], 503)}
    files = {f"/{name}": StaticFile(_gzip(text(name)), kind) for name, kind in _TYPES.items()}
    return {"/": files.pop(f"/{HTML}"), **files}


def _folder() -> Traversable:
    return resources.files("foretrace") / "present" / "web" / "static"


@cache
def _gzip(content: str) -> bytes:
    return stream.compress(content.encode(), 3, wbits=31)
