"""Who may talk to the review: nobody but this machine, or whoever has the token. In front of every route."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1_000_000  # of a request: a hundred thousand numbers of regions
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # the first address may hold the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Guard:
    """Checks every request before the app sees it.

    Without a token only names of this machine are served, whatever address a name from outside was made to point to (DNS
    rebinding). With a token the token is asked for: as `Authorization: Bearer …`, or in a cookie that the first visit of
    `/?token=…` sets. Requests that change something must come from the page itself and be JSON.
    """

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    out[name] = value
                out.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refuse(scope, headers)
        if refusal is None and scope["method"] not in SAFE_METHODS:
            body = await _read_body(headers, receive)
            if body is None:
                refusal = _error(413, f"A request must be no larger than {MOST_BYTES} bytes.")
            else:
                receive = _replayed(body, receive)
        await (self.app if refusal is None else refusal)(scope, receive, send_safely)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that must not get through."""
        if self.token is None:
            if not is_loopback(_host(headers.get("host", ""))):
                return _error(403, "This review answers to localhost only.")
        elif (refusal := self._check_token(scope, headers)) is not None:
            return refusal
        if scope["method"] in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
            return _error(403, "Requests from other sites are refused.")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _error(403, "Requests from other sites are refused.")
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            return _error(415, "A request must be JSON (Content-Type: application/json).")
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        assert self.token is not None
        cookie = f"anomalyncd_{(scope.get('server') or ('', 0))[1]}"  # cookies are shared by all ports of a host
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and _same(given, self.token):
            answer = RedirectResponse("/", status_code=303)  # so that the token leaves the address bar
            answer.set_cookie(cookie, _derived(self.token), httponly=True, samesite="lax", path="/")
            return answer
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self.token):
            return None
        if _same(_cookie(headers.get("cookie", ""), cookie), _derived(self.token)):
            return None
        refusal = _error(401, "A token is needed: open the address that `anomalyncd review` printed.")
        refusal.headers["WWW-Authenticate"] = "Bearer"
        return refusal


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


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _same(given: str, expected: str) -> bool:
    """In constant time, so that nobody can find the token letter by letter."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8"))


def _derived(token: str) -> str:
    return hashlib.sha256(f"cookie of {token}".encode()).hexdigest()


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def _error(status: int, words: str) -> Response:
    return JSONResponse({"detail": words}, status_code=status)


async def _read_body(headers: Headers, receive: Receive) -> bytes | None:
    """The whole body, None where it is too large, whatever its header says."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 12 or int(length) > MOST_BYTES:
        return None
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return body
        body += bytes(message.get("body", b""))
        if len(body) > MOST_BYTES:
            return None
        if not message.get("more_body"):
            return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def again() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
