"""Serve recordings to a coding agent as tools of the Model Context Protocol, over standard input and output."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from foretrace.commands import _input
from foretrace.errors import UsageError
from foretrace.present import agent
from foretrace.urls import named

SKILL = Path(agent.__file__).parent / "SKILL.md"
_EXAMPLES = """\
to set up an agent:
  claude mcp add foretrace -- foretrace mcp --root ~/recordings
  {"mcpServers": {"foretrace": {"command": "foretrace", "args": ["mcp", "--root", "/path/to/recordings"]}}}

Needs the extra: pip install 'foretrace[mcp]'. Nothing is written, and no program is started without --allow-run.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The folders, and whether programs may be started."""
    says = "a folder, or a URL, whose recordings may be read; more than once (default: the working directory)"
    parser.add_argument("--root", metavar="FOLDER", type=named, action="append", default=[], help=says)
    says = "also offer `run` and `try`, which start any program that the agent names"
    parser.add_argument("--allow-run", action="store_true", help=says)
    says = "print the skill for agents that work on the command line, to keep as SKILL.md, and stop"
    parser.add_argument("--skill", action="store_true", help=says)
    _input.add_no_cache(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Answers until standard input ends."""
    if args.skill:
        print(SKILL.read_text(encoding="utf-8"), end="")
        return
    if find_spec("mcp") is None:
        raise UsageError("mcp needs the package of the protocol: pip install 'foretrace[mcp]'")
    from foretrace.commands.agent.programs import Programs
    from foretrace.commands.agent.roots import Roots
    from foretrace.commands.agent.server import Server
    from foretrace.commands.agent.tools import Tools

    roots = Roots.of(args.root)
    tools = Tools(roots, cache=not args.no_cache)
    Server(tools, Programs(roots, tools) if args.allow_run else None).serve()
