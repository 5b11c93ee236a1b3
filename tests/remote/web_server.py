"""A web server of this machine that does as a test says: with or without ranges, versions and sizes, and broken off."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass
class Served:
    """What is served, how, and what was asked for."""

    files: dict[str, bytes] = field(default_factory=dict)  # by path: /folder/file.json
    ranges: bool = True
    etags: bool = True
    times: bool = True
    lengths: bool = True
    heads: bool = True  # HEAD is answered
    breaks_at: int | None = None  # of a file: the connection ends before this byte is sent
    breaks: int = 1 << 30  # so often
    longest: int | None = None  # of one answer: the connection ends after so many bytes
    statuses: dict[str, int] = field(default_factory=dict)
    waits_s: float = 0.0
    endless: bytes = b""  # sent again and again after the content, to who goes on reading
    drips_s: float | None = None  # the content comes byte by byte, with such pauses
    url: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path with query, authorization
    sent_bytes: int = 0


@contextmanager
def serving(**options: object) -> Iterator[Served]:
    """A server for as long as the test runs."""
    served = Served(**options)  # type: ignore[arg-type]
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Handler", (_Handler,), {"served": served}))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Served
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        """Requests, until the reader goes away, as it may."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        served, path = self.served, self.path.partition("?")[0]
        served.asked.append((self.command, self.path, self.headers.get("Authorization", "")))
        time.sleep(served.waits_s)
        status = served.statuses.get(path)
        if status is None and not body and not served.heads:
            status = 405
        if status is None and path.endswith("/"):
            return self._send(200, self._index(path), body=body, kind="text/html")
        if status is None and path not in served.files:
            status = 404
        if status is not None:
            return self._send(status, b"<html>no</html>", body=body, kind="text/html")
        return self._send_file(path, body=body)

    def _index(self, folder: str) -> bytes:
        names = {
            (inside + "/" if rest else inside)
            for path in self.served.files
            if path.startswith(folder)
            for inside, rest, _ in [path[len(folder) :].partition("/")]
        }
        links = [f'<a href="{name}">{name}</a>' for name in sorted(names)]
        return ("<html><a href='../'>up</a><a href='?C=N'>sort</a>" + "".join(links) + "</html>").encode()

    def _send_file(self, path: str, *, body: bool) -> None:
        served, content = self.served, self.served.files[path]
        begin, end, status = 0, len(content), 200
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked and served.ranges:
            begin, end, status = int(asked[1]), min(int(asked[2]) + 1, len(content)), 206
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"} if status == 206 else {}
        if served.etags:
            headers["ETag"] = f'"{hash(content):x}"'  # bytes remember theirs
        if served.times:
            headers["Last-Modified"] = "Wed, 18 Nov 2026 00:00:00 GMT"
        self._send(
            status, content[begin:end], body=body, kind="application/json", headers=headers, begin=begin
        )

    def _send(
        self,
        status: int,
        content: bytes,
        *,
        body: bool,
        kind: str,
        headers: dict[str, str] | None = None,
        begin: int = 0,
    ) -> None:
        served = self.served
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        if served.lengths or status >= 400:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if not body:
            return
        cut = begin + served.longest if served.longest is not None else served.breaks_at
        if cut is not None and begin + len(content) > cut and served.breaks > 0 and status < 400:
            served.breaks -= 1
            content = content[: max(cut - begin, 0)]
            self.close_connection = True
        try:
            for piece in self._pieces(content) if status == 200 else [content]:
                self.wfile.write(piece)
                served.sent_bytes += len(piece)
        except OSError:  # the reader went away, as it may
            self.close_connection = True

    def _pieces(self, content: bytes) -> Iterator[bytes]:
        if self.served.drips_s is None:
            yield content
        else:
            for place in range(len(content)):
                yield content[place : place + 1]
                time.sleep(self.served.drips_s)
        while self.served.endless:
            yield self.served.endless
