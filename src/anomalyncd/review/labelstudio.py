"""Corrections that were made in Label Studio, back into the review of a run.

Tasks come from `export --format labelstudio`; people change labels, take away what is no defect, and choose
the class of an image.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingDataError, RunError
from ..export.formats import BOX, MASK
from ..export.source import Finding, Image, Results
from ..labels import NORMAL, default_name
from ..progress import Silent
from ..regions.find import strengths
from ..run.finished import FinishedRun, Key
from .apply import Applier
from .classes import ConflictError
from .schema import ActionRequest, ApplyRequest, FalseAlarm, Move, Name
from .session import Session

OVERLAP = 0.5  # intersection over union of two boxes from which on they mean the same region
LARGEST = 2 << 30  # bytes of an export that are read
Box = tuple[float, float, float, float]  # x, y, width, height in pixels


@dataclass
class Taken:
    """What an export of Label Studio says of a run.

    n_tasks : tasks with an annotation; n_moved, n_false_alarms : regions whose class it changes
    opened : names of classes that the run did not have
    strangers : images that the run does not have
    nowhere : (image, what was drawn) where the run has no region, or in a form that is not understood
    applied : whether the run has learned from it
    """

    n_tasks: int = 0
    n_moved: int = 0
    n_false_alarms: int = 0
    opened: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    nowhere: list[tuple[str, str]] = field(default_factory=list)
    applied: bool = False


def take_corrections(run: Path, export: Path, *, apply: bool = False, progress: Silent | None = None) -> Taken:
    """Store what people corrected in Label Studio as actions of the run's review.

    They wait there like those of the page, and can be undone on it, until they are applied.

    Parameters
    ----------
    run : folder of the run that was exported
    export : file of Label Studio's export in the format JSON
    apply : learn from them at once, and from others that wait
    """
    results, taken = Results(FinishedRun(run)), Taken()
    wanted = _wanted(results, _tasks(export), taken)
    try:
        with closing(Session(run)) as session:
            _act(session, wanted, taken)
            if apply and session.refresh().done:
                applier = Applier(session)
                applier.start(ApplyRequest(key=_key(), version=session.version))
                applier.wait()
                answer = applier.job.answer() if applier.job else None
                if answer is None or answer.state != "done":
                    raise RunError(answer.message if answer else "the corrections were not applied.")
                for note in answer.notes:
                    (progress or Silent()).warn(note)
                taken.applied = True
    except ConflictError as error:
        raise RunError(f"{run}: {error}") from error
    return taken


def _act(session: Session, wanted: Mapping[Key, str], taken: Taken) -> None:
    """One action for each class that regions go to."""
    classes = session.refresh()
    rows = classes.before.rows
    by_name: dict[str, list[int]] = {}
    for key, name in wanted.items():
        by_name.setdefault(name, []).append(rows[key])

    def act(action: Move | FalseAlarm | Name) -> None:
        table = session.classes.before.table
        session.act(ActionRequest(key=_key(), version=session.version, table=table, action=action))

    for name, places in by_name.items():
        labels = {other: label for label, other in reversed(session.classes.names.items())}
        label = labels.get(name)
        regions = [row for row in places if label is None or session.classes.labels[row] != label]
        if not regions:
            continue
        if label == NORMAL:
            act(FalseAlarm(kind="false_alarm", regions=regions))
            taken.n_false_alarms += len(regions)
            continue
        act(Move(kind="move", regions=regions, to=label))
        taken.n_moved += len(regions)
        if label is None:
            new = int(session.classes.labels[regions[0]])
            act(Name(kind="name", label=new, name=name))
            taken.opened.append(name)


def _wanted(results: Results, tasks: Iterator[tuple[str, list[dict[str, Any]]]], taken: Taken) -> dict[Key, str]:
    """(image, region) → name of the class that people gave it."""
    images = {image.name: image for image in results.images}
    real = {name: results.run.names[label] for label, name in reversed(results.classes.items())}  # as the run spells it
    wanted: dict[Key, str] = {}
    for name, answers in tasks:
        taken.n_tasks += 1
        if name not in images:
            taken.strangers.append(name)
            continue
        regions = results.regions(name)
        drawn = [answer for answer in answers if answer.get("type") != "choices"]
        chosen = [str(label) for answer in answers for label in _value(answer).get("choices", [])]
        found: dict[int, str] = {}
        for answer in drawn:
            label, number = _label(answer), _region(answer, images[name], regions)
            if label is None or number is None:
                taken.nowhere.append((name, label or str(answer.get("type"))))
            else:
                found[number] = real.get(label, label)
        if not drawn and chosen and regions and real.get(chosen[0]) != results.run.names.get(NORMAL):
            found[regions[int(strengths(regions).argmax())].region] = real.get(chosen[0], chosen[0])
            regions = [region for region in regions if region.region in found]  # nothing is said of the others
        for region in regions:
            if region.region in found:
                wanted[name, region.region] = found[region.region]
            elif region.label != NORMAL and (drawn or chosen):  # it was shown, and was taken away
                wanted[name, region.region] = results.run.names.get(NORMAL, default_name(NORMAL))
    return wanted


def _tasks(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Image name and results of each task that somebody has annotated, of its last annotation that was not cancelled."""
    expected = f"{path}: expected an export of Label Studio in the format JSON"
    if not path.is_file():
        raise MissingDataError(f"{expected}, but there is no such file.")
    if path.stat().st_size > LARGEST:
        raise DataError(f"{expected}, of at most 2 GB.")
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{expected}, but it cannot be read as one ({error}).") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise DataError(f"{expected}, a list of tasks.")
    for task in tasks:
        data, annotations = task.get("data"), task.get("annotations")
        if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not isinstance(annotations, list):
            raise DataError(
                f"{expected} (not JSON-MIN), of tasks that `anomalyncd export --format labelstudio` made: each has "
                "`data` with the `name` of an image, and `annotations`."
            )
        done = [one for one in annotations if isinstance(one, dict) and not one.get("was_cancelled")]
        if done:
            answers = done[-1].get("result")
            yield data["name"], [one for one in answers if isinstance(one, dict)] if isinstance(answers, list) else []


