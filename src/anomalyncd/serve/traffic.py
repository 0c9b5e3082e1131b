"""The guard of the service: it also counts what is under way, and refuses new work once the service is stopping."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .guard import SAFE_METHODS, Guard, refusal
from .limits import Limits
from .metrics import Metrics

OPEN = ("/health", "/health/live")  # without a token, for programs that watch over the process
ROUTES = (*OPEN, "/metrics", "/v1/model", "/v1/predict", "/openapi.json")
CLIENT_GONE = 499  # the client did not wait for its answer; only ever counted, never sent
RETRY = {"Retry-After": "1"}


@dataclass
class Traffic:
    """What is under way; only the event loop changes it.

    active : requests that have no whole answer yet
    held_bytes : of the bodies of requests whose answer has not begun
    stopping : new work is refused
    """

    active: int = 0
    held_bytes: int = 0
    stopping: bool = False


class ServiceGuard(Guard):
    """Lets requests for the health of the process through without a token, and counts all requests."""

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, traffic: Traffic, metrics: Metrics) -> None:
        super().__init__(app, token, limits.n_bytes)
        self.limits, self.traffic, self.metrics = limits, traffic, metrics

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        traffic, started, status, held = self.traffic, time.perf_counter(), CLIENT_GONE, 0

        async def held_receive() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            traffic.held_bytes += size
            if traffic.held_bytes > self.limits.held_bytes:
                raise try_later("Too many large requests at once: try again later.")
            return message

        async def noted_send(message: Message) -> None:
            nonlocal status, held
            if message["type"] == "http.response.start":
                status = message["status"]
                traffic.held_bytes -= held
                held = 0
            await send(message)

        traffic.active += 1
        try:
            await super().answer(scope, held_receive, noted_send)
        finally:
            traffic.active -= 1
            traffic.held_bytes -= held
            path = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.request_done(path, status, time.perf_counter() - started)

    def refuse(self, request: Request) -> Response | None:
        if request.scope["path"] in OPEN:
            return None
        refused = super().refuse(request)
        if refused is None and self.traffic.stopping and request.method not in SAFE_METHODS:
            return refusal(503, "The service is stopping: ask another one, or try again later.", RETRY)
        return refused


def try_later(words: str) -> HTTPException:
    """Status 503, with the time to come back."""
    return HTTPException(503, words, RETRY)
