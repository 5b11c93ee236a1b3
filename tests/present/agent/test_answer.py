"""Answers: trust first, harmless text, cut by rows at a number of tokens."""

from __future__ import annotations

import json

import pytest

from foretrace.present.agent.answer import Answer, Next, clean, shown
from foretrace.present.agent.tokens import token_count


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("word", 1), ("wordwordwo", 2), ("1234", 2), ('{"a":1}', 5), ("µ", 2), ("a b", 2)],
)
def test_tokens_are_counted_by_pieces(text: str, count: int) -> None:
    """Five letters, three digits, two signs or one byte beyond ASCII are a token at most."""
    assert token_count(text) == count


def test_an_answer_stays_within_its_tokens_and_says_what_it_cut() -> None:
    answer = Answer(
        trust="yes", says="many", columns=("name", "n"), rows=[[f"name {number}", number] for number in range(500)], more="ask less"
    )  # fmt: skip
    for most in (300, 1_000, 3_000):
        made = shown(answer, most_tokens=most)
        assert token_count(made.text) <= most
        lines = [json.loads(line) for line in made.text.splitlines()]
        assert lines[0] == {"trust": "yes"}
        assert lines[2] == {
            "shown": made.shown,
            "total": 500,
            "of": "rows",
            "cut": f"at {most:,} tokens",
            "more": "ask less",
        }
        assert lines[4:] == [[f"name {number}", number] for number in range(made.shown)]
        assert 0 < made.shown < 500


def test_facts_that_are_too_large_are_named_and_left_out() -> None:
    large = {f"field {number}": "x" * 500 for number in range(60)}
    made = shown(Answer(trust="yes", says="", facts={"large": large, "small": 1}), most_tokens=1_000)
    assert token_count(made.text) <= 1_000
    assert '{"left_out":["large"]}' in made.text
    assert '{"small":1}' in made.text


def test_an_answer_names_the_tool_or_the_command() -> None:
    answer = Answer(trust="yes", says="", next=Next("show(path)", "foretrace show"))
    assert json.loads(shown(answer).text.splitlines()[-1]) == {"next": "show(path)"}
    assert json.loads(shown(answer, commands=True).text.splitlines()[-1]) == {"next": "foretrace show"}


def test_values_are_made_harmless_and_short() -> None:
    assert clean("\x1b[31m\u202ered") == "\\x1b[31m\\u202ered"
    assert len(clean("x" * 100_000)) <= 120
    assert clean({"code": "a = 1\nb = 2\r"}) == {"code": "a = 1\nb = 2\\x0d"}
    assert clean([1.23456789, float("nan"), float("inf"), 0.0, 123456789.0]) == [
        1.2346,
        None,
        None,
        0,
        123460000,
    ]
    assert clean(list(range(100))) == [*range(10), "and 90 more"]
