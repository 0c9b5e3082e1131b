"""The process around the app: patience with slow clients, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

GRACE_SECONDS = 5.0  # beyond what the limits grant those who still wait for an answer, or do not take it
HEAD_SECONDS = 10.0  # until the head of a request must have come, and the rest of one that is answered already
MOST_CONNECTIONS = 512
WRITE_SECONDS = 60.0  # until a client must have taken its answer


class Connection(H11Protocol):
    """Closes when a client neither sends its request or takes its answer nor goes away: it costs others theirs."""

    _closing: asyncio.TimerHandle | None = None
    _cutting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # writing pauses as long as anything is not taken
        self._closing = self.loop.call_later(HEAD_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        between_requests = self.cycle is None or self.cycle.response_complete
        if not between_requests and self._closing is not None:
            self._closing.cancel()
            self._closing = None
        elif between_requests and self._closing is None:
            self._closing = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cutting = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._cutting is not None:
            self._cutting.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._closing, self._cutting):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """Ends on SIGTERM and SIGINT: new work is refused, what was accepted is answered. A second signal ends it at once.

    `force_exit` tells afterwards that some did not take their answers in time.
    """

    _cutting: asyncio.TimerHandle | None = None

    def __init__(self, app: FastAPI) -> None:
        # Without an access log: what clients send is nobody's business, and /metrics counts it.
        super().__init__(
            uvicorn.Config(
                app, http=Connection, ws="none", log_level="error", access_log=False, server_header=False,
                limit_concurrency=MOST_CONNECTIONS,
            )
        )  # fmt: skip
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
        for connection in list(self.server_state.connections):
            connection.transport.abort()
