"""scikit-learn's own checks of an estimator, and why some cannot apply.

The checks hand over tables of numbers, and this estimator takes images. `Painted` paints each row of such a table as a small
image with a mask, gives labels where `predict` gives more, and is AnomalyNCD in all else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anomalyncd import AnomalyNCD

checks = pytest.importorskip("sklearn.utils.estimator_checks")
if not hasattr(checks, "estimator_checks_generator"):
    pytest.skip("scikit-learn tells which checks may fail since 1.6", allow_module_level=True)

SIDE, INSIDE = 32, slice(8, 24)
TABLE = "images are no table: nothing has columns, and the painter takes any number. Real images are checked when read"
NOT_FOR_US = {
    "check_no_attributes_set_in_init": "sections of settings are keyword arguments, kept in the attribute `settings`",
    "check_clustering": "asks for good clusters of painted numbers, which are no pictures of anything",
    "check_fit2d_1sample": "the error speaks of one region, which is what there is too few of, not of one sample",
    "check_n_features_in": TABLE,
    "check_n_features_in_after_fitting": TABLE,
    "check_complex_data": TABLE,
    "check_estimators_empty_data_messages": TABLE,
    "check_estimators_nan_inf": TABLE,
    "check_estimator_sparse_array": TABLE,
    "check_estimator_sparse_matrix": TABLE,
    "check_estimator_sparse_tag": TABLE,
    "check_fit1d": TABLE,
    "check_fit2d_predict1d": TABLE,
}
SLOW = {"check_clustering"}


class Painted(AnomalyNCD):
    """Takes (N, D) numbers."""

    __init__ = AnomalyNCD.__init__  # scikit-learn reads the arguments from the class's own

    def fit(self, X: Any, y: object = None) -> Painted:  # type: ignore[override]
        super().fit(painted(X), masks=[mask()] * len(X))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.int64]:  # type: ignore[override]
        return super().predict(painted(X), masks=[mask()] * len(X)).labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:  # type: ignore[override]
        return super().predict(painted(X), masks=[mask()] * len(X)).probabilities


def mask() -> npt.NDArray[np.bool_]:
    found = np.zeros((SIDE, SIDE), bool)
    found[INSIDE, INSIDE] = True
    return found


def painted(table: Any) -> list[npt.NDArray[np.uint8]]:
    """Each row repeated over a square: rows that are alike look alike."""
    images = []
    for row in np.asarray(table, float):
        image = np.full((SIDE, SIDE, 3), 100, np.uint8)
        image[INSIDE, INSIDE] = (np.resize(row, 16 * 16 * 3).reshape(16, 16, 3) * 20 + 128).clip(0, 255)
        images.append(image)
    return images


MODEL = Painted(3, backbone="tiny", features={"views": 1}, model={"image_size": 64})
FOUND = [(check.func.__name__, estimator, check) for estimator, check in checks.estimator_checks_generator(MODEL)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "estimator", "check"), [pytest.param(*one, id=one[0]) for one in FOUND if one[0] not in SLOW]
)
def test_checks_of_scikit_learn(name: str, estimator: Painted, check: Any) -> None:
    """Those that apply pass; those that do not, fail, or they need not be listed."""
    if name in NOT_FOR_US:
        with pytest.raises(AssertionError):
            check(estimator)
    else:
        check(estimator)


def test_what_is_listed_is_a_check_and_most_apply() -> None:
    names = [name for name, _, _ in FOUND]
    assert set(NOT_FOR_US) <= set(names)
    assert sum(name not in NOT_FOR_US for name in names) >= 30
