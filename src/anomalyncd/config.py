"""Every setting once: the YAML file, the command line's `--set` and the Python arguments are all this model."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from .errors import SettingsError
from .sections import DetectConfig, Section

Preset = Literal["fast", "paper"]
MOST_VALUES, DEEPEST = 100_000, 32  # of all settings, and lists in lists: what YAML refers to counts each time


class BinarizeConfig(Section):
    """Anomaly maps → masks."""

    method: Literal["mebin", "otsu", "fixed"] = "mebin"
    n_thresholds: int = Field(64, ge=2, le=255, description="T, thresholds tried")
    min_interval: int = Field(4, ge=1, description="τ, how many thresholds in a row must agree")
    erosion: int = Field(6, ge=0, le=64, description="side of the erosion square in map pixels, 0 = off")
    rule: Literal["longest_run", "most_frequent"] = "longest_run"
    fixed_threshold: float = Field(0.5, ge=0, le=1, description="for method 'fixed', on the scaled map")
    min_map_size: int = Field(256, ge=0, le=4096, description="maps whose longer side is shorter are enlarged to this")


class CropConfig(Section):
    """Masks → regions."""

    padding: float = Field(0.1, ge=0, le=4, description="share added around the box")
    min_size: float = Field(0.1, ge=0, le=0.5, description="half-side at least this share of the longer image side")
    merge: Literal["boxes", "squares"] = Field(
        "boxes",
        description="what is one region where near: tight boxes around parts of the mask; or their crop squares, as in the "
        "paper's code, and all of the mask that lies in such a square is the region's mask and area",
    )
    merge_distance: float = Field(
        0.01,
        ge=0,
        le=1,
        description="nearer than this share of the longer image side is near, and squares that overlap are",
    )
    whole_image: bool = Field(False, description="no cropping: the whole image for every region (paper Table 8)")
    no_region: Literal["gate", "normal", "learned"] = Field(
        "gate",
        description="an image without a stable region: normal, unless its map scores unlike a normal one, then the highest "
        "part is cut out; always normal; or learned with an empty mask as the paper's code does",
    )
    size: int = Field(224, ge=16, le=2048, description="side in pixels of a stored crop")


class ModelConfig(Section):
    """The vision transformer."""

    backbone: str = Field("auto", description="auto, a name from `anomalyncd weights list`, a timm ViT, or tiny")
    weights: Path | None = Field(None, description="a local weight file for that backbone")
    guidance: Literal["none", "all", "patch", "class"] = "class"
    guided_blocks: int | None = Field(None, ge=0, description="L_m; none = from block 3 on, as in the paper")
    keep_thin: bool = Field(True, description="keep patches of defects too thin to cover half of any patch")
    input_size: int = Field(224, ge=16, le=2048, description="side in pixels of a crop as the network sees it")
    image_size: int = Field(
        336, ge=16, le=2048, description="the same of a whole image, which is a square to the network"
    )


class FeatureConfig(Section):
    """Which numbers describe a region; used alike by clustering, heads, report and prediction."""

    class_token: float = Field(0.0, ge=0, description="weight of the mask-guided class token")
    patches: float = Field(1.0, ge=0, description="weight of the patch tokens averaged under the mask")
    image: float = Field(0.7, ge=0, description="weight of the patch tokens of the whole image, averaged by its map")
    blocks: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = Field(
        None,
        description="blocks whose patch tokens are used, from 0; none = three quarters in and the last: 8 and 11 of twelve",
    )
    focus: float = Field(
        0.5,
        ge=0,
        description="weigh patches by the map: e times less for each such share of the region's own range of map values "
        "that a patch lies below the region's peak; 0 = all patches under the mask alike",
    )
    views: int = Field(1, ge=1, le=8, description="quarter turns, then their mirror images, that are averaged")
    center: bool = Field(True, description="subtract the mean of the fitted regions")

    @model_validator(mode="after")
    def _something(self) -> FeatureConfig:
        if not self.weights():
            raise ValueError("at least one of class_token, patches and image must have a weight above 0")
        return self

    def used_blocks(self, usable: int) -> tuple[int, ...]:
        """The blocks that were asked for; else of the usable ones that three quarters in, and the last."""
        return (max(3 * usable // 4 - 1, 0), usable - 1) if self.blocks is None else tuple(self.blocks)

    def weights(self) -> dict[str, float]:
        """The parts in use, in the order in which they are joined."""
        parts = ("class_token", "patches", "image")
        return {name: getattr(self, name) for name in parts if getattr(self, name) > 0}


class LearnConfig(Section):
    """How the network learns."""

    start: Literal["clusters", "random"] = Field("clusters", description="what the heads start from")
    train_last_block: bool = Field(False, description="train the last block too; needs class_token")
    views: Literal["bank", "fresh", "auto"] = Field(
        "auto", description="random views for the last block's training; auto: bank on CPU, fresh on a GPU"
    )
    bank_views: int = Field(8, ge=2, le=256, description="V, random views kept for each crop")
    normal: Literal["calibrated", "class"] = Field(
        "calibrated",
        description="false alarms among regions of maps: told by how normal images score and look, at the rate of "
        "detect.false_alarms; or a class that is learned like the others, as in the paper",
    )
    epochs: int = Field(
        0, ge=0, description="of training after the start; 0 = classes are the clusters they start from"
    )
    batch_size: int = Field(32, ge=2)
    learning_rate: float = Field(0.1, gt=0)
    n_heads: int = Field(4, ge=1, le=64)
    supervised_weight: float = Field(0.3, ge=0, le=1, description="λ")
    entropy_weight: float = Field(0.5, ge=0, description="μ")
    contrastive_weight: float = Field(0.0, ge=0, description="of both contrastive losses; 0 where only heads learn")
    correction_threshold: float = Field(0.5, ge=-1, le=1, description="pseudo-label correction; −1 = off")


class MergeConfig(Section):
    """Region classes → image classes."""

    how: Literal["area", "average", "score"] = "area"
    temperature: float | None = Field(None, gt=0, description="τ_α in pixels; none = a tenth of the longer side")
    normal_counts: bool = Field(
        False, description="whether regions that look normal have a say where another one is a defect, as in the paper"
    )


class UnknownConfig(Section):
    """New kinds of defect among new images, and images of something else."""

    false_rate: float = Field(
        0.05, ge=0, lt=1, description="share of known regions that may be called unknown; 0 = none ever is"
    )
    foreign_rate: float = Field(
        0.01,
        ge=0,
        lt=1,
        description="share of images of the product that may be called `not this product`; 0 = none ever is, and images "
        "without a region cost no pass of the network",
    )
    group: int = Field(3, ge=2, description="unknown regions alike that `update` makes a new class of, at least")


class Config(Section):
    """All settings of a run."""

    n_classes: Annotated[int, Field(ge=1, le=10_000)] | Literal["auto"] = Field(
        "auto", description="classes to find, normal counted; auto = estimated from the data"
    )
    has_normal: bool = Field(True, description="whether images without a defect are expected")
    most_classes: int = Field(20, ge=2, le=200, description="most kinds of defect that auto considers")
    preset: Preset = "fast"
    random_state: int = Field(0, ge=0, le=2**32 - 1)
    device: str = Field("auto", description="auto, cpu, cuda, mps, …")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="of the frozen trunk; auto: bfloat16 on a GPU that has it, else float32"
    )
    batch_size: int = Field(16, ge=1, description="pictures in one pass of the frozen trunk")
    ignore: list[list[list[tuple[float, float]]]] = Field(
        default_factory=list,
        description="parts of the picture in which nothing is looked for: shapes of rings of points (x, y) in shares of its "
        "sides; `--ignore` reads them from a mask or from polygons",
    )
    detect: DetectConfig = DetectConfig()
    binarize: BinarizeConfig = BinarizeConfig()
    crop: CropConfig = CropConfig()
    model: ModelConfig = ModelConfig()
    features: FeatureConfig = FeatureConfig()
    learn: LearnConfig = LearnConfig()
    merge: MergeConfig = MergeConfig()
    unknown: UnknownConfig = UnknownConfig()

    @model_validator(mode="after")
    def _fits_together(self) -> Config:
        if self.crop.size < self.model.input_size:
            raise ValueError(
                f"crop.size ({self.crop.size}) must be at least model.input_size ({self.model.input_size})"
            )
        if self.learn.train_last_block and not self.features.class_token:
            raise ValueError("learn.train_last_block needs features.class_token above 0")
        if not self.features.class_token and (self.model.guidance, self.model.guided_blocks) != ("class", None):
            raise ValueError(
                f"model.guidance ({self.model.guidance}) and model.guided_blocks ({self.model.guided_blocks}) reach only the"
                " class token and patches beside it, so they would change nothing: set features.class_token above 0, or"
                " leave both out"
            )
        if self.n_classes != "auto" and self.has_normal and self.n_classes < 2:
            raise ValueError("n_classes counts the normal class, so it must be at least 2 (or set has_normal to false)")
        return self

    def differences(self) -> dict[str, Any]:
        """The settings in which this differs from its preset, nested; `make_config` of them is this again."""
        mine, preset = self.model_dump(mode="json"), make_config(preset=self.preset).model_dump(mode="json")
        out: dict[str, Any] = {"preset": self.preset} if self.preset != "fast" else {}
        for name, value in mine.items():
            if isinstance(value, dict):
                value = {key: one for key, one in value.items() if one != preset[name][key]}
            if value != preset[name] and value != {}:
                out[name] = value
        return out

    def to_yaml(self) -> str:
        """The whole configuration, readable and loadable again."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


