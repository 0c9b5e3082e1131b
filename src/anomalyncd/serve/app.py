"""The service as a web application: one route that classes images, and three that tell how it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from anyio.to_thread import run_sync
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect

from .. import __version__
from ..checksums import stable_hash
from ..discovery.classify import Predictor
from ..discovery.model import DiscoveryModel
from ..errors import BadFileError
from .batching import Batcher, BusyError, Classed
from .gate import GONE, Gate, Traffic, later, too_large
from .guard import refusal
from .limits import Limits
from .metrics import MEDIA_TYPE, Metrics
from .schema import (
    GUARDED,
    REFUSALS,
    REQUEST_BODY,
    Box,
    ClassAnswer,
    FailedImage,
    HealthAnswer,
    ImageAnswer,
    LimitsAnswer,
    MaskForm,
    ModelAnswer,
    Needs,
    PredictAnswer,
    RegionAnswer,
    RunLengths,
    request_schemas,
)  # fmt: skip
from .shapes import Mask, RunBudget, TooManyRunsError, png, region_shapes, run_lengths
from .uploads import UploadError, check_content_type, parse

DESCRIPTION = """Classes of product images, as a run of `anomalyncd discover` found them.

With a token every request but `/health` needs `Authorization: Bearer TOKEN`. Errors are JSON with a `detail` in words."""


class RefusedError(Exception):
    """An answer that ends a request."""

    def __init__(self, response: Response) -> None:
        self.response = response


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
    counts : label → images of the run, to be told
    token : who has it may come in from anywhere; without one the app answers to names of this machine only

    `app.state.stop()` refuses new work, `app.state.traffic.active` counts what is still under way; at its shutdown the
    app ends its threads.
    """
    limits = limits or Limits()
    metrics, traffic = Metrics(), Traffic()
    batcher = Batcher(predictor, limits, metrics)
    needs, model = needs_of(predictor), predictor.model
    about = describe(predictor, counts, limits)

    def stop() -> None:
        traffic.stopping = True

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        stop()
        await run_sync(batcher.close)

    app = FastAPI(
        title="anomalyncd", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan,
        middleware=[Middleware(Gate, token=token, limits=limits, traffic=traffic, metrics=metrics)],
    )  # fmt: skip
    app.state.stop, app.state.traffic, app.state.batcher, app.state.metrics = stop, traffic, batcher, metrics
    app.state.limits = limits
    _answer_errors(app)
    _describe_requests(app)

    @app.post(
        "/v1/predict", responses={200: {"model": PredictAnswer}, **REFUSALS}, response_class=Response,
        openapi_extra={"requestBody": REQUEST_BODY},
    )  # fmt: skip
    async def predict(request: Request, masks: MaskForm = "rle") -> Response:
        """Class one image or several."""
        content_type = request.headers.get("content-type", "")
        check_content_type(content_type)
        body = await _read(request, limits, traffic)
        n_held = len(body)
        try:
            uploads = await run_sync(parse, body, content_type, needs, limits.images)
            names, futures = [upload.name for upload in uploads], batcher.submit(uploads)
            del body, uploads  # each is let go as soon as it is decoded
            with anyio.fail_after(limits.seconds):
                found = await asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
                outcomes = list(zip(names, found, strict=True))
                for _, outcome in outcomes:
                    if isinstance(outcome, BaseException) and (
                        len(found) == 1 or not isinstance(outcome, BadFileError)
                    ):
                        raise outcome
                budget = RunBudget(limits.runs)
                content = await run_sync(_answer, outcomes, model, masks, budget, abandon_on_cancel=True)
        except TimeoutError:
            raise RefusedError(refusal(504, f"No answer within {limits.seconds:g} s.")) from None
        finally:
            traffic.held -= n_held
        return Response(content, media_type="application/json")

    @app.get("/v1/model", responses=GUARDED)
    async def about_the_model() -> ModelAnswer:
        """Classes, what must be sent, and limits."""
        return about

    @app.get("/health", responses={503: {"model": HealthAnswer, "description": "Takes no more work."}})
    async def ready() -> Response:
        """Whether work is taken."""
        is_ready = batcher.is_alive and not traffic.stopping
        answer = HealthAnswer(status="ready" if is_ready else "stopping")
        return JSONResponse(answer.model_dump(), status_code=200 if is_ready else 503)

    @app.get("/health/live")
    async def live() -> HealthAnswer:
        """Answers as long as the process does, also while it is stopping."""
        return HealthAnswer(status="stopping" if traffic.stopping else "ready")

    gauges = (
        ("anomalyncd_queue_images", "Images that wait or are worked on.", lambda: batcher.in_flight),
        ("anomalyncd_requests_active", "Requests under way, this one counted.", lambda: traffic.active),
    )

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, **GUARDED})
    async def measured() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(gauges), media_type=MEDIA_TYPE)

    return app


def needs_of(predictor: Predictor) -> Needs:
    """What must come with each image."""
    if predictor.detector is not None:
        return "image"
    return "mask" if predictor.model.binarizer is None else "map"


