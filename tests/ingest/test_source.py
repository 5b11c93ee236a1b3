"""Whatever a recording is packed in, and whatever its name says, its tables are the same."""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

import foretrace
from foretrace import zstd
from foretrace.errors import InputError
from foretrace.ingest.source import open_source
from tests.ingest import samples
from tests.ingest.comparison import READERS, assert_same_tables, assert_same_trace, assert_says_which_file

HALF = len(samples.KINETO) // 2


def zipped(*names: str, data: bytes = samples.KINETO) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, data)
    return packed.getvalue()


def with_checksum(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def in_two(pack: Callable[[bytes], bytes]) -> bytes:
    return pack(samples.KINETO[:HALF]) + pack(samples.KINETO[HALF:])


PACKED = {
    "gzip": (gzip.compress(samples.KINETO), "gzip"),
    "gzip, two members": (in_two(gzip.compress), "gzip"),
    "gzip, an empty member": (gzip.compress(b"") + gzip.compress(samples.KINETO), "gzip"),
    "gzip, zeros behind": (gzip.compress(samples.KINETO) + bytes(1000), "gzip"),
    "zstd": (with_checksum(samples.KINETO), "zstd"),
    "zstd, two frames": (in_two(zstd.compress), "zstd"),
    "zip": (zipped("trace.json"), "zip"),
    "zip, in a folder": (zipped("run/", "run/trace.json"), "zip"),
    "plain": (samples.KINETO, None),
    "plain, byte order mark": (b"\xef\xbb\xbf" + samples.KINETO, None),
    "plain, white space": (b"\n \t\r\n" + samples.KINETO + b"\n\n", None),
}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "plain" / "trace.json"
    path.parent.mkdir()
    path.write_bytes(samples.KINETO)
    return path


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("packed", PACKED)
def test_same_tables(packed: str, reader: str, plain: Path, tmp_path: Path) -> None:
    data, compression = PACKED[packed]
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    trace = foretrace.open(path, reader=reader)
    assert_same_trace(trace, foretrace.open(plain, reader=reader))
    assert trace.meta["compression"] == compression
    assert trace.meta["file_bytes"] == len(data)


@pytest.mark.parametrize("name", ["trace.json.gz", "trace.zst", "trace"])
@pytest.mark.parametrize("packed", ["gzip", "zstd", "zip", "plain"])
def test_the_name_does_not_matter(packed: str, name: str, tmp_path: Path) -> None:
    data, compression = PACKED[packed]
    (tmp_path / name).write_bytes(data)
    trace = foretrace.open(tmp_path / name)
    assert trace.spans.height > 0
    assert trace.meta["compression"] == compression


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("garbage", [b"trailing", b"\0\0x", b"\x1f", b"\x1f\x8b\x08broken"])
def test_garbage_behind_gzip(garbage: bytes, reader: str, plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(samples.KINETO) + garbage)
    trace = foretrace.open(path, reader=reader)
    assert_same_tables(trace, foretrace.open(plain, reader=reader))
    (repair,) = trace.repairs
    assert (repair.code, repair.offset) == ("broken-stream", len(samples.KINETO))


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("packed", ["gzip", "gzip, two members", "zstd", "zip"])
def test_a_flipped_byte(packed: str, reader: str, plain: Path, tmp_path: Path) -> None:
    data = bytearray(PACKED[packed][0])
    path = tmp_path / "trace.json"
    expected = foretrace.open(plain, reader=reader)
    for at in range(4, len(data), 53):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        try:
            trace = foretrace.open(path, reader=reader)
        except InputError as error:
            assert_says_which_file(error, "trace.json")
        else:
            if not trace.repairs:  # the flip was where nothing is kept, such as a time stamp
                assert_same_tables(trace, expected)


@pytest.mark.parametrize("packed", ["gzip", "zstd"])
def test_a_stream_that_ends_early_says_so(packed: str, tmp_path: Path) -> None:
    """Only the checksum's last byte is missing: everything was read, and the file is not whole all the same."""
    path = tmp_path / "trace.json"
    path.write_bytes(PACKED[packed][0][:-1])
    (repair,) = foretrace.open(path, cache=False).repairs
    assert (repair.code, repair.offset) == ("broken-stream", len(samples.KINETO))


def test_several_files_in_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "both.zip"
    path.write_bytes(zipped("rank0.json", "rank1.json"))
    with pytest.raises(InputError, match=r"both\.zip: the zip holds 2 files \(rank0\.json, rank1\.json\)"):
        foretrace.open(path)


def test_no_file_in_a_zip(tmp_path: Path) -> None:
    path = tmp_path / "none.zip"
    path.write_bytes(zipped("folder/"))
    with pytest.raises(InputError, match="holds 0 files"):
        foretrace.open(path)


def test_an_encrypted_zip(tmp_path: Path) -> None:
    data = bytearray(zipped("trace.json"))
    data[6] |= 1  # the flag of the local header, then that of the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path = tmp_path / "secret.zip"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"secret\.zip.*encrypted"):
        foretrace.open(path)


@pytest.mark.parametrize("packed", ["gzip", "zstd", "zip"])
@pytest.mark.parametrize("length", [4, 6, 12, 20])
def test_broken_at_the_beginning(packed: str, length: int, tmp_path: Path) -> None:
    path = tmp_path / "short.bin"
    path.write_bytes(PACKED[packed][0][:length])
    with pytest.raises(InputError, match=r"short\.bin"):
        foretrace.open(path)


@pytest.mark.parametrize(
    "data", [gzip.compress(b""), zstd.compress(b""), zipped("a", data=b"")], ids=["gzip", "zstd", "zip"]
)
def test_packed_nothing(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match="holds no data"):
        foretrace.open(path)


@pytest.mark.slow
def test_a_reader_that_stops_early_leaves_no_thread(tmp_path: Path) -> None:
    import threading

    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(samples.KINETO + b" " * (32 << 20)))
    chunks = open_source(path).chunks()
    assert isinstance(chunks, Generator)
    next(chunks)
    chunks.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "foretrace-inflate"]


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(samples.KINETO + b" " * (12 << 20)))
    seen: list[tuple[int, int]] = []
    foretrace.open(path, cache=False, progress=lambda done, size: seen.append((done, size)))
    assert seen == sorted(seen)
    assert seen[-1] == (path.stat().st_size, path.stat().st_size)
