"""Serves the page of a job of many ranks, which is made of the summaries of 256 simulated ones; prints its address.

python benchmarks/ranks/served.py APP --ranks 10240      # APP: the folder that `node build.mjs APP` in web/ wrote

The server of `foretrace serve` would have to read a recording of every rank first. Here the job is reduced from summaries, and what else a rank's
page shows is that of one of eight recordings; what is sent is made and encoded by the same functions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.ranks.measure import job_of  # noqa: E402
from benchmarks.ranks.recordings import write  # noqa: E402
from benchmarks.ranks.simulate import simulate  # noqa: E402
from benchmarks.ranks.tiles import tiled  # noqa: E402
from foretrace.diagnose.opening import open_case  # noqa: E402
from foretrace.errors import ForetraceError  # noqa: E402
from foretrace.present.text.ranks import headline  # noqa: E402
from foretrace.present.web import payload  # noqa: E402
from foretrace.present.web.encoding import Encoded, encode  # noqa: E402
from foretrace.present.web.recording_view import RecordingView  # noqa: E402
from foretrace.present.web.resources import rank_stack  # noqa: E402
from foretrace.present.web.resources.ranks import together  # noqa: E402
from foretrace.present.web.run_files import identity  # noqa: E402
from foretrace.ranks.reduce import Ranks, reduce  # noqa: E402
from foretrace.ranks.summarise import summarise  # noqa: E402

SHOWN = 8  # recordings whose rows of the table of ranks are repeated
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class Job:
    """What the page asks for."""

    def __init__(self, ranks: int, folder: Path) -> None:
        write(simulate(job_of(256)), folder)
        files = sorted(folder.iterdir())
        self.found: Ranks = reduce(tiled([summarise(path) for path in files], ranks), ranks_per_node=8)
        for path in files[SHOWN:]:
            path.unlink()
        self.views = [RecordingView(open_case(path), run_id=path.stem, group="job") for path in files[:SHOWN]]
        self.ids = [identity(Path(f"/job/rank{rank}.json")) for rank in range(ranks)]

    @cached_property
    def runs(self) -> Encoded:
        """The list of runs: each rank is one."""
        rest = {
            "group": "job",
            "sort": "recording",
            "title": None,
            "state": "ready",
            "progress_pct": None,
            "says": None,
        }
        entries = [
            {"id": run, "name": f"rank{rank}", "label": f"rank{rank}", "step_ms": 100 + rank % 7, **rest}
            for rank, run in enumerate(self.ids)
        ]
        return encode(payload.runs(entries))

    @cached_property
    def ranks(self) -> Encoded:
        """`ranks`, with a row for every rank and an arrival strip of all of them, as a collective of the whole job has."""
        made = payload.resource(self.views[0], "ranks", peers=self.views[1:])
        assert isinstance(made, dict)
        numbers = list(range(len(self.ids)))
        data = [[cells[rank % SHOWN] for rank in numbers] for cells in made["table"]["data"]]
        columns = [column["name"] for column in made["table"]["columns"]]
        data[columns.index("rank")] = numbers
        data[columns.index("name")] = [f"rank{rank}" for rank in numbers]
        on_clock = together(self.found, dict(enumerate(self.ids)), 0)
        after = np.nanmax(np.array(on_clock["late_ns"], float), axis=1)
        everyone = {"ranks": on_clock["job"], "after_ns": (after - after.min()).round().astype(int).tolist()}
        shares = [made["share_pct"][rank % SHOWN] for rank in numbers]
        return encode(
            {**made, **on_clock, "says": headline(self.found), "ranks": numbers, "share_pct": shares}
            | {"arrivals": {**on_clock["arrivals"], **everyone}}
            | {"table": {**made["table"], "data": data, "rows_count": len(numbers)}}
        )

    def resource(self, run: str, name: str, query: dict[str, str]) -> Encoded:
        """One resource of a rank."""
        if name == "ranks":
            return self.ranks
        if name == "ranks/stack":
            return encode(rank_stack.of_query(self.found, query))
        return encode(payload.resource(self.views[self.ids.index(run) % SHOWN], name, query))


def handler(job: Job, app: Path) -> type[BaseHTTPRequestHandler]:
    """What answers requests: the page's files, and resources as the server of `foretrace serve` sends them."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            parts = address.path.strip("/").split("/", 3)
            try:
                if parts[0] != "api":
                    file = app / (parts[0] or "index.html")
                    self.answer(200, file.read_bytes(), TYPES.get(file.suffix, "text/plain"))
                elif len(parts) < 4:
                    self.encoded(job.runs)
                else:
                    self.encoded(job.resource(parts[2], parts[3], dict(parse_qsl(address.query))))
            except (ForetraceError, OSError, ValueError) as error:
                self.answer(404, json.dumps({"says": str(error)}).encode(), "application/json")

        def encoded(self, made: Encoded) -> None:
            self.answer(200, made.body, made.media_type, ("content-encoding", "gzip"))

        def answer(self, status: int, body: bytes, media_type: str, *headers: tuple[str, str]) -> None:
            self.send_response(status)
            for name, value in (("content-type", media_type), ("content-length", str(len(body))), *headers):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: a page asks often."""

    return Handler


def main() -> None:
    """Serves until it is ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("app", type=Path, help="the built page")
    parser.add_argument("--ranks", type=int, default=10_240)
    parser.add_argument("--port", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(args.ranks, Path(folder))
        print(f"the list of runs {len(job.runs.body):,} bytes, the ranks {len(job.ranks.body):,} bytes")
        server = ThreadingHTTPServer(("127.0.0.1", args.port), handler(job, args.app))
        print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
