"""Pictures and reports of the studio: by the name of a run, the number of an image, or a place inside a root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Query
from fastapi import Path as InPath
from fastapi.responses import Response
from starlette.requests import ClientDisconnect, Request

from ..data.images import read_image
from ..errors import AnomalyNCDError, BadFileError
from ..report.canvas import fitted
from ..review.app import AT_ONCE, WAITING, Turns
from ..review.page_data import to_jpeg
from ..run.finished import FinishedRun
from ..run.folder import REPORT, RunFolder
from .days import Days
from .jobs import Jobs
from .predictions import image_file
from .roots import Roots
from .workspace import Workspace

SIDE, MOST_SIDE = 320, 1400  # pixels of a small picture, and of one to draw on
LARGEST_REPORT = 100_000_000
# A report may be a stranger's: it gets an origin of its own, from which nothing of the studio can be asked for.
REPORT_POLICY = (
    "sandbox allow-scripts allow-top-navigation-by-user-activation; default-src 'none'; img-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
Name = Annotated[str, InPath(max_length=255)]
Number = Annotated[int, InPath(ge=0, le=2**31)]
Side = Annotated[int, Query(ge=16, le=MOST_SIDE)]
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"image/jpeg": {}}},
    404: {"description": "There is no such picture, or its file is gone."},
    503: {"description": "Too many are asked for at once, or the run cannot be read."},
}


def add_pictures(app: FastAPI, workspace: Workspace, roots: Roots, jobs: Jobs) -> None:
    """Add the routes of pictures and reports."""
    turns = Turns(AT_ONCE, WAITING)

    async def draw(request: Request, make: Callable[[], bytes | None]) -> Response:
        async with turns.take():
            if await request.is_disconnected():
                raise ClientDisconnect
            try:
                content = await run_sync(make)
            except (AnomalyNCDError, BadFileError, OSError):
                content = None
        if not content:
            raise HTTPException(404, "There is no such picture, or its file is gone.")
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})

    def found_run(name: str) -> Path:
        run = workspace.runs().get(name)
        if run is None:
            raise HTTPException(404, "There is no such run.")
        return run

    @app.get("/runs/{run}/picture", response_class=Response, responses=RESPONSES)
    async def picture(run: Name, request: Request) -> Response:
        """Some regions of a run."""
        folder = found_run(run)
        return await draw(request, lambda: workspace.picture(folder))

    @app.get("/runs/{run}/images/{image}", response_class=Response, responses=RESPONSES)
    async def image_of_run(run: Name, image: Number, request: Request, side: Side = SIDE) -> Response:
        """An image of a run, small, by its row in manifest.csv."""
        folder = found_run(run)

        def make() -> bytes | None:
            found = FinishedRun(folder, device="cpu")
            if image >= len(found.manifest):
                return None
            whole = found.image(str(found.manifest["image"].iloc[image]))
            return None if whole is None else to_jpeg(fitted(whole, side))

        return await draw(request, make)

    @app.get("/jobs/{number}/images/{row}", response_class=Response, responses=RESPONSES)
    async def image_of_job(number: Number, row: Number, request: Request) -> Response:
        """An image of a prediction, small, by its row."""
        job = jobs.find(number)
        if job is None:
            raise HTTPException(404, f"There is no job {number}.")

        def make() -> bytes | None:
            file = image_file(job, row)
            return None if file is None else to_jpeg(fitted(read_image(file), SIDE))

        return await draw(request, make)

    @app.get("/folders/picture", response_class=Response, responses=RESPONSES)
    async def image_of_folder(
        root: Annotated[int, Query(ge=0, le=1000)],
        path: Annotated[str, Query(max_length=4096)],
        request: Request,
        side: Side = SIDE,
    ) -> Response:
        """An image inside a root, small."""
        file = roots.find(root, path)
        if not file.is_file():
            raise HTTPException(404, "There is no such picture, or its file is gone.")
        return await draw(request, lambda: to_jpeg(fitted(read_image(file), side)))

    @app.get("/runs/{run}/report", include_in_schema=False)
    def report(run: Name) -> Response:
        """The report of a run, as a page of its own origin."""
        file = RunFolder(found_run(run)).place(REPORT)
        if not file.is_file() or file.stat().st_size > LARGEST_REPORT:
            raise HTTPException(404, "This run has no report: `anomalyncd report` makes one.")
        headers = {"Content-Security-Policy": REPORT_POLICY, "Cache-Control": "no-cache"}
        return Response(file.read_bytes(), media_type="text/html", headers=headers)


def add_days(app: FastAPI, days: Days, jobs: Jobs) -> None:
    """Add the routes of pages of the day."""

    def page(content: bytes | None) -> Response:
        if content is None:
            raise HTTPException(404, "There is no such table, or not yet.")
        headers = {"Content-Security-Policy": REPORT_POLICY, "Cache-Control": "no-cache"}
        return Response(content, media_type="text/html", headers=headers)

    @app.get("/days/{table}", include_in_schema=False)
    def day_of_table(table: Name) -> Response:
        """The page of the last day of a table, as a page of its own origin."""
        return page(days.of_table(table))

    @app.get("/jobs/{number}/day", include_in_schema=False)
    def day_of_job(number: Number) -> Response:
        """The same of a prediction."""
        job = jobs.find(number)
        return page(None if job is None else days.of_job(job))
