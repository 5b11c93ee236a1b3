"""Open a recording in ui.perfetto.dev, with steps, findings and counters as extra tracks, or write the file."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from foretrace.commands import _input, _output, serve
from foretrace.errors import MissingDataError, UsageError
from foretrace.units import visible

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, and the file to write."""
    _input.add_path(parser)
    _output.add_file(
        parser, says="write this file (.json or .json.gz) instead of opening a browser", required=False
    )
    parser.add_argument("--no-open", action="store_true", help="print the address, but open no browser")
    parser.epilog = (
        "Without -o, a page on this machine shows a button. Pressing it opens ui.perfetto.dev and passes the recording "
        "from one browser window to the other: nothing is uploaded."
    )


def run(args: argparse.Namespace) -> None:
    """Writes the file, or serves the page that hands it over."""
    if args.output is None:
        _hand_over(args)
        return
    _output.check_file(
        args.output, force=args.force, endings=(".json", ".json.gz"), such_as=".json or .json.gz"
    )
    case = _input.open_case(args.path, no_cache=args.no_cache, reading=_input.reading(args))
    if case.whole.spans.is_empty() and case.whole.profile is not None:
        raise MissingDataError(f"{case.whole.path.name}: counters of single kernels, and no timeline to show")
    _write(case, args.output)


def _hand_over(args: argparse.Namespace) -> None:
    from foretrace.ingest.recordings import find_recording
    from foretrace.present.web.library import Library
    from foretrace.present.web.server import Server

    path = find_recording(args.path, of_ranks=True).path
    server = Server(Library([path], cache=not args.no_cache, reading=_input.reading(args)))
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


def _write(case: Case, output: Path) -> None:
    from foretrace.present.export import perfetto
    from foretrace.present.web.recording_view import RecordingView

    if output.exists() and output.samefile(case.whole.path):
        raise UsageError(f"{output}: is the recording itself; choose another name")
    packed = output.suffix.lower() == ".gz"
    with _output.writing(output) as written, _opened(written, packed=packed) as file:
        for piece in perfetto.chunks(RecordingView(case)):
            file.write(piece)
    print(f"wrote {visible(str(output))}: open it at https://ui.perfetto.dev", file=sys.stderr)


@contextlib.contextmanager
def _opened(path: Path, *, packed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if packed:
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as stream:
                yield stream  # type: ignore[misc]  # a GzipFile is a stream of bytes, if not by its type
        else:
            yield raw
