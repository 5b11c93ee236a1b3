"""The ten questions of an agent: benchmarks/agent_questions.py answers them with the tools of `foretrace mcp` alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from foretrace.present.agent.answer import MOST_TOKENS
from tests.corpus import CORPUS, needs_corpus

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "agent_questions.py"
MOST_FOR_AN_ANSWER = 2_000  # tokens: no question needs a table of hundreds of rows


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("mcp", reason="the extra `foretrace[mcp]` is not installed")
    spec = importlib.util.spec_from_file_location("agent_questions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@needs_corpus
def test_all_ten_questions_are_answered_right(script: ModuleType) -> None:
    with script.agent_of(CORPUS) as agent:
        assert len(script.QUESTIONS) == 10
        for question in script.QUESTIONS:
            agent.calls = agent.tokens = 0
            known = question.find(agent)
            assert known.right, (question.asks, known)
            assert 0 < agent.tokens <= MOST_FOR_AN_ANSWER < MOST_TOKENS, question.asks
