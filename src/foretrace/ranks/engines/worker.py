"""A worker process of the local engine: paths come in on stdin, summaries go out on stdout, until stdin ends."""

from __future__ import annotations

import os
import struct
import sys
from typing import IO

from foretrace.ranks.engines.outcome import Outcome, summary_of


def write(stream: IO[bytes], outcome: Outcome) -> None:
    """One answer: whether it is a summary, its length, and itself."""
    data = outcome.summary if outcome.summary is not None else outcome.reason.encode()
    stream.write(struct.pack("<BI", outcome.summary is not None, len(data)) + data)
    stream.flush()


def main() -> None:
    """Answers until nobody asks."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the answers
    for line in sys.stdin.buffer:
        write(answers, summary_of(os.fsdecode(line[:-1].replace(b"\0", b"\n"))))


if __name__ == "__main__":
    main()
