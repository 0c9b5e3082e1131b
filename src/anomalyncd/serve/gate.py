"""In front of every route: who may come in, how much may come, what is counted, and no error without words."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .guard import comes_from_elsewhere, has_token, names_this_machine, refusal, with_security_headers
from .limits import Limits
from .metrics import Metrics

OPEN = ("/health", "/health/live")  # for whoever watches over the process
ROUTES = (*OPEN, "/metrics", "/v1/model", "/v1/predict", "/openapi.json")
GONE = 499  # the client did not wait for its answer; only ever counted, never sent
LATER = {"Retry-After": "1"}

log = logging.getLogger(__name__)


@dataclass
class Traffic:
    """What is under way; only the event loop changes it.

    active : requests that have no whole answer yet
    held : bytes of their bodies
    stopping : new work is refused
    """

    active: int = 0
    held: int = 0
    stopping: bool = False


class Gate:
    """Checks every request before the app sees it.

    With a token the token is asked for, except for the health of the process. Without one, only names of this machine are
    served, whatever address a name from outside was made to point to (DNS rebinding), and no pages of other sites.
    """

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, traffic: Traffic, metrics: Metrics) -> None:
        self.app, self.token, self.limits, self.traffic, self.metrics = app, token, limits, traffic, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), GONE

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        answer = with_security_headers(noted)
        self.traffic.active += 1
        try:
            await (self._refuse(scope) or self.app)(scope, receive, answer)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("unexpected error %s in %s", number, scope["path"])
            if status == GONE:
                await refusal(500, f"Unexpected error {number}: the log of the service says more.")(
                    scope, receive, answer
                )
            else:
                raise
        finally:
            self.traffic.active -= 1
            path = scope["path"] if scope["path"] in ROUTES else "other"
            self.metrics.answered(path, status, time.perf_counter() - started)

    def _refuse(self, scope: Scope) -> Response | None:
        """The answer to a request that must not get through."""
        if scope["path"] in OPEN:
            return None
        headers = Headers(scope=scope)
        if self.token is None:
            if not names_this_machine(headers):
                return refusal(403, "Without a token only localhost is served.")
        elif not has_token(headers, self.token):
            refused = refusal(401, "A token is needed: Authorization: Bearer TOKEN.")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if scope["method"] != "POST":
            return None
        if comes_from_elsewhere(headers):
            return refusal(403, "Requests from other sites are refused.")
        if self.traffic.stopping:
            return later("The service is stopping: ask another one, or try again later.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > self.limits.n_bytes:
            return too_large(self.limits)
        return None


def later(words: str) -> Response:
    """503, and when to come back."""
    refused = refusal(503, words)
    refused.headers.update(LATER)
    return refused


def too_large(limits: Limits) -> Response:
    """413"""
    return refusal(413, f"A request must be no larger than {limits.n_bytes} bytes.")
