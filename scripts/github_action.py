"""The steps of action.yml: install, baseline, gate, comment. Everything that is decided here comes from `foretrace gate`.

Only `baseline` and `comment` speak to GitHub's API, and only they are given a token; the step that runs the program is not.
What GitHub refuses, as it does for pull requests from forks, is said in the log: the summary of the job is written all the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any

FILE = "foretrace-baselines.json"  # in the artifact
NAME = "branch"  # of the baseline in that file
_MOST_BYTES = 16 << 20
_PAGES, _PER_PAGE = 30, 100
_TIMEOUT_S = 30.0
_OUTCOMES = {0: "passed", 1: "failed", 4: "inconclusive"}
_INCONCLUSIVE, _UNREADABLE = 4, 3
Json = dict[str, Any]


class RefusedError(Exception):
    """GitHub did not do what was asked; the text says what and why."""


def main() -> int:
    """Runs one step; the exit code is that of the step."""
    steps = {"install": install, "baseline": baseline, "gate": gate, "comment": comment}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(f"usage: github_action.py {'|'.join(steps)}", file=sys.stderr)
        return 2
    return steps[sys.argv[1]]()


def install() -> int:
    """Installs Foretrace: what is named, or the source that this file is part of."""
    wanted = _given("INSTALL")
    if wanted == "none":
        return 0
    packages = shlex.split(wanted) or [str(Path(__file__).resolve().parents[1])]
    return subprocess.run([sys.executable, "-m", "pip", "install", "-q", *packages], check=False).returncode


def baseline() -> int:
    """Fetches the artifact that the branch's newest job left; where there is none, nothing is written."""
    if _given("BASELINE"):
        return 0
    target = _baseline_file()
    target.unlink(missing_ok=True)
    try:
        target.write_bytes(_newest_baseline(_given("ARTIFACT"), _branch()))
    except RefusedError as error:
        _say("notice", "no baseline", str(error))
    return 0


def gate() -> int:
    """Records the program, compares, and writes the summary of the job and the outputs of the step."""
    if importlib.util.find_spec("foretrace") is None:
        _say("error", "not installed", f"{sys.executable} has no Foretrace: see the input `install`")
        return 2
    folder = _folder()
    markdown = folder / "comment.md"
    markdown.unlink(missing_ok=True)
    run, failed = _recorded(folder)
    code = _UNREADABLE
    if failed:
        markdown.write_text(_titled(f"Nothing to compare: {failed}"), encoding="utf-8")
        _say("error", "nothing to compare", failed)
    else:
        before = Path(_given("BASELINE") or _baseline_file())
        command = ["gate", str(before), str(run), *_limits(), "--key", _given("KEY") or "gate"]
        code = _foretrace(*command, "--markdown", str(markdown), "--github", "--force")
    outcome = _OUTCOMES.get(code, "error") if not failed else "error"
    if not markdown.exists():  # a wrong limit, say: the log has the reason
        markdown.write_text(
            _titled(f"`foretrace gate` ended with code {code}; the log says why"), encoding="utf-8"
        )
    text = markdown.read_text(encoding="utf-8")
    if code == _INCONCLUSIVE and not _given("BASELINE") and not _baseline_file().exists():
        branch = _branch().replace("`", "'")
        text = text.replace("\n\n", f"\n\nA job on branch `{branch}` leaves one.\n\n", 1)
        markdown.write_text(text, encoding="utf-8")
    _append("GITHUB_STEP_SUMMARY", text)
    saved = _saved(folder, run) if not failed and _of_the_branch() else ""
    written = {"outcome": outcome, "code": code, "run": run, "markdown": markdown, "saved": saved}
    _append("GITHUB_OUTPUT", "".join(f"{name}={_one_line(value)}\n" for name, value in written.items()))
    return _step_code(code)


