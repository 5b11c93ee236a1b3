"""Connections of the server: how many there may be, how long each may take, and no noise about those that misbehave.

uvicorn knows no limit for the time that headers take: a connection that sends them drop by drop would be held for ever, and
with it a file descriptor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0  # for a request to be there whole, from the connection or the last answer on
STALLED_S = 60.0  # in which a reader must take something of an answer
MOST_CONNECTIONS = 256  # browsers open six
# Taken in at once, before those that must go for them have gone.
BACKLOG = 16
_FEWEST = 8
_SAY_AGAIN_S = 60.0

_log = logging.getLogger("foretrace")


class Watched(H11Protocol):
    """A connection that is given up when its time is over, or when others need its place."""

    began = 0.0
    most_connections = MOST_CONNECTIONS
    headers_s = HEADERS_S
    stalled_s = STALLED_S
    _left_bytes = 0
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the place of one that waits, where there is none left."""
        super().connection_made(transport)
        self.began = self.loop.time()
        held = [each for each in self.connections if isinstance(each, Watched) and not each.closing]
        if len(held) > self.most_connections:
            waiting = [each for each in held if not each.serving]  # this one at least
            min(waiting, key=lambda each: each.began).give_up()
        if not self.closing:
            self._wait(self.headers_s, self._missed)

    @property
    def serving(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def closing(self) -> bool:
        """Whether its end has begun."""
        return self.transport.is_closing()

    def give_up(self) -> None:
        """Ends the connection at once."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """As it is; what is no HTTP may find the protocol in a state where it can no longer say so."""
        try:
            super().data_received(data)
        except Exception as error:
            _log.debug("a connection was given up: %r", error)
            self.give_up()

    def on_response_complete(self) -> None:
        """The time for the next request begins."""
        self.began = self.loop.time()
        if not self.flow.write_paused:  # else it begins when the reader has taken the answer
            self._wait(self.headers_s, self._missed)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The reader is slower than the answer: it may take its time as long as it takes anything."""
        self._left_bytes = self.transport.get_write_buffer_size()
        self._wait(self.stalled_s, self._stalled)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The reader goes on."""
        self._wait(self.headers_s, self._missed)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is left to wait for."""
        if self._due is not None:
            self._due.cancel()
        super().connection_lost(exc)

    def _stalled(self) -> None:
        before, self._left_bytes = self._left_bytes, self.transport.get_write_buffer_size()
        if self._left_bytes >= before:
            self.give_up()
        else:
            self._wait(self.stalled_s, self._stalled)

    def _missed(self) -> None:
        if not self.serving:
            self.give_up()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due = self.loop.call_later(seconds, then)


def connections_allowed() -> int:
    """How many connections leave file descriptors for recordings, however few this process has."""
    try:
        import resource
    except ImportError:  # Windows
        return MOST_CONNECTIONS
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if allowed < 0 else max(min(MOST_CONNECTIONS, allowed // 4), _FEWEST)


def limited_to(count: int) -> type[Watched]:
    """The class of connections of which there may be so many."""

    class Limited(Watched):
        most_connections = count

    return Limited


class QuietFaults:
    """What the event loop complains of, in one line and not again for a while; all of it with FORETRACE_DEBUG."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_at = clock, -_SAY_AGAIN_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """One complaint of the loop."""
        if os.environ.get("FORETRACE_DEBUG"):
            loop.default_exception_handler(context)
            return
        if self._clock() - self._said_at < _SAY_AGAIN_S:
            return
        self._said_at = self._clock()
        error = context.get("exception")
        what = f"{context.get('message', 'a fault')}" + (f": {error}" if error is not None else "")
        _log.warning(
            "foretrace: %s (the server goes on; set FORETRACE_DEBUG=1 for more)", " ".join(what.split())[:300]
        )
