"""What cells share: times of stages that only the first of them worked on, and tokens of base sets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ..config import Config
from ..run.folder import PARTIAL, STAGES, RunFolder
from ..run.store import RegionStore


def frozen_settings(config: Config) -> list[object]:
    """All settings that the features of a region depend on."""
    weights = {
        "class_token",
        "patches",
        "context",
        "surround",
    }  # those above 0 are computed, how much they count is not asked
    features = config.features.model_dump(exclude={*weights, "center"})
    return [config.model.model_dump(mode="json"), config.crop.model_dump(), sorted(config.features.weights()), features]


def longest(folder: RunFolder, name: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """Times of stages, kept from the call that did the work: later ones only read what it left."""
    path = folder.path / name
    try:
        known: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    out = known | {stage: max(took, known.get(stage, 0.0)) for stage, took in seconds.items()}
    folder.write_json(name, out)
    return {stage: out[stage] for stage in seconds}


def borrow(kept: Path, run: Path) -> None:
    """Put tokens of a base set, that another run has computed, into this one."""
    if not kept.is_dir():
        return
    try:
        stage, key = _base_stage(kept)
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(kept)  # damaged: computed and kept again
        return
    with RunFolder(run).writing() as folder:
        if folder.is_done(stage, key):
            return
        folder.start(stage, key, "base")
        partial = folder.place(f"base{PARTIAL}")
        shutil.copytree(kept / "base", partial)
        folder.remove("base")  # begun there and broken off
        partial.rename(folder.place("base"))
        folder.finish(stage, key)


def keep(run: Path, kept: Path) -> None:
    """The reverse: keep a base set's tokens for other runs, instead of those of files that were touched since."""
    stage, key = _base_stage(run)
    with suppress(OSError, ValueError, KeyError, TypeError):
        if _base_stage(kept) == (stage, key):
            return
    partial = Path(f"{kept}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(run / "base", partial / "base")
    RunFolder(partial).finish(stage, key)
    shutil.rmtree(kept, ignore_errors=True)
    partial.rename(kept)


def _base_stage(folder: Path) -> tuple[str, str]:
    stage = RegionStore(RunFolder(folder), "base").stage
    return stage, str(json.loads((folder / STAGES).read_text(encoding="utf-8"))[stage]["key"])
