"""A fitted model from either form of a run: its folder, or its export, which needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SettingsError

if TYPE_CHECKING:
    from ..progress import Silent
    from ..run.finished import FinishedRun
    from ..runtime import Runtime

PRECISIONS = ("auto", "float32", "bfloat16")


def load_fitted(
    run: Path, device: str, precision: str, progress: Silent, *, exported: bool = True
) -> FinishedRun | Runtime:
    """A run or, if `exported` ones are taken, an export of one, ready for new images; only what is needed is imported."""
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
    from ..model.device import choose_device
    from ..run.finished import FinishedRun

    choose_device(device)
    return FinishedRun(run, device=device, precision=precision)
