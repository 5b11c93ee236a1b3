"""Where a step ends: each source, which one wins, and that torch is left as it was found."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from foretrace.capture.step_hooks import drop_own_frame
from foretrace.capture.steps import StepFinder

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")


class Watched(StepFinder):
    """A finder that counts."""

    def __init__(self, **options: Any) -> None:
        self.boundaries, self.sources = 0, list[str]()
        super().__init__(self._count, self.sources.append, **options)

    def _count(self) -> None:
        self.boundaries += 1


@pytest.fixture
def finder() -> Iterator[Watched]:
    made = Watched()
    made.install()
    yield made
    made.end()


def optimizer(kind: str = "SGD") -> Any:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.ones(1)
    return getattr(torch.optim, kind)([parameter], lr=0.1)


def loader() -> Any:
    return torch.utils.data.DataLoader(torch.arange(8.0), batch_size=1)


def test_an_optimizer_ends_the_step(finder: Watched) -> None:
    one = optimizer()
    for _ in range(5):
        one.step()
    assert finder.sources == ["optimizer.step() of SGD"]
    assert finder.boundaries == 4, "the second one decides, and is the first boundary"


def test_a_scheduler_and_a_closure_change_nothing(finder: Watched) -> None:
    one = optimizer("LBFGS")
    scheduler = torch.optim.lr_scheduler.StepLR(one, 1)
    for _ in range(4):
        one.step(lambda: torch.zeros(()))
        scheduler.step()
    assert (finder.sources, finder.boundaries) == (["optimizer.step() of LBFGS"], 3)


def test_of_two_optimizers_one_ends_the_step(finder: Watched) -> None:
    first, second = optimizer("SGD"), optimizer("Adam")
    for _ in range(6):
        first.step()
        second.step()
    assert finder.sources == ["optimizer.step() of SGD"]
    assert finder.boundaries == 5


def test_the_rarer_optimizer_is_the_step(finder: Watched) -> None:
    critic, generator = optimizer("SGD"), optimizer("Adam")
    for _ in range(6):
        for _ in range(5):
            critic.step()
        generator.step()
        time.sleep(0.01)
    assert finder.sources[-1] == "optimizer.step() of Adam"
    before = finder.boundaries
    for _ in range(5):
        critic.step()
    assert finder.boundaries == before
    generator.step()
    assert finder.boundaries == before + 1


def test_an_optimizer_that_took_over(finder: Watched) -> None:
    warm, later = optimizer("SGD"), optimizer("Adam")
    for _ in range(3):
        warm.step()
    for _ in range(100):
        later.step()
        time.sleep(0.001)
    assert finder.sources == ["optimizer.step() of SGD", "optimizer.step() of Adam"]


def test_accumulated_gradients_make_one_step(finder: Watched) -> None:
    one = optimizer()
    batches = iter(loader())
    for _ in range(2):
        for _ in range(4):
            next(batches)
        one.step()
    assert finder.sources == ["optimizer.step() of SGD"], "an optimizer exists: batches are not steps"


def test_batches_are_steps_without_an_optimizer(finder: Watched) -> None:
    list(loader())
    assert finder.sources == ["the next batch of a DataLoader"]
    assert finder.boundaries == 7, "eight batches and the end, from the third on"


def test_a_surer_source_takes_over_until_it_is_fixed(finder: Watched) -> None:
    batches = iter(loader())
    for _ in range(4):
        next(batches)
    one = optimizer()
    one.step()
    one.step()
    assert finder.sources[-1] == "optimizer.step() of SGD"
    finder.explicit()
    assert finder.sources[-1] == "foretrace.step()"
    finder.fix()
    before = finder.boundaries
    one.step()
    assert finder.boundaries == before
    finder.explicit()
    assert finder.boundaries == before + 1


def test_a_module_that_is_called_again_and_again(finder: Watched) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(128, 128) for _ in range(10)])
    until = time.monotonic() + 60
    with torch.no_grad():
        while not finder.sources and time.monotonic() < until:
            model(torch.ones(64, 128))
        before = finder.boundaries
        model(torch.ones(64, 128))
    assert finder.sources == ["calls of the outermost module Sequential"]
    assert finder.boundaries == before + 1, "once a call, whatever it calls itself"
    finder.end()
    assert "_compiled_call_impl" not in model.__dict__


def named_work() -> int:
    return 3


def test_a_named_function() -> None:
    made = Watched(step_function=f"{__name__}:named_work")
    made.install()
    try:
        until = time.monotonic() + 60
        while not made.sources and time.monotonic() < until:
            assert globals()["named_work"]() == 3
            time.sleep(0.01)
        assert made.sources == [f"calls of {__name__}:named_work"]
    finally:
        made.end()
    assert not hasattr(named_work, "__wrapped__"), "it is the program's own again"


def test_the_programs_profiler_is_seen_only_while_it_acts(finder: Watched) -> None:
    seen: list[bool] = []
    made_way: list[int] = []
    finder.hooks.on_foreign_profiler = lambda: made_way.append(1)
    schedule = torch.profiler.schedule(wait=2, warmup=1, active=1, repeat=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as prof:
        for _ in range(6):
            seen.append(finder.hooks.foreign_profiler())
            prof.step()
    assert seen == [False, False, True, True, False, False]
    assert made_way
    assert finder.sources == ["the program's own prof.step()"]
    assert not finder.hooks.foreign_profiler()


def test_torch_is_left_as_it_was() -> None:
    from torch.utils.data import dataloader

    def state() -> list[Any]:
        return [
            torch.optim.Optimizer.__init__,
            torch.optim.SGD.__dict__["step"],
            dataloader._BaseDataLoaderIter.__next__,
            torch.profiler.profile.__dict__["step"],
            torch.autograd.profiler.profile.__dict__["__enter__"],
        ]

    optimizer()  # torch itself wraps `step` when the first one is made
    before = state()
    made = Watched()
    made.install()
    optimizer().step()
    assert state() != before
    made.end()
    assert state() == before


def test_a_traceback_has_no_frame_of_ours() -> None:
    def fails() -> None:
        raise ValueError("here")

    def wrapper() -> None:
        try:
            fails()
        except ValueError as error:
            drop_own_frame(error)
            raise

    with pytest.raises(ValueError, match="here") as caught:
        wrapper()
    assert [each.name for each in traceback.extract_tb(caught.value.__traceback__)][-1] == "fails"
    assert "wrapper" not in [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
