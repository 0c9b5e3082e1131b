"""What OpenAPI says about the service is what it does: generated requests, valid and not, against the schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.openapi import media_type
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import Receive, Scope, Send

from anomalyncd.cli.servers import load
from anomalyncd.serve.app import make_api
from anomalyncd.serve.schema import IMAGE_TYPES
from anomalyncd.serve.traffic import Limits
from serve.api_client import TOKEN

CHECKS = [not_a_server_error, status_code_conformance, response_schema_conformance, content_type_conformance]


def pictures() -> list[bytes]:
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)
    whole = [cv2.imencode(suffix, image)[1].tobytes() for suffix in (".png", ".jpg", ".bmp")]
    return [*whole, *(content[:-40] for content in whole)]


media_type("image/png", st.sampled_from(pictures()) | st.binary(), aliases=[k for k in IMAGE_TYPES if k != "image/png"])


@pytest.fixture(scope="module")
def api_schema(served: dict[str, Path]) -> Iterator[schemathesis.BaseSchema]:
    predictor, counts = load(served["image"], "cpu")
    app: FastAPI = make_api(predictor, counts=counts, token=TOKEN, limits=Limits(images=4))

    async def without_end(scope: Scope, receive: Receive, send: Send) -> None:
        """The app, which would be over after the first of schemathesis' calls."""
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    yield schemathesis.openapi.from_asgi("/openapi.json", without_end, headers={"Authorization": f"Bearer {TOKEN}"})
    app.state.batcher.close()


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    "place", ["POST /v1/predict", "GET /v1/model", "GET /health", "GET /health/live", "GET /metrics"]
)
def test_the_schema_says_what_happens(api_schema: schemathesis.BaseSchema, place: str, mode: GenerationMode):
    operations = [found.ok() for found in api_schema.get_all_operations()]
    (operation,) = [operation for operation in operations if operation.label == place]
    if mode is GenerationMode.NEGATIVE and place != "POST /v1/predict":
        return  # the others take nothing that could be wrong
    examples = 40 if place == "POST /v1/predict" else 3

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: schemathesis.Case) -> None:
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"}, checks=CHECKS)
        statuses.add(answer.status_code)

    statuses: set[int] = set()
    check()
    assert 200 in statuses or mode is GenerationMode.NEGATIVE, "not everything that fits the schema may be refused"
    assert statuses & {415, 422} or mode is GenerationMode.POSITIVE


def test_every_error_is_documented_with_an_example(api_schema: schemathesis.BaseSchema):
    described = api_schema.raw_schema
    responses = described["paths"]["/v1/predict"]["post"]["responses"]
    assert set(responses) == {"200", "401", "403", "408", "413", "415", "422", "500", "503", "504"}
    for status, response in responses.items():
        content = response["content"]["application/json"]
        assert content["schema"]["$ref"].endswith("PredictAnswer" if status == "200" else "Refusal")
        assert status == "200" or content["example"]["detail"]
    assert set(described["paths"]) == {"/v1/predict", "/v1/model", "/health", "/health/live", "/metrics"}
