"""What was fitted, whichever way it is stored: a run folder, or an exported one that needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..errors import SettingsError

if TYPE_CHECKING:
    from ..data.dataset import Dataset
    from ..discovery.classify import Predictor
    from ..progress import Silent

PRECISIONS = ("auto", "float32", "bfloat16")


class Fitted(Protocol):
    """What commands need of it; detector_name : None where maps or masks were given."""

    @property
    def detector_name(self) -> str | None: ...

    def gather(self, images: Path, maps: Path | None, masks: Path | None) -> Dataset: ...

    def predictor(self, *, bare: bool) -> Predictor: ...


def load_fitted(run: Path, device: str, precision: str, progress: Silent, *, exported: bool = True) -> Fitted:
    """A run or, if `exported` ones are taken, an export of one, ready for new images."""
    from ..runtime import is_exported

    if precision not in PRECISIONS:
        raise SettingsError(f"--precision must be one of {', '.join(PRECISIONS)}, but got {precision!r}.")
    if is_exported(run):
        if not exported or device not in ("auto", "cpu"):
            raise SettingsError(
                f"{run} is an exported run: it is used on this processor, without --engine and --device."
            )
        from ..runtime import Runtime

        return Runtime(run, precision="bfloat16" if precision == "bfloat16" else "float32", progress=progress)
    from ..estimator import AnomalyNCD

    model = AnomalyNCD.load(run, device=device, progress=progress)
    if precision != "auto":
        model.model_.config = model.model_.config.model_copy(update={"precision": precision})
    return model
