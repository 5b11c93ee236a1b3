"""The action, run as GitHub would run it: the steps of action.yml in a shell, against a stand-in of GitHub's API."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import claims
from tests.compare.recorded import run_folder, steps

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (extra dev)")

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
BLOCKS = (1.90, 1.91, 1.89, 1.90, 1.92, 1.90, 1.91)
BOT = "github-actions[bot]"
_EXPRESSION = re.compile(r"\$\{\{\s*(.+?)\s*\}\}")


# --- GitHub, or what the action sees of it ---------------------------------------------------------------------


@dataclass
class GitHub:
    """Comments of pull request 7, artifacts, and every request that was made."""

    comments: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    packed: dict[int, bytes] = field(default_factory=dict)
    writable: bool = True
    asked: list[tuple[str, str, bool]] = field(
        default_factory=list
    )  # method, path, whether a token came with it
    url: str = ""

    def add_artifact(self, data: bytes, *, fork: bool = False, name: str = "foretrace-baseline") -> None:
        number = len(self.artifacts) + 1
        made_by = {"head_branch": "main", "repository_id": 1, "head_repository_id": 2 if fork else 1}
        created = f"2026-01-{number:02d}T00:00:00Z"
        self.artifacts.append(
            {"id": number, "name": name, "expired": False, "created_at": created, "workflow_run": made_by}
        )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("foretrace-baselines.json", data)
        self.packed[number] = buffer.getvalue()

    def answer(self, method: str, path: str, document: Any) -> tuple[int, Any, str]:
        """Status, body, and where to go instead."""
        place, _, query = path.partition("?")
        if found := re.fullmatch(r"/repos/o/r/actions/artifacts/(\d+)/zip", place):
            return 302, b"", f"{self.url.replace('127.0.0.1', 'localhost')}/blob/{found[1]}"
        if place.startswith("/blob/"):
            return 200, self.packed[int(place.removeprefix("/blob/"))], ""
        if place == "/repos/o/r/actions/artifacts":
            wanted = re.search(r"name=([^&]+)", query)
            assert wanted is not None
            return 200, {"artifacts": [each for each in self.artifacts if each["name"] == wanted[1]]}, ""
        if place == "/repos/o/r/issues/7/comments" and method == "GET":
            page = int(query.rpartition("page=")[2])
            return 200, self.comments[100 * (page - 1) : 100 * page], ""
        if not self.writable:
            return 403, {"message": "Resource not accessible by integration"}, ""
        if place == "/repos/o/r/issues/7/comments" and method == "POST":
            self.comments.append({"id": len(self.comments) + 1, "user": {"login": BOT}, **document})
            return 201, self.comments[-1], ""
        found = re.fullmatch(r"/repos/o/r/issues/comments/(\d+)", place)
        if found and method == "PATCH":
            self.comments[int(found[1]) - 1].update(document)
            return 200, {}, ""
        return 404, {"message": "Not Found"}, ""


@pytest.fixture
def github() -> Iterator[GitHub]:
    known = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known.asked.append((self.command, self.path, self.headers.get("Authorization") is not None))
            status, answer, elsewhere = known.answer(
                self.command, self.path, json.loads(body) if body else None
            )
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            if elsewhere:
                self.send_header("Location", elsewhere)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = _answer

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: pytest has its own output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield known
    server.shutdown()
    server.server_close()


# --- the runner ------------------------------------------------------------------------------------------------


@dataclass
class Job:
    """What one job left: the exit code of the first step that failed, the summary, the log and the outputs."""

    code: int
    summary: str
    log: str
    outputs: dict[str, str]
    uploaded: str  # the path that upload-artifact was given


def valued(text: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    """A text with its expressions replaced; `if:` conditions are of the forms that action.yml has."""

    def one(name: str) -> str:
        kind, _, rest = name.strip().partition(".")
        known = inputs if kind == "inputs" else outputs
        return known.get(rest.removeprefix("gate.outputs."), "")

    def expression(match: re.Match[str]) -> str:
        parts = match[1].split("&&")
        if len(parts) == 1:
            return one(parts[0])
        told = []
        for part in (part.strip() for part in parts):
            if part == "!cancelled()":
                continue
            name, sign, value = re.fullmatch(r"([\w.-]+) (==|!=) '(.*)'", part).groups()  # type: ignore[union-attr]
            told.append((one(name) == value) == (sign == "=="))
        return str(all(told)).lower()

    return _EXPRESSION.sub(expression, text)


def run_job(tmp_path: Path, github: GitHub, *, event: str, **given: str) -> Job:
    """Runs every step of the action, as GitHub's runner does for a job on `main` or for pull request 7 to it."""
    defaults = {name: str(each["default"]) for name, each in ACTION["inputs"].items()}
    inputs = {
        **defaults,
        "token": "t0ken",
        "install": "none",
        **{k.replace("_", "-"): v for k, v in given.items()},
    }
    files = {name: tmp_path / name for name in ("summary", "output", "event", "temp")}
    files["summary"].write_text("")
    files["temp"].mkdir(exist_ok=True)
    told: dict[str, Any] = {"repository": {"default_branch": "main"}}
    if event == "pull_request":
        told["pull_request"] = {"number": 7, "base": {"ref": "main"}}
    files["event"].write_text(json.dumps(told))
    variables = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path),
        "FORETRACE_CACHE": str(tmp_path / "cache"), "GITHUB_ACTION_PATH": str(ROOT), "GITHUB_API_URL": github.url,
        "GITHUB_REPOSITORY": "o/r", "GITHUB_EVENT_NAME": event, "GITHUB_EVENT_PATH": str(files["event"]),
        "GITHUB_REF": "refs/heads/main" if event == "push" else "refs/pull/7/merge",
        "GITHUB_STEP_SUMMARY": str(files["summary"]), "RUNNER_TEMP": str(files["temp"]), "PYTHONUTF8": "1",
    }  # fmt: skip
    code, log, uploaded = 0, "", ""
    outputs: dict[str, str] = {}
    for step in ACTION["runs"]["steps"]:
        condition = valued(step["if"], inputs, outputs) if "if" in step else str(code == 0).lower()
        if condition != "true":
            continue
        if "uses" in step:
            uploaded = valued(step["with"]["path"], inputs, outputs)
            continue
        files["output"].write_text("")
        own = {name: valued(text, inputs, outputs) for name, text in step["env"].items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            env={**variables, **own, "GITHUB_OUTPUT": str(files["output"])},
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        log += done.stdout + done.stderr
        code = code or done.returncode
        pairs = (line.partition("=") for line in files["output"].read_text().splitlines())
        outputs |= {name: value for name, _, value in pairs}
    return Job(code, files["summary"].read_text(encoding="utf-8"), log, outputs, uploaded)


def recorded(folder: Path, slower: float = 1.0, device: str = "NVIDIA H200") -> str:
    made = steps((1_700.0 * slower,) * 6, device=device)
    return str(run_folder(folder, made, [block * slower for block in BLOCKS]))


# --- what it does ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_main_leaves_a_baseline_and_a_pull_request_one_comment(tmp_path: Path, github: GitHub) -> None:
    """A job of main; then a pull request that is 1.8 times as slow, and again after its author has mended it."""
    kept = run_job(tmp_path, github, event="push", recording=recorded(tmp_path / "main"))
    assert (kept.code, kept.outputs["code"], kept.outputs["outcome"]) == (0, "4", "inconclusive")
    assert (
        "there is no baseline yet: foretrace-branch.json does not exist\n\nA job on branch `main` leaves one."
        in kept.summary
    )
    assert github.comments == []
    github.add_artifact(Path(kept.uploaded).read_bytes())
    github.comments.append(
        {"id": 1, "user": {"login": "someone"}, "body": "<!-- foretrace-gate: gate --> mine"}
    )
    github.comments += [{"id": n, "user": {"login": BOT}, "body": "another bot's"} for n in range(2, 102)]

    slow = run_job(tmp_path, github, event="pull_request", recording=recorded(tmp_path / "slow", 1.8))
    assert (slow.code, slow.outputs["outcome"], slow.uploaded) == (1, "failed", "")
    assert len(github.comments) == 102
    body = github.comments[-1]["body"]
    assert body.splitlines()[0] == "<!-- foretrace-gate: gate -->"
    assert body.splitlines()[1] == "### ❌ Failed: 1.90 ms → 3.42 ms a step, +80.0 %: the limit is broken"
    assert "| ❌ **failed** | `step_ms > +3%` |" in body
    assert slow.summary == body
    assert "::error title=failed%3A step_ms > +3%25::" in slow.log

    mended = run_job(tmp_path, github, event="pull_request", recording=recorded(tmp_path / "mended"))
    assert (mended.code, mended.outputs["code"]) == (0, "0")
    assert len(github.comments) == 102, "edited, not repeated"
    assert (
        github.comments[-1]["body"]
        .splitlines()[1]
        .startswith("### ✅ Passed: 1.90 ms → 1.90 ms a step, +0.0 %")
    )
    assert github.comments[0]["body"].endswith("mine"), "another's comment stays"
    tokens = {with_token for _, path, with_token in github.asked if not path.startswith("/blob/")}
    blobs = {with_token for _, path, with_token in github.asked if path.startswith("/blob/")}
    assert (tokens, blobs) == ({True}, {False}), "the token goes to the API, and nowhere else"


@pytest.mark.slow
def test_a_fork_gets_the_summary_and_cannot_plant_a_baseline(tmp_path: Path, github: GitHub) -> None:
    github.writable = False
    github.add_artifact(b"{}", fork=True)
    run = recorded(tmp_path / "run")
    job = run_job(tmp_path, github, event="pull_request", recording=run, fail_on_inconclusive="true")
    assert (job.code, job.outputs["outcome"]) == (4, "inconclusive")
    assert "no artifact 'foretrace-baseline' of branch 'main' yet" in job.log
    assert "::notice title=foretrace%3A no comment::POST /repos/o/r/issues/7/comments: 403" in job.log
    assert "### ⚠️ Inconclusive: there is no baseline yet" in job.summary
    assert github.comments == []


@pytest.mark.slow
def test_another_device_decides_nothing(tmp_path: Path, github: GitHub) -> None:
    """Half as fast, on another GPU: a warning, and no verdict."""
    before, after = recorded(tmp_path / "a"), recorded(tmp_path / "b", 2.0, device="NVIDIA A100-SXM4-80GB")
    job = run_job(tmp_path, github, event="pull_request", recording=after, baseline=before)
    assert (job.code, job.outputs["code"]) == (0, "4")
    assert "> **Environments differ:** device NVIDIA H200 → NVIDIA A100-SXM4-80GB." in job.summary
    assert "⚠️ inconclusive | `step_ms > +3%`" in job.summary
    assert "not judged: other device" in job.summary
    assert [path for method, path, _ in github.asked if "artifacts" in path] == [], "a baseline was named"


@pytest.mark.slow
def test_what_goes_wrong_is_in_the_summary_and_fails(tmp_path: Path, github: GitHub) -> None:
    """The program fails; nothing in an input reaches a shell."""
    planted = f"touch {tmp_path}/pwned"
    hostile = f"'; {planted}; echo '$({planted})`{planted}`"
    failing = run_job(
        tmp_path, github, event="pull_request", program="python -c 'raise SystemExit(7)'", key=hostile
    )
    assert (failing.code, failing.outputs["outcome"]) == (3, "error")
    assert "### ❌ Nothing to compare: the program ended with exit code 7" in failing.summary
    assert len(github.comments) == 1
    wrong = run_job(
        tmp_path,
        github,
        event="pull_request",
        recording=recorded(tmp_path / "r"),
        fail_on=f"step > {hostile}",
    )
    assert wrong.code == 2
    assert "ended with code 2" in wrong.summary
    assert not (tmp_path / "pwned").exists()


def test_no_expression_stands_in_a_command_and_no_token_beside_the_program() -> None:
    scripts = [step for step in ACTION["runs"]["steps"] if "run" in step]
    assert len(scripts) == 4
    assert [step["name"] for step in scripts if "${{" in step["run"]] == []
    with_token = [step["name"] for step in scripts if "GATE_TOKEN" in step["env"]]
    assert with_token == ["Fetch the baseline", "Comment on the pull request"]
    used = [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step]
    assert [each for each in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", each)] == []


def test_the_workflows_of_the_guide_would_run() -> None:
    """Every block is YAML; inputs of the action exist, commands of Foretrace parse, other actions are named as they are pinned."""
    text = (ROOT / "docs" / "guide" / "ci.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S)]
    assert len(blocks) == 4
    found = [step for block in blocks for step in _steps(block)]
    ours = [step for step in found if str(step.get("uses", "")).startswith("OWNER/foretrace@")]
    assert len(ours) == 2
    assert [name for step in ours for name in step["with"] if name not in ACTION["inputs"]] == []
    lines = [line for step in found for line in (step.get("script") or [step.get("run", "")])]
    commands = [
        claims.CommandLine(tuple(shlex.split(line)), complete=True) for line in lines if "foretrace " in line
    ]
    assert len(commands) == 5
    assert [fault for line in commands if (fault := _fault(line))] == []
    listed = set(re.findall(r"^\| `([a-z-]+)` \|.*\|.*\|$", text, re.M))
    assert listed >= set(ACTION["inputs"]), "the table has every input"


def _steps(block: Any) -> list[dict[str, Any]]:
    if isinstance(block, list):
        return block
    if "jobs" in block:
        return [step for job in block["jobs"].values() for step in job["steps"]]
    return list(block.values())


def _fault(line: claims.CommandLine) -> str | None:
    words = line.words[: line.words.index(">")] if ">" in line.words else line.words
    return claims.fault(claims.CommandLine(words, complete=True))
