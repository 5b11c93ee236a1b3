"""The user's lines that torch keeps in memory: planted operators, each on a line that says which operators it runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foretrace
from foretrace.capture import callers
from foretrace.diagnose.case import Case
from foretrace.trace import Trace
from tests.builders import Recording

# A comment names the operators of its line. `backward` runs what autograd made of a line: that is of the forward line.
PROGRAM = """\
import functools
import sys
import threading
import torch
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
weight = torch.ones(8, 8, requires_grad=True)


def plain(x):
    y = torch.sin(x)  # aten::sin aten::cos
    return y


def multi_line(x):
    return torch.atan2(
        x,
        torch.cosh(x),  # aten::cosh
    )


def several(x): a = x.tanh(); b = a.sigmoid(); return b  # aten::tanh aten::sigmoid


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.act = torch.nn.GELU()

    @property
    def scale(self):
        return torch.linspace(1.0, 2.0, 1)  # aten::linspace

    def forward(self, x):
        h = self.inner(x)  # aten::linear
        h = self.act(h)  # aten::gelu aten::gelu_backward
        for _ in range(2):
            h = h @ weight  # aten::matmul
            h = helper(h)
            h = h % 3.0  # aten::remainder
            h = helper(h)
        return h / self.scale  # aten::div

    def __getitem__(self, i):
        return torch.arange(i)  # aten::arange


def helper(x):
    with torch.no_grad():
        x.floor()  # aten::floor
    return x


def generator(x):
    for power in (1, 2):
        yield torch.expm1(x)  # aten::expm1
        yield torch.log1p(x)  # aten::log1p


def recursive(x, depth):
    if depth == 0:
        return torch.asinh(x)  # aten::asinh
    return recursive(x, depth - 1)


def decorator(function):
    @functools.wraps(function)
    def inner(*given):
        result = function(*given)
        return result.acosh()  # aten::acosh
    return inner


@decorator
def decorated(x):
    return x.ceil()  # aten::ceil


def in_thread(x):
    torch.erf(x)


def syntax(x):
    inverted = ~(x > 0)  # aten::bitwise_not aten::gt
    x = x.clone()  # aten::clone
    x[0] = 5.0
    row = x[1]  # aten::select
    x -= 1  # aten::sub_
    turned = x.T  # aten::numpy_T
    power = x ** 3  # aten::pow
    if (row < 0).any():  # aten::lt aten::any
        pass
    return float(power.sum())


negate = lambda x: x.neg()  # aten::neg
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(x):
    optimizer.zero_grad()
    plain(x)
    multi_line(x)
    several(x)
    out = model(x)
    loss = torch.nn.functional.smooth_l1_loss(out, x)  # aten::smooth_l1_loss aten::smooth_l1_loss_backward
    (loss + plain(weight).sum()).backward()
    optimizer.step()  # Optimizer.step#SGD.step
    model[4]
    for part in generator(x):
        part.trunc()  # aten::trunc
    recursive(x, 3)
    decorated(x)
    negate(x)
    [torch.round(item) for item in (x, x)]  # aten::round
    sum(torch.rsqrt(item).numel() for item in (x, x))  # aten::rsqrt
    sorted([2, 1], key=lambda each: torch.logit(x).numel())  # aten::logit
    try:
        raise ValueError
    except ValueError:
        torch.digamma(x)  # aten::digamma
    finally:
        torch.frac(x)  # aten::frac
    if (square := torch.hypot(x, x)) is not None:  # aten::hypot
        f"{torch.lgamma(square).numel()}"  # aten::lgamma
    syntax(x)
    thread = threading.Thread(target=in_thread, args=(x,))
    thread.start()
    thread.join()
    with torch.profiler.record_function("marked"):
        torch.i0(x)  # aten::i0


recording = None
for number in range(4):
    batch = torch.rand(8, 8)
    if number == 1:
        recording = profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True)
        recording.__enter__()
    step(batch)
    batch.sinh()  # aten::sinh
