"""Objects: what is at an address and below it, without reading it."""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from foretrace.remote.failures import asking
from foretrace.remote.systems import plain, scheme_of, system_of

_FRESH_S = 10.0  # what was told of an address this long ago is asked again
_MOST_PAGES, _DEEPEST = 1_000, 16  # of a folder that is listed by a web server's pages


@dataclass(frozen=True)
class Facts:
    """What is known of an address without reading it."""

    is_folder: bool
    size: int | None = None  # None where the server does not tell
    version: str | None = (
        None  # changes with the content: ETag, else size and time; None where neither is told
    )
    modified_ns: int = 0
    tagged: bool = False  # the version is an ETag: of another content another one, whatever its time
    whole: bool = True  # False of what a page of links names


_known: dict[str, tuple[float, Facts | None]] = {}
_listed: dict[tuple[str, bool], tuple[float, dict[str, Facts]]] = {}
_folders: set[str] = set()  # web addresses that were named or linked with a slash at their end


def forget() -> None:
    """What was told of addresses is asked again."""
    _known.clear()
    _listed.clear()


def note_folder(url: str) -> None:
    """A web address is that of a folder: its name ends in a slash."""
    _folders.add(url.rstrip("/"))


def facts(url: str, *, whole: bool = True) -> Facts | None:
    """What is at an address; None where there is nothing. Raises OSError where it cannot be told."""
    told = _known.get(url)
    if told is not None and time.monotonic() - told[0] < _FRESH_S:
        if isinstance(told[1], Facts) and whole and not told[1].whole:
            return asked(url)
        return told[1]
    return asked(url)


def below(url: str, *, deep: bool) -> dict[str, Facts]:
    """What lies in a folder, by its name there; `deep`: and in folders of it, folders themselves too."""
    told = _listed.get((url, deep))
    if told is not None and time.monotonic() - told[0] < _FRESH_S:
        return told[1]
    found = _linked(url, deep=deep) if scheme_of(url) in ("http", "https") else _stored(url, deep=deep)
    now = time.monotonic()
    _listed[url, deep] = (now, found)
    _known.update({f"{url.rstrip('/')}/{name}": (now, each) for name, each in found.items()})
    return found


def _stored(url: str, *, deep: bool) -> dict[str, Facts]:
    """What a store lists; it has no folders of its own: they are beginnings of names."""
    with asking():
        system, root = system_of(url), plain(url)
        infos = system.find(root, detail=True).values() if deep else system.ls(root, detail=True)
    found: dict[str, Facts] = {}
    for info in infos:
        name = str(info["name"])
        inside = name.strip("/").removeprefix(root.strip("/")).strip("/")
        if not inside:
            continue
        found[inside] = _facts_of(info)
        parts = inside.split("/")
        for count in range(1, len(parts)):
            found.setdefault("/".join(parts[:count]), Facts(is_folder=True))
    return found


def asked(url: str) -> Facts | None:
    found = _web_facts(url) if scheme_of(url) in ("http", "https") else _store_facts(url)
    _known[url] = (time.monotonic(), found)
    return found


def _store_facts(url: str) -> Facts | None:
    try:
        with asking():
            return _facts_of(system_of(url).info(plain(url)))
    except FileNotFoundError as error:
        if "bucket" in (error.strerror or ""):
            raise
        return None


def _web_facts(url: str) -> Facts | None:
    if url.rstrip("/") in _folders:
        return Facts(is_folder=True)
    try:
        with asking():
            info = system_of(url).info(url)
    except FileNotFoundError:
        return None
    led_to = urlsplit(str(info.get("url") or url)).path
    if led_to.endswith("/") and info.get("mimetype") == "text/html" and not urlsplit(url).query:
        note_folder(url)
        return Facts(is_folder=True)
    return _facts_of(info)


def _facts_of(info: dict[str, Any]) -> Facts:
    if info.get("type") == "directory":
        return Facts(is_folder=True)
    size = info.get("size")
    tag = info.get("ETag") or info.get("etag") or info.get("md5Hash")
    when = next(
        (
            info[key]
            for key in ("LastModified", "Last-Modified", "updated", "mtime", "created")
            if info.get(key)
        ),
        None,
    )
    modified_ns = _nanoseconds(when)
    version = f"etag {tag}" if tag else f"{size} {modified_ns}" if modified_ns and size is not None else None
    return Facts(False, size, version, modified_ns, tagged=bool(tag))


def _nanoseconds(when: Any) -> int:
    if isinstance(when, str):
        try:
            when = datetime.fromisoformat(when) if "T" in when[:11] else parsedate_to_datetime(when)
        except ValueError:
            return 0
    return round(when.timestamp() * 1e6) * 1_000 if isinstance(when, datetime) else 0


def _linked(url: str, *, deep: bool) -> dict[str, Facts]:
    """What the pages of a web server link to, below an address."""
    root = url.rstrip("/")
    found: dict[str, Facts] = {}
    waiting, pages = [""], 0
    while waiting:
        folder = waiting.pop()
        pages += 1
        if pages > _MOST_PAGES:
            raise OSError(
                errno.EIO, f"more than {_MOST_PAGES:,} folders, listed by a web server; name a folder in it"
            )
        page = f"{root}/{folder}"
        with asking():
            links = system_of(url).ls(page, detail=False)
        for link in links:
            name = str(link).removeprefix(root).lstrip("/")
            inside = name.removeprefix(folder)
            if not str(link).startswith(f"{root}/") or not name.startswith(folder) or not inside.strip("/"):
                continue
            if any(mark in inside for mark in "?#") or ".." in name.split("/") or "/" in inside.strip("/"):
                continue  # ways to sort the page, and ways out of the folder
            found[name.rstrip("/")] = Facts(inside.endswith("/"), whole=inside.endswith("/"))
            if inside.endswith("/"):
                note_folder(f"{root}/{name}")
                if deep and name.count("/") < _DEEPEST:
                    waiting.append(name)
    return found
