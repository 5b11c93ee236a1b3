"""Whether two Traces say the same, and the readers that a test runs with."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import foretrace
from foretrace import schema
from foretrace.ingest import kineto_native

needs_native = pytest.mark.skipif(
    kineto_native.missing is not None, reason=f"the extension is not built ({kineto_native.missing})"
)
# The Python reader, asked for by name, is the same with the extension and without.
names_python_reader = pytest.mark.names_python_reader
READERS = (pytest.param("native", marks=needs_native), pytest.param("python", marks=names_python_reader))
# What a Trace says about its file rather than about the recording.
OF_THE_FILE = ("file_bytes", "compression")


def assert_same_tables(left: foretrace.Trace, right: foretrace.Trace) -> None:
    """All tables and facts are equal; text is compared as text, whatever its codes."""
    for table in schema.TABLES:
        a, b = (
            trace.table(table).with_columns(pl.col(pl.Categorical).cast(pl.String)) for trace in (left, right)
        )
        assert_frame_equal(a, b, check_exact=True)
    assert _of_the_recording(left) == _of_the_recording(right)


def assert_same_trace(left: foretrace.Trace, right: foretrace.Trace) -> None:
    """Also the repairs are equal, with their places."""
    assert_same_tables(left, right)
    assert left.repairs == right.repairs


def assert_says_which_file(error: Exception, name: str) -> None:
    """An error is one line that names the file."""
    assert name in str(error)
    assert "\n" not in str(error)


def _of_the_recording(trace: foretrace.Trace) -> dict[str, object]:
    return {key: value for key, value in trace.meta.items() if key not in OF_THE_FILE}
