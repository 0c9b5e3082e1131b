"""What clients send and get, as OpenAPI describes it."""

from __future__ import annotations

import base64
import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from ..discovery.classify import Needs

MaskForm = Literal["rle", "png", "none"]
LONGEST_NAME = 255
IMAGE_TYPES = (
    "image/png", "image/jpeg", "image/bmp", "image/tiff", "image/webp", "application/octet-stream"
)  # fmt: skip


def _from_base64(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError):
        raise PydanticCustomError("base64", "expected the content of a file in base64.") from None


Base64 = Annotated[bytes, BeforeValidator(_from_base64), WithJsonSchema({"type": "string", "format": "byte"})]
# Sums of probabilities pass 1 by a rounding error; a score may be infinite, which JSON cannot say.
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(lambda value: min(1.0, max(0.0, value)))]
Finite = Annotated[float, BeforeValidator(lambda value: value if math.isfinite(value) else float(value == math.inf))]
FALSE_ALARM = "chance that a normal image has something as suspicious; up to the run's rate it is a defect"


class ImageRequest(BaseModel):
    """One image with what the run needs beside it, each the content of a file in base64."""

    model_config = ConfigDict(extra="forbid")

    image: Base64 = Field(description="PNG, JPEG, BMP, TIFF or WebP")
    map: Base64 | None = Field(None, description="Anomaly map (NPY, TIFF, PNG), for runs made with maps.")
    mask: Base64 | None = Field(None, description="Mask (NPY or image), for runs made with masks; empty = no defect.")
    name: str = Field("", max_length=LONGEST_NAME, description="Comes back in the answer and is used for nothing else.")


