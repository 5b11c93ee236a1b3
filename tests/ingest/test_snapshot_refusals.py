"""Malicious and broken memory snapshots: refused in one line that says what and where, and nothing in them runs."""

from __future__ import annotations

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands import main
from foretrace.errors import FormatError, InputError
from foretrace.ingest import snapshot_native, snapshots
from foretrace.ingest.snapshots import read_snapshot
from foretrace.present.web.library import Library
from tests.ingest.snapshot_files import both_readers, event, known, says, written


class Runs:
    """Runs a command when it is unpickled by who allows it."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        import os

        return os.system, (f"touch {self.mark}",)


def claim(code: bytes, form: str) -> bytes:
    """An operation that claims ten billion bytes of what follows."""
    return b"\x80\x04" + code + struct.pack(form, 10**10 if form != "<i" else 2**31 - 1) + b"abc."


def refused() -> dict[str, tuple[bytes, str]]:
    """Files, and what is said of them; those that run something would leave a file MARK in the folder."""
    inside = {"segments": [], "device_traces": [[Runs("MARK")]]}
    nest = b"\x80\x04" + b"]\x94" * 500_000
    return {
        "os.system": (pickle.dumps(Runs("MARK"), 4), "byte 28: the operation STACK_GLOBAL"),
        "os.system, protocol 0": (pickle.dumps(inside, 0), "the operation GLOBAL is none of a snapshot; nothing was loaded"),
        "inside a history": (pickle.dumps(inside, 4), "the operation STACK_GLOBAL"),
        "reduce": (b"\x80\x02NNR.", "byte 4: the operation REDUCE"),
        "persistent id": (b"\x80\x02]Pabc\n.", "byte 3: the operation PERSID"),
        "binary persistent id": (b"\x80\x02]NQ.", "byte 4: the operation BINPERSID"),
        "extension": (b"\x80\x02]\x82\x01.", "byte 3: the operation EXT1"),
        "extension of 2": (b"\x80\x02]\x83\x01\x01.", "byte 3: the operation EXT2"),
        "extension of 4": (b"\x80\x02]\x84\x01\x01\x01\x01.", "byte 3: the operation EXT4"),
        "instance": (b"(lp0\n(iposix\nsystem\n.", "byte 6: the operation INST"),
        "object": (b"\x80\x02](o.", "byte 4: the operation OBJ"),
        "new object": (b"\x80\x02]N)\x81.", "byte 5: the operation NEWOBJ"),
        "new object with keywords": (b"\x80\x04]N)}\x92.", "byte 6: the operation NEWOBJ_EX"),
        "build": (b"\x80\x02}}b.", "byte 4: the operation BUILD"),
        "bytes": (claim(b"\x8e", "<Q"), "byte 2: the operation BINBYTES8"),
        "bytearray": (claim(b"\x96", "<Q"), "byte 2: the operation BYTEARRAY8"),
        "text of 10 GB": (claim(b"\x8d", "<Q"), "byte 2: a text claims 10000000000 bytes"),
        "text of 4 GB": (b"\x80\x02X\xff\xff\xff\xffabc", "byte 2: a text claims 4294967295 bytes"),
        "number of 2 GB": (claim(b"\x8b", "<i"), "byte 2: a number claims 2147483647 bytes"),
        "frame of 10 GB": (b"\x80\x04\x95" + struct.pack("<Q", 10**10) + b"].", "byte 2: a frame claims more bytes than there are"),
        "memo of 4 billion": (b"\x80\x02]r\xff\xff\xff\xff.", "byte 3: the memo's number 4294967295"),
        "memo that is not": (b"\x80\x02]h\x07.", "byte 3: the memo has no number 7"),
        "deep nesting": (nest, "it holds more values than a snapshot of this size"),
        "marks": (b"\x80\x02" + b"(" * 500_000, "it holds more values than a snapshot of this size"),
        "cycle": (b"\x80\x02]q\x00h\x00a.", "byte 7: it puts a value into itself"),
        "memo bomb": (bomb(), "it stands for more rows than a file of this size can hold"),
        "changed later": (b"\x80\x02]q\x00]q\x01h\x00ah\x00Na.", "byte 14: it adds to what is already complete"),
        "no stop": (pickle.dumps(known(), 4)[:-1], "the pickle breaks off"),
        "stack left": (b"\x80\x02]].", "byte 4: 2 values are left where one should be"),
        "no list": (b"\x80\x02}Na.", "byte 4: there is no list to add to"),
        "key without value": (b"\x80\x02}(Nu.", "byte 5: a key has no value"),
        "protocol 9": (b"\x80\x09].", "protocol 9 of pickle is not known"),
    }  # fmt: skip


def bomb() -> bytes:
    """One history of 1,000 events, named by 1,000 devices: a million rows from 70 kB."""
    trace = [event("alloc", 1) for _ in range(1000)]
    return pickle.dumps({"segments": [], "device_traces": [trace] * 1000}, 4)


REFUSED = refused()


@pytest.mark.slow
@both_readers
@pytest.mark.parametrize("case", REFUSED)
def test_a_malicious_file_is_refused(
    case: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, expected = REFUSED[case]
    assert expected in says(tmp_path, content, reader)
    assert [path.name for path in tmp_path.iterdir()] == ["memory.pickle"]  # nothing has run


THROUGH_COMMANDS = (
    "os.system",
    "os.system, protocol 0",
    "inside a history",
    "text of 10 GB",
    "memo bomb",
    "deep nesting",
)


@pytest.mark.parametrize("command", ["report -o page.html", "show kernels", "diagnose"])
@pytest.mark.parametrize("case", THROUGH_COMMANDS)
def test_commands_run_nothing_and_say_one_line(
    command: str,
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, REFUSED[case][0])
    assert main([*command.split(), str(path)]) == 3
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert told.out == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory.pickle"]


@pytest.mark.parametrize("case", THROUGH_COMMANDS)
def test_serve_runs_nothing_and_says_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    library = Library([written(tmp_path, REFUSED[case][0])], cache=False, settle_s=0)
    (run,) = library.runs()["runs"]
    with pytest.raises(InputError):
        library.resource(run["id"], "overview", {})
    (run,) = library.runs()["runs"]
    assert run["state"] == "failed"
    assert "memory.pickle" in run["says"]
    assert "\n" not in run["says"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory.pickle"]


def test_a_file_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb within a gzip: a thousand times its size."""
    monkeypatch.setattr(snapshots, "UNPACKED_AT_LEAST", 1 << 20)
    content = b"\x80\x04" + b"\x80\x04" * 10_000_000 + pickle.dumps(known(), 4)
    packed = gzip.compress(content, 1)
    assert "it unpacks to more than 100 times its size" in says(
        tmp_path, packed, "native" if not snapshot_native.missing else "python"
    )


def test_no_pickle_is_told(tmp_path: Path) -> None:
    for content in (b'{"traceEvents": []}', b"plain text", b"\x89PNG"):
        with pytest.raises(FormatError, match="no snapshot of torch's CUDA allocator, which is a pickle"):
            read_snapshot(written(tmp_path, content))
