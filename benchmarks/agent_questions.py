"""Ten questions that an agent asks of recordings, answered with the tools of `foretrace mcp` alone, and what each costs in tokens.

    python benchmarks/agent_questions.py [--corpus FOLDER] [--tokenizer FILE.json]

Needs `foretrace[mcp]` and the shared recordings. Every right answer is known from elsewhere: from times that were measured
without a profiler (truth.json), from what the programs were made to do, from the raw file, or from another tool.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.present.agent.tokens import token_count

CORPUS = Path(os.environ.get("FORETRACE_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
FP32 = "h200/fp32_gemm.slow.lite.json.gz"
LOADER = "h200/slow_dataloader.slow.lite.json.gz"
SYNC = "h200/item_sync.slow.rich.json.gz"
BEFORE, AFTER = (f"h200/naive_attention.{each}.lite.json.gz" for each in ("slow", "fixed"))
H100 = "peers/tutorial_h100/dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz"
TRAINER = "real/hf_trainer_gpt2.tar.xz"


@dataclass
class Agent:
    """Asks tools, and counts what that costs."""

    call: Callable[[str, dict[str, Any]], tuple[str, bool]]
    corpus: Path
    unpacked: Path
    count: Callable[[str], int] = len  # by a published tokenizer
    calls: int = 0
    tokens: int = 0
    counted: int = 0

    def ask(self, tool: str, /, **arguments: Any) -> list[Any]:
        text, failed = self.call(tool, arguments)
        self.calls += 1
        self.tokens += token_count(text)
        self.counted += self.count(text)
        if failed:
            raise SystemExit(f"{tool}({arguments}): {text}")
        return [json.loads(line) for line in text.splitlines()]

    def truth(self, name: str) -> Any:
        return json.loads((self.corpus / name).read_text(encoding="utf-8"))


def field_of(lines: list[Any], name: str) -> Any:
    """A field of an answer."""
    return next(line[name] for line in lines if isinstance(line, dict) and name in line)


def rows_of(lines: list[Any]) -> list[dict[str, Any]]:
    """The rows of an answer's table."""
    columns, *rows = (line for line in lines if isinstance(line, list))
    return [dict(zip(columns, row, strict=True)) for row in rows]


def findings_of(lines: list[Any]) -> list[dict[str, Any]]:
    """The findings of a diagnosis."""
    return [line for line in lines if isinstance(line, dict) and "rule" in line]


@dataclass(frozen=True)
class Known:
    """What was answered, what is right, and how that is known."""

    answer: str
    right: bool
    known_by: str


@dataclass(frozen=True)
class Question:
    """A question, and how an agent finds the answer."""

    asks: str
    find: Callable[[Agent], Known] = field(repr=False)


