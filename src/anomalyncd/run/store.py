"""Regions of a set of images on disk, in shards: a killed run goes on with the shard it was at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError

from ..blocks.engine import Block, Engine, blocks_of
from ..blocks.shards import Layout, ShardWork, file_stem, pack_shard, png, unpack_shard
from ..checksums import seal, unseal
from ..data.dataset import Sample
from ..errors import RunError
from ..learn.classifier import FeatureParts
from ..paths import stem_of
from ..regions.crops import read_crop
from ..regions.extract import Extracted, Extractor, is_readable
from ..regions.find import Region
from ..regions.records import ImageRecord
from ..whole import settle
from .folder import MAPS, PARTIAL, RETRAINED, RunFolder

SHARD = 16  # images: what a killed run loses at most, and a step of the progress bar
MAX_NAME = 200  # bytes; file systems take 255, and a file that is being written has a longer name


class RegionStore(Layout):
    """The regions that an extractor finds, kept in `tokens/`, `crops/` and `masks/` of a run folder.

    Parameters
    ----------
    run : the run folder
    prefix : see `Layout`
    """

    def __init__(self, run: RunFolder, prefix: str = "") -> None:
        super().__init__(prefix)
        self.run = run
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
        engine: Engine | None = None,
    ) -> RegionStore:
        """Extract what is not there yet, is damaged, or was not readable before; and load all of it.

        make_extractor : called where the work is done
        scenes : whether the extractor describes whole images too, and what was stored without must be extracted again
        """
        if not self.run.is_done(self.stage, key):
            self.run.start(self.stage, key, self.tokens, self.crops, self.masks)
        todo = []
        for number, block in enumerate(blocks_of(items, SHARD)):
            shard = self._read(number, with_pictures=True)
            if shard is not None and scenes and shard.scenes is None:
                shard = None
            if shard is not None and any(r.error and is_readable(items[r.index]) for r in shard.images):
                self.run.drop_results()
                shard = None
            if shard is None:
                todo.append(block)
            else:
                on_images(len(block))
        self._write(todo, make_extractor, on_images, engine or Engine())
        self.read(len(items))
        settle()
        self.run.finish(self.stage, key)
        return self

    def append(
        self,
        items: Sequence[Sample],
        make_extractor: Callable[[], Extractor],
        on_images: Callable[[int], None],
        engine: Engine | None = None,
    ) -> RegionStore:
        """Extract more images, store them behind those that were read, and load them too."""
        blocks = [[(len(self.images) + index, sample) for index, sample in block] for block in blocks_of(items, SHARD)]
        self._write(blocks, make_extractor, on_images, engine or Engine())
        return self.read(len(self.images) + len(items))

    def _write(
        self,
        blocks: Sequence[Block],
        make_extractor: Callable[[], Extractor],
        on_images: Callable[[int], None],
        engine: Engine,
    ) -> None:
        """Make shards and store each as it comes; none of them stays in memory."""
        work = ShardWork(Layout(self.prefix), make_extractor, SHARD, (len(self.images), self.n_shards))
        for place, files in engine.each(work, blocks):
            for name, data in files:
                is_whole = name.startswith(self.tokens)
                (self.run.write if is_whole else self.run.put)(name, data)  # the shard is written after its pictures
            on_images(len(blocks[place]))

    def read(self, n_images: int | None = None) -> RegionStore:
        """What was stored in earlier calls, all or the first images only: a killed `append` may have left more."""
        shards: list[Extracted] = []
        count = 0
        while count != n_images and (shard := self._read(len(shards))) is not None:
            shards.append(shard)
            count += len(shard.images)
        self.n_shards = len(shards)
        return self._join(shards)

    def insert(self, found: Extracted, drawn: Sequence[npt.NDArray[np.bool_]]) -> dict[str, bytes]:
        """Put regions behind those of their images, and their pictures into the run; returns the shards, for a commit.

        drawn : mask of each region in its image
        """
        for region, mask in zip(found.regions, drawn, strict=True):
            name = self.mask_name(self.images[region.index]).removesuffix(".png")
            self.run.put(f"{name}_{region.region}.png", png(mask.astype(np.uint8) * 255))
        found.masks = {}
        for name, data in list(self.files(found, 0))[:-1]:  # its shard is that of its image
            self.run.put(name, data)
        files, shards = dict[str, bytes](), list[Extracted]()
        while sum(len(shard.images) for shard in shards) < len(self.images):
            number, shard = len(shards), self._read(len(shards))
            if shard is None:
                raise RunError(
                    f"{self.run.path / self.shard_name(number)}: missing or damaged. Call the same `discover` again."
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
                files[self.shard_name(number)] = pack_shard(shard)
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
            # Taken out of the shards, so that never more than one part is there twice.
            self.parts = {
                name: np.concatenate([s.parts.pop(name) for s in shards if name in s.parts]) for name in names
            }
            self.scenes = np.concatenate(seen) if seen and all(whole) else None
        except ValueError as error:
            raise RunError(
                f"{self.run.path / self.tokens}: arrays of several networks ({error}). Remove the folder and call the "
                "same `discover` again."
            ) from error
        return self

    def _read(self, number: int, *, with_pictures: bool = False) -> Extracted | None:
        """A stored shard without its pictures; None where it is missing or damaged, or these are wanted and gone."""
        try:
            found, masked = unpack_shard(self.run.place(self.shard_name(number)))
            names = [self.mask_name(record) for record in found.images if record.index in masked]
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


def map_names(samples: Sequence[Sample]) -> list[str]:
    """Where the maps lie inside the run folder: as the images do, where their names allow it.

    Images with the same name, or names that lead out of the folder, give numbered maps.

    Examples
    --------
    >>> from pathlib import Path
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
