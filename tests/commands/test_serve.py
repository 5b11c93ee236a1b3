from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from foretrace.commands import main, serve
from foretrace.present.web import static_files
from tests.builders import Recording

pytestmark = pytest.mark.slow


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Recording().step(1, 0, 100).launch(10, "add_kernel", 30, 60).write(tmp_path)


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and the address that it printed."""
    command = [sys.executable, "-m", "foretrace", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "BROWSER": "true"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stopped(process: subprocess.Popen[str]) -> str:
    """Interrupts it as Ctrl-C does; what it said on stderr."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    return said


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_the_printed_address_opens(path: Path) -> None:
    with started("serve", str(path), "--no-cache") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        if static_files.built():
            with opener.open(url, timeout=60) as page:
                assert b"<title>Foretrace</title>" in page.read()
        else:
            with pytest.raises(urllib.error.HTTPError, match="503"):
                opener.open(url, timeout=60)
        with opener.open(url.partition("?")[0] + "api/runs", timeout=60) as answer:
            assert json.load(answer)["runs"][0]["name"] == "trace"
        said = stopped(process)
    assert "Open this address in a browser; Ctrl-C stops." in said
    assert ("this install has no page" in said) != static_files.built()
    assert "warning" not in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_listening_everywhere_is_warned_about(path: Path) -> None:
    with started("serve", str(path), "--host", "0.0.0.0", "--no-cache") as (process, url):
        assert "token=" in url
        assert "others on the network can reach it" in stopped(process)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to send")
def test_perfetto_serves_one_page(path: Path) -> None:
    with started("perfetto", str(path), "--no-cache", "--no-open") as (process, url):
        assert "/perfetto/" in url
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        with opener.open(url, timeout=60) as page:
            assert b"nothing is uploaded" in page.read()
        stopped(process)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["absent.json"], 3, "absent.json: No such file or directory"),
        (["--port", "99999"], 2, "a port is a number from 0 to 65535"),
        (["--port", "x"], 2, "a port is a number from 0 to 65535"),
        (["--host", "192.0.2.1"], 2, "cannot listen on 192.0.2.1"),
        (["--step-ms", "-1"], 2, "a time in milliseconds is above 0"),
    ],
)
def test_wrong_calls(arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_port_in_use_is_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(path), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


def test_open_keeps_the_token_out_of_the_list_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a browser is started with, everyone on the machine can read."""
    import threading
    import webbrowser

    opened, done = [], threading.Event()
    monkeypatch.setattr(webbrowser, "open", lambda url: (opened.append(url), done.set()))
    serve.open_browser("http://127.0.0.1:1/?token=s3cret&x=1")
    assert done.wait(60)
    (address,) = opened
    assert "s3cret" not in address
    page = Path(urllib.request.url2pathname(urllib.parse.urlsplit(address).path))
    assert 'content="0;url=http://127.0.0.1:1/?token=s3cret&amp;x=1"' in page.read_text(encoding="utf-8")
    if sys.platform != "win32":
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no list of processes to read")
def test_no_process_is_started_with_the_token(path: Path, tmp_path: Path) -> None:
    """A browser that writes down how it was started."""
    seen, fake = tmp_path / "seen", tmp_path / "browser"
    fake.write_text(f'#!/bin/sh\ntr "\\0" " " < /proc/$$/cmdline > {seen}.new && mv {seen}.new {seen}\n')
    fake.chmod(0o755)
    command = [sys.executable, "-m", "foretrace", "serve", str(path), "--no-cache", "--open"]
    environment = {**os.environ, "BROWSER": f"{fake} %s"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        token = process.stdout.readline().strip().partition("token=")[2]
        until = time.monotonic() + 60
        while not seen.exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
    assert token
    assert "open.html" in seen.read_text()
    assert token not in seen.read_text()
