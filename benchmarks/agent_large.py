"""What the tools of `foretrace mcp` answer about a large recording, how many tokens that is, and how long an agent waits.

    python benchmarks/agent_large.py [--gb 1] [--source FILE] [--work FOLDER]

The recording is a real one, repeated (repeat_trace.py). The client of the protocol's own package asks every tool that reads, over
standard input and output. Ends with 1 where an answer is an error, has more tokens than promised or does not begin with the verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foretrace
from foretrace.present.agent.answer import MOST_TOKENS
from foretrace.present.agent.tokens import token_count

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.repeat_trace import generate

SAMPLE = Path(foretrace.__file__).parent / "samples" / "naive_attention.json.gz"


@dataclass(frozen=True)
class Answered:
    """What one call gave."""

    tool: str
    seconds: float
    tokens: int
    shown: int
    total: int
    problem: str  # empty where the answer keeps what is promised


def questions(name: str) -> list[tuple[str, dict[str, Any]]]:
    """A call of every tool that reads a recording, about the large one."""
    longest = "select name, dur_ns from kernels order by dur_ns desc"
    return [
        ("recordings", {}),
        ("diagnose", {"path": name}),
        ("finding", {"path": name, "rule": "unfused-attention"}),
        ("show", {"path": name, "analysis": "kernels", "limit": 1_000}),
        ("show", {"path": name, "analysis": "steps", "limit": 1_000}),
        ("show", {"path": name, "analysis": "idle", "limit": 1_000}),
        ("predict", {"path": name, "changes": ["fix unfused-attention"]}),
        ("compare", {"a": name, "b": name}),
        ("sql", {"path": name, "query": longest, "limit": 1_000}),
        ("explain", {"name": "ampere_sgemm_128x64_tn"}),
    ]


@contextmanager
def session(root: Path) -> Iterator[Any]:
    """A call of a tool of a server for this folder; its tokens are those of the text that an agent gets."""
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters

    words = ["-m", "foretrace", "mcp", "--root", str(root), "--no-cache"]
    server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        yield lambda tool, arguments: portal.call(client.call_tool, tool, arguments)


def answers(path: Path) -> Iterator[Answered]:
    """Every tool, asked about the recording."""
    with session(path.parent) as call:
        for tool, arguments in questions(path.name):
            began = time.perf_counter()
            result = call(tool, arguments)
            seconds = time.perf_counter() - began
            text = result.content[0].text
            small = result.structured_content or {}
            yield Answered(
                tool,
                seconds,
                token_count(text),
                small.get("shown", 0),
                small.get("total", 0),
                _problem(text, failed=bool(result.is_error)),
            )


def _problem(text: str, *, failed: bool) -> str:
    if failed:
        return text
    if next(iter(json.loads(text.splitlines()[0]))) != "trust":
        return "the verdict does not come first"
    return f"more than {MOST_TOKENS:,} tokens" if token_count(text) > MOST_TOKENS else ""


def main() -> int:
    """Prints a row for each call."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gb", type=float, default=1.0, help="size of the recording, in GB (default: 1)")
    parser.add_argument("--source", type=Path, default=SAMPLE, metavar="FILE")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where the recording is made, and kept")
    args = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        path = generate(args.source, int(args.gb * 1e9), args.work or Path(scratch), compressed=False)
        print(
            f"{path.stat().st_size / 1e9:.2f} GB\n\n| tool | s | tokens | shown | total |\n|---|---|---|---|---|"
        )
        for each in answers(path):
            print(
                f"| {each.tool} | {each.seconds:.1f} | {each.tokens:,} | {each.shown} | {each.total} |",
                flush=True,
            )
            if each.problem:
                wrong += 1
                print(f"{each.tool}: {each.problem}", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