def describe(predictor: Predictor, counts: Mapping[int, int] | None, limits: Limits) -> ModelAnswer:
    """The model in figures and names; no paths of this machine."""
    model, config = predictor.model, predictor.model.config
    settings = config.model_dump(mode="json", exclude={"device": True, "model": {"weights"}})
    classes = [
        ClassAnswer(label=k, name=model.names[k], n_images=None if counts is None else counts.get(k, 0))
        for k in model.classes.tolist()
    ]
    return ModelAnswer(
        version=__version__, settings=stable_hash(settings), needs=needs_of(predictor), detector=config.detect.name,
        backbone=config.model.backbone, classes=classes,
        limits=LimitsAnswer(bytes=limits.n_bytes, images=limits.images, pixels=limits.pixels, seconds=limits.seconds),
    )  # fmt: skip


async def _read(request: Request, limits: Limits, traffic: Traffic) -> bytes:
    """The whole body, which stays counted in `traffic.held`."""
    chunks: list[bytes] = []
    held = 0
    try:
        with anyio.fail_after(limits.read_seconds):
            async for chunk in request.stream():
                held += len(chunk)
                traffic.held += len(chunk)
                if held > limits.n_bytes:
                    raise RefusedError(too_large(limits))
                if traffic.held > limits.held_bytes:
                    raise RefusedError(later("Too many large requests at once: try again later."))
                chunks.append(chunk)
        return b"".join(chunks)
    except BaseException as error:
        traffic.held -= held
        if isinstance(error, TimeoutError):
            words = f"The request did not come within {limits.read_seconds:g} s."
            raise RefusedError(refusal(408, words)) from None
        raise


def _answer(
    outcomes: Sequence[tuple[str, Classed | BaseException]],
    model: DiscoveryModel,
    masks: MaskForm,
    budget: RunBudget,
) -> bytes:
    images: list[ImageAnswer | FailedImage] = [
        _image(name, found, model, masks, budget)
        if isinstance(found, Classed)
        else FailedImage(name=name, error=str(found))
        for name, found in outcomes
    ]
    return PredictAnswer(images=images).model_dump_json().encode()


def _image(name: str, found: Classed, model: DiscoveryModel, masks: MaskForm, budget: RunBudget) -> ImageAnswer:
    size = (found.record.height, found.record.width)
    shapes: Sequence[Mask | None] = [None] * len(found.regions)
    if masks != "none":
        shapes = list(region_shapes(found.mask, size, model.config.crop, len(found.regions)))
    row = found.image
    return ImageAnswer(
        name=name, width=size[1], height=size[0], label=row["label"], class_name=row["class_name"],
        probability=_share(row["probability"]), unknown=_share(row["unknown"]), note=found.record.note,
        probabilities={
            str(k): _share(p) for k, p in zip(model.classes.tolist(), found.probabilities.tolist(), strict=True)
        },
        regions=[_region(row, shape, size, masks, budget) for row, shape in zip(found.regions, shapes, strict=True)],
    )  # fmt: skip


def _region(
    row: dict[Hashable, Any], shape: Mask | None, size: tuple[int, int], masks: MaskForm, budget: RunBudget
) -> RegionAnswer:
    corner = (row["x"], row["y"])
    mask: RunLengths | str | None = None
    if shape is not None:
        mask = png(shape) if masks == "png" else RunLengths(size=size, counts=run_lengths(shape, corner, size, budget))
    return RegionAnswer(
        box=Box(x=row["x"], y=row["y"], width=row["width"], height=row["height"]), area=row["area"],
        score=row["score"] if math.isfinite(row["score"]) else 0.0, label=row["label"], class_name=row["class_name"],
        probability=_share(row["probability"]), unknown=_share(row["unknown"]), mask=mask,
    )  # fmt: skip


def _share(value: float) -> float:
    """Sums of probabilities pass 1 by a rounding error."""
    return min(1.0, max(0.0, float(value)))


def _describe_requests(app: FastAPI) -> None:
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = make()
            schema["components"]["schemas"] |= request_schemas()
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path, operations in schema["paths"].items():
                if not path.startswith("/health"):
                    for operation in operations.values():
                        operation["security"] = [{"token": []}]
        return app.openapi_schema or {}

    app.openapi = openapi  # type: ignore[method-assign]


def _answer_errors(app: FastAPI) -> None:
    """Every error in words, and none with a traceback."""

    @app.exception_handler(RefusedError)
    def refused(_: Request, error: RefusedError) -> Response:
        return error.response

    @app.exception_handler(UploadError)
    def malformed(_: Request, error: UploadError) -> Response:
        return refusal(error.status, str(error))

    @app.exception_handler(BadFileError)
    def unreadable(_: Request, error: BadFileError) -> Response:
        return refusal(422, str(error))

    @app.exception_handler(TooManyRunsError)
    def too_ragged(_: Request, error: TooManyRunsError) -> Response:
        return refusal(422, str(error))

    @app.exception_handler(BusyError)
    def busy(_: Request, error: BusyError) -> Response:
        return later(str(error))

    @app.exception_handler(ClientDisconnect)
    def gone(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=GONE)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]  # without what was sent
        place = ".".join(str(part) for part in first["loc"][1:])
        return refusal(422, f"{place}: {first['msg']}" if place else first["msg"])
