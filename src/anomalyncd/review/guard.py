"""The guard of the review page: the token comes in the first address and then in a cookie, and requests are JSON."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp

from ..checksums import sha256
from ..serve.guard import SAFE_METHODS, Guard, refusal, same_text

MOST_BYTES = 1_000_000  # of a request: a hundred thousand numbers of regions


class ReviewGuard(Guard):
    """Takes the token as `Authorization: Bearer TOKEN`, or from a cookie that the first visit of `/?token=TOKEN` sets."""

    token_hint = "open the address that `anomalyncd review` printed"

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        super().__init__(app, token, MOST_BYTES)

    def refuse(self, request: Request) -> Response | None:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        refused = super().refuse(request)
        if refused is None and request.method not in SAFE_METHODS and kind != "application/json":
            return refusal(415, "A request must be JSON (Content-Type: application/json).")
        return refused

    def check_token(self, request: Request, token: str) -> Response | None:
        cookie = f"anomalyncd_{(request.scope.get('server') or ('', 0))[1]}"  # all ports of a host share its cookies
        derived = sha256(f"cookie of {token}".encode())
        is_first = request.scope["path"] == "/" and request.method == "GET"
        if is_first and same_text(request.query_params.get("token", ""), token):
            answer = RedirectResponse("/", status_code=303)  # so that the token leaves the address bar
            answer.set_cookie(cookie, derived, httponly=True, samesite="lax", path="/")
            return answer
        if same_text(request.cookies.get(cookie, ""), derived):
            return None
        return super().check_token(request, token)
