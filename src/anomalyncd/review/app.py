"""The review as a web application: a page, a JSON API under /api, and pictures by number."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp

from .. import __version__
from ..checksums import sha256
from ..errors import AnomalyNCDError
from ..serve.guard import SAFE_METHODS, Guard, answer_errors, refusal, same_text, try_later
from . import schema
from .apply import Applier, Relearn, relearn
from .classes import ConflictError, CorrectedClasses
from .hints import Likeness, copies_answer, hints_answer, history_answer, normal_answer, similar_answer
from .lesson import Lessons
from .page_data import Pictures, moves_answer, next_answer, regions_answer, state_answer
from .session import Session

PAGE_MODULES = ("review.js", "api.js", "cards.js", "dialogs.js", "draw.js", "hints.js", "missed.js")
PAGE_FILES = {  # address → file and type; nothing else of the package is served
    "/": ("index.html", "text/html"),
    "/review.css": ("review.css", "text/css"),
    **{f"/{name}": (name, "text/javascript") for name in PAGE_MODULES},
}
MOST_ON_A_PAGE = 500
MOST_BYTES = 1_000_000  # of a request: a hundred thousand numbers of regions
READ_SECONDS = 20.0  # until the whole of a request must have come
AT_ONCE, WAITING = 2, 64  # pictures that are made, each of which may need a gigabyte, and that wait for their turn
Number = Annotated[int, InPath(ge=0, le=2**31)]
REFUSALS: dict[int | str, dict[str, Any]] = {
    408: {"description": "Did not come whole in time."},
    409: {
        "description": "Made by someone who has not seen the present state, or makes no sense in it; `detail` says why, "
        "`state` is the present state. Nothing was done."
    },
    422: {"description": "Not what was expected; `detail` says why."},
    503: {"description": "The run or the log cannot be read or written; nothing was done."},
}


def make_app(run: Path, token: str | None = None, *, learner: Relearn = relearn, guarded: bool = True) -> FastAPI:
    """The review of a run.

    Parameters
    ----------
    run : folder of a finished run
    token : clients that send it are answered from anywhere; without a token only requests to names of this machine are
    learner : what an apply calls to learn from the corrections
    guarded : False where another app, with a guard of its own, holds this one

    The app owns the run's review until `app.state.close()` or its own shutdown.
    """
    session = Session(run)
    applier, likeness = Applier(session, learner), Likeness()
    lessons = Lessons(session)

    def close() -> None:
        applier.wait()
        lessons.wait()
        session.close()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        close()

    app = FastAPI(
        title="anomalyncd review", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json",
        lifespan=lifespan, middleware=[Middleware(ReviewGuard, token=token)] if guarded else [],
    )  # fmt: skip
    app.state.close, app.state.session, app.state.applier = close, session, applier
    app.state.is_busy = lambda: session.applying is not None or lessons.is_running
    _answer_errors(app, session, applier)
    add_page(app, __package__, PAGE_FILES)
    _add_pictures(app, session)

    @app.get("/api/state", responses=REFUSALS)
    def state() -> schema.StateAnswer:
        """Classes and what can be done next."""
        return state_answer(session, applier)

    @app.get("/api/version")
    def version() -> schema.VersionAnswer:
        """Whether anything happened: ask every second, and for the state when it did."""
        session.refresh()
        return schema.VersionAnswer(version=session.version, job=applier.job and applier.job.answer())

    @app.get("/api/classes/{label}/regions", responses=REFUSALS)
    def regions(
        label: Annotated[int, InPath(ge=-1, le=2**31)],
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 24,
        order: schema.Order = "sure",
        contains: Annotated[str, Query(max_length=200, description="part of the image's name")] = "",
        surest: Annotated[float, Query(ge=0, le=1, description="highest probability")] = 1.0,
        size: schema.Size = "any",
        place: schema.InImage = "any",
    ) -> schema.RegionsAnswer:
        """Some regions of a class."""
        return regions_answer(
            session, label, offset=offset, limit=limit, order=order, contains=contains, surest=surest, size=size,
            place=place,
        )  # fmt: skip

    @app.get("/api/regions/{region}/similar", responses=REFUSALS)
    def similar(region: Number, limit: Annotated[int, Query(ge=1, le=200)] = 24) -> schema.SimilarAnswer:
        """Regions that look like one, of all classes."""
        return similar_answer(session, likeness, region, limit)

    @app.get("/api/hints", responses=REFUSALS)
    def hints() -> schema.HintsAnswer:
        """Merges and splits that suggest themselves, and rare kinds."""
        return hints_answer(session)

    @app.get("/api/normal", responses=REFUSALS)
    def normal(
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0, limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 24
    ) -> schema.NormalAnswer:
        """Some images without a defect, the most suspicious first."""
        return normal_answer(session, offset, limit)

    @app.get("/api/copies", responses=REFUSALS)
    def copied() -> schema.CopiesAnswer:
        """Images that are nearly the same."""
        return copies_answer(session, likeness)

    @app.get("/api/lesson", responses=REFUSALS)
    def lesson() -> schema.LessonAnswer:
        """How far the lesson is that was asked for last, and what it would change."""
        return lessons.answer()

    @app.post("/api/lesson", status_code=202, responses=REFUSALS)
    def learn_as_normal(request: schema.LessonRequest) -> schema.LessonAnswer:
        """Begin to show images to the detector as good ones; nothing is changed unless `apply` says so."""
        return lessons.start(request)

    @app.get("/api/history", responses=REFUSALS)
    def history() -> schema.HistoryAnswer:
        """Actions since the last apply."""
        return history_answer(session)

    @app.get("/api/moves", responses=REFUSALS)
    def moves() -> schema.MovesAnswer:
        """What the last apply changed."""
        return moves_answer(session)

    @app.get("/api/next", responses=REFUSALS)
    def look_next(n: Annotated[int, Query(ge=1, le=50)] = 5) -> schema.NextAnswer:
        """A few regions, merges and splits that are most worth a look."""
        return next_answer(session, n)

    @app.post("/api/actions", responses=REFUSALS)
    def act(request: schema.ActionRequest) -> schema.ActionAnswer:
        """Do one action. When this is answered it is on disk."""
        number = session.act(request)
        return schema.ActionAnswer(id=number, state=state_answer(session, applier))

    @app.post("/api/apply", status_code=202, responses=REFUSALS)
    def apply(request: schema.ApplyRequest) -> schema.JobAnswer:
        """Begin to learn from the corrections; /api/version tells how far it is."""
        return applier.start(request).answer()

    return app


def add_page(app: FastAPI, package: str, page_files: Mapping[str, tuple[str, str]]) -> None:
    """Serve files of the folder `page` of a package: address → file and type."""
    for address, (name, kind) in page_files.items():
        content = (files(package) / "page" / name).read_bytes()
        file = Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})
        app.routes.append(Route(address, file, methods=["GET"]))


class Turns:
    """Few at once, some that wait, and others are told to come back later."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._turn, self._most, self._inside = asyncio.Semaphore(at_once), at_once + waiting, 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        if self._inside >= self._most:
            raise try_later("Too many pictures are asked for at once: try again later.")
        self._inside += 1
        try:
            async with self._turn:
                yield
        finally:
            self._inside -= 1