# Settings that once were, and the value that they have now.
REMOVED = {
    "crop.max_regions": "64",
    "model.mask_threshold": "0.5",
    "learn.momentum": "0.9",
    "learn.weight_decay": "5e-5",
    "learn.contrastive_temperature": "1.0",
    "learn.supervised_temperature": "0.07",
    "learn.student_temperature": "0.1",
    "learn.teacher_temperature": "[0.07, 0.04]",
    "learn.teacher_epochs": "40",
    "learn.teacher_step": "4",
}
# Settings that once were, and the one to look at now.
REPLACED = {
    "features.block": "features.blocks",
    "features.context": "features.image",
    "features.surround": "features.image",
}

# What the paper's own run differs in from our default.
PRESETS: dict[str, dict[str, Any]] = {
    "fast": {},
    "paper": {
        "crop": {"merge": "squares", "size": 256, "no_region": "normal"},
        "model": {"keep_thin": False},
        "features": {"class_token": 1, "patches": 0, "image": 0, "focus": 0, "views": 1, "center": False},
        "learn": {
            "start": "random",
            "normal": "class",
            "train_last_block": True,
            "epochs": 50,
            "learning_rate": 0.003,
            "entropy_weight": 4.0,
            "contrastive_weight": 1.0,
        },
        "merge": {"temperature": 100.0, "normal_counts": True},
    },
}