def comment() -> int:
    """Writes the comment on the pull request, or edits the one that is there; what GitHub refuses is only said."""
    number = _pull_request()
    if number is None:
        print("no pull request: the summary of the job has the result")
        return 0
    text = Path(_given("MARKDOWN")).read_text(encoding="utf-8")
    try:
        print(_written(number, text))
    except RefusedError as error:
        _say("notice", "no comment", f"{error}; the summary of the job has the result")
    return 0


# --- recording and comparing -----------------------------------------------------------------------------------


def _recorded(folder: Path) -> tuple[Path, str]:
    """The Run or recording to compare, and what went wrong."""
    given, program = _given("RECORDING"), shlex.split(_given("PROGRAM"))
    if bool(given) == bool(program):
        return folder, "give the action either `program` or `recording`"
    if given:
        return Path(given), "" if Path(given).exists() else "the recording does not exist"
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)  # of an earlier gate of this job with the same key
    code = _foretrace("run", "-o", str(run), *shlex.split(_given("RUN_OPTIONS")), "--", *program)
    if code == _INCONCLUSIVE:
        return run, "nothing was recorded of the program; the log says why"
    return run, f"the program ended with exit code {code}" if code else ""


def _saved(folder: Path, run: Path) -> str:
    """The file with this Run as the branch's baseline; empty where it could not be made."""
    target = folder / FILE
    target.unlink(missing_ok=True)
    command = ["compare", str(run), "--save-baseline", NAME, "--baselines", str(target), *_limits()]
    return str(target) if _foretrace(*command) == 0 and target.exists() else ""


def _limits() -> list[str]:
    lines = [line.strip() for line in _given("FAIL_ON").splitlines()]
    return [word for line in lines if line for word in ("--fail-on", line)]


def _foretrace(*arguments: str) -> int:
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "foretrace", *arguments], check=False).returncode


def _step_code(code: int) -> int:
    """Fails the job where it should: on the branch that baselines are of, a change is in already and only told."""
    if code == _INCONCLUSIVE and _given("FAIL_ON_INCONCLUSIVE") != "true":
        return 0
    if code == 1 and _of_the_branch():
        _say("warning", "a limit is broken", "this branch's new baseline replaces the old one")
        return 0
    return code


def _of_the_branch() -> bool:
    """Whether this job is one of the branch itself, whose result becomes the baseline."""
    own = os.environ.get("GITHUB_EVENT_NAME") in ("push", "schedule", "workflow_dispatch")
    return own and not _given("BASELINE") and os.environ.get("GITHUB_REF") == f"refs/heads/{_branch()}"


def _titled(title: str) -> str:
    """A comment that has no more to say."""
    from foretrace.present.export.gate_comment import marker

    return f"{marker(_given('KEY'))}\n### ❌ {title}\n"


# --- GitHub ----------------------------------------------------------------------------------------------------


def _newest_baseline(artifact: str, branch: str) -> bytes:
    """The file in the newest artifact of this name that a job of the branch itself left.

    A fork's jobs leave artifacts too, and a fork may have a branch of the same name: those do not count.
    """
    query = urllib.parse.urlencode({"name": artifact})
    kept = [
        each
        for each in _listed(f"/actions/artifacts?{query}", "artifacts")
        if not each.get("expired") and _made_by(each, branch)
    ]
    if not kept:
        raise RefusedError(
            f"no artifact {artifact!r} of branch {branch!r} yet; a job of that branch leaves one"
        )
    newest = max(kept, key=lambda each: str(each.get("created_at")))
    packed = _asked("GET", f"{_repository()}/actions/artifacts/{int(newest['id'])}/zip")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive, archive.open(FILE) as file:
            data = file.read(_MOST_BYTES + 1)
    except (zipfile.BadZipFile, KeyError, OSError, NotImplementedError, RuntimeError) as error:
        raise RefusedError(f"artifact {artifact!r} holds no {FILE}: {error}") from error
    if len(data) > _MOST_BYTES:
        raise RefusedError(f"artifact {artifact!r}: {FILE} is too large for a baseline")
    return data


def _made_by(artifact: Json, branch: str) -> bool:
    run = artifact.get("workflow_run") or {}
    own = run.get("repository_id") is not None and run.get("repository_id") == run.get("head_repository_id")
    return own and run.get("head_branch") == branch


