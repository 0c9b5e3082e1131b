"""How well do the classes found agree with the true ones? Pure functions on labels.

Labels are any hashable values (integers, strings), one an image. Predicted 0 is normal; predicted -1 is
unknown, a cluster of its own in NMI and ARI and a wrong answer in F1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ..errors import DataError

NORMAL = 0
UNKNOWN = -1
NORMAL_NAMES = ("good", "normal", "ok")

Labels = Iterable[Any]
Codes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All that `evaluate` finds out.

    `f1` is micro-F1 after Hungarian matching, that is clustering accuracy. `n_classes` counts the distinct
    predicted labels, normal included, unknown not. `matching` maps predicted labels to true ones.
    `confusion` is (len(true_names), len(pred_names)) int64. `normal_precision` is None where no image was
    predicted normal, `normal_recall` where none is.
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

    def to_json_dict(self) -> dict[str, float | int]:
        """The figures that `anomalyncd evaluate --json` prints."""
        return {name: getattr(self, name) for name in ("nmi", "ari", "f1", "n_images", "n_classes", "n_true_classes")}


def nmi(true: Labels, pred: Labels) -> float:
    """Normalised mutual information, 2 I(true; pred) / (H(true) + H(pred)), in [0, 1].

    Examples
    --------
    >>> nmi(["crack", "crack", "hole", "hole"], [2, 2, 1, 1])
    1.0
    """
    true_codes, _, pred_codes, _ = _encode_pair(true, pred)
    return min(1.0, float(normalized_mutual_info_score(true_codes, pred_codes)))  # rounding may pass 1


def ari(true: Labels, pred: Labels) -> float:
    """Adjusted Rand index: agreement over pairs of images, 0 by chance, 1 if perfect, in [-0.5, 1].

    Examples
    --------
    >>> ari(["crack", "crack", "hole", "hole"], [1, 2, 1, 2])
    -0.5
    """
    true_codes, _, pred_codes, _ = _encode_pair(true, pred)
    return float(adjusted_rand_score(true_codes, pred_codes))


def confusion(true: Labels, pred: Labels) -> tuple[NDArray[np.int64], list[Hashable], list[Hashable]]:
    """Count images by true class (rows) and predicted label (columns).

    Returns
    -------
    The matrix (T, P) int64, the T true names and the P predicted labels, both sorted.

    Examples
    --------
    >>> matrix, true_names, pred_names = confusion(["crack", "hole", "hole"], [1, 2, 1])
    >>> matrix.tolist(), true_names, pred_names
    ([[1, 0], [1, 1]], ['crack', 'hole'], [1, 2])
    """
    true_codes, true_names, pred_codes, pred_names = _encode_pair(true, pred)
    matrix = np.zeros((len(true_names), len(pred_names)), dtype=np.int64)
    np.add.at(matrix, (true_codes, pred_codes), 1)
    return matrix, true_names, pred_names


def hungarian_match(true: Labels, pred: Labels) -> dict[Hashable, Hashable]:
    """Pair predicted labels with true classes one to one, so that the most images agree.

    Unknown (-1) is never paired, nor are a label and a class that share no image; so labels may be missing.

    Examples
    --------
    >>> hungarian_match(["crack", "crack", "hole", "hole"], [1, 1, 2, -1])
    {1: 'crack', 2: 'hole'}
    """
    matrix, true_names, pred_names = confusion(true, pred)
    known = np.flatnonzero([label != UNKNOWN for label in pred_names])
    columns, rows = linear_sum_assignment(matrix[:, known].T, maximize=True)
    return {
        pred_names[known[column]]: true_names[row]
        for column, row in zip(columns, rows, strict=True)
        if matrix[row, known[column]] > 0
    }


def f1(true: Labels, pred: Labels) -> float:
    """Share of images whose label is matched to their true class by `hungarian_match`, in [0, 1].

    This is clustering accuracy, and with one label an image also micro-F1: the paper's F1.

    Examples
    --------
    >>> f1(["crack", "crack", "hole", "hole"], [1, 1, 2, -1])
    0.75
    """
    matrix, true_names, pred_names = confusion(true, pred)
    matching = hungarian_match(true, pred)
    hits = sum(int(matrix[true_names.index(name), pred_names.index(label)]) for label, name in matching.items())
    return hits / int(matrix.sum())


def normal_precision_recall(
    true: Labels, pred: Labels, normal_names: Hashable | Iterable[Hashable] = NORMAL_NAMES
) -> tuple[float | None, float | None]:
    """Precision and recall of "normal": predicted label 0 against the true names given (one name or several).

    Precision is None where no image was predicted normal, recall is None where no image is normal.

    Examples
    --------
    >>> normal_precision_recall(["good", "good", "crack"], [0, 1, 1])
    (1.0, 0.5)
    """
    true_codes, true_names, pred_codes, pred_names = _encode_pair(true, pred)
    one_name = isinstance(normal_names, str) or not isinstance(normal_names, Iterable)
    names = {normal_names} if one_name else set(normal_names)  # type: ignore[arg-type]
    is_normal = np.array([name in names for name in true_names])[true_codes]
    found_normal = np.array([label == NORMAL for label in pred_names])[pred_codes]
    hits = int((is_normal & found_normal).sum())
    n_normal, n_found = int(is_normal.sum()), int(found_normal.sum())
    return (hits / n_found if n_found else None), (hits / n_normal if n_normal else None)


def evaluate(true: Labels, pred: Labels, *, normal_names: Hashable | Iterable[Hashable] = NORMAL_NAMES) -> Evaluation:
    """Compare predicted labels with true ones: every figure of this module at once.

    Parameters
    ----------
    true : N true labels
    pred : N predicted labels: 0 is normal, -1 is unknown
    normal_names : true labels that mean normal; used for normal precision and recall only

    Examples
    --------
    >>> evaluation = evaluate(["good", "crack", "crack", "hole"], [0, 1, 1, -1])
    >>> evaluation.f1, evaluation.n_classes, evaluation.matching
    (0.75, 2, {0: 'good', 1: 'crack'})
    """
    true, pred = list(true), list(pred)
    matrix, true_names, pred_names = confusion(true, pred)
    normal_precision, normal_recall = normal_precision_recall(true, pred, normal_names)
    return Evaluation(
        nmi=nmi(true, pred),
        ari=ari(true, pred),
        f1=f1(true, pred),
        n_images=len(true),
        n_classes=sum(label != UNKNOWN for label in pred_names),
        n_true_classes=len(true_names),
        matching=hungarian_match(true, pred),
        confusion=matrix,
        true_names=true_names,
        pred_names=pred_names,
        normal_precision=normal_precision,
        normal_recall=normal_recall,
    )


def _encode_pair(true: Labels, pred: Labels) -> tuple[Codes, list[Hashable], Codes, list[Hashable]]:
    """Labels as positions in their sorted distinct values."""
    true_codes, true_names = _encode(true, "true")
    pred_codes, pred_names = _encode(pred, "predicted")
    if len(true_codes) != len(pred_codes):
        raise DataError(
            f"Expected one true and one predicted label an image, "
            f"but got {len(true_codes)} true and {len(pred_codes)} predicted labels."
        )
    if len(true_codes) == 0:
        raise DataError("There is no label to evaluate: expected at least one image with a true label.")
    return true_codes, true_names, pred_codes, pred_names


def _encode(labels: Labels, role: str) -> tuple[Codes, list[Hashable]]:
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
