"""Numbers that results and limits depend on, with where they come from: none of them changes without being noticed.

What a number does is tested beside its module; most of these tests set smaller ones, so as to be quick.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np
import pytest

CONSTANTS: dict[str, Mapping[str, Any]] = {
    "binarize.ignore": {"MOST_POINTS": 20_000, "SMOOTH": 0.001},
    "binarize.otsu": {"N_BINS": 256},  # grey levels of Otsu's own paper
    "regions.crops": {"LARGEST_PICTURE": 100_000_000},
    "regions.drawn": {"LARGEST_SIDE": 2048, "FINE": 4},
    "regions.extract": {"CUT_RATE": 0.05},
    "regions.prefetch": {"WORKERS": min(4, os.cpu_count() or 1), "DEPTH": 2 * min(4, os.cpu_count() or 1)},
    "regions.records": {"MOST_REGIONS": 64, "MOST_WARNINGS": 20},
    "model.backbone": {"FIRST_GUIDED_BLOCK": 3},  # the paper guides the last 9 of 12 blocks
    # Channels of CPR's branch: fewer than the paper's, see docs/detectors.md.
    "model.cascade": {
        "BLOCKS": 5, "SMOOTHING": 0.1, "COUNTED": 0.8, "ALIKE": 0.8, "UNLIKE": -0.2, "POWER": 3, "HIDDEN": 128, "OUT": 128,
        "DISCRIMINANT": 1e-3, "CENTRE": 0.5, "OBJECT": 0.9,
    },
    "model.heads": {"FIRST_LENGTH": 3**-0.5},  # of a weight vector of torch's linear layers before training
    "model.places": {
        "AT_ONCE": 1024, "PLACES": 24, "HIDDEN": 512, "LAYERS": 3, "DROPOUT": 0.1, "TEMPERATURE": 2, "SHARE": 0.5,
        "GAMMA": 0.99,
    },
    "model.weights": {"HUB_TIMEOUT_SECONDS": 5},
    "learn.cluster": {
        "RESTARTS": 20, "MOST_STEPS": 200, "EACH": 20, "MOST_IN_TREE": 3000, "RESAMPLES": 20, "MOST_RESAMPLED": 1000,
        "DEFAULT_TEMPERATURE": 0.1,
    },
    "learn.features": {"PEAK_SHARE": 0.15},
    "learn.refine": {"STEPS": 200, "LEARNING_RATE": 0.01},
    "learn.simplex": {"OCTAVES": 6, "PERSISTENCE": 0.6, "SPACING": 64},
    "learn.synthetic": {"FINEST": 32, "COARSEST": 2, "THRESHOLD": 0.5, "LEAST": 0.002, "TRIES": 20},
    "learn.trainer": {"FINAL_LEARNING_RATE": 1e-3, "MOMENTUM": 0.9, "WEIGHT_DECAY": 5e-5},  # the paper's code
    "assign.count": {
        "MOST_REGIONS": 1000, "LEAST_REGIONS": 6, "NEIGHBOURS": 10, "SHARE": 0.1, "LEAST_MEMBERS": 5, "STARTS": 3, "WIDE": 2,
        "CLOUDS": 20, "MOST_IN_CLOUD": 400, "CLEARLY": 2.5,
    },
    # Very strong evidence begins at 10 (Kass and Raftery, 1995), two peaks at 2 deviations (Ashman, 1994).
    "assign.false_alarms": {
        "LEAST_NORMAL": 5, "CONTAMINATED": 10, "LEAST_SPREAD": 0.01, "NEAR": 0.3, "WEIGHT": 0.5, "NEAREST": 5,
        "MOST_EXAMPLES": 500, "BEYOND_DOUBT": 1e-4, "SAME": 1e-3, "MOST_GROUPS": 5, "STRONG": 10, "APART": 2,
        "WIDE_APART": 3, "CERTAINLY_APART": 4, "LEAST_SHIFT": 0.5, "MOST_SHIFT": 2,
    },
    "assign.images": {"RELATIVE_TEMPERATURE": 0.1},
    "assign.new_kinds": {"MOST": 0.75, "SUSPECTS": 0.2, "ODD": 0.01, "MOST_KNOWN": 2000, "MOST_STEPS": 20},
    "assign.normal_kind": {"LEAST_IMAGES": 5, "MOST_ABOVE": 0.95},
    "assign.outliers": {"LARGEST": 5, "FAR": 3},
    "assign.alike": {"SAME": 1e-3, "SHARE": 0.1},
    # -1.2816 and -0.2533 are the tenth and the fortieth percentile of the bell curve.
    "assign.contamination": {
        "BANK_IMAGES": 4, "IMAGE_ROWS": 130, "LEAST_IMAGES": 16, "WIDTH": 128, "ROUNDS": 3, "HIGHEST": 0.01, "LEAST_ROWS": 3,
        "WRONG": 0.01, "CLEAR": 3, "REFINED": 10, "LEAST_SPREAD": 0.01, "LOW": 0.1, "HIGH": 0.4, "LOW_Z": -1.2816,
        "HIGH_Z": -0.2533,
    },
    "large": {"LARGE": 10_000, "BLOCK": 1024, "COMPARED": 2048, "OF_A_CELL": 256, "AXES": 64, "STEPS": 5, "LEARNED": 8192},
    "assign.product": {"MARGIN": 2, "STOP": 1, "SAME_LIGHT": 0.01, "FEWEST": 8},
    "assign.tree": {"MOST_OF_A_CLASS": 500, "EXAMPLES": 6},
    "assign.unknown": {
        "NEIGHBOURS": 3, "SAME": 1e-5, "BLOCK": 1024, "MOST_REFERENCES": 20_000, "LEAST": 1e-3, "LOCAL": 0.25, "LARGEST": 20,
        "LEAST_DEVIATION": 0.2,
    },
    "metrics.control": {"SIGMAS": 3},  # Shewhart
    "detect.cpr": {
        "WORDS": 12, "SAMPLE": 20_000, "RATE": 1e-3, "DECAY": 0.01, "BATCH": 4, "ROUND": 20, "NORMAL": 0.02, "DEFECT": 0.3,
    },
    # The paper's are the decay, a tenth of the rate for the last 5 %, the hardest 0.1 %, and the quantiles.
    "detect.efficientad": {
        "RATE": 1e-3, "DECAY": 1e-5, "DROP_AT": 0.95, "DROP": 0.1, "BATCH": 4, "HARD": 0.999, "JITTER": 0.2, "LOW": 0.9,
        "HIGH": 0.995,
    },
    "detect.learned": {"KEPT_BACK": 10, "LEAST_KEPT_BACK": 5, "EVERYWHERE": 1_000_000, "ROUND": 10},
    "detect.musc": {"LEAST_IMAGES": 5, "MOST_PRODUCTS": 16_777_216},
    "detect.patchcore": {"QUERIES": 1024, "PROBES": 5, "DIRECTIONS": 256, "NEAREST": 4, "PART": 144},
    "model.coreset": {"ROWS": 1024, "CANDIDATES": 256},
    "detect.pni": {"WIDTH": 64, "BATCH": 4, "RATE": 1e-3},
    # The paper's rates are 0.005, and 0.001 for the projectors.
    "detect.rdpp": {
        "RATE": 0.005, "PROJECTOR_SHARE": 0.2, "BETAS": (0.5, 0.999), "BATCH": 8, "VIEWS": 2, "PROJECTION": 0.2,
        "RECONSTRUCTION": 0.01, "CONTRAST": 0.1, "MARGIN": 0.5, "BLUR": 0.05, "NOISE": 0.2, "RECTANGLE": (10, 32),
        "OF_SIDE": 256,
    },
    "discovery.fit": {"MOSTLY_NORMAL": 0.9, "BASE_REGIONS": 2},
    "discovery.learning": {"LEARNED_RATE": 0.02},
    "blocks.ranges": {"BLOCK": 64},
    "discovery.maps": {"MOST_HELD_OUT": 100},
    "run.folder": {
        "FORMAT": 7, "PATIENCE": 30, "DEEPEST": 100, "LARGEST_TEXT": 500_000_000, "JUNCTION": 0xA0000003,  # Windows' own
    },
    "run.store": {"SHARD": 16, "MAX_NAME": 200},
    "run.tables": {"LARGEST": 4_000_000_000, "MOST_COLUMNS": 10_100, "LONGEST_HEADER": 200_000, "DIGITS": 6},
    "run.work": {"SHOWN": 3, "MOST_STEPS": 2000, "MOST_BYTES": 1_073_741_824},
    "run.writer": {"GROUP": 10_000, "ABANDONED": 24 * 60 * 60},
}  # fmt: skip

# What a function or a class takes where nothing is said, or a class has for all.
DEFAULTS: dict[str, Mapping[str, Any]] = {
    "binarize.fixed:FixedThreshold": {"threshold": 0.5},
    "binarize.mebin:MEBin": {"n_thresholds": 64, "min_interval": 4, "erosion": 6, "has_normal": True},  # the paper
    "binarize.prepare:filled": {"high": -np.inf},
    "regions.extract:Extractor": {"whole": False},
    "regions.extract:Extractor.__call__": {"first_index": 0},
    "regions.find:Region": {"index": 0, "region": 0},
    "regions.find:cut": {"size": 256, "alone": True},
    "regions.network:make_encoder": {"scenes": False},
    "regions.records:ImageRecord": {"height": 0, "width": 0, "n_regions": 0, "score": 1.0},
    "model.backbone:MaskGuidedViT": {"keep_thin": True},
    "model.heads:PrototypeHeads": {"n_heads": 1},
    "model.heads:make_projector": {"hidden": 2048, "out": 256},
    "learn.classifier:Classifier": {"n_base": 0, "temperature": 0.1},
    "learn.distributed:ProcessGroup": {"rank": 0, "size": 1},
    "learn.distributed:ProcessGroup._broadcast": {"source": 0},
    "learn.features:RegionEncoder": {"image_size": 336, "batch_size": 16, "train_last_block": False, "scenes": False},
    "learn.features:FeatureSpace.fit": {"center": True},
    "learn.losses:Temperatures": {"contrastive": 1.0, "supervised_contrastive": 0.07, "student": 0.1, "teacher": 0.04},
    "learn.losses:teacher_temperature": {"start": 0.07, "end": 0.04, "epochs": 40, "step": 4},  # the paper's code
    "learn.losses:objective": {"contrastive_weight": 1.0, "correction_threshold": 0.5},
    "learn.network:RegionNet": {"class_weight": 1.0, "contrastive": True},
    "learn.trainer:train": {"n_base": 0},
    "learn.views:ViewRange": {
        "brightness": (0.6, 1.4), "contrast": (0.6, 1.4), "saturation": (0.6, 1.8), "sharpness": (0.2, 2.0),
        "blur_kernels": (9, 13, 17, 21, 25, 29, 33), "blur_sigma": (0.1, 2.0), "posterize_bits": (5, 8),
    },
    "assign.count:estimate_count": {"seed": 0},
    "assign.false_alarms:FalseAlarms": {"moved": False},
    "assign.images:novel_probabilities": {"temperature": 0.1},
    "assign.unknown:fit_unknown": {"center": True},
    "metrics.calibration:expected_calibration_error": {"n_bins": 10},
    "metrics.detection:PixelScores": {"n_bins": 65536},
    "metrics.detection:PixelScores.aupro": {"max_fpr": 0.3},  # as in MVTec AD
    "metrics.detection:box_rates": {"iou": 0.1},
    "detect.cpr:CPR": {"retrieved": 10, "window": 3, "steps": 1000, "views": 100, "max_patches": 250_000},
    "detect.efficientad:EfficientAD": {"steps": 1000},
    "detect.learned:LearnedDetector": {"max_images": 200},
    "detect.musc:MuSc": {
        "windows": (1,), "max_references": 400, "max_images": 1000, "max_patches": 1_000_000, "neighbours": (1, 2, 3),
    },
    "detect.musc:References": {"windows": (1,)},
    "detect.patchcore:PatchCore": {"radius": 1, "bank_size": 10_000, "pool_size": 100_000, "rotations": 1},
    "detect.patchcore:PatchBank": {"radius": 1},
    "model.coreset:greedy_coreset": {"seed": 0, "projected": 128},  # the paper's code
    "detect.pni:PNI": {"bank_size": 10_000, "kinds": 2048, "window": 9, "near": 4, "epochs": 5, "max_patches": 200_000},
    "detect.rdpp:RDPlusPlus": {"steps": 200},
    "detect.rdpp:sinkhorn_divergence": {"blur": 0.05, "iterations": 20},
    "detect.tokens:TokenDetector": {"size": 336, "map_size": 256, "sigma": 4.0, "batch_size": 8, "seed": 0},
    "discovery.maps:make_maps": {"protected": False},
    "discovery.model:DiscoveryModel": {"learns_normal": False, "highest": 0},
    "discovery.model:DiscoveryModel.read": {"names": True},
    "discovery.update:Update": {"unknown": 0},
    "run.finished:FinishedRun.predictor": {"bare": True},
    "run.folder:RunFolder": {"force": False},
    "run.folder:RunFolder.writing": {"patience": 0},
    "run.folder:RunFolder.stages_with": {"done": True},
    "run.folder:RunFolder._walk": {"deep": True},
    "run.store:RegionStore.fill": {"scenes": False},
    "run.store:RegionStore._read": {"with_pictures": False},
    "run.store:numbered_maps": {"first": 0},
}  # fmt: skip

ATTRIBUTES: dict[str, Mapping[str, Any]] = {
    "model.backbone:MaskGuidedViT": {"mask_threshold": 0.5},
    "model.convolutional:ConvTrunk": {"patch_size": (8, 8), "width": 384, "n_prefix": 0, "default_blocks": (1, 2, 3)},
    "model.distill:AutoEncoder": {"SIDE": 128},
    "detect.cpr:CPR": {"highest": 0.005, "reach": 1_000_000},
    "detect.efficientad:EfficientAD": {"with_pixels": True, "needs_normal": True},
    "detect.learned:LearnedDetector": {"needs_normal": True, "reach": 1_000_000},
    "detect.memory:MemoryDetector": {"needs_normal": True, "highest": 0.01},
    "detect.musc:MuSc": {"needs_normal": False, "from_tokens": True},
    "detect.patchcore:PatchCore": {"from_tokens": True},
    "detect.tokens:TokenDetector": {"reach": 0, "with_pixels": False, "from_tokens": False},
}


def found(name: str) -> Any:
    module, _, inner = name.partition(":")
    value: Any = import_module(f"anomalyncd.{module}")
    for part in inner.split(".") if inner else ():
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants(name: str) -> None:
    assert {key: vars(found(name))[key] for key in CONSTANTS[name]} == dict(CONSTANTS[name])


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults(name: str) -> None:
    parameters = inspect.signature(found(name)).parameters
    assert {key: parameters[key].default for key in DEFAULTS[name]} == dict(DEFAULTS[name])


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    assert {key: getattr(found(name), key) for key in ATTRIBUTES[name]} == dict(ATTRIBUTES[name])
