"""The skill for agents on the command line: every command in it would run."""

from __future__ import annotations

import pytest

from foretrace.commands import main
from foretrace.commands.mcp import SKILL
from foretrace.present.agent.tokens import token_count
from tests import claims


def test_the_skill_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--skill"]) == 0
    assert capsys.readouterr().out == SKILL.read_text(encoding="utf-8")


def test_every_command_of_the_skill_would_run() -> None:
    text = SKILL.read_text(encoding="utf-8")
    lines = list(claims.command_lines(text))
    assert len(lines) > 10
    assert [f"{' '.join(line.words)}: {fault}" for line in lines if (fault := claims.fault(line))] == []


def test_the_skill_begins_as_agents_expect() -> None:
    """A name, and a description of less than 1,024 characters by which an agent decides to read on."""
    _, head, body = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    told = dict(line.split(": ", 1) for line in head.splitlines())
    assert told["name"] == "foretrace"
    assert 50 < len(told["description"]) < 1_024
    assert token_count(body) < 1_500
