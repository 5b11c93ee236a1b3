"""The Library: the runs that the page shows, each a recording, benchmark or memory snapshot, read in the background.

A run is known by its id, never by its path. Folders are watched: a recording that appears in one becomes a run once its
file has stopped growing, and a file that is written anew is read again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from foretrace import cache as trace_cache
from foretrace.compare.benches import is_bench
from foretrace.deflate import stream
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError, InputError, MissingDataError, fault_text, is_fault
from foretrace.ingest import gathered, open_trace
from foretrace.ingest.reading import Reading
from foretrace.ingest.recordings import completes_another, is_recording, opened_with
from foretrace.ingest.snapshot_files import is_snapshot_file
from foretrace.ingest.source import Progress
from foretrace.present.web import payload
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.encoding import Encoded, encode
from foretrace.present.web.listed_run import ListedRun
from foretrace.present.web.recording_view import RecordingView, as_text, display_name, titles
from foretrace.present.web.run_files import Stamp, bench_names, files_in, identity, place_of, stamp_of
from foretrace.present.web.snapshot_view import SnapshotView, of_a_run, snapshot_name
from foretrace.trace import Trace

POLL_S = 1.0
# A profiler that writes a gigabyte pauses less than this between two writes.
SETTLE_S = 2.0
# What is forgotten is read again from the cache of recordings, which takes less than a second.
HELD_BYTES = 4 << 30
ENCODED_BYTES = 512 << 20
_LOOKED_AT = 10_000  # files of one folder
_LARGE_SPANS = 500_000
_AS_FOUND = Reading()


class UnknownRunError(ForetraceError):
    """There is no run with this id."""

    exit_code = MissingDataError.exit_code


class Library:
    """Recordings and watched folders, read by a thread of its own or by whoever asks first."""

    def __init__(
        self,
        paths: Iterable[Path],
        *,
        cache: bool = True,
        step_ms: float | None = None,
        reading: Reading = _AS_FOUND,
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._cache, self._step_ms, self._poll_s, self._settle_s = cache, step_ms, poll_s, settle_s
        self._reading = reading
        self._named = [path.absolute() for path in paths]
        for path in self._named:
            if not path.exists():
                raise InputError(f"{path}: No such file or directory")
        self._bench_names = bench_names(self._named)
        self._runs: dict[str, ListedRun] = {}
        self._changing: dict[Path, tuple[Stamp, float]] = {}  # since when a file has been as it is
        self._inspected: dict[Path, tuple[Stamp, bool]] = {}
        self._encoded: OrderedDict[tuple[str, str], Encoded] = OrderedDict()
        self._begun: dict[tuple[str, str], Future[Encoded]] = {}  # what is being worked out now
        self._quick: set[tuple[str, str]] = set()  # and of that, what does not wait for a diagnosis
        self._unstored: deque[tuple[str, Trace]] = deque()  # read, and not yet in the cache of recordings
        self._wanted: str | None = None
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._look()

    def start(self) -> None:
        """Begins to watch and to read."""
        for work in (self._watch, self._read_all):
            threading.Thread(target=work, name=f"foretrace-{work.__name__.strip('_')}", daemon=True).start()

    def stop(self) -> None:
        """Ends both threads soon."""
        self._stopped.set()

    def runs(self, wanted: str | None = None) -> dict[str, Any]:
        """What the page lists: resource `runs`; the run that its reader looks at is read before others."""
        self._wanted = wanted or self._wanted
        return payload.runs(run.to_dict() for run in self._all())

    def run(self, run_id: str) -> ListedRun:
        """The run with this id."""
        with self._lock:
            found = self._runs.get(run_id)
        if found is None:
            raise UnknownRunError("there is no such run; the list of runs names those that there are")
        return found

    def resource(self, run_id: str, name: str, query: payload.Query) -> Encoded:
        """One resource of a run; reads the recording first where that is not done yet."""
        run = self.run(run_id)
        others = {other.id: self.view(other) for other in self._others(run, name)}
        stamps = [(other, self.run(other).stamp) for other in others]
        key = (run.id, json.dumps([run.stamp, name, sorted(query.items()), stamps]))
        quick = query.get("findings") == "no"

        def make() -> Encoded:
            view = self.view(run)
            if not quick and name in payload.DIAGNOSED and _is_large(view):
                self._let_quick_ones_pass(run)
            peers = tuple(others.values())
            return encode(payload.resource(view, name, query, find=others.__getitem__, peers=peers))

        return self._once(key, make, quick=quick)

    def _let_quick_ones_pass(self, run: ListedRun) -> None:
        """Puts off a diagnosis of seconds, which would slow down what a reader can have in one."""
        with self._lock:
            before = [
                future for key, future in self._begun.items() if key[0] == run.id and key in self._quick
            ]
        wait(before)

    def _once(self, key: tuple[str, str], make: Callable[[], Encoded], *, quick: bool) -> Encoded:
        """What `make` gives, made by the first who asks; others wait for nothing else."""
        with self._lock:
            if key in self._encoded:
                self._encoded.move_to_end(key)
                return self._encoded[key]
            begun = self._begun.get(key)
            future = Future[Encoded]() if begun is None else begun
            self._begun[key] = future
            if quick:
                self._quick.add(key)
        if begun is not None:
            return begun.result()
        try:
            made = make()
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            self._keep(key, made)
            future.set_result(made)
            return made
        finally:
            with self._lock:
                self._begun.pop(key, None)
                self._quick.discard(key)

    def recording(self, run: ListedRun) -> RecordingView:
        """The run's recording, for what needs one."""
        view = self.view(run)
        if not isinstance(view, RecordingView):
            raise MissingDataError(f"{view.name} is a {run.sort}: it has no recording")
        return view

    def view(self, run: ListedRun) -> payload.View:
        """The run's recording or benchmark, ready to be asked; raises what stood in the way of reading it."""
        with run.lock:
            run.used_at = time.monotonic()
            if run.state == "failed":
                raise InputError(run.says or "the recording could not be read")
            if run.view is None:
                self._open(run)
            if run.view is None:
                raise InputError(run.says or "the recording could not be read")
            return run.view

    def _others(self, run: ListedRun, name: str) -> list[ListedRun]:
        """The other runs that a resource is made from: one to compare with, or the ranks of the same program."""
        kind, _, other = name.partition("/")
        if kind == "compare":
            return [self.run(other)]
        if kind != "ranks":
            return []
        return [
            each
            for each in self._all()
            if each is not run and each.group == run.group and each.sort == run.sort and each.state == "ready"
        ]

    def _open(self, run: ListedRun) -> None:
        """Reads the recording; what goes wrong is told as the run's state."""
        again = run.state == "ready"
        if not again:
            run.state, run.says, run.progress_pct = "loading", "reading the recording", 0.0

        def progress(done: int, total: int) -> None:
            run.progress_pct = round(100 * done / total, 1) if total else None

        try:
            self._make_view(run, None if again else progress)
        except BaseException as error:
            if not reportable(error):
                raise
            run.state, run.says, run.progress_pct = "failed", error_text(error), None
            return
        run.state, run.says, run.progress_pct = "ready", None, None
        self._forget_beyond(HELD_BYTES, keep=run)

    def _make_view(self, run: ListedRun, progress: Progress | None) -> None:
        if run.sort == "benchmark":
            run.view = BenchView(run.path, run_id=run.id, name=run.label)
            run.group, run.size_bytes = run.view.group, run.path.stat().st_size
            return
        if run.sort == "snapshot":
            run.view = SnapshotView(run.path, run_id=run.id, name=run.label, progress=progress)
            run.size_bytes = run.view.size_bytes
            return
        read = partial(self._read_for, run, progress)
        in_folder = any(named in run.path.parents for named in self._named if named.is_dir())
        path = opened_with(run.path, run.path.parent) if in_folder else run.path
        case = open_case(path, step_ms=self._step_ms, reading=self._reading, read=read, of_sums=True)
        run.view = RecordingView(case, run_id=run.id, group=run.group, label=run.label)
        # Measured on large recordings: the other tables and what analyses keep are twice the spans.
        run.size_bytes = 3 * int(case.whole.spans.estimated_size())

    def _read_for(self, run: ListedRun, progress: Progress | None, path: Path, reading: Reading) -> Trace:
        """A recording that a run needs: its own, its rich pass or another rank's, from the library if that has it."""
        if path == run.path:
            return self._recording(path, reading, progress)
        with self._lock:
            other = self._runs.get(identity(path))
        return self._recording(path, reading, None) if other is None else self.recording(other).trace

    def _recording(self, path: Path, reading: Reading, progress: Progress | None) -> Trace:
        """One recording; one that was not read before is kept in the cache later, when nobody waits for it."""
        if not self._cache:
            return reading.marked(open_trace(path, cache=False, pid=reading.pid, progress=progress))
        key = reading.key(path)
        stored = trace_cache.load(key, path, reread=lambda: open_trace(path, cache=False, pid=reading.pid))
        if stored is not None:
            return reading.marked(stored)
        trace = open_trace(path, cache=False, pid=reading.pid, progress=progress)
        self._unstored.append((key, trace))
        return reading.marked(trace)

    def _forget_beyond(self, limit_bytes: int, *, keep: ListedRun) -> None:
        """Lets go of the recordings that were not asked for longest, until the rest fits."""
        held = sorted((run for run in self._all() if run.view is not None), key=lambda run: -run.used_at)
        total = keep.size_bytes
        for run in held:
            if run is keep:
                continue
            total += run.size_bytes
            if total > limit_bytes:
                run.view = None

    def _read_all(self) -> None:
        """The thread that reads what nobody has asked for yet, in the order of the list."""
        while not self._stopped.is_set():
            while self._unstored:
                trace_cache.store(*self._unstored.popleft())
            waiting = self._next_waiting()
            if waiting is None:
                self._stopped.wait(self._poll_s / 4)
                continue
            with waiting.lock:
                if waiting.state == "waiting":
                    self._open(waiting)
            self._look_closer(waiting)

    def _next_waiting(self) -> ListedRun | None:
        waiting = [run for run in self._all() if run.state == "waiting" and run.says is None]
        return min(waiting, key=lambda run: run.id != self._wanted, default=None)

    def _look_closer(self, run: ListedRun) -> None:
        """Prepares the first page, and with it the step time that the list shows."""
        if run.state != "ready" or run.sort != "recording":
            return
        try:
            if (view := run.view) is not None and _is_large(view):
                # The timeline is there in a second or two, the findings of a large recording in ten.
                self.resource(run.id, "timeline", {"findings": "no"})
            encoded = self.resource(run.id, "overview", {})
            run.step_ms = json.loads(stream.decompress(encoded.body, wbits=31))["headline"]["before_ms"]
        except BaseException as error:
            if not reportable(error):  # else whoever asks for the page is told
                raise

    def _watch(self) -> None:
        took_s = 0.0
        # A folder of many files is looked through less often: a tenth of one core is enough for that.
        while not self._stopped.wait(max(self._poll_s, 10 * took_s)):
            began = time.monotonic()
            self._look()
            took_s = time.monotonic() - began

    def _look(self) -> None:
        """Brings the list of runs up to what lies on disk."""
        for path in self._named:
            for file in self._as_recorded(path) if path.is_dir() else (path,):
                self._meet(file, path)
        for run in self._all():
            if run.view is None and run.path not in self._named and not run.path.exists():
                with self._lock:
                    self._runs.pop(run.id, None)

    def _as_recorded(self, folder: Path) -> Iterator[Path]:
        """The recordings under a folder; the folder itself for those of its files that are one recording."""
        files = list(self._recordings(folder))
        whole = gathered(files)
        parts = set(whole[1]) if whole is not None else set()
        if parts:
            yield folder
        yield from (file for file in files if file not in parts)

    def _recordings(self, folder: Path) -> Iterator[Path]:
        """The files under a folder that begin as a recording does; each is looked into once."""
        for file in islice(files_in(folder), _LOOKED_AT):
            if self._stopped.is_set():
                return
            stamp = stamp_of(file)
            if stamp is None:
                continue
            known = self._inspected.get(file)
            if known is None or known[0] != stamp:
                known = self._inspected[file] = (stamp, _is_listed(file))
            if known[1]:
                yield file

    def _meet(self, file: Path, named: Path) -> None:
        """Adds a file as a run, or notices that it has changed."""
        stamp = stamp_of(file)
        settled = self._settled(file, stamp)
        run_id = identity(file)
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                run = self._runs[run_id] = self._listed(run_id, file, named, stamp)
                if file != named and not settled:
                    run.says = "the file is still being written"
                return
        if run.state == "waiting" and run.says is not None and settled:
            run.stamp, run.says = stamp, None
        elif run.state in ("ready", "failed") and settled and stamp not in (None, run.stamp):
            with run.lock:
                run.stamp, run.view, run.state, run.says = stamp, None, "waiting", None

    def _listed(self, run_id: str, file: Path, named: Path, stamp: Stamp | None) -> ListedRun:
        if is_bench(file):
            name = self._bench_names.get(file) or as_text(display_name(file.relative_to(named).as_posix()))
            return ListedRun(run_id, file, "benchmark", "", name, stamp, ("", name))
        if is_snapshot_file(file):
            name = snapshot_name(file) if file == named else snapshot_name(file.relative_to(named))
            return ListedRun(run_id, file, "snapshot", "", name, stamp, ("", name))
        group, label = place_of(file, named)
        return ListedRun(run_id, file, "recording", group, label, stamp, titles(file))

    def _settled(self, file: Path, stamp: Stamp | None) -> bool:
        if stamp is None:
            return False
        since = self._changing.get(file)
        if since is None or since[0] != stamp:
            age_s = max(time.time() - stamp[1] / 1e9, 0.0)
            since = self._changing[file] = (stamp, time.monotonic() - age_s)
        return time.monotonic() - since[1] >= self._settle_s

    def _all(self) -> list[ListedRun]:
        with self._lock:
            return list(self._runs.values())

    def _keep(self, key: tuple[str, str], encoded: Encoded) -> None:
        with self._lock:
            self._encoded[key] = encoded
            total = sum(len(each.body) for each in self._encoded.values())
            while total > ENCODED_BYTES and len(self._encoded) > 1:
                total -= len(self._encoded.popitem(last=False)[1].body)


def _is_listed(file: Path) -> bool:
    """Whether a file of a watched folder is one to show; what completes a recording is on that one's pages."""
    completes = completes_another(file)
    return (
        (is_recording(file) and not completes)
        or is_bench(file)
        or (is_snapshot_file(file) and not of_a_run(file))
    )


def _is_large(view: payload.View) -> bool:
    return isinstance(view, RecordingView) and view.trace.spans.height > _LARGE_SPANS


def error_text(error: BaseException) -> str:
    """One line about what went wrong, for the page."""
    if isinstance(error, ForetraceError):
        return str(error)
    return fault_text(error)


def reportable(error: BaseException) -> bool:
    """Whether an error belongs to the run alone."""
    return isinstance(error, Exception) or is_fault(error)
