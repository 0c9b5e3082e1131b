"""What the page shows: classes as corrected, some regions of a class, what the last apply moved, and pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from ..errors import RunError
from ..guide.suggest import suggest
from ..labels import NORMAL, UNKNOWN, default_name
from ..regions.crops import resized
from ..regions.drawn import Drawn, painted
from ..regions.find import cut, find_regions
from ..report.canvas import Picture, fitted, overlay
from ..run.finished import Key
from ..steps.drawn import as_one
from . import schema
from .action_log import Row
from .apply import Applier
from .classes import DRAWN, UNREAD, CorrectedClasses, UncorrectedClasses
from .lesson import can_learn
from .session import Session

SHOWN_MOVES = 60  # of one kind, as thumbnails
CROP_SIDE = 160  # pixels: sharp at the size that the page shows, and an outline of one pixel still shows
WHOLE_SIDES = (800, 1400)  # smaller images are enlarged so that their outline is fine, larger ones would be slow
QUALITY = 88
EDGE = 0.005  # of a side: nearer to it a region is cut off


def state_answer(session: Session, applier: Applier) -> schema.StateAnswer:
    """Everything but the regions."""
    with session.lock:
        classes = session.refresh()
        moved, before, images = classes.moved(), classes.before, classes.image_labels()
        cards = [
            schema.ClassCard(
                label=label, name=classes.title(label), n_regions=len(rows), n_moved=int(moved[rows].sum()),
                n_images=int((images == label).sum()), stamp=classes.changed_by.get(label, 0),
            )
            for label in sorted(classes.names, key=_place)
            for rows in [classes.members(label)]
        ]  # fmt: skip
        return schema.StateAnswer(
            version=session.version, table=before.table, run=session.run.resolve().name,
            n_images=int((images != UNREAD).sum()), classes=cards, n_actions=len(classes.done),
            n_changed=int(moved.sum()), undo=_step(classes, classes.done),
            redo=_step(classes, classes.undone), notice=session.notice,
            applied=session.applied.id if session.applied else 0, can_learn_normal=can_learn(before),
            job=applier.job and applier.job.answer(),
        )  # fmt: skip


def regions_answer(
    session: Session,
    label: int,
    *,
    offset: int,
    limit: int,
    order: schema.Order,
    contains: str = "",
    surest: float = 1.0,
    size: schema.Size = "any",
    place: schema.InImage = "any",
) -> schema.RegionsAnswer:
    """Some regions of a class, in order.

    contains : part of the image's name, whatever its case
    surest : highest probability of a region; size : the smaller or the larger half of all regions of the run, by area
    place : the third of the image that the middle of the region lies in, or `edge` where the region is cut off
    """
    with session.lock:
        classes = session.refresh()
        classes.check_class(label)
        before, rows = classes.before, classes.members(label)
        if contains:
            rows = rows[[contains.lower() in before.shown[classes.image_of[row]].lower() for row in rows]]
        sure = np.nan_to_num(classes.column("probability", 1.0), nan=0.0)
        if surest < 1:
            rows = rows[sure[rows] <= surest]
        if size != "any":
            area = classes.column("area", np.inf)
            small = area[rows] <= np.median(area)
            rows = rows[small if size == "small" else ~small]
        if place != "any":
            rows = rows[[is_in(classes.box(row), place) for row in rows.tolist()]]
        if order == "image":
            rows = rows[np.argsort(classes.image_of[rows], kind="stable")]
        else:
            rows = rows[np.argsort((-sure if order == "sure" else sure)[rows], kind="stable")]
        chosen = rows[offset : offset + limit].tolist()
        regions = [region_answer(classes, row) for row in chosen]
        return schema.RegionsAnswer(version=session.version, total=len(rows), regions=regions)


def next_answer(session: Session, n: int) -> schema.NextAnswer:
    """What to look at next; regions that were placed here and not applied yet are decided too."""
    with session.lock:
        classes = session.refresh()
        before, version = classes.before, session.version
        placed = [classes.keys[row] for row in np.flatnonzero(classes.fixed)]
    found = suggest(before.run, n, placed)
    regions = [region_answer(classes, row) for row in found.regions]
    return schema.NextAnswer(version=version, regions=regions, merges=found.merges, splits=found.splits)


def moves_answer(session: Session) -> schema.MovesAnswer:
    """What the last apply changed, the largest groups first."""
    with session.lock:
        classes, row = session.refresh().before, session.applied
        if row is None:
            return schema.MovesAnswer(id=0, total=0, groups=[])
        asked = {(image, region): label for image, region, label in row.body["labels"]}
        names = {int(label): name for label, name in row.body["names"].items()} | classes.names  # old classes as well
        names[DRAWN] = "drawn"
        groups: dict[tuple[int, int], list[Key]] = {}
        for image, region, before, after in row.body["moves"]:
            groups.setdefault((before, after), []).append((image, region))
        shown = [
            schema.MoveGroup(
                before=before, before_name=names.get(before, default_name(before)), after=after,
                after_name=names.get(after, default_name(after)), count=len(keys),
                asked=sum(asked.get(key) == after for key in keys),
                regions=[classes.rows[key] for key in keys if key in classes.rows][:SHOWN_MOVES],
            )
            for (before, after), keys in groups.items()
        ]  # fmt: skip
        shown.sort(key=lambda group: -group.count)
        return schema.MovesAnswer(id=row.id, total=len(row.body["moves"]), groups=shown)


def region_answer(classes: CorrectedClasses, row: int) -> schema.RegionAnswer:
    """A row of regions.csv, with the class that corrections gave it, or what was drawn since."""
    before, is_drawn = classes.before, classes.drawing(row) is not None
    figures: dict[str, float | None] = {}
    for name in ("probability", "score", "unknown"):
        value = (
            math.nan
            if is_drawn or name not in before.regions
            else float(before.regions[name].to_numpy(np.float64)[row])
        )
        figures[name] = value if math.isfinite(value) else None
    image = int(classes.image_of[row])
    return schema.RegionAnswer(
        id=classes.number(row), image=image, image_name=before.shown[image], region=classes.keys[row][1],
        label=int(classes.labels[row]), before=UNKNOWN if is_drawn else int(before.labels[row]),
        fixed=bool(classes.fixed[row]), drawn=is_drawn, **figures,
    )  # fmt: skip


def is_in(box: tuple[float, float, float, float], place: schema.InImage) -> bool:
    """Whether a region lies there; box : left, top, right and bottom, in shares of the image's sides.

    Examples
    --------
    >>> is_in((0.1, 0.4, 0.3, 0.6), "left"), is_in((0.1, 0.4, 0.3, 0.6), "edge")
    (True, False)
    """
    left, top, right, bottom = box
    if place == "edge":
        return min(left, top) <= EDGE or max(right, bottom) >= 1 - EDGE
    x, y = (left + right) / 2, (top + bottom) / 2
    inside = {"left": x < 1 / 3, "right": x > 2 / 3, "top": y < 1 / 3, "bottom": y > 2 / 3}
    return not any(inside.values()) if place == "middle" else inside[place]


def _step(classes: CorrectedClasses, stack: list[Row]) -> schema.Step | None:
    return schema.Step(id=stack[-1].id, text=classes.describe(stack[-1])) if stack else None


def _place(label: int) -> tuple[int, int]:
    """Unknown first, because it is waiting; normal last, because it is the largest and the least news."""
    return (0 if label == UNKNOWN else 2 if label == NORMAL else 1, label)


class Pictures:
    """Pictures of one state of a run's tables. None is a file that is gone or cannot be read.

    Only files of the run folder are read, and the images and maps that its manifest lists.
    """

    def __init__(self, classes: UncorrectedClasses) -> None:
        self.classes, self._run = classes, classes.run
        self._whole = lru_cache(8)(self._read_whole)

    def crop(self, region: int) -> bytes | None:
        """JPEG of a region's crop with its outline."""
        try:
            picture, mask = self._run.crop(region)
        except RunError:  # a table that somebody else made may name a file outside the run
            return None
        if picture is None:
            return None
        small = fitted(picture, CROP_SIDE)
        return to_jpeg(small if mask is None or mask.all() else overlay(small, None, mask, low=0, high=0))

    def drawing(self, drawn: Drawn) -> bytes | None:
        """JPEG of the crop of what was drawn, as it will be stored."""
        image = self._run.image(drawn.image)
        if image is None:
            return None
        mask, crop = painted(drawn.strokes, image.shape[:2]), as_one(self._run.config).crop
        (region, *_), components = find_regions(mask, image.shape[:2], crop)
        picture, own = cut(image, components, region, CROP_SIDE)
        return to_jpeg(overlay(picture, None, own, low=0, high=0))

    def image(
        self, image: int, region: int | None = None, drawn: Sequence[Drawn] = (), *, with_map: bool = False
    ) -> bytes | None:
        """JPEG of a whole image with the outline of one of its regions, or of all, and on request with its map.

        drawn : what was drawn on it since, of which all is outlined where no region is wanted
        """
        picture, name = self._whole(image), self.classes.images[image]
        if picture is None:
            return None
        if region is None:
            mask = self._run.mask(name)
            for one in drawn:
                own = painted(one.strokes, self._run.size(name))
                mask = own if mask is None else own | resized(mask, own.shape)
        else:
            masks = self._run.region_masks(name)
            place = int(np.count_nonzero(self.classes.image_of[:region] == image))
            mask = masks[place] if place < len(masks) else self._box(region, self._run.size(name))
        scale = self._run.range if with_map else None
        low, high = scale or (0.0, 0.0)
        values = self._run.map(name) if scale else None
        return to_jpeg(overlay(picture, values, None if mask is None or mask.all() else mask, low=low, high=high))

    def _read_whole(self, image: int) -> Picture | None:
        picture = self._run.image(self.classes.images[image])
        if picture is None:
            return None
        return fitted(picture, int(np.clip(max(picture.shape[:2]), *WHOLE_SIDES)))

    def _box(self, region: int, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
        x, y, width, height = self.classes.regions[["x", "y", "width", "height"]].iloc[region].astype(int)
        mask = np.zeros(size, bool)
        mask[y : y + height, x : x + width] = True
        return mask


def to_jpeg(picture: Picture) -> bytes:
    """(H, W, 3) uint8 RGB as the content of a JPEG file."""
    _, data = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return data.tobytes()
