"""The Trigger: signals and files, and that the program's own handler keeps its signal."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest

from foretrace.capture import on_demand
from foretrace.capture.on_demand import Trigger


@pytest.fixture(autouse=True)
def look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "_LOOK_EVERY_S", 0.0)


def test_a_signal_fires_once_and_the_previous_handler_hears_it_too() -> None:
    heard: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR2, handler)
    try:
        trigger = Trigger()
        assert not trigger.fired()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert trigger.fired()
        assert not trigger.fired()
        assert heard == [signal.SIGUSR2]
        assert f"kill -USR2 {os.getpid()}" in trigger.says
        trigger.close()
        assert signal.getsignal(signal.SIGUSR2) is handler
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_handler_that_came_later_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    try:
        trigger = Trigger()
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        trigger.close()
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_file_fires_when_it_appears_and_whenever_it_is_touched(tmp_path: Path) -> None:
    file = tmp_path / "go"
    first, second = Trigger(file, by_signal=False), Trigger(file, by_signal=False)
    assert not first.fired()
    file.touch()
    assert first.fired()
    assert second.fired()  # another rank's look does not use it up
    assert not first.fired()
    os.utime(file, ns=(1, 1))
    assert first.fired()
    file.unlink()
    assert not first.fired()
    assert first.says == f"touch {file}"


def test_a_file_left_from_before_is_no_request(tmp_path: Path) -> None:
    file = tmp_path / "go"
    file.touch()
    assert not Trigger(file, by_signal=False).fired()


def test_in_another_thread_no_signal_can_be_had(tmp_path: Path) -> None:
    made: list[Trigger] = []
    before = signal.getsignal(signal.SIGUSR2)
    thread = threading.Thread(target=lambda: made.append(Trigger()))
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGUSR2) == before
    assert "nothing can begin it" in made[0].says
    made[0].close()
