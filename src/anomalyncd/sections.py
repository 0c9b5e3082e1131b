"""What a group of settings is, and the group of detectors; the other groups are in `config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from typing import Self

LARGEST = 1e6  # far above what any setting means, and its square is still a float32


class Section(BaseModel):
    """Settings that go together."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="after")
    def _no_number_that_overflows(self) -> Self:
        for name, value in self:
            if isinstance(value, float) and abs(value) > LARGEST:
                raise ValueError(f"{name} must be at most {LARGEST:,.0f}, but got {value:g}")
        return self


class DetectConfig(Section):
    """Images → anomaly maps, where none are given."""

    name: str | None = Field(
        None,
        description="musc, patchcore, another one of docs/detectors.md, anomalib:Model, or module:Class of your own; none = "
        "maps or masks are given",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict, description="arguments of that detector, for example size or tile"
    )
    false_alarms: float = Field(
        0.02,
        gt=0,
        le=0.3,
        description="share of normal images that may be called defective; another share re-labels a run in seconds",
    )
