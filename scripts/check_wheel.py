"""Installs a wheel of Foretrace into an empty virtual environment and tries what a user would.

    python scripts/check_wheel.py dist/foretrace-0.1.0-cp311-abi3-linux_x86_64.whl
    python scripts/check_wheel.py WHEEL --runners     also by uvx and by pipx run, which must be on the PATH

The install has no compiler, no node and no source distribution: PATH holds the environment alone, and only wheels are
taken. Then `demo`, `doctor`, `serve` and `mcp` are run from it, outside of the checkout. Each takes seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

BUILDERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cl", "node", "npm")
# Of the package index and its certificates; nothing else of the environment is passed on.
PASSED_ON = re.compile(
    r"PIP_|UV_|PIPX_|SSL_|REQUESTS_|HTTPS?_PROXY|NO_PROXY|SYSTEMROOT|TEMP|TMP", re.IGNORECASE
)
HEADLINE = "unfused-attention"  # the known fault of the sample
MOST_S = 300
# The client of the protocol's own package, run by the Python of the environment.
CLIENT = """
import anyio, json, mcp, os, sys
server = mcp.StdioServerParameters(command=sys.executable, args=["-m", "foretrace", "mcp", "--root", sys.argv[1]], env=dict(os.environ))
async def ask():
    async with mcp.Client(server) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("diagnose", {"path": sys.argv[2]})
        text = "".join(part.text for part in answer.content if part.type == "text")
        print(json.dumps({"tools": sorted(tool.name for tool in tools.tools), "error": bool(answer.is_error), "text": text}))
anyio.run(ask)
"""


def main() -> None:
    """Checks one wheel; fails with what did not work."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--runners", action="store_true", help="also by uvx and by pipx run")
    args = parser.parse_args()
    wheel = args.wheel.absolute()
    with tempfile.TemporaryDirectory(prefix="foretrace-wheel-") as folder:
        check(wheel, Path(folder))
        if args.runners:
            check_runners(wheel, Path(folder))


def check(wheel: Path, folder: Path) -> None:
    """The wheel in an environment of its own."""
    began = time.monotonic()
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    programs = venv / ("Scripts" if os.name == "nt" else "bin")
    environment = bare(folder, str(programs))
    found = [name for name in BUILDERS if shutil.which(name, path=environment["PATH"])]
    expect(not found, f"the environment has {found}")
    python = str(programs / "python")
    install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", f"{wheel}[mcp]"]
    run(install, folder, environment)
    say("installed from wheels alone", began)

    foretrace = str(programs / "foretrace")
    expect(HEADLINE in run([foretrace, "demo"], folder, environment), "demo: no diagnosis")
    checks = json.loads(run([foretrace, "doctor", "--format", "json"], folder, environment))["rows"]
    status = {each["what"]: each["status"] for each in checks}
    native = "-abi3-" in wheel.name
    expect(status["reader"] == ("ok" if native else "missing"), f"doctor: the reader is {status['reader']}")
    say("demo and doctor", began)
    sample = run([python, "-c", SAMPLE], folder, environment).strip()
    shutil.copy(sample, folder / "sample.json.gz")
    check_serve([foretrace, "serve", "sample.json.gz"], folder, environment)
    say("serve", began)
    told = json.loads(run([python, "-c", CLIENT, str(folder), "sample.json.gz"], folder, environment))
    expect({"diagnose", "predict", "sql"} <= set(told["tools"]), f"mcp: {told['tools']}")
    expect(not told["error"] and "trust" in told["text"].lower(), f"mcp: {told['text'][:500]}")
    say("mcp", began)


SAMPLE = "import foretrace, pathlib; print(next(pathlib.Path(foretrace.__file__).parent.glob('samples/*.json.gz')))"


def check_serve(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """The page and its data, fetched as a browser does."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout
            lines: list[str] = []
            address = None
            while address is None:
                line = server.stdout.readline()
                expect(bool(line), f"serve ended: {''.join(lines)}")
                lines.append(line)
                address = re.search(r"http://\S+", line)
            # The token of the address becomes a cookie.
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(address[0], timeout=60) as answer:
                page = answer.read().decode()
            expect("<title>Foretrace</title>" in page, f"serve: not the page: {page[:200]}")
            base = address[0].partition("?")[0]
            run = {"state": "loading"}
            while run["state"] in ("waiting", "loading"):
                time.sleep(0.2)
                with browser.open(f"{base}api/runs", timeout=60) as answer:
                    (run,) = json.load(answer)["runs"]
            expect(run["state"] == "ready", f"serve: the recording is not read: {run}")
            with browser.open(f"{base}api/runs/{run['id']}/overview", timeout=60) as answer:
                expect(HEADLINE in answer.read().decode(), "serve: the page's data has no diagnosis")
        finally:
            server.terminate()


def check_runners(wheel: Path, folder: Path) -> None:
    """`uvx --from` and `pipx run --spec`, each with an empty home."""
    for name, command in {
        "uvx": ["uvx", "--python", sys.executable, "--from", str(wheel), "foretrace", "demo"],
        "pipx": ["pipx", "run", "--python", sys.executable, "--spec", str(wheel), "foretrace", "demo"],
    }.items():
        program = shutil.which(name)
        expect(program is not None, f"{name} is not on the PATH: pip install uv pipx")
        began = time.monotonic()
        home = folder / name
        home.mkdir()
        environment = bare(home, os.pathsep.join((str(Path(str(program)).parent), os.defpath)))
        expect(HEADLINE in run(command, home, environment), f"{name}: no diagnosis")
        say(f"{name}: demo", began)


def bare(home: Path, path: str) -> dict[str, str]:
    """An environment with little in it."""
    kept = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
    folders = {name: str(home) for name in ("HOME", "USERPROFILE", "LOCALAPPDATA")}
    return {**kept, **folders, "PATH": path, "FORETRACE_CACHE": str(home / "cache"), "PYTHONUNBUFFERED": "1"}


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command prints; ends this script where it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=MOST_S,
        check=False,
    )
    expect(
        done.returncode == 0,
        f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}",
    )
    return done.stdout


def expect(holds: bool, otherwise: str) -> None:
    """Ends this script where something does not hold."""
    if not holds:
        raise SystemExit(f"check_wheel: {otherwise}")


def say(what: str, began: float) -> None:
    """One line, with the seconds so far."""
    print(f"ok  {what} (after {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
