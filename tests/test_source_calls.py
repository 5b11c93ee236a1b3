"""Which lines of a function may have run an operator, from source that is written here."""

from __future__ import annotations

import pytest

from foretrace.source_calls import Function, function_at, functions_of

SOURCE = """\
def straight(x, y):
    a = f(x)
    b = a * y
    c = g(b)
    return c * y


def turns(xs, y):
    for x in xs:
        a = f(x)
        b = a * y
        c = g(b)
        d = c * y
    return d


def sometimes(xs, y):
    for x in xs:
        if x:
            a = f(x)
        b = a * y
        if y:
            c = g(b)
        d = c * y


def one(x):
    return [item * 2 for item in x.T]
"""


def _function(name: str) -> Function:
    (function,) = (function for function in functions_of(SOURCE) if function.name == name)
    return function


@pytest.mark.parametrize(
    ("name", "before", "after", "lines"),
    [
        ("straight", 2, 4, (3,)),
        ("straight", 4, None, (5,)),
        ("straight", None, 2, (3, 5)),  # neither is before the first call: proves nothing
        ("turns", 10, 12, (11,)),
        ("turns", 12, 10, (13,)),  # of the next turn
        ("turns", 10, 10, (11, 13)),  # a whole turn lies between
        ("turns", 12, None, (11, 13)),  # the loop may have gone on
        ("sometimes", 20, 23, (21, 24)),  # either call may have been left out for a turn
    ],
)
def test_between_two_calls(name: str, before: int | None, after: int | None, lines: tuple[int, ...]) -> None:
    function = _function(name)
    assert function.between(function.lines_of("aten::mul"), before, after) == lines


def test_what_has_another_name_in_the_source() -> None:
    assert _function("one").lines_of("aten::numpy_T") == (28,)
    assert _function("<listcomp>").lines_of("aten::mul") == (28,)
    assert _function("turns").lines_of("__next__") == (9,)
    assert _function("turns").lines_of("aten::mm") == ()


def test_a_function_is_found_by_its_first_line_or_by_one_within_it() -> None:
    functions = functions_of(SOURCE)
    assert function_at(functions, "turns", 8, begins=True) == _function("turns")
    assert function_at(functions, "turns", 12, begins=True) is None
    assert function_at(functions, "turns", 12, begins=False) == _function("turns")
    assert function_at(functions, "turns", 3, begins=False) is None


def test_what_is_no_python_has_no_functions() -> None:
    assert functions_of("def broken(:\n") == ()
    assert functions_of(b"\x00") == ()
