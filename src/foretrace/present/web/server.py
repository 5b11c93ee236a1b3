"""The server of `foretrace serve`: the page, its resources, and who may have them.

It listens on this machine only unless told otherwise. The address it prints carries a token, which becomes a cookie;
without one of the two nothing is answered. Browsers send a cookie to every port of a host, so that of another user's server
too: everything lies below a folder with a secret name, and browsers send the cookie there only. Any web page that the user has open may send requests here: Host and
Sec-Fetch-Site keep those out, and a name that resolves to this machine with them.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import html
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from foretrace.deflate import stream
from foretrace.errors import ForetraceError, InputError, MissingDataError, UsageError
from foretrace.present.export import perfetto, perfetto_page
from foretrace.present.web import static_files
from foretrace.present.web.connections import BACKLOG, QuietFaults, connections_allowed, limited_to
from foretrace.present.web.encoding import Encoded, compress, encode
from foretrace.present.web.library import Library, UnknownRunError, error_text, reportable
from foretrace.units import visible

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_BYTES = 24  # 192 bits
LOCAL_HOST = "127.0.0.1"
_ANYWHERE = ("0.0.0.0", "::")
_SAME_SITE = ("none", "same-origin")
_STATUS: tuple[tuple[type[ForetraceError], int], ...] = (
    (UnknownRunError, 404),
    # An answer, with NOT_RECORDED: the browser would report an error that is none.
    (MissingDataError, 200),
    (UsageError, 400),
    (InputError, 422),
)

NOT_RECORDED = "Foretrace-Not-Recorded"
OPENER = "Cross-Origin-Opener-Policy"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    OPENER: "same-origin",
    "Cache-Control": "no-store",
}


class Server:
    """A listening socket and the application behind it."""

    def __init__(
        self,
        library: Library,
        *,
        host: str = LOCAL_HOST,
        port: int = 0,
        allow_hosts: Iterable[str] = (),
        token: str | None = None,
    ) -> None:
        self.library = library
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.hosts = allowed_hosts(host, self.port, allow_hosts)
        guarded = Guard(application(library), token=self.token, port=self.port, hosts=self.hosts)
        # Anyone can send what is no HTTP: a line about each would fill a disk.
        level = "warning" if os.environ.get("FORETRACE_DEBUG") else "critical"
        config = uvicorn.Config(
            guarded, lifespan="off", http=limited_to(connections_allowed()), ws="none", access_log=False, log_level=level,
            backlog=BACKLOG, server_header=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(config)

    @property
    def beyond_this_machine(self) -> bool:
        """Whether others on the network can reach it."""
        return not (self.host == "localhost" or self.host.startswith("127.") or self.host == "::1")

    @property
    def url(self) -> str:
        """The address to open, with the token that lets one in."""
        return self.url_of("")

    def url_of(self, path: str) -> str:
        """The address of one path."""
        host = _reachable_name() if self.host in _ANYWHERE else self.host
        return f"http://{_bracketed(host)}:{self.port}{folder_of(self.token)}{path}?{urlencode({'token': self.token})}"

    def run(self) -> None:
        """Serves until it is interrupted or stopped."""
        self.library.start()
        try:
            asyncio.run(self._serve())
        finally:
            self.library.stop()
            self._socket.close()

    async def _serve(self) -> None:
        asyncio.get_running_loop().set_exception_handler(QuietFaults())
        await self._uvicorn.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Ends `run` soon, from another thread."""
        self._uvicorn.should_exit = True


