"""Every rival that learns, on made-up views of images whose classes are easy to tell apart: it must find them.

`benchmarks/rivals.py` does the same with pictures and the real trunk.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anomalyncd.bench.rivals import RIVALS
from anomalyncd.bench.rivals.base import Cache, Inputs
from anomalyncd.bench.rivals.views import TokenBank, ViewRival
from anomalyncd.data.dataset import Sample
from anomalyncd.metrics import evaluate
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

CLASSES, IMAGES, VIEWS, WIDTH, PATCHES = 3, 48, 3, 48, 4
TRUTH = np.arange(IMAGES) % CLASSES
# Fewer epochs than by default; larger rates for a last block that was never trained before.
SETTINGS = {
    "gatcluster": {"epochs": 25},
    "simgcd": {"epochs": 20, "learning_rate": 0.1, "batch_size": 16, "entropy_weight": 4.0},
    "amend": {"epochs": 20, "learning_rate": 0.1, "batch_size": 16, "entropy_weight": 4.0},
    "gcd": {"epochs": 5},
    "iic": {"epochs": 300, "learning_rate": 1e-3},
    "scan": {},
    "uno": {"epochs": 10},
    "frozen-kmeans": {},
}


def made_up(*shape):
    """The plain view and V others of each image: what all have in common, its class, the image itself, the view."""
    rng = np.random.default_rng(0)
    classes, common = rng.normal(size=(CLASSES, 1, *shape)), rng.normal(size=shape)
    own, view = rng.normal(size=(IMAGES, 1, *shape)), rng.normal(size=(IMAGES, 1 + VIEWS, *shape))
    return common + 2 * classes[TRUTH] + 0.4 * own + 0.2 * view


def test_every_rival_that_learns_has_an_easy_set():
    assert {name for name, kind in RIVALS.items() if issubclass(kind, ViewRival)} == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_solves_an_easy_set(name, tmp_path, monkeypatch):
    vectors = F.normalize(torch.from_numpy(made_up(WIDTH)).float(), dim=-1)
    tokens = made_up(1 + PATCHES, WIDTH).astype(np.float16)
    monkeypatch.setattr(ViewRival, "_class_tokens", lambda self, cache, samples: vectors)
    monkeypatch.setattr(ViewRival, "_bank", lambda self, cache, samples: TokenBank(tokens[:, 1:], tokens[:, 0]))
    model = RIVALS[name](CLASSES, bank_views=VIEWS, size=32, **SETTINGS[name])
    model._vit = MaskGuidedViT(tiny_vit().requires_grad_(False), guidance="none")
    model.seconds_ = {}
    samples = [Sample(str(index), np.zeros((1, 1, 3), np.uint8)) for index in range(IMAGES)]
    features, labels = model._discover(Inputs(samples, None, None, [], Cache(tmp_path)))
    assert evaluate(TRUTH, labels).f1 >= 0.9
    assert features.shape[0] == IMAGES and np.isfinite(features).all()
