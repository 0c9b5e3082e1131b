"""Blocks of samples → shards of regions: which files hold them, and what is in the files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from ..assign.false_alarms import NormalScores
from ..binarize.base import Binarizer
from ..checksums import file_marks, from_json, seal, unseal
from ..config import Config
from ..data.dataset import Sample
from ..learn.features import SCENES, TokenNetwork
from ..places.stored import File
from ..regions.extract import Extracted, Extractor
from ..regions.find import Region
from ..regions.network import make_encoder, make_vit
from ..regions.records import MOST_REGIONS, ImageRecord
from .engine import Block

Record = TypeVar("Record", Region, ImageRecord)


@dataclass
class Look:
    """How regions are found and described: a call gives the extractor, in this process or in another.

    Parameters
    ----------
    config, binarizer, normal, most_regions, whole : see `Extractor`
    scenes : see `RegionEncoder`
    network : the backbone where it is at hand; another process loads its own
    """

    config: Config
    binarizer: Binarizer | None = None
    normal: NormalScores | None = None
    most_regions: int = MOST_REGIONS
    whole: bool = False
    scenes: bool = False
    network: Callable[[], TokenNetwork] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "network": None}

    def __call__(self) -> Extractor:
        network = make_vit(self.config) if self.network is None else self.network()
        encoder = make_encoder(network, self.config, scenes=self.scenes)
        return Extractor(self.config, self.binarizer, encoder, self.normal, self.most_regions, self.whole)


class Layout:
    """Where regions lie inside a run folder.

    Parameters
    ----------
    prefix : subfolder, "" for the images to sort and "base" for the labelled set
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.tokens, self.crops, self.masks = (
            str(PurePosixPath(prefix, name)) for name in ("tokens", "crops", "masks")
        )

    def crop_name(self, region: Region) -> str:
        """Where a region's crop lies inside the run folder."""
        return f"{self.crops}/{file_stem(region.index, region.image)}_{region.region}.png"

    def crop_mask_name(self, region: Region) -> str:
        """The same for the crop's mask."""
        return self.crop_name(region).removesuffix(".png") + "_mask.png"

    def mask_name(self, record: ImageRecord) -> str:
        """Where an image's mask lies inside the run folder."""
        return f"{self.masks}/{file_stem(record.index, record.id)}.png"

    def shard_name(self, number: int) -> str:
        """Where the records and features of a shard lie."""
        return f"{self.tokens}/{number:05d}.safetensors"

    def files(self, found: Extracted, number: int) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file of a shard: pictures, and behind them what says that they are there."""
        records = {record.index: record for record in found.images}
        for index, mask in found.masks.items():
            yield self.mask_name(records[index]), png(mask.astype(np.uint8) * 255)
        crops, masks = (found.batch.crops, found.batch.masks) if found.batch else ((), ())
        for region, crop, own in zip(found.regions, crops, masks, strict=True):
            yield self.crop_name(region), png(crop[..., ::-1])
            yield self.crop_mask_name(region), png(own.astype(np.uint8) * 255)
        yield self.shard_name(number), pack_shard(found)


class ShardWork:
    """Files of shards; a block is a shard.

    Parameters
    ----------
    layout : names of the files
    make_extractor : called once, in the process that does the work
    size : samples of a shard
    first : number of the first sample, and of the shard that it begins
    """

    def __init__(
        self, layout: Layout, make_extractor: Callable[[], Extractor], size: int, first: tuple[int, int] = (0, 0)
    ) -> None:
        self.layout, self.make_extractor, self.size, self.first = layout, make_extractor, size, first
        self.extractor: Extractor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "extractor": None}

    def __call__(self, block: Block) -> Iterator[tuple[str, bytes]]:
        """Name and content of each file, the shard's own one last."""
        self.extractor = self.extractor or self.make_extractor()
        found = extract(self.extractor, [sample for _, sample in block], block[0][0])
        yield from self.layout.files(found, self.first[1] + (block[0][0] - self.first[0]) // self.size)


def extract(extractor: Extractor, items: Sequence[Sample], first: int) -> Extracted:
    """Regions of a few images, of which the first has that number; their files are known again as they were before."""
    marks = [file_marks(item.image) if isinstance(item.image, File) else () for item in items]
    found = extractor(items, first_index=first)
    for record, own in zip(found.images, marks, strict=True):
        record.n_bytes, record.modified, record.sha256 = own or ("", "", "")
    return found


def pack_shard(found: Extracted) -> bytes:
    """Records and features of a shard as a file's content; pictures are files of their own."""
    regions = [{name: value for name, value in vars(r).items() if name != "labels"} for r in found.regions]
    records = {"images": [vars(r) for r in found.images], "regions": regions, "masks": sorted(found.masks)}
    tensors: dict[str, Any] = dict(found.parts) | ({} if found.scenes is None else {SCENES: found.scenes})
    tensors = tensors or {"none": np.zeros(1, np.float16)}
    return seal(tensors, {"records": json.dumps(records)})


def unpack_shard(path: Path) -> tuple[Extracted, set[int]]:
    """What `pack_shard` packed, and the places of the images that have a mask; an error of some kind where it is damaged."""
    parts, notes = unseal(path)
    parts.pop("none", None)
    scenes = parts.pop(SCENES, None)
    records = from_json(notes["records"])
    images = [_sound(ImageRecord(**row)) for row in records["images"]]
    found = Extracted(images, [_region(row) for row in records["regions"]], parts=parts, scenes=scenes)
    if not {region.index for region in found.regions} <= {record.index for record in images if not record.error}:
        raise ValueError("a region of no image")
    if any(part.ndim != 4 or len(part) != len(found.regions) for part in parts.values()):
        raise ValueError("arrays that are not of these regions")
    if scenes is not None and (scenes.ndim != 2 or len(scenes) != len(images)):
        raise ValueError("scenes that are not of these images")
    return found, set(records.get("masks", ()))


def png(picture: npt.NDArray[Any]) -> bytes:
    """A picture as the content of a PNG file."""
    _, data = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    return bytes(data.tobytes())


def file_stem(index: int, image: str) -> str:
    """A unique, safe, readable name: number and name of the image, a thousand images to a folder."""
    readable = re.sub(r"[^\w.-]+", "_", PurePosixPath(image).with_suffix("").as_posix())[-40:].strip("._")
    return f"{index // 1000:03d}/{index:06d}_{readable}"


def _region(row: dict[str, Any]) -> Region:
    box, square = tuple(row.pop("box")), tuple(row.pop("square"))
    if len(box) != 4 or len(square) != 3:
        raise ValueError("four and three numbers expected")
    return _sound(Region(box=box, square=square, **row))


def _sound(record: Record) -> Record:
    """The record, whose file may be a stranger's, if it has text where text belongs and numbers elsewhere."""
    for field in fields(record):
        value, kind = getattr(record, field.name), str(field.type)
        values = value if kind.startswith("tuple") else (value,)
        if not all(type(each) in ((str,) if kind == "str" else (int, float)) for each in values):
            raise ValueError(f"{field.name}: {kind} expected")
    return record
