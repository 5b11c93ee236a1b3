"""The sampler of lines: its stacks are the interpreter's, and where they would not be it is off."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretrace.capture import line_sampler

needs_sampler = pytest.mark.skipif(
    line_sampler._why_not() is not None, reason=f"no lines are sampled here: {line_sampler._why_not()}"
)


def sampled(folder: Path, code: str) -> list[dict[str, Any]]:
    """The files that a program left which samples itself from its first line on, by the process they are of."""
    script = folder / "program.py"
    (folder / "lines").mkdir()
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    program = f"""
import runpy, sys
from foretrace.capture import line_sampler
line_sampler.start({str(folder / "lines")!r})
assert line_sampler.why_off is None, line_sampler.why_off
runpy.run_path({str(script)!r}, run_name="__main__")
line_sampler.stop()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    return [read(path) for path in sorted((folder / "lines").glob("*.jsonl"))]


def read(path: Path) -> dict[str, Any]:
    """One process: its header, and how often each line of program.py was innermost among those of that file."""
    header, *blocks = map(json.loads, path.read_text(encoding="ascii").splitlines())
    places = [row for block in blocks for row in block["places"]]
    stacks = [row for block in blocks for row in block["stacks"]]
    lines: Counter[int] = Counter()
    for stack in (number for block in blocks for number in block["stack"]):
        while stack >= 0 and not places[stacks[stack][1]][0].endswith("program.py"):
            stack = stacks[stack][0]
        lines[places[stacks[stack][1]][3] if stack >= 0 else 0] += 1
    return {"header": header, "lines": lines, "blocks": blocks}


@needs_sampler
def test_a_loop_that_holds_the_gil_is_seen_at_its_line(tmp_path: Path) -> None:
    """A sampler that waits for the GIL would give all of it to the call behind the loop."""
    (process,) = sampled(
        tmp_path,
        """\
        import json
        from foretrace.capture import line_sampler
        while json.loads(line_sampler.facts())["ticks"] < 150:
            for i in range(200_000): i * i
            dict()
        """,
    )
    lines = process["lines"]
    assert lines[4] > 0.9 * sum(lines.values())
    flags = [flag for block in process["blocks"] for flag in block["flags"]]
    assert sum(flag & 1 for flag in flags) > 0.9 * len(flags)


@needs_sampler
def test_a_child_that_ends_by_exit_leaves_what_it_did(tmp_path: Path) -> None:
    """Workers of a loader end by os._exit, which runs nothing of Python's."""
    parent, child = sorted(
        sampled(
            tmp_path,
            """\
            import json, os, time
            from foretrace.capture import line_sampler
            child = os.fork()
            if not child:
                while json.loads(line_sampler.facts())["ticks"] < 60:
                    sum(range(100_000))
                path = os.path.join(line_sampler._folder, f"{os.getpid()}.jsonl")
                size = os.path.getsize(path)
                while os.path.getsize(path) == size: time.sleep(0.01)
                os._exit(0)
            os.waitpid(child, 0)
            """,
        ),
        key=lambda process: process["header"]["kind"],
        reverse=True,
    )
    assert child["header"]["parent"] == parent["header"]["pid"]
    assert child["lines"][6] > 40
    assert parent["lines"].most_common(1)[0][0] == 11
    waiting = [flag & 2 for block in parent["blocks"] for flag in block["flags"]]
    assert sum(map(bool, waiting)) > 0.5 * len(waiting)


@needs_sampler
def test_statements_of_one_line_differ_by_column(tmp_path: Path) -> None:
    (process,) = sampled(
        tmp_path,
        """\
        import json, time
        from foretrace.capture import line_sampler
        while json.loads(line_sampler.facts())["ticks"] < 100:
            time.sleep(0.01); time.sleep(0.03)
        """,
    )
    places = [row for block in process["blocks"] for row in block["places"]]
    stacks = [row for block in process["blocks"] for row in block["stacks"]]
    seen = Counter(places[stacks[stack][1]][4] for block in process["blocks"] for stack in block["stack"])
    assert seen[22] > seen[4] > 0


def test_without_linux_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_sampler, "sys", SimpleNamespace(platform="darwin"))
    assert line_sampler._why_not() == "lines are sampled on Linux only, not on darwin"


@pytest.mark.parametrize("gil", [True, False])
def test_without_the_extension_it_is_off(monkeypatch: pytest.MonkeyPatch, gil: bool) -> None:
    def missing() -> None:
        raise ImportError("it was not built for this Python")

    monkeypatch.setattr(line_sampler, "_native", missing)
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: gil, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    expected = (
        "the native extension is missing: it was not built for this Python"
        if gil
        else "this Python is free-threaded"
    )
    assert line_sampler._why_not() == expected


@needs_sampler
def test_a_stack_that_is_not_the_interpreters_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    native = line_sampler._native()

    def one_line_further(code_type: type) -> tuple[list[tuple[str, str, int, int]], bool, bool]:
        (first, *rest), holds, listed = native.lines_now(code_type)
        return [(first[0], first[1], first[2] + 1, first[3]), *rest], holds, listed

    monkeypatch.setattr(line_sampler, "_native", lambda: SimpleNamespace(lines_now=one_line_further))
    assert line_sampler._why_not() == "self-test failed: the stack as sampled is not the interpreter's"
