"""A card for each class: its clearest and its doubtful regions, whole images, and how large, where and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from . import charts
from .embed import Shot
from .source import Look, ReportSource

REPRESENTATIVE, BORDERLINE, WHOLE = 12, 6, 3
MOST_PICTURES = 1_200  # of all cards together: with many classes each shows fewer


@dataclass(frozen=True)
class Card:
    """One class. `share` is of all images, 0 … 1; `note` says what is special about it."""

    look: Look
    n_images: int
    n_regions: int
    share: float
    truth: str
    note: str
    representative: list[Shot]
    borderline: list[Shot]
    whole: list[Shot]
    area: charts.Histogram
    place: charts.Places
    confidence: charts.Histogram
    median_probability: float | None


def make_card(source: ReportSource, label: int) -> Card:
    """The card of one class, its pictures read one by one."""
    regions, images = source.regions, source.images
    members = regions.index[regions["label"] == label].to_numpy()
    own = images[images["label"] == label]
    n_first, n_last, n_whole = shares(len(source.labels))
    first, last = choose(regions.loc[members], source.typical[members], n_first, n_last)
    areas = regions["area"].to_numpy(float)
    x, y, aspect = _centres(source, regions.loc[members])
    sure = own["probability"].to_numpy(float) if label == 0 else regions.loc[members, "probability"].to_numpy(float)
    return Card(
        look=source.look(label),
        n_images=len(own),
        n_regions=len(members),
        share=len(own) / max(1, len(images)),
        truth=source.truth(label),
        note=_note(label, len(own), len(members)),
        representative=[source.crop(row) for row in first],
        borderline=[source.crop(row) for row in last],
        whole=[source.whole(name, [words]) for name, words in _whole_images(source, own, label)[:n_whole]],
        area=charts.area(areas[members], *((areas.min(), areas.max()) if len(areas) else (1.0, 1.0))),
        place=charts.places(x, y, aspect),
        confidence=charts.confidence(sure),
        median_probability=float(np.median(sure)) if len(sure) else None,
    )


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


def _whole_images(source: ReportSource, own: pd.DataFrame, label: int) -> list[tuple[str, str]]:
    """Names of images to show whole and a few words: the surest of a defect, the most doubtful of the normal ones."""
    scores = source.stored.manifest.drop_duplicates("image").set_index("image")["score"]
    table = own.assign(score=scores.reindex(own["image"]).to_numpy())
    keys = ["score", "image"] if label == 0 else ["probability", "image"]
    ranked = table.sort_values(keys, ascending=[False, True], kind="stable")
    words = "highest map value {:.2f}" if label == 0 else "{:.2f}"
    shown = ranked.head(WHOLE)
    return [(str(name), words.format(value)) for name, value in zip(shown["image"], shown[keys[0]], strict=True)]


def _centres(source: ReportSource, members: pd.DataFrame) -> tuple[pd.Series, pd.Series, float]:
    """Centres of the regions on 0 … 1 of their images, and the usual aspect of an image."""
    sizes = source.stored.manifest.drop_duplicates("image").set_index("image")[["height", "width"]]
    read = sizes[sizes.min(axis=1) > 0]
    aspect = float((read["width"] / read["height"]).median()) if len(read) else 1.0
    width, height = (read[side].reindex(members["image"]).fillna(np.inf).to_numpy() for side in ("width", "height"))
    x = (members["x"] + members["width"] / 2) / width
    y = (members["y"] + members["height"] / 2) / height
    return x, y, aspect


def _note(label: int, n_images: int, n_regions: int) -> str:
    if label == 0 and n_regions:
        return "Regions of this class are taken for false alarms; most normal images have no region at all."
    if label == 0:
        return "No region was found in these images."
    if label < 0:
        return "Far from every class: look at these, they may be a class of their own."
    if not n_images and n_regions:
        return "It shows beside other classes only: no image is of this class as a whole."
    return ""
