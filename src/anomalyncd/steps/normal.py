"""False alarms and confirmed normal images into the detector of a run, and what that would change, said before it counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..binarize.ignore import without
from ..data.dataset import Dataset, Picture
from ..data.images import read_image
from ..discovery.relearn import RunState, learn_again
from ..errors import BadFileError, DataError
from ..grid import top_mean
from ..labels import NORMAL, default_name
from ..paths import resolved
from ..places.names import is_file, look_up
from ..places.stored import File
from ..progress import Advance, Silent
from ..run.detector import read_detector, save_detector
from ..run.finished import FinishedRun
from ..run.folder import RunFolder


@dataclass(frozen=True)
class NormalLesson:
    """What a detector that has learned more normal images says of the run's own.

    n_normal : images that were learned
    n_defective : images of the run that were called defective and looked at again
    turned : ids of those that score like normal ones now
    lost : ids of these that people placed, told, or whose class they named: defects that would be missed
    applied : whether the run has the new detector now
    """

    n_normal: int
    n_defective: int
    turned: list[str]
    lost: list[str]
    applied: bool = False


def learn_normal(
    run: Path, normal: Dataset, progress: Silent | None = None, *, device: str = "auto", apply: bool = False
) -> NormalLesson:
    """Add normal images to the detector of a run, and look again at the images that were called defective.

    Parameters
    ----------
    normal : images without a defect, those of the run or others
    apply : keep the detector, for all images that come from now on, and take those of `normal` that are in the run for false
        alarms; else nothing is changed. Maps and regions of the run stay as they are
    """
    progress = progress or Silent()
    with RunFolder(run).writing() as folder:
        finished = FinishedRun(run, device=device)
        model, images = finished.model, finished.images
        if model.config.detect.name is None or model.false_alarms is None:
            raise DataError(
                f"{run}: normal images are learned by the detector of a run that tells normal from defective by its scores, "
                "but this run has none (maps or masks were given, or the scores told nothing)."
            )
        detector = read_detector(run, model.config)
        shown = [sample.image for sample in normal]
        with progress.task("Normal images", len(shown)) as advance:
            detector.learn_more(_pictures(shown, advance))
        given = {resolved(image) for image in shown if isinstance(image, File)}
        files = {name: file for name in images["image"] if (file := finished.file(name)) is not None}
        look_up(files.values())
        own = {name: file for name, file in files.items() if is_file(file)}
        names = [name for name in images["image"][images["label"] > NORMAL] if name in own]
        names = [name for name in names if resolved(own[name]) not in given]
        with progress.task("Looking again", len(names)) as advance:
            maps = detector.maps(_pictures([own[name] for name in names], advance))
            scores = [top_mean(without(values, model.config.ignore)) for values in maps]
        if len(scores) != len(names):
            raise DataError(f"{run}: an image of the run could not be read again. Nothing was changed.")
        chance = model.false_alarms.scores.probability(scores)
        line = model.config.detect.false_alarms
        turned = [name for name, one in zip(names, chance.tolist(), strict=True) if one > line]
        label_of = dict(zip(images["image"], images["label"], strict=True))
        placed = {image for (image, _), label in finished.corrections.items() if label > NORMAL}
        named = {k for k, name in finished.names.items() if name != default_name(k)}
        lost = [name for name in turned if name in placed or label_of[name] in named]
        if apply:
            false_alarms = [name for name, file in own.items() if resolved(file) in given]
            save_detector(detector, folder)
            _take_for_normal(finished, folder, false_alarms)
    return NormalLesson(len(shown), len(names), turned, lost, apply)


def _take_for_normal(finished: FinishedRun, folder: RunFolder, names: list[str]) -> None:
    """Give all regions of these images the class of false alarms, for good."""
    state = RunState.of(finished)
    rows = np.array([region.image in names for region in state.regions], bool)
    if not rows.any():
        return
    wanted, fixed = np.where(rows, NORMAL, state.labels), state.fixed | rows
    files, _ = learn_again(state, wanted, fixed, finished.model.names)
    folder.commit(files)


def _pictures(sources: Sequence[Picture], advance: Advance) -> Iterator[npt.NDArray[np.uint8]]:
    for source in sources:
        advance()
        try:
            yield read_image(source)
        except BadFileError as error:
            raise DataError(str(error)) from error