def _add_pictures(app: FastAPI, session: Session) -> None:
    pictures = lru_cache(1)(Pictures)  # of the tables of now; kept until these change
    turns = Turns(AT_ONCE, WAITING)
    responses: dict[int | str, dict[str, Any]] = {
        200: {"content": {"image/jpeg": {}}},
        404: {"description": "No such number, or the file is gone."},
        503: {"description": "Too many are asked for at once, or the run cannot be read."},
    }

    Make = Callable[[Pictures, CorrectedClasses], bytes | None]

    async def draw(request: Request, make: Make, if_missing: str) -> Response:
        def content_of() -> bytes | None:
            classes = session.refresh()
            return make(pictures(classes.before), classes)

        async with turns.take():
            if await request.is_disconnected():  # nobody waits for it any more
                raise ClientDisconnect
            content = await run_sync(content_of)
        if content is None:
            raise HTTPException(404, if_missing)
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def row_of(classes: CorrectedClasses, region: int) -> int:
        try:
            return classes.row(region)
        except ConflictError as error:
            raise HTTPException(404, str(error)) from None

    @app.get("/crops/{region}", response_class=Response, responses=responses)
    async def crop(region: Number, request: Request) -> Response:
        """A region's crop with its outline."""

        def make(found: Pictures, classes: CorrectedClasses) -> bytes | None:
            row = row_of(classes, region)
            drawn = classes.drawing(row)
            return found.crop(row) if drawn is None else found.drawing(drawn)

        return await draw(request, make, "The crop of this region is missing or damaged.")

    @app.get("/overlay/{image}", response_class=Response, responses=responses)
    async def overlay(
        image: Number,
        request: Request,
        region: Annotated[int | None, Query(ge=0, le=2**31)] = None,
        heat: bool = False,
    ) -> Response:
        """A whole image with the outline of one of its regions, or of all; `heat` adds the anomaly map."""

        def make(found: Pictures, classes: CorrectedClasses) -> bytes | None:
            if image >= len(found.classes.images):
                raise HTTPException(404, f"There is no image {image}.")
            row = None if region is None else row_of(classes, region)
            if row is not None and classes.image_of[row] != image:
                raise HTTPException(404, f"Image {image} has no region {region}.")
            one = None if row is None else classes.drawing(row)
            drawn = [each for each in classes.drawn if each.image == found.classes.images[image]]
            return found.image(image, None if one else row, drawn, with_map=heat)

        words = "The image is no longer where it was when the run was made, or cannot be read."
        return await draw(request, make, words)


def _answer_errors(app: FastAPI, session: Session, applier: Applier) -> None:
    answer_errors(app, {AnomalyNCDError: 503, sqlite3.Error: 503, OSError: 503}, session.words)

    @app.exception_handler(ConflictError)
    def conflict(_: Request, error: ConflictError) -> JSONResponse:
        content: dict[str, Any] = {"detail": str(error)}
        with suppress(AnomalyNCDError, OSError, sqlite3.Error):  # the run may be gone: the words still hold
            content["state"] = state_answer(session, applier).model_dump()
        return JSONResponse(content, status_code=409)


class ReviewGuard(Guard):
    """Takes the token as `Authorization: Bearer TOKEN`, or from a cookie that the first visit of `/?token=TOKEN` sets."""

    token_hint = "open the address that `anomalyncd review` printed"
    wanted = "JSON (Content-Type: application/json)"

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        super().__init__(app, token, MOST_BYTES, READ_SECONDS)

    def refuse(self, request: Request) -> Response | None:
        kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
        refused = super().refuse(request)
        # A page of another site cannot send these without asking first, in browsers that do not say where they come from.
        if refused is None and request.method not in SAFE_METHODS and not self.takes(kind):
            return refusal(415, f"A request must be {self.wanted}.")
        return refused

    def takes(self, kind: str) -> bool:
        """Whether a request may be of this content type."""
        return kind == "application/json"

    def is_link(self, request: Request) -> bool:
        """The page itself, in a window of its own: it is the same for all runs, and what it asks for is of this site."""
        kind = request.headers.get("sec-fetch-mode"), request.headers.get("sec-fetch-dest")
        return request.method == "GET" and request.scope["path"] == "/" and kind == ("navigate", "document")

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
