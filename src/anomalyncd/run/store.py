"""Regions of a set of images on disk, in shards: a killed run goes on with the shard it was at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import safe_open

from ..errors import BadFileError, RunError
from .extract import Extracted, Extractor, ImageRecord, Item, RegionRecord
from .folder import RunFolder

SHARD = 32  # images


class RegionStore:
    """The regions that an extractor finds, kept in `tokens/`, `crops/` and `masks/` of a run folder.

    Parameters
    ----------
    run : the run folder
    prefix : subfolder, "" for the images to sort and "base" for the labelled set
    """

    def __init__(self, run: RunFolder, prefix: str = "") -> None:
        self.run = run
        self.tokens, self.crops, self.masks = (
            str(PurePosixPath(prefix, name)) for name in ("tokens", "crops", "masks")
        )
        self.stage = f"{prefix or 'images'}: regions"
        self.images: list[ImageRecord] = []
        self.regions: list[RegionRecord] = []
        self.parts: dict[str, npt.NDArray[np.float16]] = {}

    def fill(
        self,
        items: Sequence[Item],
        make_extractor: Callable[[], Extractor],
        key: str,
        on_images: Callable[[int], None] | None = None,
        max_regions: int | None = None,
    ) -> RegionStore:
        """Extract what is not there yet and load all of it."""
        starts = range(0, len(items), SHARD)
        if not self.run.is_done(self.stage, key):
            self.run.restart(self.stage, key, self.tokens, self.crops, self.masks)
            extractor = None
            for number, start in enumerate(starts):
                if not (self.run.path / self._shard(number)).exists():
                    extractor = extractor or make_extractor()
                    found = extractor(items[start : start + SHARD], first_index=start)
                    self._write_pictures(found)
                    self.run.write(self._shard(number), _pack(found))
                if on_images:
                    on_images(min(SHARD, len(items) - start))
            self.run.finish(self.stage, key)
        elif on_images:
            on_images(len(items))
        return self.load(len(starts))

    def load(self, n_shards: int) -> RegionStore:
        """Read all shards: records and features."""
        parts: dict[str, list[npt.NDArray[np.float16]]] = {}
        for number in range(n_shards):
            path = self.run.path / self._shard(number)
            try:
                with safe_open(path, framework="numpy") as shard:
                    records = json.loads(shard.metadata()["records"])
                    for name in shard.keys():  # noqa: SIM118 (not a dictionary)
                        if name != "none":
                            parts.setdefault(name, []).append(shard.get_tensor(name))
            except Exception as error:  # the library has its own error type for each kind of damage
                path.unlink(missing_ok=True)
                raise RunError(
                    f"{path}: damaged, and removed ({error}). Call the same command again to redo it."
                ) from error
            self.images += [ImageRecord(**row) for row in records["images"]]
            self.regions += [_region(row) for row in records["regions"]]
        self.parts = {name: np.concatenate(values) for name, values in parts.items()}
        return self

    def crop(self, index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """The stored crop (S, S, 3) uint8 and mask (S, S) bool of one region."""
        picture = self.run.path / self.crop_name(self.regions[index])
        crop = cv2.imread(str(picture), cv2.IMREAD_COLOR)
        mask = cv2.imread(str(picture.with_name(picture.stem + "_mask.png")), cv2.IMREAD_GRAYSCALE)
        if crop is None or mask is None:
            raise BadFileError(
                f"{picture}: a crop of this run is missing. Remove {self.run.path / 'stages.json'} to redo it."
            )
        return np.ascontiguousarray(crop[..., ::-1]), mask > 127

    def crop_name(self, region: RegionRecord) -> str:
        """Where a region's crop lies inside the run folder."""
        return f"{self.crops}/{_file_stem(region.index, region.image)}_{region.region}.png"

    def _shard(self, number: int) -> str:
        return f"{self.tokens}/{number:05d}.safetensors"

    def _write_pictures(self, found: Extracted) -> None:
        names = {record.index: record.id for record in found.images}
        for index, mask in found.masks.items():
            self._write_png(f"{self.masks}/{_file_stem(index, names[index])}.png", mask.astype(np.uint8) * 255)
        if found.batch is None:
            return
        for region, crop, mask in zip(found.regions, found.batch.crops, found.batch.masks, strict=True):
            name = self.crop_name(region)
            self._write_png(name, crop[..., ::-1])
            self._write_png(name.removesuffix(".png") + "_mask.png", mask.astype(np.uint8) * 255)

    def _write_png(self, name: str, picture: npt.NDArray[Any]) -> None:
        path = self.run.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _, data = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        path.write_bytes(data.tobytes())  # no need to be atomic: the shard is written after its pictures


def _file_stem(index: int, image: str) -> str:
    """A unique, safe, readable name: number and name of the image, a thousand images to a folder."""
    readable = re.sub(r"[^\w.-]+", "_", PurePosixPath(image).with_suffix("").as_posix())[-60:].strip("._")
    return f"{index // 1000:03d}/{index:06d}_{readable}"


def _pack(found: Extracted) -> bytes:
    records = {"images": [asdict(r) for r in found.images], "regions": [asdict(r) for r in found.regions]}
    tensors: dict[str, Any] = dict(found.parts) or {"none": np.zeros(1, np.float16)}
    data: bytes = safetensors.numpy.save(tensors, metadata={"records": json.dumps(records)})
    return data


def _region(row: dict[str, Any]) -> RegionRecord:
    box, square = tuple(row.pop("box")), tuple(row.pop("square"))
    return RegionRecord(box=box, square=square, **row)


def fingerprint(items: Sequence[Item]) -> list[Any]:
    """What identifies the inputs without reading them: name, size and time of each file; content of each array."""
    return [[item.id, *(_identity(source) for source in (item.image, item.map, item.mask))] for item in items]


def _identity(source: Path | npt.NDArray[Any] | None) -> Any:
    import hashlib

    if source is None:
        return None
    if isinstance(source, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(source).tobytes()).hexdigest()
        return [str(source.dtype), source.shape, digest]
    try:
        status = Path(source).stat()
    except OSError:
        return [str(source), "missing"]
    return [str(source), status.st_size, status.st_mtime_ns]