def _written(number: int, text: str) -> str:
    """Creates the comment, or edits the newest one of ours that begins with the same hidden line."""
    marker, author = text.partition("\n")[0], _given("COMMENT_AUTHOR")
    ours = [
        each
        for each in _listed(f"/issues/{number}/comments?", None)
        if str(each.get("body", "")).startswith(marker) and (each.get("user") or {}).get("login") == author
    ]
    if not ours:
        _asked("POST", f"{_repository()}/issues/{number}/comments", {"body": text})
        return "wrote a comment"
    _asked("PATCH", f"{_repository()}/issues/comments/{int(ours[-1]['id'])}", {"body": text})
    return "edited the comment"


def _listed(path: str, field: str | None) -> Iterator[Json]:
    """Everything that a list of GitHub's holds, page by page."""
    joint = "" if path.endswith("?") else "&"
    for page in range(1, _PAGES + 1):
        answer = json.loads(
            _asked("GET", f"{_repository()}{path}{joint}per_page={_PER_PAGE}&page={page}") or "[]"
        )
        rows = answer if field is None else answer.get(field, [])
        yield from rows
        if len(rows) < _PER_PAGE:
            return


def _asked(method: str, path: str, document: Json | None = None) -> bytes:
    """What GitHub's API answers."""
    request = urllib.request.Request(
        os.environ.get("GITHUB_API_URL", "https://api.github.com") + path,
        data=None if document is None else json.dumps(document).encode(),
        method=method,
        headers={"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"},
    )
    # Not sent on to where a download is redirected: another host, which refuses it.
    request.add_unredirected_header("Authorization", f"Bearer {_given('TOKEN')}")
    if document is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.build_opener(_Redirects).open(request, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(4 * _MOST_BYTES)
            return data
    except urllib.error.HTTPError as error:
        needs = (
            "; the workflow's `permissions` or the fork allow no more"
            if error.code in (401, 403, 404)
            else ""
        )
        raise RefusedError(
            f"{method} {path.partition('?')[0]}: {error.code} {error.reason}{needs}"
        ) from error
    except (OSError, HTTPException, ValueError) as error:
        raise RefusedError(f"{method} {path.partition('?')[0]}: {error}") from error


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows where a download lies, and nothing but a download."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.get_method() != "GET":
            raise urllib.error.HTTPError(req.full_url, code, "redirected", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _repository() -> str:
    return f"/repos/{os.environ['GITHUB_REPOSITORY']}"


# --- what the step was given -----------------------------------------------------------------------------------


def _given(name: str) -> str:
    return os.environ.get(f"GATE_{name}", "").strip()


def _event() -> Mapping[str, Any]:
    try:
        event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return {}
    return event if isinstance(event, dict) else {}


def _pull_request() -> int | None:
    number = (_event().get("pull_request") or {}).get("number")
    return number if isinstance(number, int) else None


def _branch() -> str:
    """The branch that is compared with."""
    event = _event()
    base = ((event.get("pull_request") or {}).get("base") or {}).get("ref")
    return str(_given("BRANCH") or base or (event.get("repository") or {}).get("default_branch") or "main")


def _folder() -> Path:
    """A folder for this gate in the job's temporary one."""
    name = hashlib.sha256(_given("KEY").encode()).hexdigest()[
        :12
    ]  # a key may be too long for a name, or no name at all
    folder = Path(os.environ.get("RUNNER_TEMP", ".")) / f"foretrace-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _baseline_file() -> Path:
    return Path(os.environ.get("RUNNER_TEMP", ".")) / "foretrace-branch.json"


def _append(variable: str, text: str) -> None:
    if path := os.environ.get(variable):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)


def _one_line(value: object) -> str:
    return str(value).replace("\r", " ").replace("\n", " ")


def _say(level: str, title: str, text: str) -> None:
    says = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    print(f"::{level} title=foretrace%3A {title}::{says}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
