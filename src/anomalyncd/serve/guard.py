"""In front of every route of `serve` and `review`: who is let in, how much may be sent, and errors as JSON."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import anyio
from fastapi import FastAPI, HTTPException
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the first address of a review may hold the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
RETRY = {"Retry-After": "1"}

log = logging.getLogger(__name__)


class Guard:
    """Checks every request before the app sees it.

    Parameters
    ----------
    app : the routes behind it
    token : what clients must send as `Authorization: Bearer TOKEN`. Without one only requests to a name of this machine are
        answered, whatever address a name from outside was made to point to (DNS rebinding)
    most_bytes : of the body of a request, whatever its header says
    read_seconds : from the head of a request until its body must have come whole

    Requests that a browser sends for a page of another site are refused, those that only ask as well: what they ask for
    makes work, and tells that page by its time whether it is there.
    """

    token_hint = "Authorization: Bearer TOKEN"

    def __init__(self, app: ASGIApp, token: str | None, most_bytes: int, read_seconds: float) -> None:
        self.app, self.token, self.most_bytes, self.read_seconds = app, token, most_bytes, read_seconds
        self.too_large = f"A request must be no larger than {most_bytes} bytes."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or let the app answer it; an unexpected error gets a number under which the log has it."""
        begun, size, is_whole = False, 0, False
        deadline = anyio.current_time() + self.read_seconds

        async def counted() -> Message:
            nonlocal size, is_whole
            if is_whole:  # all that can come now is that the client has gone
                return await receive()
            try:
                with anyio.fail_after(max(0.0, deadline - anyio.current_time())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"The request did not come within {self.read_seconds:g} s.") from None
            is_whole = not message.get("more_body", False)
            size += len(message.get("body", b""))
            if size > self.most_bytes:
                raise HTTPException(413, self.too_large)
            return message

        async def send_safely(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun, headers = True, MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():  # a page of the app's own may ask for others
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            await (self.refuse(Request(scope)) or self.app)(scope, counted, send_safely)
        except ClientDisconnect:
            pass  # nobody is there to be answered
        except Exception:
            number = secrets.token_hex(4)
            log.exception("unexpected error %s in %s", number, scope["path"])
            if begun:
                raise
            words = f"Unexpected error {number}: the log of the service says more."
            await refusal(500, words)(scope, receive, send_safely)

    def refuse(self, request: Request) -> Response | None:
        """The answer to a request that must not reach the app; None for all others."""
        headers = request.headers
        if self.token is None:
            if not is_loopback(_host(headers)):
                return refusal(403, "Without a token only localhost is served.")
        elif (refused := self.check_token(request, self.token)) is not None:
            return refused
        if comes_from_another_site(headers) and not self.is_link(request):
            return refusal(403, "Requests from other sites are refused.")
        if request.method in SAFE_METHODS:
            return None
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > self.most_bytes:
            return refusal(413, self.too_large)
        return None

    def is_link(self, request: Request) -> bool:
        """Whether this is a link that a person may follow from another site."""
        return False

    def check_token(self, request: Request, token: str) -> Response | None:
        """The answer to a request without the token; None where it is there."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same_text(given.strip(), token):
            return None
        return refusal(401, f"A token is needed: {self.token_hint}.", {"WWW-Authenticate": "Bearer"})


def answer_errors(
    app: FastAPI, statuses: Mapping[type[Exception], int], words: Callable[[Exception], str] = str
) -> None:
    """Answer malformed requests with 422, and these kinds of error with their status, in words and without what was sent."""
    for kind, status in statuses.items():
        app.add_exception_handler(kind, lambda _, error, status=status: refusal(status, words(error)))

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return refusal(422, f"{place}: {first['msg']}" if place else first["msg"])


def refusal(status: int, words: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in words, as FastAPI answers with an HTTPException."""
    return JSONResponse({"detail": words}, status, headers)


def try_later(words: str) -> HTTPException:
    """Status 503, with the time to come back."""
    return HTTPException(503, words, RETRY)


def comes_from_another_site(headers: Headers) -> bool:
    """Whether a browser sent this for a page of another site."""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
        return True
    return headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine.

    Examples
    --------
    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "evil.example", "")]
    [True, True, True, False, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def same_text(given: str, expected: str) -> bool:
    """Compare in constant time, so that nobody can find a token letter by letter."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8"))


def _host(headers: Headers) -> str:
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""
