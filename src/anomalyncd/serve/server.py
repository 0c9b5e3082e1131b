"""The process around the app: patience with slow clients, room for others, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from types import FrameType
from typing import cast

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE_SECONDS = 5.0  # beyond what the limits grant those who still wait for an answer, or do not take it
HEAD_SECONDS = 10.0  # until the head of a request must have come, and the rest of one that is answered already
WRITE_SECONDS = 60.0  # until a client must have taken its answer
YOUNG_SECONDS = 3.0  # for which nobody is slow
MOST_SLOW_OF_ONE = 256  # connections of one address that wait for their client for longer
MOST_WAITING = 640  # connections that wait for their clients, however long: a process may often open 1,024 files
MOST_AT_WORK = 512  # requests that came whole and wait for their answer, beside those that a queue allows
BACKLOG = 128  # connections that are taken on at once, before the first of them can be closed


class Connection(H11Protocol):
    """Closes when a client neither sends its request or takes its answer nor goes away: it costs others theirs.

    Where too many wait for their clients, the slowest are closed: who has not sent a whole head, and so shown no token,
    goes first. A request that came whole is never cut off. So nobody can keep others out by connections that are opened
    and left.
    """

    _closing: asyncio.TimerHandle | None = None
    _cutting: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _since = 0.0  # when it became the client's turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing pauses as long as anything is not taken
        self._since = self.loop.time()
        self._closing = self.loop.call_later(HEAD_SECONDS, transport.close)
        # A timer comes after all that can be read has been read: who seems slow is not waiting for a busy loop.
        self._looking = self.loop.call_later(YOUNG_SECONDS, self._close_slow)
        self._close_first(MOST_WAITING, self._waiting())

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_at_request and self._closing is not None:
            self._closing.cancel()
            self._closing = None
        elif not self._is_at_request and self._closing is None:
            self._closing = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._since = self.loop.time()
        self._cutting = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._cutting is not None:
            self._cutting.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._closing, self._cutting, self._looking):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    @property
    def _is_at_request(self) -> bool:
        """Whether the head of a request has come that has no whole answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def is_waiting(self) -> bool:
        """Whether it is the client's turn: to send a request, or the rest of one, or to take its answer."""
        return not self._is_at_request or self.cycle.more_body or self.flow.write_paused

    @property
    def is_owed(self) -> bool:
        """Whether the client has not got the whole of an answer."""
        return self._is_at_request or self.flow.write_paused

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _waiting(self) -> list[Connection]:
        everyone = cast("set[Connection]", self.connections)
        return [one for one in everyone if one.is_waiting and not one.transport.is_closing()]

    def _close_slow(self) -> None:
        """Close the slowest of this client where it has too many."""
        old = self.loop.time() - YOUNG_SECONDS
        own = [one for one in self._waiting() if one._address == self._address and one._since <= old]
        self._close_first(MOST_SLOW_OF_ONE, own)

    def _close_first(self, most: int, crowd: list[Connection]) -> None:
        """Close as many as are too many, the slowest of the client that has most first."""
        if len(crowd) > most:
            old, counts = self.loop.time() - YOUNG_SECONDS, Counter(one._address for one in crowd)
            crowd.sort(key=lambda one: (one._since > old, -counts[one._address], one._is_at_request, one._since))
            for one in crowd[: len(crowd) - most]:
                one.transport.abort()


def config_of(app: ASGIApp, queue: int = 0) -> uvicorn.Config:
    """How `serve` and `review` listen; queue : requests that may wait beyond `MOST_AT_WORK`."""
    # Without an access log: what clients send is nobody's business, and the first address of a review may hold the token.
    return uvicorn.Config(
        app, http=Connection, ws="none", log_level="error", access_log=False, server_header=False, backlog=BACKLOG,
        limit_concurrency=MOST_WAITING + MOST_AT_WORK + queue,
    )  # fmt: skip


class Server(uvicorn.Server):
    """Ends on SIGTERM and SIGINT: new work is refused, what was accepted is answered. A second signal ends it at once."""

    _cutting: asyncio.TimerHandle | None = None

    def __init__(self, app: FastAPI) -> None:
        super().__init__(config_of(app, app.state.limits.queue))
        self.app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.app.state.traffic.stopping:
            sys.stdout.flush()
            os._exit(128 + signal.Signals(sig).value)  # threads at work cannot be told to stop
        self.app.state.stop()

    async def on_tick(self, counter: int) -> bool:
        state = self.app.state
        if state.traffic.stopping and self._cutting is None:
            patience = state.limits.read_seconds + state.limits.seconds + GRACE_SECONDS
            self._cutting = asyncio.get_running_loop().call_later(patience, self._cut)
        if state.traffic.stopping and not state.traffic.active:
            self.should_exit = True
        return await super().on_tick(counter)

    def _cut(self) -> None:
        """Wait for nobody any more."""
        self.should_exit = self.force_exit = True
        for connection in cast("set[Connection]", set(self.server_state.connections)):
            self.app.state.traffic.cut += connection.is_owed
            connection.transport.abort()