def slowest_kernel(agent: Agent) -> Known:
    """The sum of durations by name, of kernels whose launch is in the file: the raw file, read by json alone."""
    name = str(rows_of(agent.ask("show", path=FP32, analysis="kernels", sort="total_ns", limit=1))[0]["name"])
    events = json.loads(gzip.decompress((agent.corpus / FP32).read_bytes()))["traceEvents"]
    launched = {
        event["args"]["correlation"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    time: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "kernel" and event["args"]["correlation"] in launched:
            time[event["name"]] += event["dur"]
    longest = time.most_common(1)[0][0]
    begins = name.partition("…")[0]
    return Known(name[:40], begins in longest, "raw file")


def why_idle(agent: Agent) -> Known:
    lines = agent.ask("diagnose", path=LOADER, top=1)
    found = findings_of(lines)[0]["rule"]
    right = agent.truth("h200/slow_dataloader.truth.json")["truth"]["label"] == "data loading"
    return Known(
        f"{field_of(lines, 'shape')['bound']}: {found}", right and found == "input-bound", "truth.json"
    )


def one_fix(agent: Agent) -> Known:
    lines = agent.ask("predict", path=FP32, changes=["fix no-tensor-cores:tf32"])
    after, step = field_of(lines, "after_ms"), field_of(lines, "step_ms")
    low, high = step / after["high"], step / after["low"]
    measured = agent.truth("h200/fp32_gemm.truth.json")["speedup"]
    return Known(
        f"× {step / after['point']:.2f} ({low:.2f} to {high:.2f})", low <= measured <= high, "truth.json"
    )


def two_fixes(agent: Agent) -> Known:
    lines = agent.ask(
        "predict",
        path=str(agent.unpacked / "hf_trainer_gpt2"),
        changes=["compile", "fix no-tensor-cores:tf32"],
    )
    after, step = field_of(lines, "after_ms"), field_of(lines, "step_ms")
    low, high = step / after["high"], step / after["low"]
    ends = agent.truth("real/truth.json")["hf_trainer_gpt2"]["changes"]["compile"]["speedup_range"]
    right = low <= ends[0] and ends[1] <= high
    return Known(f"× {step / after['point']:.2f} ({low:.2f} to {high:.2f})", right, "truth.json")


def what_changed(agent: Agent) -> Known:
    lines = agent.ask("compare", a=BEFORE, b=AFTER)
    cause = rows_of(lines)[0]["what"]
    speedup = field_of(lines, "speedup")["point"]
    low, high = agent.truth("h200/naive_attention.truth.json")["speedup_range"]
    right = (
        field_of(lines, "verdict") == "faster"
        and cause == "attention"
        and 0.95 * low <= speedup <= 1.05 * high
    )
    return Known(f"faster, × {speedup:.2f}, by {cause}", right, "truth.json")


def memory_peak(agent: Agent) -> Known:
    lines = agent.ask("memory", path="other/memory")
    peak = sum(each["held_bytes"] for each in field_of(lines, "by_category"))
    line = rows_of(lines)[0]["line"]
    right = peak == agent.truth("other/memory/encoder12.truth.json")["peak"]
    return Known(f"{peak:,} B, most by {line}", right, "torch's own counter")


def late_rank(agent: Agent) -> Known:
    evidence = field_of(agent.ask("finding", path="other/multirank_gloo", rule="straggler"), "evidence")
    rank, more_ms = evidence["late_rank"], evidence["more_other_ns"] / 1e6
    return Known(f"rank {rank}, {more_ms:.1f} ms", rank == 2 and abs(more_ms - 8) < 0.8, "made so: 8 ms")


def where_it_waits(agent: Agent) -> Known:
    row = rows_of(agent.ask("show", path=SYNC, analysis="syncs", limit=1))[0]
    culprit = agent.truth("h200/item_sync.truth.json")["truth"]["culprit"]
    return Known(f"{row['op']} at {row['where']}", row["op"] == culprit, "truth.json")


def worth_fixing(agent: Agent) -> Known:
    found = next(
        each for each in findings_of(agent.ask("diagnose", path=SYNC)) if each["rule"] == "host-sync"
    )
    measured = agent.truth("h200/item_sync.truth.json")["speedup_range"][1]
    return Known(f"no: {found['verdict']}", measured < 1.05 and found["verdict"] != "gain", "truth.json")


def how_busy(agent: Agent) -> Known:
    values = field_of(agent.ask("show", path=H100, analysis="overview"), "values")
    count = rows_of(agent.ask("sql", path=H100, query="select count(*) as n from kernels"))[0]["n"]
    busy = values["gpu_busy_pct"]
    right = abs(busy - 13.16) < 0.01 and count == 48
    return Known(f"{busy:.2f} % with {count} kernels", right, "TensorBoard plugin")


QUESTIONS = (
    Question("Which kernel takes the most time?", slowest_kernel),
    Question("Why is the GPU idle?", why_idle),
    Question("What would TF32 be worth?", one_fix),
    Question("What are torch.compile and TF32 worth together?", two_fixes),
    Question("What changed between two runs?", what_changed),
    Question("Where does memory peak, and who holds it?", memory_peak),
    Question("Which rank is late, and by how much?", late_rank),
    Question("Which call makes the host wait?", where_it_waits),
    Question("Is that wait worth removing?", worth_fixing),
    Question("How busy is the GPU, with how many kernels?", how_busy),
)


@contextmanager
def agent_of(corpus: Path) -> Iterator[Agent]:
    """An agent with a server of its own, over standard input and output."""
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters

    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(corpus / TRAINER) as packed:
            packed.extractall(scratch, filter="data")
        words = ["-m", "foretrace", "mcp", "--root", str(corpus), "--root", scratch]
        server = StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:

            def call(tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
                result = portal.call(client.call_tool, tool, arguments)
                return result.content[0].text, bool(result.is_error)

            yield Agent(call, corpus, Path(scratch))


def counter(file: Path | None) -> Callable[[str], int]:
    """Counts tokens by a tokenizer; without one, nothing."""
    if file is None:
        return lambda text: 0
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text).ids)


def main() -> int:
    """Prints the questions, the answers, whether they are right, and their sizes; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=CORPUS, metavar="FOLDER")
    says = "count with this tokenizer too (a file of the package `tokenizers`), to see how far the estimate lies above"
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help=says)
    args = parser.parse_args()
    wrong = 0
    print(
        "| question | answer | right | known by | calls | tokens | counted |\n|---|---|---|---|---|---|---|"
    )
    with agent_of(args.corpus) as agent:
        agent.count = counter(args.tokenizer)
        for question in QUESTIONS:
            agent.calls = agent.tokens = agent.counted = 0
            known = question.find(agent)
            wrong += not known.right
            told = "yes" if known.right else "NO"
            counted = agent.counted if args.tokenizer else "–"
            sizes = f"{agent.calls} | {agent.tokens} | {counted}"
            print(f"| {question.asks} | `{known.answer}` | {told} | {known.known_by} | {sizes} |")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