class Guard:
    """Refuses every request that is not the user's own, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, *, token: str, port: int, hosts: frozenset[str]) -> None:
        self._app, self._token, self._hosts = app, token, hosts
        self._folder = folder_of(token)
        # Cookies ignore ports: two servers of one machine would overwrite each other's.
        self._cookie = f"foretrace-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        request = Request(scope, receive)
        refusal = self._refusal(request)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if headers[OPENER] == "unsafe-none":
                    del headers[OPENER]  # its default
            await send(message)

        inside = {**scope, "path": "/" + scope["path"].removeprefix(self._folder)}
        await (refusal or self._app)(inside, receive, send_guarded)

    def _refusal(self, request: Request) -> Response | None:
        """What to answer instead of what was asked for; None lets the request through."""
        if request.headers.get("host", "").lower() not in self._hosts:
            return _plain(
                403, "This host name is not served here. Behind a proxy: foretrace serve --allow-host NAME"
            )
        if request.headers.get("sec-fetch-site", "none") not in _SAME_SITE:
            if self._carries_token(request) and _opens_a_page(request):
                return self._let_in_from_elsewhere(request)
            return _plain(403, "Another site asked for this. Copy the address into the browser instead.")
        if request.method != "GET":
            return _plain(405, "Only GET is answered: the page is read-only.", Allow="GET")
        if self._carries_token(request):
            return self._let_in(request)
        if self._is_inside(request) and self._is_token(request.cookies.get(self._cookie)):
            return None
        return _plain(401, "Open the whole address that foretrace serve printed: it ends in ?token=...")

    def _is_inside(self, request: Request) -> bool:
        return bool(request.scope["path"].startswith(self._folder))

    def _carries_token(self, request: Request) -> bool:
        return self._is_inside(request) and self._is_token(request.query_params.get("token"))

    def _is_token(self, given: str | None) -> bool:
        return given is not None and hmac.compare_digest(given.encode(), self._token.encode())

    def _let_in(self, request: Request) -> Response:
        """To the same path without the token, which stays behind as a cookie."""
        answer = Response(status_code=303, headers={"Location": _without_token(request)})
        self._set_cookie(answer)
        return answer

    def _set_cookie(self, answer: Response) -> None:
        # Without a path of its own it is for this folder, also where a proxy puts another one before it.
        answer.set_cookie(self._cookie, self._token, path=None, httponly=True, samesite="strict")

    def _let_in_from_elsewhere(self, request: Request) -> Response:
        """The same from the file that `--open` writes: browsers send no such cookie along a way that began there."""
        onward = html.escape(_without_token(request), quote=True)
        page = (
            f'<!doctype html><meta charset="utf-8"><title>Foretrace</title>'
            f'<meta http-equiv="refresh" content="0;url={onward}"><a href="{onward}">Foretrace</a>'
        )
        answer = Response(page, media_type="text/html")
        self._set_cookie(answer)
        return answer


def folder_of(token: str) -> str:
    """The folder that everything is served below; who knows it does not know the token."""
    return f"/{hashlib.blake2b(token.encode(), digest_size=12, person=b'foretrace folder').hexdigest()}/"


def _opens_a_page(request: Request) -> bool:
    """Whether a browser goes there as a whole, rather than a page asking for something."""
    headers = request.headers
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _without_token(request: Request) -> str:
    """The same path and query; relative, so that it holds behind a proxy's prefix, and can lead nowhere else."""
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
    last = quote(request.scope["path"].rpartition("/")[2])
    return f"./{last}" + (f"?{urlencode(rest)}" if rest else "")


def application(library: Library) -> Starlette:
    """The routes: the page's files from a closed map, the runs, their resources, and the way to Perfetto."""
    files = static_files.load()

    async def page(request: Request) -> Response:
        file = files.get(request.url.path)
        if file is None:
            raise HTTPException(404)
        return _compressed(request, Encoded(file.compressed, file.media_type), file.status)

    async def runs(request: Request) -> Response:
        return _compressed(request, encode(library.runs(request.query_params.get("wanted"))))

    async def resource(request: Request) -> Response:
        name, asked = request.path_params["name"], request.query_params
        query = {each: asked.getlist(each) if len(asked.getlist(each)) > 1 else asked[each] for each in asked}
        run_id = request.path_params["run"]
        return await _answer(request, lambda: library.resource(run_id, name, query))

    async def to_perfetto(request: Request) -> Response:
        run_id = request.path_params["run"]
        # This page alone may keep hold of a window that it opens: that is how the recording gets there.
        headers = {"Content-Security-Policy": perfetto_page.policy(), OPENER: "unsafe-none"}
        return await _answer(request, lambda: _perfetto_page(library, run_id), headers)

    async def for_perfetto(request: Request) -> Response:
        try:
            pieces = await run_in_threadpool(_perfetto_pieces, library, request.path_params["run"])
        except BaseException as error:
            return _failed(request, error)
        return StreamingResponse(pieces, media_type="application/json")

    routes = [
        Route("/api/runs", runs),
        Route("/api/runs/{run}/{name:path}", resource),
        Route("/perfetto/{run}", to_perfetto),
        Route("/perfetto/{run}/trace.json", for_perfetto),
        *(Route(path, page) for path in files),
    ]
    app = Starlette(routes=routes, exception_handlers={404: _not_found})
    app.router.redirect_slashes = False
    return app


