"""Programs: the two tools that start one, served with --allow-run only."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from foretrace.capture import known_secrets
from foretrace.commands.agent.roots import Roots
from foretrace.commands.agent.tools import Tools
from foretrace.errors import MissingDataError, UsageError
from foretrace.present.agent.answer import Answer
from foretrace.present.agent.brief import next_step
from foretrace.trial import candidates

_LAST_LINES = 15  # of what a program printed
_MOST_READ = 1 << 16


@dataclass(frozen=True)
class Ended:
    """How a program ended; `None` where its time was over."""

    code: int | None
    output: str
    said: tuple[str, ...]  # its last lines
    complaints: tuple[str, ...]  # of those, what it printed to standard error


class Programs:
    """Records programs, and measures changes in them, in the first root."""

    def __init__(self, roots: Roots, tools: Tools) -> None:
        self._roots, self._tools = roots, tools

    def run(self, command: list[str], timeout_s: int = 600) -> Answer:
        """Starts a program, records it and diagnoses the recording."""
        _check(command, timeout_s)
        folder = self._new_folder()
        ended = self._start(["run", "--quiet", "-o", str(folder), "--", *command], timeout_s)
        facts = {"program": {"exit_code": ended.code, "last_lines": list(ended.said)}}
        if ended.code is None:
            raise MissingDataError(
                f"the program took longer than {timeout_s} s and was ended: {' | '.join(ended.said)}"
            )
        if not any(folder.glob("rank*/*.json*")):
            raise MissingDataError(
                f"nothing was recorded; the program ended with {ended.code}: {' | '.join(ended.said)}"
            )
        answer = self._tools.diagnose(str(folder))
        return replace(answer, facts={"run": str(folder), **facts, **answer.facts})

    def try_(self, command: list[str], only: list[str] | None = None, timeout_s: int = 1_800) -> Answer:
        """Makes the changes that need no edit, one at a time, and measures each."""
        _check(command, timeout_s)
        for name in "+".join(only).split("+") if only else ():
            candidates.find(name.partition("=")[0])
        chosen = [word for name in only or () for word in ("--only", name)]
        ended = self._start(
            ["try", *chosen, "--format", "json", "--budget", str(timeout_s), "--", *command], timeout_s + 60
        )
        if ended.code != 0:
            took = "took too long" if ended.code is None else f"ended with {ended.code}"
            raise MissingDataError(f"foretrace try {took}: {' | '.join(ended.complaints)}")
        document: dict[str, Any] = json.loads(ended.output)
        rows = document["changes"]
        return Answer(
            trust="measured, not predicted",
            says=f"{len(rows)} changes were measured against {document['base']['step_ms']:.4g} ms a step",
            facts={name: document[name] for name in ("base", "notes")},
            of="changes",
            rows=rows,
            next=next_step("recordings", None, command="ledger", folder=str(self._roots.folders[0])),
            document=lambda: ended.output,
        )

    def _new_folder(self) -> Path:
        parent = self._roots.folders[0] / "foretrace-runs"
        parent.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="agent-", dir=self._roots.check(parent)))

    def _start(self, words: Sequence[str], timeout_s: int) -> Ended:
        """One command of Foretrace, ended with all that it started when its time is over."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "foretrace", *words],
                cwd=self._roots.folders[0],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            code: int | None = None
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass  # told by the missing code
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            complaints = _last(err)
            said = [*_last(out), *complaints][-_LAST_LINES:]
            out.seek(0)
            lines = [tuple(known_secrets.masked(some)) for some in (said, complaints)]
            return Ended(code, out.read().decode("utf-8", "replace"), *lines)


def _last(stream: IO[bytes]) -> list[str]:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - _MOST_READ, 0))
    return stream.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]


def _check(command: list[str], timeout_s: int) -> None:
    if not command:
        raise UsageError('name a program, such as ["python", "train.py"]')
    if not 1 <= timeout_s <= 86_400:
        raise UsageError("timeout_s is 1 to 86400")