def make_config(*layers: Mapping[str, Any], preset: str | None = None) -> Config:
    """Settings from a preset and any number of nested dictionaries, later ones winning.

    Examples
    --------
    >>> make_config({"learn": {"epochs": 5}}, preset="paper").learn.epochs
    5
    """
    check_amount(layers)
    if not isinstance(preset, str | None):
        raise SettingsError(f"preset must be one of {', '.join(PRESETS)}, but got {preset!r}.")
    chosen = preset or next((layer["preset"] for layer in reversed(layers) if layer.get("preset")), "fast")
    if not isinstance(chosen, str) or chosen not in PRESETS:
        raise SettingsError(f"preset must be one of {', '.join(PRESETS)}, but got {chosen!r}.")
    try:
        return Config.model_validate(merge_layers(PRESETS[chosen], *layers, {"preset": chosen}))
    except ValidationError as error:
        raise SettingsError(" ".join(dict.fromkeys(map(_in_words, error.errors())))) from None


def check_amount(settings: Any) -> None:
    """Refuse settings that contain themselves, or so much that nobody can have meant it."""
    left, count = [(settings, 0)], 0
    while left:
        (value, depth), count = left.pop(), count + 1
        if count > MOST_VALUES or depth > DEEPEST:
            raise SettingsError("settings must be fewer and less deep, but these are nested without end, or nearly so.")
        if isinstance(value, Mapping | list | tuple):
            left += [(one, depth + 1) for one in (value.values() if isinstance(value, Mapping) else value)]


def _in_words(problem: Mapping[str, Any]) -> str:
    name = ".".join(map(str, problem["loc"]))
    if name in REMOVED:
        return f"there is no setting {name} any more: it is always {REMOVED[name]}."
    if name in REPLACED:
        return f"there is no setting {name} any more: see {REPLACED[name]}."
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, [*setting_names(), *Config.model_fields], n=1)
        return f"there is no setting {name}" + (f", did you mean {near[0]}?" if near else ".")
    message = problem["msg"].removeprefix("Value error, ")
    if name.startswith("n_classes"):  # a number or a word, and a message for each
        name, message = "n_classes", "must be a whole number from 1 to 10,000, the normal class counted, or auto"
    return f"{name}: {message}, but got {reprlib.repr(problem['input'])}." if name else f"{message}."


def setting_names() -> list[str]:
    """Every setting as `--set` takes it.

    Examples
    --------
    >>> setting_names()[:2], "learn.epochs" in setting_names()
    (['n_classes', 'has_normal'], True)
    """
    names = []
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            names += [f"{name}.{inner}" for inner in field.annotation.model_fields]
        else:
            names.append(name)
    return names


def merge_layers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries laid over each other, later ones winning.

    Examples
    --------
    >>> merge_layers({"learn": {"epochs": 5, "n_heads": 2}}, {"learn": {"epochs": 7}})
    {'learn': {'epochs': 7, 'n_heads': 2}}
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = merge_layers(merged[key], value) if both else value
    return merged
