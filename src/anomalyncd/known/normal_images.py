"""What may be wrong with images that are given as normal, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ..data.dataset import Sample
from ..progress import Silent

MOST_NAMED = 5  # images in a warning; all are in the table


def suspects_table(suspects: Mapping[int, float], normal: Sequence[Sample], progress: Silent) -> pd.DataFrame | None:
    """Images among the normal ones that seem to show a defect, the oddest first, and a warning; None where there is none.

    Parameters
    ----------
    suspects : place in `normal` → spreads above the mean of normal images

    Returns
    -------
    A table with the columns image and deviations.
    """
    if not suspects:
        return None
    rows = sorted(((normal[place].id, value) for place, value in suspects.items()), key=lambda row: (-row[1], row[0]))
    names = ", ".join(name for name, _ in rows[:MOST_NAMED]) + ", …" * (len(rows) > MOST_NAMED)
    progress.warn(
        f"{len(rows)} of {len(normal)} normal images seem to show a defect and are not learned as normal: {names}. Look at "
        "them, and take them out of the folder of --normal if they do."
    )
    return pd.DataFrame(rows, columns=["image", "deviations"])


def warn_of_overlap(samples: Sequence[Sample], normal: Sequence[Sample], progress: Silent) -> None:
    """Defects among the normal images would be learned as normal; some images in both sets are a user's choice."""
    known = {s.image.absolute() for s in normal if not isinstance(s.image, np.ndarray)}
    if known and all(not isinstance(s.image, np.ndarray) and s.image.absolute() in known for s in samples):
        progress.warn(
            "all images to look at are among the normal images (--normal), so that what is wrong with them is learned "
            "as normal."
        )
