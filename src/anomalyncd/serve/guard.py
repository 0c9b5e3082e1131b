"""Who may come in: nobody but this machine, or whoever has the token. In front of every route of the review."""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..checksums import sha256

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
        send_safely = with_security_headers(send)
        refused = self._refuse(scope, headers)
        if refused is None and scope["method"] not in SAFE_METHODS:
            body = await _read_body(headers, receive)
            if body is None:
                refused = refusal(413, f"A request must be no larger than {MOST_BYTES} bytes.")
            else:
                receive = _replayed(body, receive)
        await (self.app if refused is None else refused)(scope, receive, send_safely)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request that must not get through."""
        if self.token is None:
            if not names_this_machine(headers):
                return refusal(403, "This review answers to localhost only.")
        elif (refused := self._check_token(scope, headers)) is not None:
            return refused
        if scope["method"] in SAFE_METHODS:
            return None
        if comes_from_elsewhere(headers):
            return refusal(403, "Requests from other sites are refused.")
        if headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            return refusal(415, "A request must be JSON (Content-Type: application/json).")
        return None

    def _check_token(self, scope: Scope, headers: Headers) -> Response | None:
        assert self.token is not None
        cookie = f"anomalyncd_{(scope.get('server') or ('', 0))[1]}"  # cookies are shared by all ports of a host
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and scope["method"] == "GET" and _same(given, self.token):
            answer = RedirectResponse("/", status_code=303)  # so that the token leaves the address bar
            answer.set_cookie(cookie, _derived(self.token), httponly=True, samesite="lax", path="/")
            return answer
        if has_token(headers, self.token):
            return None
        if _same(_cookie(headers.get("cookie", ""), cookie), _derived(self.token)):
            return None
        refused = refusal(401, "A token is needed: open the address that `anomalyncd review` printed.")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused


def with_security_headers(send: Send) -> Send:
    """`send` for answers that a browser must not run, guess at, keep or hand to other sites."""

    async def send_safely(message: Message) -> None:
        if message["type"] == "http.response.start":
            out = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                out[name] = value
            out.setdefault("Cache-Control", "no-store")
        await send(message)

    return send_safely


def names_this_machine(headers: Headers) -> bool:
    """Whether the address that a client asked for can only mean this machine."""
    return is_loopback(_host(headers.get("host", "")))


def comes_from_elsewhere(headers: Headers) -> bool:
    """Whether a browser sent this for a page of another site."""
    origin = headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != headers.get("host", "").lower():
        return True
    return headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def has_token(headers: Headers, token: str) -> bool:
    """Whether a request brings the token as `Authorization: Bearer …`."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and _same(bearer.strip(), token)


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
    return sha256(f"cookie of {token}".encode())


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found else ""


def refusal(status: int, words: str) -> Response:
    """An error in words."""
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
