"""How well do the classes found agree with the true ones? Pure functions on labels.

Labels are any hashable values (integers, strings), one an image. Predicted 0 is normal; predicted -1 is
unknown, a cluster of its own in NMI and ARI and a wrong answer in F1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ..errors import DataError
from ..labels import NORMAL, UNKNOWN
from .calibration import expected_calibration_error

NORMAL_NAMES = ("good", "normal", "ok")

Labels = Iterable[Any]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All that `evaluate` finds out.

    nmi : normalised mutual information, 2 I(true; pred) / (H(true) + H(pred)), in [0, 1]
    ari : adjusted Rand index, agreement over pairs of images: 0 by chance, 1 if perfect, in [-0.5, 1]
    f1 : share of images whose label is matched to their true class: clustering accuracy, and with one label an image
        also micro-F1, the paper's F1
    n_classes : distinct predicted labels, normal included, unknown not
    matching : predicted label → true one
    confusion : (len(true_names), len(pred_names)) int64, images by true class and predicted label, both sorted
    normal_precision, normal_recall : of "normal", predicted label 0; None where no image was predicted normal, or none is
    false_alarms : share of normal images with a predicted label other than 0; None where no image is normal
    missed : share of defective images with the predicted label 0; None where all images are normal
    ece : expected calibration error of the probabilities of the predicted labels, which are right where they are matched
        to the true class; unknown is left out. None without probabilities
    """

    nmi: float
    ari: float
    f1: float
    n_images: int
    n_classes: int
    n_true_classes: int
    matching: dict[Hashable, Hashable]
    confusion: NDArray[np.int64]
    true_names: list[Hashable]
    pred_names: list[Hashable]
    normal_precision: float | None
    normal_recall: float | None
    false_alarms: float | None
    missed: float | None
    ece: float | None

    def to_json_dict(self) -> dict[str, float | int | None]:
        """The figures that `anomalyncd evaluate --json` prints."""
        names = ("nmi", "ari", "f1", "ece", "n_images", "n_classes", "n_true_classes")
        return {name: getattr(self, name) for name in names}


def evaluate(
    true: Labels,
    pred: Labels,
    probabilities: ArrayLike | None = None,
    *,
    normal_names: Hashable | Iterable[Hashable] = NORMAL_NAMES,
) -> Evaluation:
    """Compare predicted labels with true ones: every figure at once.

    Predicted labels are paired with true classes one to one, so that the most images agree. Unknown (-1) is never
    paired, nor are a label and a class that share no image; so labels may be missing in the matching.

    Parameters
    ----------
    true : N true labels
    pred : N predicted labels: 0 is normal, -1 is unknown
    probabilities : (N,) of the predicted labels, 0 … 1; for the calibration error only
    normal_names : true label or labels that mean normal; for the figures of normal, false alarms and missed defects only

    Examples
    --------
    >>> found = evaluate(["good", "crack", "crack", "hole"], [0, 1, 1, -1])
    >>> found.nmi, found.f1, found.n_classes, found.matching
    (1.0, 0.75, 2, {0: 'good', 1: 'crack'})
    """
    true_codes, true_names = _encode(true, "true")
    pred_codes, pred_names = _encode(pred, "predicted")
    if len(true_codes) != len(pred_codes):
        raise DataError(
            f"Expected one true and one predicted label an image, "
            f"but got {len(true_codes)} true and {len(pred_codes)} predicted labels."
        )
    if len(true_codes) == 0:
        raise DataError("There is no label to evaluate: expected at least one image with a true label.")
    confusion = np.zeros((len(true_names), len(pred_names)), dtype=np.int64)
    np.add.at(confusion, (true_codes, pred_codes), 1)

    known = np.flatnonzero([label != UNKNOWN for label in pred_names])
    columns, rows = linear_sum_assignment(confusion[:, known].T, maximize=True)
    pairs = [(row, column) for row, column in zip(rows, known[columns], strict=True) if confusion[row, column] > 0]
    is_pair = np.zeros(confusion.shape, dtype=bool)
    for pair in pairs:
        is_pair[pair] = True

    one_name = isinstance(normal_names, str) or not isinstance(normal_names, Iterable)
    names = {normal_names} if one_name else set(normal_names)  # type: ignore[arg-type]
    is_normal = np.array([name in names for name in true_names])
    found_normal = np.array([label == NORMAL for label in pred_names])
    n_both, n_normal = int(confusion[is_normal][:, found_normal].sum()), int(confusion[is_normal].sum())
    n_found, n_images = int(confusion[:, found_normal].sum()), len(true_codes)
    ece = None
    if probabilities is not None:
        sure, answered = np.asarray(probabilities, np.float64), np.isin(pred_codes, known)
        if sure.shape != (n_images,):
            raise DataError(f"Expected one probability for each of {n_images} images, but got shape {sure.shape}.")
        ece = expected_calibration_error(sure[answered], is_pair[true_codes, pred_codes][answered])
    return Evaluation(
        nmi=min(1.0, float(normalized_mutual_info_score(true_codes, pred_codes))),  # rounding may pass 1
        ari=float(adjusted_rand_score(true_codes, pred_codes)),
        f1=int(confusion[is_pair].sum()) / n_images,
        n_images=n_images,
        n_classes=len(known),
        n_true_classes=len(true_names),
        matching={pred_names[column]: true_names[row] for row, column in pairs},
        confusion=confusion,
        true_names=true_names,
        pred_names=pred_names,
        normal_precision=n_both / n_found if n_found else None,
        normal_recall=n_both / n_normal if n_normal else None,
        false_alarms=(n_normal - n_both) / n_normal if n_normal else None,
        missed=(n_found - n_both) / (n_images - n_normal) if n_images > n_normal else None,
        ece=ece,
    )


def _encode(labels: Labels, role: str) -> tuple[NDArray[np.intp], list[Hashable]]:
    values = [value.item() if isinstance(value, np.generic) else value for value in labels]
    for position, value in enumerate(values):
        if not isinstance(value, Hashable):
            raise DataError(
                f"Expected the {role} labels as a flat list of names or numbers, "
                f"but the one at position {position} is a {type(value).__name__}."
            )
        if value is None or (value != value) is not False:  # NaN and pandas' NA: an empty cell of a table
            raise DataError(f"The {role} label at position {position} is missing. Give it one or leave that image out.")
    distinct = set(values)
    try:
        names = sorted(distinct)
    except TypeError:  # numbers and strings together
        names = sorted(distinct, key=lambda value: (type(value).__name__, str(value)))
    code_of = {name: code for code, name in enumerate(names)}
    return np.array([code_of[value] for value in values], dtype=np.intp), names
