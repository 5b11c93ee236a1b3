"""The cache: tables of recordings read before, as Arrow IPC files in the user's cache directory.

One folder per recording, named by its key; one file per table, and `entry.json`, which holds what is no
table, and the size and checksum of every file. A folder appears by a rename: it is complete or absent.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import polars as pl

from foretrace import schema
from foretrace._version import __version__
from foretrace.deflate import stream
from foretrace.errors import InputError, UsageError
from foretrace.secret_formats import without_known_secrets
from foretrace.trace import Repair, Trace
from foretrace.urls import RemotePath

DEFAULT_LIMIT_BYTES = 2 << 30
# Measured: below this the native reader needs less than 20 ms, an entry 6 ms to write and 6 ms to load.
MIN_SPANS = 2_000
STALE_S = 3600.0
UNKNOWN = "unknown"  # the key of what a server does not tell the version of: it is not kept

_WHOLE_BYTES, _END_BYTES, _SAMPLES, _SAMPLE_BYTES = 8 << 20, 1 << 20, 64, 16 << 10
_MANIFEST = "entry.json"
_KEY = re.compile(r"[0-9a-f]{32}")
_TEMPORARY = ".tmp-"
# How tables lie in files, for the key. Columns that rise with the rows are kept as differences to the row before, and ids of spans
# around others as differences to these: that takes a third of the room and two thirds of the time.
_LAYOUT = 3
_RISING = ("id", "span_id", "start_ns", "at_ns")
_AROUND = {"parent_id": "id", "caller_id": "span_id"}


class CacheWarning(UserWarning):
    """The cache could not be used; the recording itself was read."""


@dataclass(frozen=True)
class Entry:
    """One recording in the cache."""

    key: str
    source: str
    size_bytes: int
    used_at: float  # seconds since the epoch


class _DamagedError(Exception):
    """An entry is not what was stored; it never leaves this module."""


def directory() -> Path:
    """Where the cache lies, by the platform's convention or FORETRACE_CACHE; it may not exist yet."""
    if chosen := os.environ.get("FORETRACE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home() / "AppData/Local") / "foretrace" / "Cache"
    if sys.platform == "darwin":
        return _home() / "Library/Caches/foretrace"
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path in the variable is to be ignored.
    return (Path(configured) if os.path.isabs(configured) else _home() / ".cache") / "foretrace"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without an entry in the system's list, as in some containers
        return _temporary_home()


@functools.cache
def _temporary_home() -> Path:
    """A folder among temporary files that nobody else can write to; others may have made one of the usual name first."""
    if sys.platform == "win32":
        return Path(tempfile.gettempdir()) / "foretrace-user"
    home = Path(tempfile.gettempdir()) / f"foretrace-{os.getuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        found = home.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return home
    except OSError:
        pass  # a file or a link of that name: a new folder does
    private = Path(tempfile.mkdtemp(prefix="foretrace-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


def limit_bytes() -> int:
    """The size that the cache is kept under; 0 turns storing off."""
    text = os.environ.get("FORETRACE_CACHE_LIMIT", "")
    if not text:
        return DEFAULT_LIMIT_BYTES
    if not text.isdecimal():
        raise UsageError(f"FORETRACE_CACHE_LIMIT must be a number of bytes, not {text!r}")
    return int(text)


def key(path: Path) -> str:
    """The name of the entry for this file as it is now: by content, not by folder, and of a large file by its inode too.

    What lies at a URL is known by its ETag, or by its size and time where the server has none.
    """
    digest = hashlib.blake2b(f"{schema.SCHEMA_VERSION}\0{_LAYOUT}\0{__version__}\0".encode(), digest_size=16)
    # Readers take the rank from the file's name where the recording does not tell it.
    digest.update(os.fsencode(path.name) + b"\0")
    try:
        if isinstance(path, RemotePath):
            version = path.version()
            digest.update(f"{version}".encode())
            return UNKNOWN if version is None else digest.hexdigest()
        with path.open("rb", buffering=0) as file:
            facts = os.fstat(file.fileno())
            digest.update(f"{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
            if facts.st_size > _WHOLE_BYTES and sys.platform != "win32":
                # Of what is not read whole: nobody can write to a file, or put another in its place, and keep these.
                digest.update(f"{facts.st_ino}\0{facts.st_ctime_ns}\0".encode())
            for piece in _telling_parts(file, facts.st_size):
                digest.update(piece)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    return digest.hexdigest()


def _telling_parts(file: IO[bytes], size: int) -> Iterator[bytes]:
    """All of a small file; of a large one both ends and samples between them."""
    if size <= _WHOLE_BYTES:
        while piece := file.read(_END_BYTES):
            yield piece
        return
    yield file.read(_END_BYTES)
    span = size - 2 * _END_BYTES - _SAMPLE_BYTES
    for number in range(_SAMPLES):
        file.seek(_END_BYTES + span * number // (_SAMPLES - 1))
        yield file.read(_SAMPLE_BYTES)
    file.seek(size - _END_BYTES)
    yield file.read(_END_BYTES)


def load(key: str, path: Path, *, reread: Callable[[], Trace] | None = None) -> Trace | None:
    """The stored Trace, its tables loaded on first use, or None; `reread` steps in if a table is damaged."""
    if key == UNKNOWN:
        return None
    entry = directory() / key
    try:
        manifest = _manifest(entry)
        meta, form = manifest["meta"], manifest["format"]
        repairs = tuple(Repair(**each) for each in manifest["repairs"])
        files: dict[str, tuple[int, int]] = {name: (size, crc) for name, size, crc in manifest["files"]}
        _check_files(entry, files)
    except (_DamagedError, OSError):
        _remove(entry)
        return None
    _touch(entry)

    def table(name: str) -> pl.DataFrame:
        try:
            return _read_table(entry / f"{name}.arrow", name, *files[name])
        except (_DamagedError, OSError) as error:
            _remove(entry)
            if reread is None:
                raise InputError(f"{path}: its cache entry was damaged and is removed; try again") from error
            return reread().table(name)

    return Trace(path, form, meta, repairs, table)


def store(key: str, trace: Trace) -> None:
    """Keeps all tables of a trace under `key`; what stands in the way becomes a CacheWarning."""
    limit = limit_bytes()
    # What was fetched is kept however small it is.
    remote = isinstance(trace.path, RemotePath)
    small = trace.spans.height < MIN_SPANS and not remote
    broken_off = remote and any(repair.code == "broken-stream" for repair in trace.repairs)
    if limit == 0 or small or broken_off or key == UNKNOWN:
        return
    root = directory()
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (root / key).exists():
            return
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=root))
        try:
            _write(temporary, trace)
            _publish(temporary, root / key, limit)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _evict(root, limit, keep=key)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or root}"
        warnings.warn(f"not kept in the cache: {reason}", CacheWarning, stacklevel=2)


def entries() -> list[Entry]:
    """What the cache holds, last used first."""
    found = []
    for folder in _folders(directory()):
        try:
            source = str(_manifest(folder)["source"])
            used = (folder / _MANIFEST).stat().st_mtime
            found.append(Entry(folder.name, source, _size(folder), used))
        except (_DamagedError, OSError):
            continue  # being written or removed by another process, or damaged: `load` will remove it
    return sorted(found, key=lambda entry: entry.used_at, reverse=True)


def clear() -> tuple[int, int]:
    """Removes every entry; returns how many and how many bytes."""
    root = directory()
    folders = list(_folders(root))
    freed = sum(_size(folder) for folder in folders)
    for folder in folders:
        _remove(folder)
    _remove_temporary(root, older_than_s=0.0)
    left = [folder for folder in folders if folder.exists()]
    if left:
        raise InputError(f"{left[0]}: cannot be removed")
    return len(folders), freed


def _folders(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        return
    for folder in root.iterdir():
        if _KEY.fullmatch(folder.name) and folder.is_dir():
            yield folder


def _manifest(entry: Path) -> dict[str, Any]:
    try:
        checksum, manifest = json.loads((entry / _MANIFEST).read_text("utf-8"))
    except (ValueError, TypeError, RecursionError) as error:
        raise _DamagedError(entry.name) from error
    # What it holds goes into a Trace without another check.
    if checksum != _checksum(manifest):
        raise _DamagedError(entry.name)
    return cast("dict[str, Any]", manifest)


def _checksum(manifest: object) -> int:
    return stream.crc32(json.dumps(manifest).encode())


def _check_files(entry: Path, files: dict[str, tuple[int, int]]) -> None:
    if set(files) != set(schema.TABLES):
        raise _DamagedError(entry.name)
    for name, (size, _) in files.items():
        if (entry / f"{name}.arrow").stat().st_size != size:
            raise _DamagedError(name)


def _read_table(file: Path, name: str, size: int, crc: int) -> pl.DataFrame:
    data = file.read_bytes()
    # Checked before polars sees it: its reader may panic or return wrong values on damaged data.
    if len(data) != size or stream.crc32(data) != crc:
        raise _DamagedError(file.name)
    frame = pl.read_ipc(io.BytesIO(data))
    if frame.columns != list(schema.TABLES[name]):
        raise _DamagedError(file.name)
    return _unpacked(name, frame.rechunk())


def _write(folder: Path, trace: Trace) -> None:
    files = []
    for name in schema.TABLES:
        file = folder / f"{name}.arrow"
        _packed(name, trace.table(name)).sink_ipc(file, compression="zstd")
        data = file.read_bytes()
        files.append((name, len(data), stream.crc32(data)))
    manifest = {
        "source": without_known_secrets(str(trace.path)),
        "format": trace.format,
        "meta": dict(trace.meta),
        "repairs": [asdict(repair) for repair in trace.repairs],
        "files": files,
    }
    (folder / _MANIFEST).write_text(json.dumps([_checksum(manifest), manifest]), "utf-8")


def _packed(table: str, frame: pl.DataFrame) -> pl.LazyFrame:
    """The table as it lies in its file."""
    rising = (pl.col(name) - pl.col(name).shift(fill_value=0) for name in _rising(table))
    around = ((pl.col(row) - pl.col(name)).alias(name) for name, row in _around(table))
    return frame.lazy().with_columns(*rising, *around)


def _unpacked(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    """What `_packed` was made of; sums and differences wrap around alike."""
    frame = frame.with_columns(pl.col(name).cum_sum() for name in _rising(table))
    return frame.with_columns((pl.col(row) - pl.col(name)).alias(name) for name, row in _around(table))


def _rising(table: str) -> list[str]:
    return [name for name, column in schema.TABLES[table].items() if name in _RISING and not column.nullable]


def _around(table: str) -> list[tuple[str, str]]:
    columns = schema.TABLES[table]
    return [(name, row) for name, row in _AROUND.items() if name in columns and row in columns]


def _publish(temporary: Path, entry: Path, limit: int) -> None:
    if (size := _size(temporary)) > limit:
        raise OSError(None, f"{size:,} bytes exceed FORETRACE_CACHE_LIMIT ({limit:,})")
    try:
        temporary.rename(entry)
    except OSError:
        if not entry.exists():
            raise  # else another process stored the same recording first


def _evict(root: Path, limit: int, *, keep: str) -> None:
    """Removes the least recently used entries until the rest fits, and what killed processes left."""
    _remove_temporary(root, older_than_s=STALE_S)
    known = entries()
    total = sum(entry.size_bytes for entry in known)
    for entry in reversed(known):
        if total <= limit:
            return
        if entry.key != keep:
            _remove(root / entry.key)
            total -= entry.size_bytes


def _remove_temporary(root: Path, *, older_than_s: float) -> None:
    if not root.is_dir():
        return
    oldest = time.time() - older_than_s
    for folder in root.glob(f"{_TEMPORARY}*"):
        try:
            stale = folder.stat().st_mtime <= oldest
        except FileNotFoundError:
            continue
        if stale:
            shutil.rmtree(folder, ignore_errors=True)


def _remove(entry: Path) -> None:
    """Takes an entry away at once, by a rename, and then deletes its files."""
    doomed = entry.with_name(f"{_TEMPORARY}{os.getpid()}-{time.monotonic_ns()}-{entry.name}")
    try:
        entry.rename(doomed)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        warnings.warn(f"cannot remove {entry}: {error.strerror or error}", CacheWarning, stacklevel=2)
        return
    if doomed.is_dir():
        shutil.rmtree(doomed, ignore_errors=True)
    else:
        doomed.unlink(missing_ok=True)


def _touch(entry: Path) -> None:
    try:
        os.utime(entry / _MANIFEST)
    except OSError:
        return  # a read-only cache still serves; only its order of use is not kept


def _size(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        try:
            total += file.stat().st_size
        except FileNotFoundError:
            continue
    return total
