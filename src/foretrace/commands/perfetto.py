"""Hand a recording to ui.perfetto.dev, with steps, findings and counters as extra tracks, or write the file."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from foretrace.commands import _input, serve
from foretrace.errors import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, and the file to write."""
    _input.add_path(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write out.json or out.json.gz and open nothing"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--no-open", action="store_true", help="print the address; open no browser")
    parser.epilog = (
        "Without -o this serves one page on this machine with a button. Pressing it opens ui.perfetto.dev and hands the "
        "recording from window to window inside the browser: nothing is uploaded."
    )


def run(args: argparse.Namespace) -> None:
    """Writes the file, or serves the page that hands it over."""
    if args.output is None:
        _hand_over(args)
    else:
        _write(args)


def _hand_over(args: argparse.Namespace) -> None:
    from foretrace.present.web.library import Library
    from foretrace.present.web.server import Server

    path = _input.find_recording(args.path)
    server = Server(Library([path], cache=not args.no_cache))
    url = server.url_of(f"perfetto/{server.library.runs()['runs'][0]['id']}")
    with contextlib.suppress(KeyboardInterrupt):
        print(url, flush=True)
        print(
            "Open this address and press the button; nothing is uploaded. Ctrl-C stops.",
            file=sys.stderr,
            flush=True,
        )
        if not args.no_open:
            serve.open_browser(url)
        server.run()


def _write(args: argparse.Namespace) -> None:
    from foretrace.present.export import perfetto
    from foretrace.present.web.recording_view import Session

    if not args.output.name.lower().endswith((".json", ".json.gz")):
        raise UsageError(f"{args.output}: end the name in .json or .json.gz")
    if args.output.exists() and not args.force:
        raise UsageError(f"will not overwrite without --force: {args.output}")
    trace = _input.open_path(args)
    if args.output.exists() and args.output.samefile(trace.path):
        raise UsageError(f"{args.output}: is the recording itself; choose another name")
    try:
        with _opened(args.output) as file:
            for piece in perfetto.chunks(Session(trace)):
                file.write(piece)
    except OSError as error:
        raise UsageError(f"{args.output}: cannot be written: {error.strerror}") from error
    print(f"wrote {args.output}: open it at https://ui.perfetto.dev", file=sys.stderr)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if path.suffix.lower() == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed:
                yield packed  # type: ignore[misc]  # a GzipFile is a stream of bytes, if not by its type
        else:
            yield raw
