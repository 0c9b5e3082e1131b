"""Regions of a set of images on disk, in shards: a killed run goes on with the shard it was at."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError

from ..checksums import file_marks, from_json, seal, unseal
from ..data.dataset import Sample
from ..errors import RunError
from ..learn.classifier import FeatureParts
from ..learn.features import SCENES
from ..paths import stem_of
from ..places.stored import File
from ..regions.crops import read_crop
from ..regions.extract import Extracted, Extractor, is_readable
from ..regions.find import Region
from ..regions.records import ImageRecord
from .folder import MAPS, PARTIAL, RETRAINED, RunFolder

SHARD = 16  # images: what a killed run loses at most, and a step of the progress bar
Record = TypeVar("Record", Region, ImageRecord)
MAX_NAME = 200  # bytes; file systems take 255, and a file that is being written has a longer name


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
        self.regions: list[Region] = []
        self.parts: dict[str, npt.NDArray[np.float16]] = {}
        self.scenes: npt.NDArray[np.float16] | None = None
        self.n_shards = 0

    def fill(
        self,
        items: Sequence[Sample],
        make_extractor: Callable[[], Extractor],
        key: str,
        on_images: Callable[[int], None],
        *,
        scenes: bool = False,
    ) -> RegionStore:
        """Extract what is not there yet, is damaged, or was not readable before; and load all the rest.

        scenes : whether the extractor describes whole images too, and what was stored without must be extracted again
        """
        if not self.run.is_done(self.stage, key):
            self.run.start(self.stage, key, self.tokens, self.crops, self.masks)
        shards: list[Extracted] = []
        extractor = None
        for number, start in enumerate(range(0, len(items), SHARD)):
            shard = self._read(number, with_pictures=True)
            if shard is not None and scenes and shard.scenes is None:
                shard = None
            if shard is not None and any(r.error and is_readable(items[r.index]) for r in shard.images):
                self.run.drop_results()
                shard = None
            if shard is None:
                extractor = extractor or make_extractor()
                shard = extract(extractor, items[start : start + SHARD], start)
                self._write_pictures(shard)
                self.run.write(self._shard(number), _pack(shard))
                shard.batch, shard.masks = None, {}  # pictures of all images would not fit into memory
            shards.append(shard)
            on_images(len(shard.images))
        self.run.finish(self.stage, key)
        return self._join(shards)

    def read(self, n_images: int | None = None) -> RegionStore:
        """What was stored in earlier calls, all or the first images only: a killed `extend` may have left more."""
        shards: list[Extracted] = []
        count = 0
        while count != n_images and (shard := self._read(len(shards))) is not None:
            shards.append(shard)
            count += len(shard.images)
        self.n_shards = len(shards)
        return self._join(shards)

    def extend(self, shards: Iterable[Extracted]) -> RegionStore:
        """Store more images behind those that were read."""
        all_shards = [Extracted(self.images, self.regions, parts=self.parts, scenes=self.scenes)]
        for found in shards:
            self._write_pictures(found)
            self.run.write(self._shard(self.n_shards), _pack(found))
            self.n_shards += 1
            found.batch, found.masks = None, {}
            all_shards.append(found)
        return self._join(all_shards)

    def insert(self, found: Extracted, drawn: Sequence[npt.NDArray[np.bool_]]) -> dict[str, bytes]:
        """Put regions behind those of their images, and their pictures into the run; returns the shards, for a commit.

        drawn : mask of each region in its image
        """
        for region, mask in zip(found.regions, drawn, strict=True):
            name = self.mask_name(self.images[region.index]).removesuffix(".png")
            self._write_png(f"{name}_{region.region}.png", mask.astype(np.uint8) * 255)
        found.masks = {}
        self._write_pictures(found)
        files, shards = dict[str, bytes](), list[Extracted]()
        while sum(len(shard.images) for shard in shards) < len(self.images):
            number, shard = len(shards), self._read(len(shards))
            if shard is None:
                raise RunError(
                    f"{self.run.path / self._shard(number)}: missing or damaged. Call the same `discover` again."
                )
            records = {record.index: record for record in shard.images}
            masked = [r.index for r in shard.images if self.run.place(self.mask_name(r)).is_file()]
            for row, region in enumerate(found.regions):
                if region.index not in records:
                    continue
                place = sum(other.index <= region.index for other in shard.regions)
                shard.regions.insert(place, region)
                shard.parts = {
                    name: np.insert(shard.parts[name], place, part[row], axis=0) if name in shard.parts else part[[row]]
                    for name, part in found.parts.items()
                }
                records[region.index].n_regions += 1
                shard.masks = dict.fromkeys(masked, np.zeros((0, 0), bool))
                files[self._shard(number)] = _pack(shard)
            shards.append(shard)
        self._join(shards)
        return files

    def _join(self, shards: Sequence[Extracted]) -> RegionStore:
        self.images = [record for shard in shards for record in shard.images]
        self.regions = [record for shard in shards for record in shard.regions]
        names = dict.fromkeys(name for shard in shards for name in shard.parts)
        seen = [shard.scenes for shard in shards if shard.scenes is not None]
        whole = [shard.scenes is not None or not shard.images for shard in shards]
        try:
            self.parts = {name: np.concatenate([s.parts[name] for s in shards if name in s.parts]) for name in names}
            self.scenes = np.concatenate(seen) if seen and all(whole) else None
        except ValueError as error:
            raise RunError(
                f"{self.run.path / self.tokens}: arrays of several networks ({error}). Remove the folder and call the "
                "same `discover` again."
            ) from error
        return self

    def _read(self, number: int, *, with_pictures: bool = False) -> Extracted | None:
        """A stored shard without its pictures; None where it is missing or damaged, or these are wanted and gone."""
        path = self.run.place(self._shard(number))
        try:
            parts, notes = unseal(path)
            parts.pop("none", None)
            scenes = parts.pop(SCENES, None)
            records = from_json(notes["records"])
            images = [_sound(ImageRecord(**row)) for row in records["images"]]
            found = Extracted(images, [_region(row) for row in records["regions"]], parts=parts, scenes=scenes)
            readable = {record.index for record in images if not record.error}
            if not {region.index for region in found.regions} <= readable:
                raise ValueError("a region of no image")
            if any(part.ndim != 4 or len(part) != len(found.regions) for part in parts.values()):
                raise ValueError("arrays that are not of these regions")
            if scenes is not None and (scenes.ndim != 2 or len(scenes) != len(images)):
                raise ValueError("scenes that are not of these images")
            masked = set(records.get("masks", ()))
            names = [self.mask_name(record) for record in images if record.index in masked]
            names += [
                name for region in found.regions for name in (self.crop_name(region), self.crop_mask_name(region))
            ]
        except Exception:  # the library has its own error type for each kind of damage
            return None
        return None if with_pictures and not all(self.run.place(name).is_file() for name in names) else found

    def features(self, *, retrained: bool) -> FeatureParts:
        """Part → (R, V, L, C) as the network sees the regions: after training, or frozen."""
        if not retrained:
            return self.parts
        try:
            return unseal(self.run.place(RETRAINED))[0]
        except (OSError, ValueError, SafetensorError, RunError) as error:
            raise RunError(
                f"{self.run.path / RETRAINED}: missing or damaged ({error}). Call the same `discover` again."
            ) from error

    def keep_features(self, features: FeatureParts) -> None:
        """Store what `features` reads when the network was trained."""
        self.run.write(RETRAINED, seal(features, {}))

    def crop(self, index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        """The stored crop (S, S, 3) uint8 and mask (S, S) bool of one region."""
        picture = self.run.place(self.crop_name(self.regions[index]))
        crop, mask = read_crop(picture)
        if crop is None or mask is None:
            raise RunError(
                f"{picture}: a crop of this run is missing or damaged. Remove {self.run.path / self.tokens} and call the "
                "same command again to redo it."
            )
        return crop, mask

    def crop_name(self, region: Region) -> str:
        """Where a region's crop lies inside the run folder."""
        return f"{self.crops}/{file_stem(region.index, region.image)}_{region.region}.png"

    def crop_mask_name(self, region: Region) -> str:
        """The same for the crop's mask."""
        return self.crop_name(region).removesuffix(".png") + "_mask.png"

    def mask_name(self, record: ImageRecord) -> str:
        """Where an image's mask lies inside the run folder."""
        return f"{self.masks}/{file_stem(record.index, record.id)}.png"

    def _shard(self, number: int) -> str:
        return f"{self.tokens}/{number:05d}.safetensors"

    def _write_pictures(self, found: Extracted) -> None:
        records = {record.index: record for record in found.images}
        for index, mask in found.masks.items():
            self._write_png(self.mask_name(records[index]), mask.astype(np.uint8) * 255)
        crops, masks = (found.batch.crops, found.batch.masks) if found.batch else ((), ())
        for region, crop, mask in zip(found.regions, crops, masks, strict=True):
            self._write_png(self.crop_name(region), crop[..., ::-1])
            self._write_png(self.crop_mask_name(region), mask.astype(np.uint8) * 255)

    def _write_png(self, name: str, picture: npt.NDArray[Any]) -> None:
        _, data = cv2.imencode(".png", picture, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        self.run.put(name, data.tobytes())  # the shard is written after its pictures


def extract(extractor: Extractor, items: Sequence[Sample], first: int) -> Extracted:
    """Regions of a few images, of which the first has that number; their files are known again as they were before."""
    marks = [file_marks(item.image) if isinstance(item.image, File) else () for item in items]
    found = extractor(items, first_index=first)
    for record, own in zip(found.images, marks, strict=True):
        record.n_bytes, record.modified, record.sha256 = own or ("", "", "")
    return found


def file_stem(index: int, image: str) -> str:
    """A unique, safe, readable name: number and name of the image, a thousand images to a folder."""
    readable = re.sub(r"[^\w.-]+", "_", PurePosixPath(image).with_suffix("").as_posix())[-40:].strip("._")
    return f"{index // 1000:03d}/{index:06d}_{readable}"


def map_names(samples: Sequence[Sample]) -> list[str]:
    """Where the maps lie inside the run folder: as the images do, where their names allow it.

    Images with the same name, or names that lead out of the folder, give numbered maps.

    Examples
    --------
    >>> map_names([Sample("crack/000.png", Path("crack/000.png")), Sample("good/000.png", Path("good/000.png"))])
    ['maps/crack/000.npy', 'maps/good/000.npy']
    """
    if are_mirrored(samples):
        return [f"{MAPS}/{stem_of(sample.id)}.npy" for sample in samples]
    return numbered_maps(samples)


def numbered_maps(samples: Sequence[Sample], first: int = 0) -> list[str]:
    """Names of maps that no other image of a run has; first : number of the first image."""
    return [f"{MAPS}/{file_stem(index, sample.id)}.npy" for index, sample in enumerate(samples, start=first)]


def are_mirrored(samples: Sequence[Sample]) -> bool:
    """Whether maps can be called as their images."""
    stems = [PurePosixPath(stem_of(sample.id)) for sample in samples]
    return len(set(stems)) == len(stems) and all(_is_plain(part) for stem in stems for part in stem.parts)


def _is_plain(part: str) -> bool:
    odd = part == ".." or part.startswith("/") or part.endswith((":", PARTIAL))
    return not odd and len(part.encode("utf-8", "replace")) <= MAX_NAME


def _pack(found: Extracted) -> bytes:
    regions = [{name: value for name, value in vars(r).items() if name != "labels"} for r in found.regions]
    records = {"images": [vars(r) for r in found.images], "regions": regions, "masks": sorted(found.masks)}
    tensors: dict[str, Any] = dict(found.parts) | ({} if found.scenes is None else {SCENES: found.scenes})
    tensors = tensors or {"none": np.zeros(1, np.float16)}
    return seal(tensors, {"records": json.dumps(records)})


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
