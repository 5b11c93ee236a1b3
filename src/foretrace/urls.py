"""URLs as paths: what readers ask of a Path (is it a file, what is in it, its bytes) is asked of a server, through `remote`.

What a URL holds of credentials (who, before the host; its query, which may be signed) is kept in this process alone: the path
that stands for it has neither in its text.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import stat
from collections.abc import Generator, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from foretrace.errors import InputError, UsageError

if TYPE_CHECKING:
    from foretrace.remote.objects import Facts
    from foretrace.remote.streams import Stream

SCHEMES = ("s3", "gs", "https", "http", "memory")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_MAGIC = re.compile(r"[*?\[]")
# Parts of a query that say who may read, not what: another signature for one object is the same recording.
_SIGNED = re.compile(
    r"x-(?:amz|goog|ms)-.*|signature|sig|expires|key-pair-id|policy|awsaccesskeyid|googleaccessid|.*token|s[etpvr]|spr|sip|sk[a-z]+",
    re.IGNORECASE,
)
_users: dict[str, str] = {}  # by scheme and host
_queries: dict[str, str] = {}  # by what stands for it
_unasked: set[str] = (
    set()
)  # folders of files that were named with a query: it says nothing of what lies beside them

_LocalPath: Any = type(Path())


def is_url(text: object) -> bool:
    """Whether a text, or a path, is a URL."""
    return isinstance(text, RemotePath) or (isinstance(text, str) and bool(_URL.match(text)))


def named(path: str | os.PathLike[str]) -> Path:
    """The path that a user names, a file's or a URL's; what was known of URLs before is asked anew."""
    if is_url(path):
        from foretrace.remote import objects

        objects.forget()
    return located(path)


def located(path: str | os.PathLike[str]) -> Path:
    """The path that a text stands for, a file's or a URL's."""
    if isinstance(path, Path):
        return path
    text = os.fspath(path)
    if not is_url(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    scheme = {"gcs": "gs", "s3a": "s3"}.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        return Path(unquote(rest.removeprefix("localhost")))
    if scheme not in SCHEMES:
        raise UsageError(
            f"{scheme}:// is not read; URLs begin with {', '.join(f'{each}://' for each in SCHEMES)}"
        )
    return _remote(scheme, rest)


def here(path: str) -> Path:
    """A path to write to, or that is of this machine for another reason; raises UsageError for a URL."""
    if is_url(path):
        raise UsageError(f"{shown(path)}: this is written and read on this machine only, not at a URL")
    return Path(path)


def shown(path: str | os.PathLike[str]) -> str:
    """A path or URL as text without credentials."""
    return str(located(path))


def full(path: str | os.PathLike[str]) -> str:
    """The text that another process needs to read it: of a URL, with what it holds of credentials. Never shown, never kept."""
    place = located(path)
    return place.address if isinstance(place, RemotePath) else os.fspath(place)


def on_disk(path: Path) -> Path:
    """The path itself; of a URL a copy on this machine, which is removed when the process ends."""
    if not isinstance(path, RemotePath):
        return path
    from foretrace.remote import streams

    try:
        return streams.copy_of(path.address, str(path), path.name)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def look_ahead(files: Iterable[Path]) -> None:
    """Fetches how files by URL begin, many at a time: each would be waited for by itself otherwise."""
    urls = [file.address for file in files if isinstance(file, RemotePath)]
    if len(urls) > 1:
        from foretrace.remote import streams

        streams.look_ahead(urls)


def _remote(scheme: str, rest: str) -> RemotePath:
    web = scheme in ("http", "https")
    rest, _, query = rest.partition("#")[0].partition("?") if web else (rest, "", "")
    user, _, host = rest.partition("/")[0].rpartition("@")
    rest = rest[len(user) + 1 :] if user else rest
    if not host and scheme != "memory":
        raise UsageError(f"{scheme}://: no {'host' if web else 'bucket'} in this URL")
    if user and not web:
        raise UsageError(f"{scheme}://{host}: credentials come from the environment, not from a URL")
    if user:
        _users[f"{scheme}://{host}"] = user
    if "//" in rest.strip("/"):
        raise UsageError(f"{scheme}://{host}: a URL with // in its path is not read")
    path = RemotePath(f"{scheme}:", *filter(None, rest.split("/")))
    if query.startswith("…") and query[1:] in _queries:  # one that was shown
        path.query_mark = query[1:]
    elif query:
        path.query_mark = _mark(query)
        _unasked.add(str(path.parent))
    elif web:
        _unasked.discard(str(path.parent))
        if rest.endswith("/"):
            from foretrace.remote import objects

            objects.note_folder(path.address)
    return path


def _mark(query: str) -> str:
    """What stands for a query: some digits, as many as tell it from all others."""
    digits = hashlib.blake2b(query.encode()).hexdigest()
    mark = next(digits[:count] for count in range(6, 128) if _queries.get(digits[:count], query) == query)
    _queries[mark] = query
    return mark


class RemotePath(_LocalPath):  # type: ignore[misc]
    """A URL, asked as a Path is; nothing can be written to it."""

    query_mark = ""  # stands for the query of a URL that a user named

    @property
    def address(self) -> str:
        """The whole URL, with credentials."""
        scheme, host, *rest = self.parts if len(self.parts) > 1 else (*self.parts, "")
        user = _users.get(f"{scheme}//{host}")
        query = f"?{_queries[self.query_mark]}" if self.query_mark else ""
        return "/".join([f"{scheme}//{user}@{host}" if user else f"{scheme}//{host}", *rest]) + query

    @property
    def facts(self) -> Facts | None:
        """What is at this address; None where there is nothing."""
        return self._asked(whole=True)

    def version(self) -> str | None:
        """What changes where the content does, without credentials; None where the server does not tell."""
        found = self.facts
        if found is None or found.version is None:
            return None
        query = parse_qsl(_queries.get(self.query_mark, ""), keep_blank_values=True)
        meant = [part for part in query if not (found.tagged and _SIGNED.fullmatch(part[0]))]
        told = "\0".join([self._text(), repr(meant), str(found.size), found.version])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def _text(self) -> str:
        parts = self.parts
        if parts and parts[0].endswith(":"):
            return f"{parts[0]}//{'/'.join(parts[1:])}"
        return "/".join(parts) or "."

    def __str__(self) -> str:
        return f"{self._text()}?…{self.query_mark}" if self.query_mark else self._text()

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return located, (self.address,)

    @property
    def parent(self) -> RemotePath:
        """The folder; of a host or bucket itself: above it is another's."""
        least = 1 if self.parts[:1] == ("memory:",) else 2
        return RemotePath(*self.parts[: max(len(self.parts) - 1, least)])

    def as_posix(self) -> str:
        """The URL."""
        return str(self)

    def as_uri(self) -> str:
        """The URL."""
        return str(self)

    def is_absolute(self) -> bool:
        """Whether it is a URL, and not the end of one."""
        return bool(self.parts) and self.parts[0].endswith(":")

    def absolute(self) -> RemotePath:
        """Itself."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        """Itself: a URL has no links to follow."""
        return self

    def expanduser(self) -> RemotePath:
        """Itself."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Kind, size and time; the inode changes with the content. Raises OSError where there is nothing."""
        found = self.facts
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is nothing at this address", str(self))
        mode = stat.S_IFDIR | 0o555 if found.is_folder else stat.S_IFREG | 0o444
        mark = int.from_bytes(hashlib.blake2b((found.version or "").encode(), digest_size=7).digest(), "big")
        modified_ns = found.modified_ns or (0 if found.version is None else mark)
        seconds = modified_ns // 10**9
        times: dict[str, float] = {f"st_{name}time_ns": modified_ns for name in "amc"}
        times |= {f"st_{name}time": modified_ns / 1e9 for name in "amc"}
        facts = (mode, mark, 0, 1, 0, 0, found.size or 0, seconds, seconds, seconds)
        return os.stat_result(facts, times)

    def _asked(self, *, whole: bool) -> Facts | None:
        from foretrace.remote import objects

        if not self.is_absolute():  # a path of this machine, put behind a URL
            return None
        if not self.query_mark and str(self.parent) in _unasked:
            return None
        return objects.facts(self.address, whole=whole)

    def _kind(self) -> str | None:
        try:
            found = self._asked(whole=False)
        except (FileNotFoundError, PermissionError):
            return None  # a store that may not be listed says so of what is not there, too
        except OSError as error:
            raise InputError(f"{self}: {error.strerror or error}") from None
        return None if found is None else "folder" if found.is_folder else "file"

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether anything is there."""
        return self._kind() is not None

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether a file is there."""
        return self._kind() == "file"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether a folder is there."""
        return self._kind() == "folder"

    def is_symlink(self) -> bool:
        """Never."""
        return False

    def open(self, mode: str = "r", *args: Any, **options: Any) -> Any:
        """The bytes, or with mode "r" the text; nothing can be written."""
        from foretrace.remote import streams

        if set(mode) & set("wxa+"):
            raise UsageError(f"{self}: nothing is written to a URL")
        stream: Stream = streams.open_stream(self.address, str(self))
        return (
            stream
            if "b" in mode
            else io.TextIOWrapper(io.BufferedReader(stream), options.get("encoding") or "utf-8")
        )

    def read_bytes(self) -> bytes:
        """All of it."""
        with self.open("rb") as stream:
            return bytes(stream.read())

    def read_text(
        self, encoding: str | None = None, errors: str | None = None, newline: str | None = None
    ) -> str:
        """All of it, as text."""
        return self.read_bytes().decode(encoding or "utf-8", errors or "strict")

    def iterdir(self) -> Generator[RemotePath, None, None]:
        """What lies in the folder; nothing where that may not be listed."""
        if self.query_mark or str(self) in _unasked:
            return
        try:
            yield from self._below(deep=False)
        except (FileNotFoundError, PermissionError, NotADirectoryError):
            return

    def glob(self, pattern: str, **options: Any) -> Generator[RemotePath, None, None]:
        """What lies below and fits a pattern."""
        wanted = pattern.split("/")
        for path in self._below(deep=len(wanted) > 1):
            parts = path.parts[len(self.parts) :]
            if _fits(parts, wanted):
                yield path

    def rglob(self, pattern: str, **options: Any) -> Generator[RemotePath, None, None]:
        """What lies below at any depth and fits a pattern."""
        yield from (path for path in self._below(deep=True) if _fits(path.parts[-1:], (pattern,)))

    def _below(self, *, deep: bool) -> Generator[RemotePath, None, None]:
        from foretrace.remote import objects

        yield from (self / name for name in sorted(objects.below(self.address, deep=deep)))


def _fits(parts: tuple[str, ...], wanted: Iterable[str]) -> bool:
    """Whether names fit a pattern, part by part; ** is any number of parts."""
    first, *rest = [*wanted] or [""]
    if not first:
        return not parts
    if first == "**":
        return any(_fits(parts[count:], rest) for count in range(len(parts) + 1)) if rest else True
    return bool(parts) and fnmatchcase(parts[0], first) and _fits(parts[1:], rest)


def walked(folder: Path) -> Iterator[Path]:
    """Every file below a folder, without hidden ones: a folder's own by name, before those of folders in it."""
    if isinstance(folder, RemotePath):
        files = [file for file in folder.rglob("*") if file.is_file()]
        inside = {file: file.parts[len(folder.parts) :] for file in files}
        seen = [file for file in files if not any(part.startswith(".") for part in inside[file])]
        yield from sorted(seen, key=lambda file: [*((1, part) for part in inside[file][:-1]), (0, file.name)])
        return
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith("."))


def matching(pattern: RemotePath) -> list[RemotePath]:
    """The files and folders that a pattern means, by name."""
    parts = pattern.parts
    first = next((place for place, part in enumerate(parts) if _MAGIC.search(part)), None)
    if first is None or first < (1 if parts[0] == "memory:" else 2):
        return []
    root = RemotePath(*parts[:first])
    return sorted(root.glob("/".join(parts[first:])), key=str)
