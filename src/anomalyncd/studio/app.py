"""The studio as a web application: a page, a JSON API under /api, pictures, reports, and the review of each run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Query
from fastapi import Path as InPath
from fastapi.responses import RedirectResponse, Response
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from .. import __version__
from ..errors import AnomalyNCDError, without_folders
from ..review.app import REFUSALS, ReviewGuard, Turns, add_page
from ..serve.guard import answer_errors
from . import schema
from . import uploads as uploading
from .answers import folder_answer, job_answer, job_details, run_answer, run_details
from .compare import compare
from .days import Days
from .jobs import Job, Jobs
from .line import ignored_answer, line_answer
from .orders import Orders
from .pictures import add_days, add_pictures
from .predictions import prediction_answer
from .reviews import Reviews
from .roots import OutsideError, Roots
from .uploads import DROPPED, Uploads
from .workspace import OWN, Workspace

PAGE_FILES = {  # address → file and type; nothing else of the package is served
    "/": ("index.html", "text/html"),
    "/studio.css": ("studio.css", "text/css"),
    **{
        f"/{name}": (name, "text/javascript") for name in ("studio.js", "parts.js", "views.js", "forms.js", "fields.js")
    },
}
SHARED_FILES = {"/review.css": ("review.css", "text/css"), "/draw.js": ("draw.js", "text/javascript")}
MOST_ON_A_PAGE = 500
JobNumber = Annotated[int, InPath(ge=1, le=2**31)]
RunName = Annotated[str, InPath(max_length=255)]
UPLOAD = "/api/uploads/"
MOST_UPLOADED, UPLOAD_SECONDS = uploading.MOST_BYTES, 120.0  # of one image that is sent, until it must have come whole
UPLOADS_AT_ONCE, UPLOADS_WAITING = 2, 16  # each is held in memory, and decoded
AN_IMAGE = {
    "requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
NOT_AN_IMAGE: dict[int | str, dict[str, object]] = {
    413: {"description": "Too large, or too many in this folder."},
    415: {"description": "No image that can be read."},
}
NOT_FOUND: dict[int | str, dict[str, object]] = {**REFUSALS, 404: {"description": "No such run, job or folder."}}


class StudioToken(ReviewGuard):
    """Says where the token of the studio is."""

    token_hint = "open the address that `anomalyncd studio` printed"


class StudioGuard(StudioToken):
    """As of the review: a token in a cookie, no requests of other sites but a link to the first page."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        super().__init__(app, token)
        self._uploads = UploadGuard(app, token)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of all routes; images that are sent may be larger, and are no JSON."""
        is_upload = scope["method"] == "POST" and scope["path"].startswith(UPLOAD)
        await (self._uploads.answer if is_upload else super().answer)(scope, receive, send)


class UploadGuard(StudioToken):
    """In front of images that are sent."""

    wanted = "an image (Content-Type: image/png, …, or application/octet-stream)"

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        super().__init__(app, token)
        self.most_bytes, self.read_seconds = MOST_UPLOADED, UPLOAD_SECONDS
        self.too_large = f"An image must be no larger than {MOST_UPLOADED // 1_000_000} MB."

    def takes(self, kind: str) -> bool:
        """Images, and what is not said to be anything else."""
        return kind.startswith("image/") or kind == "application/octet-stream"


def make_studio(path: Path, roots: Roots, token: str | None = None, *, options: list[str] | None = None) -> FastAPI:
    """The studio of a workspace.

    Parameters
    ----------
    path : folder of the runs, made if missing
    roots : what the page may choose images from; the workspace comes on top
    token : clients that send it are answered from anywhere; without a token only requests to names of this machine are
    options : of `discover` and `demo`, for every run that is started here

    The app owns the workspace until `app.state.close()` or its own shutdown.
    """
    workspace = Workspace(path)
    roots = Roots([*roots.folders, workspace.path])
    jobs, turns = Jobs(workspace.path / OWN / "jobs"), Turns(UPLOADS_AT_ONCE, UPLOADS_WAITING)
    orders, uploads, days = Orders(workspace, roots, jobs, options or []), Uploads(workspace), Days(workspace)
    reviews = Reviews(workspace.runs)

    def close() -> None:
        jobs.close()
        reviews.close()
        workspace.close()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        jobs.start()
        yield
        close()

    app = FastAPI(
        title="anomalyncd studio", version=__version__, docs_url=None, redoc_url=None, openapi_url="/api/openapi.json",
        lifespan=lifespan, middleware=[Middleware(StudioGuard, token=token)],
    )  # fmt: skip
    app.state.close, app.state.workspace, app.state.jobs, app.state.reviews = close, workspace, jobs, reviews

    def words(error: Exception) -> str:
        return without_folders(str(error), workspace.path)

    answer_errors(app, {AnomalyNCDError: 409, OSError: 503}, words)
    answer_errors(app, {OutsideError: 404})
    add_page(app, __package__, PAGE_FILES)
    add_page(app, "anomalyncd.review", SHARED_FILES)
    add_pictures(app, workspace, roots, jobs)
    add_days(app, days, jobs)

    def found_job(number: int) -> Job:
        job = jobs.find(number)
        if job is None:
            raise HTTPException(404, f"There is no job {number}.")
        return job

    def found_run(name: str) -> Path:
        run = workspace.runs().get(name)
        if run is None:
            raise HTTPException(404, "There is no such run.")
        return run

    @app.get("/api/state", responses=REFUSALS)
    def state() -> schema.StateAnswer:
        """Runs and jobs."""
        known = orders.known()
        runs = [run_answer(workspace, name, run, name in known) for name, run in workspace.runs().items()]
        workspace.keep()
        return schema.StateAnswer(
            workspace=workspace.path.name, roots=roots.names, runs=runs,
            jobs=[job_answer(jobs, job) for job in jobs.all()], tables=days.tables(),
        )  # fmt: skip

    @app.get("/api/folders", responses=NOT_FOUND)
    def folders(
        root: Annotated[int, Query(ge=0, le=1000)] = 0, path: Annotated[str, Query(max_length=4096)] = ""
    ) -> schema.FolderAnswer:
        """What a folder holds that may be chosen."""
        return folder_answer(roots, root, path)

    @app.post("/api/runs", status_code=202, responses=NOT_FOUND)
    def new_run(request: schema.NewRun) -> schema.JobAnswer:
        """Queue a new run."""
        return job_answer(jobs, orders.new_run(request))

    @app.post("/api/uploads", status_code=201, responses=NOT_FOUND)
    def new_folder(request: schema.NewFolder) -> schema.Place:
        """Make a folder for images that are about to be sent."""
        name = uploads.folder(request.name)
        return schema.Place(root=roots.folders.index(workspace.path), path=f"{DROPPED}/{name}")

    @app.post(f"{UPLOAD}{{folder}}", status_code=201, responses={**NOT_FOUND, **NOT_AN_IMAGE}, openapi_extra=AN_IMAGE)
    async def send_image(
        folder: RunName, name: Annotated[str, Query(max_length=1000)], request: Request
    ) -> schema.SentImage:
        """Send an image into such a folder: the body is the file, `name` what it is called."""
        async with turns.take():
            content = await request.body()
            return schema.SentImage(name=await run_sync(uploads.take, folder, name, content))

    @app.post("/api/demo", status_code=202, responses=NOT_FOUND)
    def demo(request: schema.Nothing) -> schema.JobAnswer:
        """Queue the demo."""
        return job_answer(jobs, orders.demo())

    @app.get("/api/runs/{run}", responses=NOT_FOUND)
    def one_run(run: RunName) -> schema.RunDetails:
        """A finished run, with what new images of it need."""
        return run_details(workspace, run, found_run(run), run in orders.known())

    @app.post("/api/runs/{run}/predict", status_code=202, responses=NOT_FOUND)
    def predict(run: RunName, request: schema.NewPrediction) -> schema.JobAnswer:
        """Queue the classes of new images."""
        return job_answer(jobs, orders.predict(run, found_run(run), request))

    @app.get("/api/runs/{run}/line", responses=NOT_FOUND)
    def line(run: RunName) -> schema.LineAnswer:
        """Where the line between normal and defect is, and what another one would change."""
        return line_answer(found_run(run))

    @app.post("/api/runs/{run}/line", status_code=202, responses=NOT_FOUND)
    def move_line(run: RunName, request: schema.NewSensitivity) -> schema.JobAnswer:
        """Queue the same run with another line; names and corrections stay."""
        found_run(run)
        return job_answer(jobs, orders.move_line(run, request))

    @app.post("/api/runs/{run}/ignore/check", responses=NOT_FOUND)
    def check_ignored(run: RunName, request: schema.NewIgnored) -> schema.IgnoredAnswer:
        """What a run would no longer find if parts of the picture were ignored; nothing is changed."""
        return ignored_answer(found_run(run), request.ignore)

    @app.post("/api/runs/{run}/ignore", status_code=202, responses=NOT_FOUND)
    def ignore(run: RunName, request: schema.NewIgnored) -> schema.JobAnswer:
        """Queue another run of the same images in which parts of the picture are ignored."""
        return job_answer(jobs, orders.ignore(run, found_run(run), request))

    @app.get("/api/jobs/{number}", responses=NOT_FOUND)
    def one_job(number: JobNumber) -> schema.JobDetails:
        """A job, with what it said."""
        return job_details(jobs, found_job(number), workspace.path, roots)

    @app.post("/api/jobs/{number}/stop", responses=NOT_FOUND)
    def stop(number: JobNumber, request: schema.Nothing) -> schema.JobAnswer:
        """End a job or take it out of the queue; what it has finished is kept."""
        job = found_job(number)
        jobs.stop(job)
        return job_answer(jobs, job)

    @app.post("/api/jobs/{number}/resume", responses=NOT_FOUND)
    def resume(number: JobNumber, request: schema.Nothing) -> schema.JobAnswer:
        """Go on with a job that was stopped or failed."""
        job = found_job(number)
        jobs.resume(job)
        return job_answer(jobs, job)

    @app.post("/api/jobs/{number}/forget", responses=NOT_FOUND)
    def forget(number: JobNumber, request: schema.Nothing) -> schema.Nothing:
        """Remove a job that has ended from the list, with the table of a prediction; a run stays."""
        orders.forget(found_job(number))
        return schema.Nothing()

    @app.get("/api/jobs/{number}/result", responses=NOT_FOUND)
    def result(
        number: JobNumber,
        offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ON_A_PAGE)] = 60,
        label: Annotated[int | None, Query(ge=-1, le=2**31)] = None,
    ) -> schema.PredictionAnswer:
        """Some rows of a prediction."""
        return prediction_answer(found_job(number), offset, limit, label)

    @app.get("/api/compare", responses=NOT_FOUND)
    def compared(first: schema.RunName, second: schema.RunName) -> schema.CompareAnswer:
        """What moved between two runs of the same images."""
        return compare(first, found_run(first), second, found_run(second))

    @app.get("/runs/{run}/review", include_in_schema=False)
    def to_review(run: RunName, request: Request) -> Response:
        found_run(run)
        return RedirectResponse(f"{request.url.path}/", status_code=307)

    app.routes.append(Mount("/runs/{run}/review", app=reviews))
    return app
