"""Everything that Foretrace makes of a Run, written into this folder: `python outputs.py ENDING PROGRAM ...`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from foretrace.commands import main

PRINTED = {
    "diagnosis.json": ["diagnose", "RUN", "--format", "json"],
    "diagnosis.md": ["diagnose", "RUN", "--format", "md"],
    "diagnosis.sarif": ["diagnose", "RUN", "--format", "sarif"],
    "diagnosis.txt": ["diagnose", "RUN"],
    "agent.txt": ["diagnose", "RUN", "--format", "agent"],
    "sections.json": ["show", "sections", "RUN", "--format", "json", "--limit", "0"],
    "stacks.csv": ["show", "stacks", "RUN", "--format", "csv", "--limit", "0"],
    "spans.csv": ["sql", "RUN", "select distinct name from spans", "--format", "csv", "--limit", "0"],
    "args.csv": ["sql", "RUN", "select * from args", "--format", "csv", "--limit", "0"],
    "summary.json": ["summary", "RUN", "--format", "json"],
    "compare.md": ["compare", "RUN", "RUN", "--format", "md"],
    "saved.txt": ["compare", "RUN", "--save-baseline", "now", "--baselines", "baselines.json"],
    "gate.txt": ["gate", "RUN", "RUN", "--fail-on", "step_ms > +3%", "--markdown", "gate.md", "--junit", "gate.xml"],
    "ranks.json": ["ranks", "RUN", "--out", "summaries", "--format", "json"],
    "cache.txt": ["cache"],
}  # fmt: skip
WRITTEN = (
    ["report", "RUN", "-o", "report.html"],
    ["perfetto", "RUN", "-o", "perfetto.json.gz"],
    ["flame", "RUN", "-o", "stacks.folded"],
    ["flame", "RUN", "-o", "stacks.speedscope.json"],
)
TOOLS: tuple[tuple[str, list[str]], ...] = (
    ("recordings", []),
    ("diagnose", []),
    ("show", ["sections"]),
    ("sql", ["select name from spans"]),
)


def write(name: str, words: list[str]) -> None:
    """What one command prints, in a file; a command that has nothing to say of a Run says why."""
    with (
        open(name, "w", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        code = main(words)
    print(name, code)
    assert code != 70, f"{words} ended with 70"


def answers(run: str) -> None:
    """What `foretrace mcp` answers."""
    from foretrace.commands.agent.roots import Roots
    from foretrace.commands.agent.tools import Tools
    from foretrace.errors import ForetraceError
    from foretrace.present.agent.answer import shown

    tools = Tools(Roots.of([Path.cwd(), Path(run).resolve().parent]))
    with open("mcp.txt", "w", encoding="utf-8") as file:
        for tool, more in TOOLS:
            try:
                answer = getattr(tools, tool)(*([] if tool == "recordings" else [run]), *more)
                file.write(f"{shown(answer)}\n{answer.document() if answer.document else None}\n")
            except ForetraceError as error:
                file.write(f"{error}\n")


def foreign(letters: str) -> None:
    """A recording that somebody else made, with tokens of known formats; it is the user's, and lies elsewhere."""
    import torch
    from torch.profiler import profile, record_function

    names = [f"push ghp_{letters}0123456789ab", f"GET https://me:{letters}@host/x?access_token={letters}"]
    names += [f"Authorization: Bearer {letters}1", f"--api-key {letters}", f"password={letters}"]
    with profile(record_shapes=True, with_stack=True) as profiler:
        for _ in range(5):
            for name in names:
                with record_function(name):
                    torch.ones(2, 2) @ torch.ones(2, 2)
            profiler.step()
    folder = Path.cwd().parents[1] / "inputs" / f"ghp_{letters}0123456789ab"
    folder.mkdir()
    recording = folder / "trace.json"
    profiler.export_chrome_trace(str(recording))
    everything(str(recording))


def everything(run: str, *, brief: bool = False) -> None:
    """All commands on one recording, or two."""
    if brief:
        write("diagnosis.sarif", ["diagnose", run, "--format", "sarif"])
        return
    for name, words in PRINTED.items():
        write(name, [run if word == "RUN" else word for word in words])
    for words in WRITTEN:
        write(f"{words[-1]}.log", [run if word == "RUN" else word for word in words])
    answers(run)


def bench() -> None:
    """A function that fails with its secret in the message."""
    Path("slow.py").write_text(
        "import os\ndef loads(): raise OSError(f\"no login: {os.environ['DB_PASSWORD']} {os.environ['NOTE']}\")\n"
    )
    write("bench.log", ["bench", "slow.py::loads", "-o", "bench.json", "--svg", "bench.svg"])


def attempt(program: list[str]) -> None:
    """`foretrace try`, and `run` and `try` as an agent starts them."""
    write(
        "try.json.txt",
        ["try", "-o", "tried", "--only", "threads=1", "--blocks", "5", "--format", "json", "--", *program],
    )
    from foretrace.commands.agent.programs import Programs
    from foretrace.commands.agent.roots import Roots
    from foretrace.commands.agent.tools import Tools
    from foretrace.present.agent.answer import shown

    roots = Roots.of([Path.cwd()])
    program[program.index("try")] = "raises"
    with open("mcp-run.txt", "w", encoding="utf-8") as file:
        file.write(f"{shown(Programs(roots, Tools(roots)).run(program))}\n")


if __name__ == "__main__":
    ending, program = sys.argv[1], sys.argv[2:]
    letters = os.environ["NOTE"][4:28]  # of the token
    if ending == "foreign":
        foreign(letters)
    elif ending == "bench":
        bench()
    elif ending == "try":
        attempt(program)
    elif any(Path("run").glob("rank*/*light.json")):
        # One of four endings gets all commands, the others what is shared most.
        everything("run", brief=ending.startswith("SIG") and ending != "SIGTERM")
    os._exit(0)