recording.__exit__(None, None, None)
recording.export_chrome_trace(sys.argv[1])
from pathlib import Path
from foretrace.capture import callers
note = callers.add_to(Path(sys.argv[1]), recording)
assert note is None, note
"""


@pytest.fixture(scope="module")
def planted_case(planted: Trace) -> Case:
    return Case(planted)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    folder = tmp_path_factory.mktemp("planted")
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py", "trace.json"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return foretrace.open(folder / "trace.json", cache=False)


EXPECTED = {
    name: number
    for number, line in enumerate(PROGRAM.splitlines(), 1)
    for name in re.findall(r"[\w#.]+(?:::\w+)?", line.partition("  # ")[2])
    if "::" in name or "#" in name
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_line_of_each_planted_operator(planted_case: Case, name: str) -> None:
    """Before and after recording began, in threads, on shared lines: the line that the comment stands on, or none."""
    every = planted_case.trace.spans
    spans = every.filter(every["name"].cast(str) == name)
    assert spans.height, "the program does not run it"
    (place, *more) = planted_case.places_of_calls(spans["id"].to_numpy().astype("int64"))
    assert not more
    assert (place.file, place.line) == ("program.py", EXPECTED[name]), place
    assert place.line_by == "caller"


def test_planted_lines_are_many() -> None:
    assert len(EXPECTED) >= 40


def test_backward_work_has_the_line_of_its_forward_operator(planted_case: Case) -> None:
    """`CosBackward` does not exist: the gradient of sin runs aten::cos, below `.backward()`; it is of the line of sin."""
    every = planted_case.trace.spans
    spans = every.filter(every["name"].cast(str) == "aten::cos")
    (place,) = planted_case.places_of_calls(spans["id"].to_numpy().astype("int64"))
    assert place.function == "plain"


def test_foreign_readers_find_the_recording_as_torch_wrote_it(planted: Trace) -> None:
    document = json.loads(planted.path.read_bytes())
    assert {"traceEvents", "baseTimeNanoseconds", callers.MEMBER} <= document.keys()


class _Event(SimpleNamespace):
    """The parts of one of torch's events that the recorder reads."""


def _event(kind: str, name: str, start: int, *children: _Event, **fields: Any) -> _Event:
    return _Event(
        tag=SimpleNamespace(name=kind), name=name, start_time_ns=start, duration_time_ns=10, children=children,
        extra_fields=SimpleNamespace(**fields),
    )  # fmt: skip


def _profiler(roots: Any) -> Any:
    results = SimpleNamespace(experimental_event_tree=lambda: roots)
    return SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))


def _at(file: str, function: str, line: int) -> SimpleNamespace:
    return SimpleNamespace(file_name=file, function_name=function, line_number=line)


def test_a_torch_without_the_tree_costs_a_note_and_nothing_else(tmp_path: Path) -> None:
    path = Recording().op("aten::mm", 1, 2).write(tmp_path)
    before = path.read_bytes()
    missing = SimpleNamespace(profiler=SimpleNamespace(kineto_results=object()))
    assert "lines of operators are not recorded" in str(callers.add_to(path, missing))
    other = _profiler([SimpleNamespace(tag=SimpleNamespace(name="PyCall"))])
    assert "lines of operators are not recorded" in str(callers.add_to(path, other))
    assert path.read_bytes() == before


def test_what_would_take_too_long_is_cut_with_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Recording().op("aten::mm", 1, 2).write(tmp_path)
    scope = SimpleNamespace(name="FUNCTION")
    call = _event(
        "PyCCall", "<built-in method mm>", 5,
        *(_event("TorchOp", "aten::mm", start, scope=scope) for start in range(1_000, 1_000 + 3 * 4096)),
        caller=_at("train.py", "main", 7),
    )  # fmt: skip
    monkeypatch.setattr(callers, "_MOST_ROWS", 100)
    assert "take too much room" in str(callers.add_to(path, _profiler([call])))
    rows = foretrace.open(path, cache=False)
    assert rows.ops.height == 1
    written = json.loads(path.read_bytes())[callers.MEMBER]
    assert 100 < len(written["start"]) <= 4096


@pytest.mark.parametrize(
    "member",
    [
        None, 7, {"version": 2}, {"version": 1},
        {"version": 1, "names": ["aten::mm"], "texts": ["a.py"], "places": [[0, 9, 1, None]], "start": [1000], "name": [0], "place": [0]},
        {"version": 1, "names": ["aten::mm"], "texts": ["a.py"], "places": [[0, 0, 1, None]], "start": [1000], "name": [4], "place": [0]},
        {"version": 1, "names": ["aten::mm"], "texts": ["a.py"], "places": [[0, 0, "x", None]], "start": [1000], "name": [0], "place": [0]},
    ],
)  # fmt: skip
def test_a_damaged_member_names_no_line(tmp_path: Path, member: Any) -> None:
    trace = Recording(foretraceCallers=member).op("aten::mm", 1, 2).open(tmp_path)
    assert trace.callers.is_empty()


def test_a_member_is_joined_by_start_and_name(tmp_path: Path) -> None:
    """Times are in nanoseconds since 1970: aten::mm began at 1 µs, aten::add at 3 µs, of which nothing is written."""
    member = {
        "version": 1, "names": ["aten::mm", "aten::sub"], "texts": ["train.py", "main"],
        "places": [[0, 1, 12, None], [0, 1, 3, 9]], "start": [1_000, 2_000], "name": [0, 1], "place": [0, 1],
    }  # fmt: skip
    recording = Recording(foretraceCallers=member).op("aten::mm", 1, 2).op("aten::add", 3, 4)
    trace = recording.open(tmp_path)
    assert trace.callers.select("file", "function", "line").rows() == [("train.py", "main", 12)]
    assert callers.MEMBER not in trace.meta["header"]
