"""Open recordings, benchmarks and memory snapshots in the browser: findings, timeline, kernels, memory and more. All stays on this machine."""

from __future__ import annotations

import argparse
import atexit
import html
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _input, demo
from foretrace.errors import UsageError
from foretrace.urls import named

if TYPE_CHECKING:
    from foretrace.present.web.server import Server


def configure(parser: argparse.ArgumentParser) -> None:
    """The recordings, and where to listen."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=named,
        nargs="*",
        help="recordings, benchmarks (bench -o FILE.json), snapshots of GPU memory and folders, which are watched for new ones (default: the sample)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--port", type=_port, default=0, metavar="N", help="default: a free port")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1); 0.0.0.0 lets in anyone who has the token",
    )
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="also accept this host name, for a proxy",
    )
    _input.add_step_ms(parser)
    _input.add_reading(parser)
    _input.add_no_cache(parser)


def run(args: argparse.Namespace) -> None:
    """Serves until it is interrupted."""
    from foretrace.present.web.library import Library
    from foretrace.present.web.server import Server

    paths, step_ms = args.paths or [demo.SAMPLE], args.step_ms
    if not args.paths and step_ms is None:
        step_ms = demo.STEP_MS
    library = Library(paths, cache=not args.no_cache, step_ms=step_ms, reading=_input.reading(args))
    server = Server(library, host=args.host, port=args.port, allow_hosts=args.allow_host)
    try:
        _introduce(server)
        if args.open:
            open_browser(server.url)
        server.run()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)


def _introduce(server: Server) -> None:
    from foretrace.present.web import static_files

    if not static_files.built():
        print(f"foretrace: {static_files.HOW_TO_GET_IT}", file=sys.stderr)
    if server.beyond_this_machine:
        print(
            f"foretrace: warning: listening on {server.host}, so others on the network can reach it. Whoever has the "
            "address below can read these recordings, and it travels unencrypted.",
            file=sys.stderr,
        )
    print(server.url, flush=True)
    print("Open this address in a browser; Ctrl-C stops.", file=sys.stderr, flush=True)


def open_browser(url: str) -> None:
    """Opens the address in a thread: some browsers keep the caller until they are closed."""
    import webbrowser

    page = _page_that_leads_to(url)
    threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()


def _page_that_leads_to(url: str) -> Path:
    """A file that only the user can read: the address itself would stand in the list of processes, with its token."""
    folder = Path(tempfile.mkdtemp(prefix="foretrace-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    page, address = folder / "open.html", html.escape(url, quote=True)
    handle = os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(
            '<!doctype html><meta charset="utf-8"><title>Foretrace</title><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={address}"><a href="{address}">Foretrace</a>'
        )
    return page


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) <= 65_535:
        raise UsageError(f"--port {text}: a port is a number from 0 to 65535")
    return int(text)