async def _not_found(request: Request, error: Exception) -> Response:
    return _plain(404, "There is nothing at this address.")


async def _answer(
    request: Request, make: Callable[[], Encoded], headers: Mapping[str, str] | None = None
) -> Response:
    """What `make` gives, worked out in a thread; an error as one line that the page shows."""
    try:
        encoded = await run_in_threadpool(make)
    except BaseException as error:
        return _failed(request, error)
    return _compressed(request, encoded, headers=headers)


def _failed(request: Request, error: BaseException) -> Response:
    """An error as one line that the page shows."""
    if not reportable(error):
        raise error
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    headers = {NOT_RECORDED: "1"} if status == 200 else None
    return _compressed(request, encode({"says": error_text(error)}), status, headers)


def _compressed(
    request: Request, encoded: Encoded, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Gzip as it is kept, or unpacked for who does not read it."""
    named: dict[str, str] = {"Vary": "Accept-Encoding", **(headers or {})}
    body = encoded.body
    if _takes_gzip(request.headers.get("accept-encoding", "")):
        named["Content-Encoding"] = "gzip"
    else:
        body = stream.decompress(body, wbits=31)
    return Response(body, status, named, encoded.media_type)


def _takes_gzip(accepted: str) -> bool:
    """Whether Accept-Encoding allows gzip; a weight of 0 forbids it."""
    for coding in accepted.lower().split(","):
        name, *parameters = (part.strip() for part in coding.split(";"))
        if name in ("gzip", "x-gzip"):
            return not any(re.fullmatch(r"q=0(\.0*)?", parameter) for parameter in parameters)
    return False


def _perfetto_page(library: Library, run_id: str) -> Encoded:
    run = library.run(run_id)
    return Encoded(compress(perfetto_page.page(visible(run.path.name)).encode()), "text/html; charset=utf-8")


def _perfetto_pieces(library: Library, run_id: str) -> Iterator[bytes]:
    """The file in pieces; the first is made here, so that what can go wrong goes wrong before the answer begins."""
    pieces = perfetto.chunks(library.recording(library.run(run_id)))
    first = next(pieces, b"")
    return chain((first,), pieces)


def _plain(status: int, says: str, **headers: str) -> Response:
    # Whoever is refused may have more to send: there is no need to wait for it.
    closing = {} if status == 404 else {"Connection": "close"}
    return Response(f"{says}\n", status, {**headers, **closing}, "text/plain")


def allowed_hosts(host: str, port: int, allow_hosts: Iterable[str]) -> frozenset[str]:
    """Every value of the Host header that is answered, whole."""
    names = {"localhost", LOCAL_HOST, "[::1]", _bracketed(host)}
    if host in _ANYWHERE:
        names |= {socket.gethostname(), socket.getfqdn(), _reachable_name()}
    found = {f"{name}:{port}" for name in names}
    for name in allow_hosts:
        found |= {name} if ":" in name else {name, f"{name}:{port}"}
    return frozenset(each.lower() for each in found)


def _reachable_name() -> str:
    """The address by which others reach this machine, as far as it knows."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: choosing a route sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(
            128
        )  # a browser that comes before the first answer is ready waits, and is not refused
    except OSError as error:
        listening.close()
        raise UsageError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return listening
