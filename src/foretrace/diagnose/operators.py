"""The operators of the threads that make a program's calls, without those inside others."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.predict.numbers import SpanIds


def calling_threads(case: Case) -> pl.Series:
    """The tracks of the threads that make the program's calls, as one list for `is_in`."""
    return case.trace.spans["track_id"].gather(case.program.call_span).unique().implode()


def on_calling_threads(case: Case) -> NDArray[np.bool_]:
    """For each span, whether it is on one of these threads; not to be changed."""
    return case.keep("on calling threads", lambda: _on_calling_threads(case))


def _on_calling_threads(case: Case) -> NDArray[np.bool_]:
    track = case.trace.spans["track_id"].to_numpy()
    calling = np.zeros(int(track.max(initial=0)) + 1, bool)
    calling[track[case.program.call_span]] = True
    on_threads: NDArray[np.bool_] = calling[track]
    return on_threads


def torch_operators(case: Case) -> SpanIds:
    """Torch's own operators (aten::) on all threads that make calls."""
    return case.keep("torch operators", lambda: _torch_operators(case))


def main_thread_operators(case: Case) -> SpanIds:
    """All operators, also those of autograd and of libraries, on the thread that makes most of the calls."""
    return case.keep("main thread operators", lambda: _main_thread_operators(case))


def _torch_operators(case: Case) -> SpanIds:
    return _outermost(case, case.host.named("^aten::", "op") & on_calling_threads(case))


def _main_thread_operators(case: Case) -> SpanIds:
    tracks, host = case.trace.spans["track_id"], case.host
    most = tracks.gather(case.program.call_span).mode().head(1).implode()
    return _outermost(case, host.kind("op") & (host.end_ns > host.start_ns) & tracks.is_in(most).to_numpy())


def _outermost(case: Case, operators: NDArray[np.bool_]) -> SpanIds:
    ids = np.flatnonzero(operators)
    return SpanIds(ids[case.host.outermost(ids, operators) == ids])
