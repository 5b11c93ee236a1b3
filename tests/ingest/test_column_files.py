"""Columns in files are those in memory, whatever becomes of the files."""

from __future__ import annotations

import errno
import tempfile
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from foretrace.ingest import column_files
from foretrace.ingest.column_files import ColumnStore, series
from foretrace.ingest.columns import NULL_I64, NULL_U32

pytestmark = [
    pytest.mark.fast,
    pytest.mark.skipif(find_spec("foretrace._scan") is None, reason="the native extension was not built"),
]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and blocks as of large recordings, in small ones."""
    monkeypatch.setattr(column_files, "LEAST_BYTES", 100)
    monkeypatch.setattr(column_files, "BLOCK_ROWS", 16)


def test_a_column_grows_and_is_read_back() -> None:
    store = ColumnStore()
    values = np.arange(1_000, dtype=np.int64) * 3
    column = store.column(np.int64)
    for begin in range(0, 1_000, 70):
        column.append(values[begin : begin + 70])
    assert len(column) == 1_000
    array = column.array()
    assert len(store.mapped) == 1
    assert array.tolist() == values.tolist()
    store.release()
    assert array.tolist() == values.tolist()
    rows = np.array([999, 0, 5, 5], np.uint32)
    assert store.gathered(array, rows).tolist() == [2997, 0, 15, 15]
    del array
    store.release()
    assert store.mapped == []


def test_a_small_column_stays_in_memory() -> None:
    store = ColumnStore()
    assert store.kept([], np.uint32).tolist() == []
    assert store.kept([np.array([1, 2], np.uint8)], np.uint32).dtype == np.uint32
    assert store.mapped == []


@pytest.mark.parametrize("room", [0, 1, 5])
def test_a_full_disk_leaves_columns_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int
) -> None:
    """A write fails after so many; half of what was to be written is there then."""
    left = [room]

    class Full(FileIO):
        def write(self, data: Any) -> int:
            if left[0] == 0:
                super().write(bytes(data)[: len(data) // 2])
                raise OSError(errno.ENOSPC, "no space left")
            left[0] -= 1
            return super().write(data) or 0

    def full(self: ColumnStore) -> FileIO | None:
        return None if self.folder is None else Full(self.folder / "column", "w+")

    monkeypatch.setattr(ColumnStore, "new_file", full)
    store = ColumnStore()
    store.folder = tmp_path
    column = store.column(np.uint32)
    for begin in range(0, 600, 30):
        column.append(np.arange(begin, begin + 30))
    assert column.array().tolist() == list(range(600))
    assert store.folder is None
    assert store.mapped == []


def test_no_folder_to_write_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    store = ColumnStore()
    assert store.folder == tmp_path
    store.folder = tmp_path / "absent"
    assert store.kept([np.arange(500)], np.int64).tolist() == list(range(500))
    folder: Path | None = store.folder  # changed by kept()
    assert (folder, store.mapped) == (None, [])

    def nowhere() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    assert ColumnStore().folder is None


@pytest.mark.parametrize(
    ("dtype", "null"), [(np.int64, NULL_I64), (np.uint32, NULL_U32), (np.int32, -(2**31))]
)
@pytest.mark.parametrize("count", [101, 128, 333])
def test_a_series_without_a_copy_has_the_same_nulls(dtype: Any, null: int, count: int) -> None:
    """Also at the edges of blocks, of bytes of bits, and at the end."""
    values = np.arange(count).astype(dtype)
    for place in (0, 7, 8, 15, 16, 17, count - 1):
        values[place] = null
    expected = [None if value == null else value for value in values.tolist()]
    made = series("x", values)
    assert (made.name, made.to_list()) == ("x", expected)
    assert made.null_count() == len({0, 7, 8, 15, 16, 17, count - 1})
    assert series("x", values, nulls=False).to_list() == values.tolist()
    assert made.dtype == pl.Series(values).dtype


def test_what_does_not_fit_together_is_refused() -> None:
    """The frame would read beyond the memory."""
    from foretrace._scan import ArrowColumn

    values = np.arange(20, dtype=np.int64)
    for arguments in (
        ("i8", values[:1].view(np.uint8)[:7], None, 0),
        ("i8", values, bytes(2), 1),
        ("i8", values, None, 1),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            ArrowColumn(*arguments)
    with pytest.raises(ValueError, match="no such type"):
        ArrowColumn("f4", values, None, 0)


def test_a_series_outlives_what_it_was_made_of() -> None:
    values = np.arange(5_000, dtype=np.int64)
    made = series("x", values, nulls=False)
    del values
    assert made.sum() == 5_000 * 4_999 // 2
    assert made.slice(10, 3).to_list() == [10, 11, 12]
