"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretrace.whole_files import replace_text, replacing


@pytest.fixture
def mask() -> Iterator[int]:
    """The umask that takes writing from the group and everything from others."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(file: Path) -> int:
    return file.stat().st_mode & 0o777


def test_a_new_file_has_the_mode_that_open_would_give_it(tmp_path: Path, mask: int) -> None:
    opened, replaced = tmp_path / "opened", tmp_path / "replaced"
    opened.write_text("1")
    replace_text(replaced, "1")
    assert mode(replaced) == mode(opened) == 0o666 & ~mask


@pytest.mark.parametrize("before", [0o600, 0o664])
def test_a_file_keeps_its_mode_and_is_never_more_open(tmp_path: Path, mask: int, before: int) -> None:
    target = tmp_path / "file"
    target.write_text("before")
    target.chmod(before)
    with replacing(target) as partial:
        assert mode(partial) & ~before == 0
        partial.write_text("after")
        assert target.read_text() == "before"
    assert (target.read_text(), mode(target)) == ("after", before)
    assert list(tmp_path.iterdir()) == [target]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("before")

    def write_half() -> None:
        with replacing(target) as partial:
            partial.write_text("ha")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path: Path) -> None:
    target = tmp_path / ("n" * os.pathconf(tmp_path, "PC_NAME_MAX"))
    replace_text(target, "1")
    assert target.read_text() == "1"
