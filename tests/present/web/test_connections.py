"""What anyone on this machine can do to the server's port without the token: nothing that lasts."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrace.present.web import connections, server, static_files
from foretrace.present.web.connections import QuietFaults, Watched
from tests.present.web.recordings import recording
from tests.present.web.test_server import Browser, serve

pytestmark = pytest.mark.slow

PAGE = {"index.html": "<!doctype html><title>page</title>", "app.js": "1", "app.css": "p{}"}
LARGE_BYTES = 20_000_000  # more than the system takes in for a reader
SHORT_S = 0.3
ENOUGH_S = 3.0  # for a whole request to arrive, however busy the machine is
PATIENCE_S = 60.0


@pytest.fixture
def script() -> str:
    return PAGE["app.js"]


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Iterator[Browser]:
    folder = tmp_path / "static"
    folder.mkdir()
    for name, content in {**PAGE, "app.js": script}.items():
        (folder / name).write_text(content, encoding="utf-8")
    monkeypatch.setattr(static_files, "_folder", lambda: folder)
    monkeypatch.setattr(server, "connections_allowed", lambda: 6)
    yield from serve(recording(tmp_path))


def connected(browser: Browser) -> socket.socket:
    return socket.create_connection(("127.0.0.1", browser.server.port), timeout=PATIENCE_S)


def answer_to(browser: Browser, data: bytes) -> bytes:
    """All that comes back before the connection ends, which the server may do before it has everything."""
    with connected(browser) as sent:
        try:
            sent.sendall(data)
            sent.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
                raise
        return rest_of(sent)


def rest_of(sent: socket.socket) -> bytes:
    pieces = []
    try:
        while piece := sent.recv(1 << 16):
            pieces.append(piece)
    except ConnectionError:
        pass
    return b"".join(pieces)


@pytest.mark.parametrize(
    "begin", [b"", b"G", b"GET / HTTP/1.1\r\nHost: a", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n"]
)
def test_headers_that_never_end_are_not_waited_for(
    begin: bytes, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watched, "headers_s", SHORT_S)
    with connected(browser) as sent:
        sent.sendall(begin)
        assert rest_of(sent) == b""


def test_headers_drop_by_drop_gain_no_time(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "headers_s", SHORT_S)
    with connected(browser) as sent:
        sent.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(sent)


def drip(sent: socket.socket) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        sent.sendall(b"X: y\r\n")
        time.sleep(SHORT_S / 10)


def test_a_second_request_has_its_time_too(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watched, "headers_s", ENOUGH_S)
    head = f"GET {browser.folder}/app.css HTTP/1.1\r\nHost: {browser.host}\r\nCookie: {browser.cookie}\r\n"
    with connected(browser) as sent:
        sent.sendall(f"{head}\r\n{head}".encode())
        assert rest_of(sent).count(b"HTTP/1.1 200 OK") == 1


def test_a_body_that_never_comes_is_not_waited_for(browser: Browser) -> None:
    request = f"POST / HTTP/1.1\r\nHost: {browser.host}\r\nContent-Length: 1000\r\n\r\nabc"
    with connected(browser) as sent:
        sent.sendall(request.encode())
        assert rest_of(sent).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize("script", [" " * LARGE_BYTES], ids=["large"])
def test_a_reader_who_takes_nothing_is_left(
    script: str, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(browser.ask("/app.js").body) == LARGE_BYTES, "who reads gets all"
    held = browser.server._uvicorn.server_state.connections
    wait_until(lambda: not held)
    monkeypatch.setattr(Watched, "stalled_s", SHORT_S)
    with connected(browser) as sent:
        sent.sendall(
            f"GET {browser.folder}/app.js HTTP/1.1\r\nHost: {browser.host}\r\nCookie: {browser.cookie}\r\n\r\n".encode()
        )
        wait_until(lambda: bool(held))
        wait_until(lambda: not held)


@pytest.mark.parametrize("script", [" " * LARGE_BYTES], ids=["large"])
def test_a_slow_reader_gets_all(script: str, browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than headers may, and pauses, but not for as long as a reader may."""
    with connected(browser) as sent:
        sent.sendall(
            f"GET {browser.folder}/app.js HTTP/1.1\r\nHost: {browser.host}\r\nCookie: {browser.cookie}\r\n\r\n".encode()
        )
        got = len(sent.recv(1 << 16))
        monkeypatch.setattr(Watched, "headers_s", ENOUGH_S)  # the request has arrived, however long it took
        time.sleep(1.5 * ENOUGH_S)
        assert got + len(rest_of(sent)) > LARGE_BYTES


