"""The Session: what `foretrace run` set up in this process. It joins the StepFinder with a Recorder."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretrace.capture import api, environment, known_secrets, line_files, loader_waits
from foretrace.capture.memory_pass import SetUpStacks
from foretrace.capture.on_demand import Trigger
from foretrace.capture.options import VARIABLE, CaptureOptions
from foretrace.capture.out_of_memory import OutOfMemory
from foretrace.capture.recorder import Recorder
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.steps import StepFinder

_session: Session | None = None


def arm() -> None:
    """Called once torch has been imported in a program that `foretrace run` started."""
    global _session
    text = os.environ.get(VARIABLE)
    if _session is None and text:
        _session = Session(CaptureOptions.from_json(text))
        _session.install()


def active() -> bool:
    """Whether `foretrace run` records this process, or will once it takes steps."""
    return _session is not None and not _session.ended


class Session:
    """One process of the program. The first process of a rank that takes a step is the one recorded."""

    def __init__(self, options: CaptureOptions) -> None:
        self.options = options
        self.ended = False
        self.recorder: Recorder | None = None
        self._folder = RunFolder(options.output)
        self._finder = StepFinder(self._boundary, self._decided, step_function=options.step_function)
        self._finder.hooks.on_foreign_profiler = self._make_way
        self._oom = OutOfMemory(options, self._folder) if options.memory else None
        self._set_up: SetUpStacks | None = SetUpStacks() if options.memory else None
        self._trigger: Trigger | None = None
        self._claimed: Path | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """From now on steps are looked for."""
        known_secrets.values()  # those that the program removes from its environment stay known
        loader_waits.install()
        self._finder.install()
        if self.options.on_demand or self.options.trigger:
            self._trigger = Trigger(self.options.trigger)
        if self._oom is not None:
            self._oom.install()
        if self._set_up is not None:
            self._set_up.install()
        api.listen(self._finder.explicit)
        atexit.register(self.close)
        from multiprocessing import util

        # Processes of multiprocessing leave without running atexit's functions.
        util.Finalize(None, self.close, exitpriority=0)
        os.register_at_fork(after_in_child=self._forked)

    def close(self) -> None:
        """The process ends."""
        if self.ended or self._pid != os.getpid():
            return
        self._end_set_up()
        self.ended = True
        self._finder.end()
        if self.recorder is not None:
            self.recorder.close(_how_it_ended())
        elif self._claimed is not None:
            self._unclaim()
            self._leave_note("no capture was asked for")
        else:
            self._leave_note("no step was found")
        with suppress(OSError):  # the launcher masks what it knows of
            line_files.mask(line_files.folder_of(self._folder.path))

    def _forked(self) -> None:
        # A copy of a recorded process is not recorded again; one that took no step yet may be the one to record.
        self.ended = self.ended or self.recorder is not None
        self.recorder = None
        self._pid = os.getpid()

    def _decided(self, source: str) -> None:
        if self.ended:
            return
        if self.recorder is not None:
            self.recorder.restart(source)
            return
        rank, world_size = environment.rank_of_process()
        wanted = self.options.wants_rank(rank)
        if not wanted and not (self.options.stop_after_capture and world_size > 1):
            self._end_quietly()
            return
        if wanted and not self._claim(rank):
            self._leave_note(f"another process of rank {rank} was recorded already")
            self._end_quietly()
            return
        options = self.options if wanted else replace(self.options, passes=())
        if self._trigger is None:
            self._begin(options, rank, source, world_size, silent=not wanted)
        elif wanted:
            sys.stderr.write(f"foretrace: rank {rank} waits to record: {self._trigger.says}\n")

    def _begin(
        self, options: CaptureOptions, rank: int, source: str, world_size: int, *, silent: bool = False
    ) -> None:
        self.recorder = Recorder(
            options,
            self._folder,
            rank,
            step_source=source,
            world_size=world_size,
            silent=silent,
            watch=True,
            early=True,
            oom=self._oom if not silent else None,
        )
        self.recorder.watch_foreign(self._finder.hooks.foreign_profiler)

    def _boundary(self) -> None:
        if self.ended or self._pid != os.getpid():
            return
        self._end_set_up()
        if self.recorder is None and self._trigger is not None and self._trigger.fired():
            rank, world_size = environment.rank_of_process()
            self._begin(self.options, rank, self._finder.source, world_size)
        recorder = self.recorder
        if recorder is None:
            return
        try:
            recorder.take(self._finder.fix)
        finally:
            if recorder.done:
                self._end_quietly()

    def _make_way(self) -> None:
        if self.recorder is not None and not self.ended and self._pid == os.getpid():
            self.recorder.yield_to_program()

    def _end_set_up(self) -> None:
        if self._set_up is not None:
            self._set_up.end()
            self._set_up = None

    def _end_quietly(self) -> None:
        self._end_set_up()
        self.ended = True
        self._finder.end()
        loader_waits.remove()

    def _claim(self, rank: int) -> bool:
        """Whether this process is the one of its rank: it made the file."""
        path = self._folder.rank_folder(rank) / ".claim"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        self._claimed = path.parent
        return True

    def _unclaim(self) -> None:
        assert self._claimed is not None
        if self._oom is None or self._oom.facts is None:
            shutil.rmtree(self._claimed, ignore_errors=True)
        else:
            (self._claimed / ".claim").unlink(missing_ok=True)
            self._oom.save_alone()

    def _leave_note(self, text: str) -> None:
        """For the launcher, which puts it into run.json."""
        program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        try:
            notes = self._folder.path / ".notes"
            notes.mkdir(exist_ok=True)
            said = known_secrets.without_values(f"{program} (process {os.getpid()}): {text}")
            (notes / f"{os.getpid()}.txt").write_text(said)
        except OSError:
            pass  # a note is not worth a word in the program's output


def _how_it_ended() -> str:
    error: Any = getattr(sys, "last_value", None)
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if error is not None and not isinstance(error, SystemExit):
        return f"the program ended with {type(error).__name__}"
    if threading.current_thread() is not threading.main_thread():
        return "its thread ended"
    return "the program ended"
