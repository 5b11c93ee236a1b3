"""What readers declare of their formats, and where users see it."""

from __future__ import annotations

import json

import pytest

from foretrace import ingest
from foretrace.commands import main
from foretrace.ingest.formats import READ, Format


def test_every_reader_declares_what_it_reads() -> None:
    for reader in (*ingest.READERS, *ingest.OTHER_READERS):
        assert reader.FORMATS, reader.__name__
        for declared in reader.FORMATS:
            assert declared.read != "no"
            assert all((declared.name, declared.files, declared.made_by, declared.lacks)), declared.name


def test_each_is_listed_once() -> None:
    names = [each.name for each in ingest.formats()]
    assert len(names) == len(set(names))
    assert {each.read for each in ingest.formats()} <= READ.keys()


def test_an_unknown_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="read is one of all"):
        Format("x", "*.x", "y", "some", "much")


def test_the_command_prints_each_with_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["formats"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert main(["formats", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == [each.name for each in ingest.formats()]
    for row in rows:
        assert row["name"] in shown
        assert " ".join(row["lacks"].split()) in shown
