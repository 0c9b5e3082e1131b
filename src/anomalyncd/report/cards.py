"""A card for each class: its clearest and its doubtful regions, whole images, and how large, where and how sure it is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..labels import NORMAL
from . import charts
from .source import ReportSource, Shot

REPRESENTATIVE, BORDERLINE, WHOLE = 12, 6, 3
MOST_PICTURES = 1_200  # of all cards together: with many classes each shows fewer


class Card:
    """One class, its pictures read one by one.

    Attributes
    ----------
    share : of all images, 0 … 1
    truth : the commonest true label, where folders tell
    note : what is special about the class
    representative, borderline, whole : pictures of regions, of doubtful regions, and of images
    area, place, confidence : charts
    median_probability : of its regions, or of its images where they are normal
    """

    def __init__(self, source: ReportSource, label: int) -> None:
        members = source.regions[source.regions["label"] == label]
        own = source.images[source.images["label"] == label]
        n_first, n_last, n_whole = shares(len(source.labels))
        first, last = choose(members, source.typical[members.index], n_first, n_last)
        areas = source.regions["area"].to_numpy(float)
        smallest, largest = (areas.min(), areas.max()) if len(areas) else (1.0, 1.0)
        sure = (own if label == NORMAL else members)["probability"].to_numpy(float)
        self.look, self.truth = source.look(label), source.truth(label)
        self.n_images, self.n_regions = len(own), len(members)
        self.share = len(own) / max(1, len(source.images))
        self.note = _note(label, len(own), len(members))
        self.representative = [source.crop(row) for row in first]
        self.borderline = [source.crop(row) for row in last]
        self.whole = _whole_images(source, own, label, n_whole)
        self.area = charts.area(areas[members.index], smallest, largest)
        self.place = charts.places(*_centres(source, members))
        self.confidence = charts.confidence(sure)
        self.median_probability = float(np.median(sure)) if len(sure) else None


def shares(n_classes: int) -> tuple[int, int, int]:
    """Representative, borderline and whole pictures of each card.

    Examples
    --------
    >>> shares(5), shares(300), shares(2000)
    ((12, 6, 3), (3, 1, 0), (0, 0, 0))
    """
    each = MOST_PICTURES // max(1, n_classes)
    borderline = min(BORDERLINE, each // 3)
    return min(REPRESENTATIVE, each - borderline), borderline, min(WHOLE, each // 6)


def choose(members: pd.DataFrame, typical: npt.ArrayLike, n_first: int, n_last: int) -> tuple[list[int], list[int]]:
    """Rows of the surest regions, one of an image as long as there are enough, and of the least sure ones, worst first.

    Among equally sure regions the nearest to the middle of the class comes first. No region is in both lists, and with
    few of them all are in the first.

    Parameters
    ----------
    members : rows of regions.csv; typical : (R,) nearness of each

    Examples
    --------
    >>> table = pd.DataFrame({"image": list("aab"), "region": [0, 1, 0], "probability": [0.9, 0.8, 0.3]})
    >>> choose(table, [0, 0, 0], 2, 1), choose(table, [0, 0, 0], 5, 1)
    (([0, 1], [2]), ([0, 2, 1], []))
    """
    ranked = members.assign(typical=np.asarray(typical, float)).sort_values(
        ["probability", "typical", "image", "region"], ascending=[False, False, True, True], kind="stable"
    )
    n_last = max(0, min(n_last, len(ranked) - n_first))
    last = ranked.index[::-1][:n_last].tolist()
    rest = ranked.drop(index=last)
    again = rest["image"].duplicated()
    return [*rest.index[~again], *rest.index[again]][:n_first], last


def _whole_images(source: ReportSource, own: pd.DataFrame, label: int, most: int) -> list[Shot]:
    """Whole images with a few words: the surest of a defect, the most doubtful of the normal ones."""
    key, words = ("score", "highest map value {:.2f}") if label == NORMAL else ("probability", "{:.2f}")
    ranked = own.sort_values([key, "image"], ascending=[False, True], kind="stable").head(most)
    return [source.whole(name, [words.format(value)]) for name, value in zip(ranked["image"], ranked[key], strict=True)]


def _centres(source: ReportSource, members: pd.DataFrame) -> tuple[pd.Series, pd.Series, float]:
    """Centres of the regions on 0 … 1 of their images, and the usual aspect of an image."""
    read = source.files[source.files[["height", "width"]].min(axis=1) > 0]
    aspect = float((read["width"] / read["height"]).median()) if len(read) else 1.0
    width, height = (read[side].reindex(members["image"]).fillna(np.inf).to_numpy() for side in ("width", "height"))
    x = (members["x"] + members["width"] / 2) / width
    y = (members["y"] + members["height"] / 2) / height
    return x, y, aspect


def _note(label: int, n_images: int, n_regions: int) -> str:
    if label == NORMAL and n_regions:
        return "Regions of this class are taken for false alarms; most normal images have no region at all."
    if label == NORMAL:
        return "No region was found in these images."
    if label < NORMAL:
        return "Far from every class: look at these, they may be a class of their own."
    if not n_images and n_regions:
        return "It shows beside other classes only: no image is of this class as a whole."
    return ""