class PredictRequest(BaseModel):
    """One image or several."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"images": [{"image": "iVBORw0KGgo="}]}]})

    images: list[ImageRequest] = Field(min_length=1)


class RunLengths(BaseModel):
    """A mask as COCO has it: lengths of runs of 0, 1, 0, … down the columns of the whole image."""

    size: tuple[int, int] = Field(description="height and width of the image")
    counts: list[Annotated[int, Field(ge=0)]]


class Box(BaseModel):
    """In image pixels."""

    x: int
    y: int
    width: int
    height: int


class RegionAnswer(BaseModel):
    """One region. −1 is an unknown kind of defect, 0 a false alarm."""

    box: Box
    area: float = Field(ge=0, description="of the mask, in image pixels")
    score: Finite = Field(description="largest value of the range-normalised map in the crop, 1 with masks")
    label: int = Field(ge=-1)
    class_name: str
    probability: Share
    unknown: Share = Field(description="how far it lies from all regions of the run; above 0.5 it is unknown")
    false_alarm: Share = Field(description=FALSE_ALARM)
    mask: RunLengths | str | None = Field(
        description="As `masks` asked for: run lengths, or a PNG of the size of the box in base64, or null."
    )


class ImageAnswer(BaseModel):
    """One image that was classed."""

    name: str
    width: int = Field(ge=1)
    height: int = Field(ge=1)
    label: int = Field(ge=-1, description="0 normal, 1 … defect classes, −1 unknown, or not this product")
    class_name: str
    probability: Share = Field(description="of that class; 0 where unknown")
    probabilities: dict[str, Share] = Field(description="label → probability of every class; all 0 where unknown")
    unknown: Share = Field(description="the largest of its regions")
    foreign: Share = Field(description="how far it lies from all images of the run; above 0.5 it is not this product")
    false_alarm: Share = Field(description=FALSE_ALARM)
    regions: list[RegionAnswer]
    note: str = Field(description="what is odd about its map; mostly empty")


class FailedImage(BaseModel):
    """One image of several that could not be read."""

    name: str
    error: str


class PredictAnswer(BaseModel):
    """One entry for each image, in the order in which they were sent."""

    images: list[ImageAnswer | FailedImage]

    model_config = ConfigDict(json_schema_extra={"examples": [{"images": [
        {
            "name": "part-17.png", "width": 640, "height": 480, "label": 2, "class_name": "scratch", "probability": 0.97,
            "probabilities": {"0": 0.01, "1": 0.02, "2": 0.97}, "unknown": 0.12, "foreign": 0.2, "false_alarm": 0.001,
            "note": "",
            "regions": [{
                "box": {"x": 210, "y": 96, "width": 2, "height": 3}, "area": 5.0, "score": 0.88, "label": 2,
                "class_name": "scratch", "probability": 0.97, "unknown": 0.12, "false_alarm": 0.001,
                "mask": {"size": [480, 640], "counts": [100896, 3, 478, 2, 205821]},
            }],
        },
        {"name": "broken.png", "error": "image: expected a PNG, JPEG, BMP, TIFF or WebP image, found something else"},
    ]}]})  # fmt: skip


class ClassAnswer(BaseModel):
    """A class of the run."""

    label: int
    name: str
    n_images: int | None = Field(description="of the run itself; null where its tables are not there")


class LimitsAnswer(BaseModel):
    """What a client must keep to."""

    bytes: int
    images: int
    pixels: int
    seconds: float


class ModelAnswer(BaseModel):
    """What this service answers with."""

    version: str
    settings: str = Field(description="digest of all settings that change results")
    needs: Needs = Field(description="what must come with each image: nothing else, a map, or a mask")
    detector: str | None
    backbone: str
    classes: list[ClassAnswer]
    limits: LimitsAnswer


class HealthAnswer(BaseModel):
    """`stopping` from the signal on until what was accepted is answered."""

    status: Literal["ready", "stopping"]


class Refusal(BaseModel):
    """Every error, whatever its status."""

    detail: str = Field(description="what was expected, what was found, what to do")


def _refusal(description: str, example: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    content = {"application/json": {"example": {"detail": example}}}
    return {"model": Refusal, "description": description, "content": content, "headers": headers or {}}


_LATER = {"Retry-After": {"description": "seconds", "schema": {"type": "integer"}}}
GUARDED: dict[int | str, dict[str, Any]] = {
    401: _refusal("The token is missing or wrong.", "A token is needed: Authorization: Bearer TOKEN."),
    403: _refusal("Sent to another name than localhost, without a token.", "Without a token only localhost is served."),
    500: _refusal("A mistake of the program; its log has more under this id.", "Unexpected error 1f3a9c0d."),
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    **GUARDED,
    408: _refusal("The request did not come in time.", "The request did not come within 20 s."),
    413: _refusal("More bytes or images than allowed.", "A request must be no larger than 32000000 bytes."),
    415: _refusal("Another content type.", "Content-Type must be multipart/form-data, application/json or image/png."),
    422: _refusal(
        "Not what was expected, or the only image of the request cannot be read.",
        "image: expected a PNG, JPEG, BMP, TIFF or WebP image, found something else",
    ),
    503: _refusal("Too much to do, or stopping.", "128 images are waiting already: try again later.", _LATER),
    504: _refusal("No answer in time.", "No answer within 60 s."),
}  # fmt: skip

_FILES = {"type": "array", "items": {"type": "string", "format": "binary"}}
REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "description": "One image as it is; or files in a form, of which the first `map` or `mask` belongs to the first "
    "`image`, and so on (an empty `mask` says that there is no defect); or JSON. Nothing that is sent names a file here.",
    "content": {
        **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in IMAGE_TYPES},
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["image"],
                "properties": {"image": {**_FILES, "minItems": 1}, "map": _FILES, "mask": _FILES},
                "additionalProperties": False,
            }
        },
        "application/json": {"schema": {"$ref": "#/components/schemas/PredictRequest"}},
    },
}
COMPONENTS = "#/components/schemas/{model}"


def request_schemas() -> dict[str, Any]:
    """Component schemas of the JSON request."""
    schema = PredictRequest.model_json_schema(ref_template=COMPONENTS)
    return {**schema.pop("$defs"), "PredictRequest": schema}