def _value(answer: Mapping[str, Any]) -> dict[str, Any]:
    value = answer.get("value")
    return value if isinstance(value, dict) else {}


def _label(answer: Mapping[str, Any]) -> str | None:
    labels = _value(answer).get(str(answer.get("type")))
    return str(labels[0]) if isinstance(labels, list) and labels else None


def _region(answer: Mapping[str, Any], image: Image, regions: list[Finding]) -> int | None:
    """Number of the region that is meant: the one that it was made of, or else the one whose box it covers."""
    made_of = {
        f"{image.number}-{region.region}-{control}": region.region for region in regions for control in (BOX, MASK)
    }
    if str(answer.get("id")) in made_of:
        return made_of[str(answer["id"])]
    try:
        box = _box(answer, image)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    overlaps = [_overlap(box, (region.x, region.y, region.width, region.height)) for region in regions] if box else []
    return regions[int(np.argmax(overlaps))].region if overlaps and max(overlaps) >= OVERLAP else None


def _box(answer: Mapping[str, Any], image: Image) -> Box | None:
    """The box of what was drawn, in pixels; Label Studio counts in percent."""
    value = _value(answer)
    if "rle" in value:
        rows, columns = np.nonzero(brush_mask(value["rle"], image.height, image.width))
        points = np.stack([columns, rows], axis=1).astype(float)
        size = 1.0
    elif "points" in value:
        points, size = np.array(value["points"], float).reshape(-1, 2) / 100 * (image.width, image.height), 0.0
    elif "width" in value:
        scale = np.array([image.width, image.height, image.width, image.height]) / 100
        x, y, width, height = (
            np.array([value[name] for name in ("x", "y", "width", "height")], float) * scale
        ).tolist()
        return x, y, width, height
    else:
        return None
    if not len(points):
        return None
    low, high = points.min(axis=0), points.max(axis=0) + size
    return float(low[0]), float(low[1]), float(high[0] - low[0]), float(high[1] - low[1])


def _overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one[0] + one[2], other[0] + other[2]) - max(one[0], other[0])
    height = min(one[1] + one[3], other[1] + other[3]) - max(one[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    union = one[2] * one[3] + other[2] * other[3] - both
    return both / union if union > 0 else 0.0


def brush_mask(rle: list[int], height: int, width: int) -> npt.NDArray[np.bool_]:
    """The inverse of `brush_rle`, of what Label Studio's own brush writes too: (H, W) bool, where the drawing is opaque.

    Examples
    --------
    >>> brush_mask([0, 0, 0, 8, 57, 181, 124, 48, 8, 127, 224], 1, 2).tolist()
    [[False, True]]
    """
    bits = "".join(f"{byte:08b}" for byte in bytes(rle))
    place = 0

    def read(count: int) -> int:
        nonlocal place
        place += count
        return int(bits[place - count : place], 2)

    total, bits_of_value = read(32), read(5) + 1
    if total != 4 * height * width:
        raise ValueError(f"a drawing of {total // 4} pixels on an image of {height * width}")
    sizes = [read(4) + 1 for _ in range(4)]
    values = np.zeros(total, np.uint8)
    done = 0
    while done < total:
        is_run, length = read(1), read(sizes[read(2)]) + 1
        if is_run:
            values[done : done + length] = read(bits_of_value)
        else:
            values[done : done + length] = [read(bits_of_value) for _ in range(length)]
        done += length
    return values.reshape(height, width, 4)[..., 3] > 0


def _key() -> str:
    return f"labelstudio-{secrets.token_hex(16)}"
