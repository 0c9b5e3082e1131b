"""The service as a web application: one route that classes images, and four that tell how the service is doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.to_thread import run_sync
from fastapi import FastAPI, HTTPException, Request, Security
from fastapi.responses import JSONResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware import Middleware

from .. import __version__
from ..checksums import stable_hash
from ..discovery.classify import Predictor, needs_of
from ..discovery.model import DiscoveryModel
from ..errors import BadFileError
from . import schema
from .batching import Batcher, Classed
from .guard import answer_errors
from .masks import Mask, image_run_lengths, region_masks, to_png
from .schema import MaskForm
from .traffic import Limits, Metrics, ServiceGuard, Traffic
from .uploads import check_content_type, parse

DESCRIPTION = """Classes of product images, as a run of `anomalyncd discover` found them.

With a token every request but `/health` needs `Authorization: Bearer TOKEN`. Errors are JSON with a `detail` in words."""
# The guard checks the token; this only describes it.
WITH_TOKEN = [Security(HTTPBearer(scheme_name="token", auto_error=False))]


def make_api(
    predictor: Predictor,
    *,
    counts: Mapping[int, int] | None = None,
    token: str | None = None,
    limits: Limits | None = None,
) -> FastAPI:
    """The service of a run.

    Parameters
    ----------
    predictor : with all that the run needs, loaded; from here on only the service may use it
    counts : label → number of images of the run, for /v1/model
    token : clients that send it are answered from anywhere; without a token only requests to names of this machine are

    `app.state.stop()` refuses new work, `app.state.traffic.active` counts what is still under way; at its shutdown the
    app ends its threads.
    """
    limits = limits or Limits()
    metrics, traffic = Metrics(), Traffic()
    batcher = Batcher(predictor, limits, metrics)
    needs, about = needs_of(predictor), describe(predictor, counts, limits)
    metrics.add_gauge("anomalyncd_queue_images", "Images that wait or are worked on.", lambda: batcher.in_flight)
    metrics.add_gauge("anomalyncd_requests_active", "Requests under way, this one counted.", lambda: traffic.active)

    def stop() -> None:
        traffic.stopping = True

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        stop()
        await run_sync(batcher.close)

    app = FastAPI(
        title="anomalyncd", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan,
        middleware=[Middleware(ServiceGuard, token=token, limits=limits, traffic=traffic, metrics=metrics)],
    )  # fmt: skip
    app.state.stop, app.state.traffic, app.state.batcher, app.state.limits = stop, traffic, batcher, limits
    answer_errors(app, {BadFileError: 422})
    _describe_requests(app)

    @app.post(
        "/v1/predict", responses={200: {"model": schema.PredictAnswer}, **schema.REFUSALS}, response_class=Response,
        dependencies=WITH_TOKEN, openapi_extra={"requestBody": schema.REQUEST_BODY},
    )  # fmt: skip
    async def predict(request: Request, masks: MaskForm = "rle") -> Response:
        """Class one image or several."""
        content_type = request.headers.get("content-type", "")
        check_content_type(content_type)
        body = b"".join([chunk async for chunk in request.stream()])
        uploads = await run_sync(parse, body, content_type, needs, limits.images)
        names, futures = [upload.name for upload in uploads], batcher.submit(uploads)
        del body, uploads  # each is let go as soon as it is decoded
        try:
            with anyio.fail_after(limits.seconds):
                found = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
                for outcome in found:
                    is_alone = len(found) == 1
                    if isinstance(outcome, BaseException) and (is_alone or not isinstance(outcome, BadFileError)):
                        raise outcome
                arguments = (predictor.model, names, found, masks, limits.runs)
                content = await run_sync(answer_json, *arguments, abandon_on_cancel=True)
        except TimeoutError:
            raise HTTPException(504, f"No answer within {limits.seconds:g} s.") from None
        return Response(content, media_type="application/json")

    @app.get("/v1/model", responses=schema.GUARDED, dependencies=WITH_TOKEN)
    async def about_the_model() -> schema.ModelAnswer:
        """Classes, what must be sent, and limits."""
        return about

    @app.get("/health", responses={503: {"model": schema.HealthAnswer, "description": "Takes no more work."}})
    async def ready() -> Response:
        """Whether work is taken."""
        is_ready = batcher.is_alive and not traffic.stopping
        answer = schema.HealthAnswer(status="ready" if is_ready else "stopping")
        return JSONResponse(answer.model_dump(), status_code=200 if is_ready else 503)

    @app.get("/health/live")
    async def live() -> schema.HealthAnswer:
        """Answers as long as the process does, also while it is stopping."""
        return schema.HealthAnswer(status="stopping" if traffic.stopping else "ready")

    @app.get(
        "/metrics", response_class=Response, dependencies=WITH_TOKEN,
        responses={200: {"content": {"text/plain": {}}}, **schema.GUARDED},
    )  # fmt: skip
    async def measured() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return app


def describe(predictor: Predictor, counts: Mapping[int, int] | None, limits: Limits) -> schema.ModelAnswer:
    """The model in figures and names; no paths of this machine."""
    model, config = predictor.model, predictor.model.config
    settings = config.model_dump(mode="json", exclude={"device": True, "model": {"weights"}})
    classes = [
        schema.ClassAnswer(label=k, name=model.names[k], n_images=None if counts is None else counts.get(k, 0))
        for k in model.classes.tolist()
    ]
    return schema.ModelAnswer(
        version=__version__, settings=stable_hash(settings), needs=needs_of(predictor), detector=config.detect.name,
        backbone=config.model.backbone, classes=classes,
        limits=schema.LimitsAnswer(bytes=limits.n_bytes, images=limits.images, pixels=limits.pixels, seconds=limits.seconds),
    )  # fmt: skip


def answer_json(
    model: DiscoveryModel,
    names: Sequence[str],
    found: Sequence[Classed | BaseException],
    form: MaskForm,
    most_runs: int,
) -> bytes:
    """What was found, as JSON; most_runs : run lengths that all masks together may have."""
    answer: list[schema.ImageAnswer | schema.FailedImage] = []
    for name, one in zip(names, found, strict=True):
        if not isinstance(one, Classed):
            answer.append(schema.FailedImage(name=name, error=str(one)))
            continue
        size = (one.record.height, one.record.width)
        shapes: Iterable[Mask | None] = [None] * len(one.regions)
        if form != "none":
            shapes = region_masks(one.mask, size, model.config.crop, len(one.regions))
        regions = []
        for row, shape in zip(one.regions, shapes, strict=True):
            mask: schema.RunLengths | str | None = None
            if shape is not None and form == "rle":
                counts = image_run_lengths(shape, (row["x"], row["y"]), size, most_runs)
                most_runs -= len(counts)
                mask = schema.RunLengths(size=size, counts=counts)
            elif shape is not None:
                mask = to_png(shape)
            regions.append({**row, "box": row, "mask": mask})
        shares = zip(model.classes.tolist(), one.probabilities.tolist(), strict=True)
        own = {"name": name, "width": size[1], "height": size[0], "note": one.record.note, "regions": regions}
        answer.append(
            schema.ImageAnswer.model_validate({**one.image, **own, "probabilities": {str(k): p for k, p in shares}})
        )
    return schema.PredictAnswer(images=answer).model_dump_json().encode()


def _describe_requests(app: FastAPI) -> None:
    """Add the schemas of the JSON request, which FastAPI does not find because the route reads the body itself."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            make()["components"]["schemas"] |= schema.request_schemas()
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]
