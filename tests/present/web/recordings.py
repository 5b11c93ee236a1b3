"""A small recording for the tests of the server and its library."""

from __future__ import annotations

from pathlib import Path

from tests.builders import Recording


def recording(folder: Path, name: str = "job.slow.json") -> Path:
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20)
    made.launch(10, "<script>alert(1)</script>", 30, 60).launch(12, "mul_kernel", 60, 70)
    return made.write(folder, name)
