"""Code in a terminal can be pasted as it stands, however narrow that is."""

from __future__ import annotations

import ast

import pytest

from foretrace.present.text.code_lines import code_lines
from foretrace.units import cells

LONG = (
    "y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True, scale=scale)"
)


def test_a_statement_stays_on_its_line() -> None:
    assert list(code_lines(LONG, 40)) == [LONG]


def test_a_comment_goes_above_its_line_and_is_broken() -> None:
    code = "model = torch.compile(model)   # the first steps take a minute or more\n"
    assert list(code_lines(code, 80)) == [code.rstrip("\n")]
    assert list(code_lines(code, 40)) == [
        "# the first steps take a minute or more",
        "model = torch.compile(model)",
    ]
    assert list(code_lines("    # one two three four five six", 26)) == [
        "    # one two three four",
        "    # five six",
    ]


def test_a_call_in_a_comment_stays_in_one_piece() -> None:
    code = '# in a model of transformers: from_pretrained(name, attn_implementation="sdpa") instead'
    assert list(code_lines(code, 30)) == [
        "# in a model of transformers:",
        '# from_pretrained(name, attn_implementation="sdpa")',
        "# instead",
    ]


@pytest.mark.parametrize(
    "code",
    [
        'path = "https://example.org/#anchor-of-a-page"  # not the comment inside of the text',
        'text = """\n# this is no comment, it is text that goes on for long\n"""  # but this one is, and it is long',
        "total = (  # a comment inside of brackets that is too long\n    1\n    + 2  # and another that is too long\n)",
        "if x:  # a condition with a comment that is too long\n    y = 1",
        "x = 1 + \\\n    2  # after a line that goes on, nothing may stand between",
        "for batch in loader:\n    loss = step(batch)   # no .item() here, or it waits for the GPU\n    losses.append(loss)",
    ],
)
@pytest.mark.parametrize("width", [24, 40, 120])
def test_it_means_the_same_and_keeps_every_word(code: str, width: int) -> None:
    shown = "\n".join(code_lines(code, width))
    assert ast.dump(ast.parse(shown)) == ast.dump(ast.parse(code))
    assert sorted(shown.replace("#", " ").split()) == sorted(code.replace("#", " ").split())


@pytest.mark.parametrize(
    "code", ["OMP_NUM_THREADS=4 torchrun --nproc-per-node 'a # b", "def f(:\n  # x", "", "  if a\n 'b"]
)
def test_what_is_no_python_is_shown_as_it_is(code: str) -> None:
    assert list(code_lines(code, 10)) == code.splitlines()


def test_comments_fit() -> None:
    lines = list(code_lines("# " + "word " * 50, 60))
    assert max(map(cells, lines)) <= 60