def wait_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_there_are_never_more_connections_than_allowed(browser: Browser) -> None:
    idle = [connected(browser) for _ in range(30)]
    try:
        assert browser.ask("/api/runs").status == 200, "one that asks goes before those that only hold"
        held = browser.server._uvicorn.server_state.connections
        wait_until(lambda: len(held) <= 6)
        assert rest_of(idle[0]) == b"", "the longest idle goes first"
    finally:
        for each in idle:
            each.close()


NONSENSE = {
    "binary": b"\x00\x01\xff\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01" + b"\0" * 100,
    "no version": b"GET /\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "huge header": b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: HOST\r\nHost: evil\r\n\r\n",
    "not ascii": b"GET /\xff HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "bad chunks": b"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\nnope\r\n",
    "huge chunk": b"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\nabc",
    "negative length": b"POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: -5\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "smuggled": b"POST / HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"
    b"GET /api/runs HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "nonsense behind a request": b"GET / HTTP/1.1\r\nHost: HOST\r\n\r\n\x00\x00\r\n\r\n",
    "websocket": b"GET / HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AA==\r\n\r\n",
    "tunnel": b"CONNECT evil:443 HTTP/1.1\r\nHost: HOST\r\n\r\n",
    "bad cookie": b"GET / HTTP/1.1\r\nHost: HOST\r\nCookie: \xff=\xff;;=\"\r\n\r\n",
}  # fmt: skip


def test_nonsense_is_refused_without_a_word_in_the_log(
    browser: Browser, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for kind, nonsense in NONSENSE.items():
        answer = answer_to(browser, nonsense.replace(b"HOST", browser.host.encode()))
        assert answer == b"" or answer.split(b" ")[1] in (b"400", b"401", b"403", b"405"), kind
        assert b"Traceback" not in answer, kind
        assert browser.ask("/api/runs").status == 200, kind
    assert capfd.readouterr().err == ""
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_path_of_any_letters_can_carry_the_token(browser: Browser) -> None:
    answer = browser.ask(f"/%E2%82%AC%0d%0aX:y?token={browser.server.token}", Cookie=None)
    assert (answer.status, answer.headers["location"]) == (303, "./%E2%82%AC%0D%0AX%3Ay")


def test_complaints_of_the_loop_are_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORETRACE_DEBUG", raising=False)
    now = [0.0]
    quiet, loop = QuietFaults(lambda: now[0]), asyncio.new_event_loop()
    context = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(24, "Too many open files"),
    }
    try:
        for second in range(90):
            now[0] = float(second)
            quiet(loop, context)
    finally:
        loop.close()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(
        "foretrace: socket.accept() out of system resource: [Errno 24] Too many open files"
    )
    assert all("\n" not in line for line in said)
    assert all(record.exc_info is None for record in caplog.records)


def test_connections_leave_files_for_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    for allowed, expected in ((1024, 256), (400, 100), (16, 8), (-1, 256)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert connections.connections_allowed() == expected


# The way in through a file, which is how --open hands the token to a browser.


def test_a_browser_may_come_from_the_file_that_open_writes(browser: Browser) -> None:
    going = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    answer = browser.ask(f"/perfetto/a?token={browser.server.token}&x=%22%3E", Cookie=None, **going)
    assert answer.status == 200, "a redirect would arrive without the cookie"
    assert 'content="0;url=./a?x=%22%3E"' in answer.body.decode()
    assert browser.server.token not in answer.body.decode()
    assert answer.headers["set-cookie"].startswith(f"foretrace-{browser.server.port}={browser.server.token};")


def test_other_pages_get_nothing_even_with_the_token(browser: Browser) -> None:
    for mode in ("cors", "no-cors", "websocket", None):
        asked: dict[str, Any] = {
            "Sec_Fetch_Site": "cross-site",
            "Sec_Fetch_Mode": mode,
            "Sec_Fetch_Dest": "document",
        }
        assert browser.ask(f"/?token={browser.server.token}", **asked).status == 403, mode
    framed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}
    assert browser.ask(f"/?token={browser.server.token}", **framed).status == 403
    going = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert browser.ask("/?token=guess", **going).status == 403
    assert browser.ask("/", **going).status == 403
