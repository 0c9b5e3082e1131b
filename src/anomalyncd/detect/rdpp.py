"""RD++ (Tien et al., CVPR 2023): a decoder that learned to give back the tokens of normal images from a narrow bottleneck.

Reverse distillation, with a projection before the bottleneck that learns to take pseudo-abnormal noise away. On the embedded
trunk the three levels are blocks of a vision transformer, so all have one grid; the bottleneck halves it. The paper's own
WideResNet50-2 is `backbone=wide_resnet50_2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..learn.simplex import octaves
from ..model.distill import ReverseDistillation
from .base import Picture
from .learned import LearnedDetector
from .training import seeded

RATE, PROJECTOR_SHARE = 5e-3, 0.2  # of Adam, and of its rate for the projectors
BETAS = (0.5, 0.999)
BATCH = 8
VIEWS = 2  # noisy copies of each picture
PROJECTION, RECONSTRUCTION, CONTRAST = 0.2, 0.01, 0.1  # weights of losses
MARGIN, BLUR = 0.5, 0.05
NOISE = 0.2  # height of the noise
RECTANGLE, OF_SIDE = (10, 32), 256  # sides of the noisy rectangle in pixels of a picture of 256


class RDPlusPlus(LearnedDetector):
    """One-class detector: 1 − cosine of each patch token and what the decoder makes of it, summed over the levels.

    Parameters
    ----------
    steps : of training with 8 images each
    settings : see `LearnedDetector` and `TokenDetector`
    """

    name = "rd++"

    def __init__(self, *, steps: int = 200, **settings: object) -> None:
        super().__init__(steps=steps, **settings)  # type: ignore[arg-type]

    def remember(self, tensors: dict[str, Tensor]) -> ReverseDistillation:
        n_levels, _, _, width = tensors["standard.mean"].shape
        network = ReverseDistillation(n_levels, width)
        network.load_state_dict(tensors)
        return network.eval()

    def trained(self, pictures: Sequence[Picture], unseen: Sequence[Picture]) -> ReverseDistillation:
        rng = np.random.default_rng(self.seed)
        clean = self.read(pictures, "Teacher")
        noisy = [self.read([noised(picture, rng) for picture in pictures], "Teacher, noisy") for _ in range(VIEWS)]
        n_levels, _, _, width = clean[0].shape
        with seeded(self.seed):
            network = ReverseDistillation(n_levels, width)
        network.standard.fit(clean)
        network.to(self.device)
        parameters = dict(network.named_parameters())
        groups = [
            {
                "params": [values for name, values in parameters.items() if name.startswith("projectors") is first],
                **share,
            }
            for first, share in ((True, {"share": PROJECTOR_SHARE}), (False, {}))
        ]

        def loss(places: list[int]) -> Tensor:
            disturbed = noisy[int(torch.randint(VIEWS, ()))]
            return objective(network, self.stacked(clean, places), self.stacked(disturbed, places))

        optimiser = torch.optim.Adam(groups, betas=BETAS)
        self.learn(network, optimiser, clean, loss, batch=BATCH, rate=lambda _: RATE)
        return network


def objective(network: ReverseDistillation, clean: Tensor, noisy: Tensor) -> Tensor:
    """Distillation and projection losses of tokens (B, L, h, w, C) of images and of their noisy copies."""
    wanted, disturbed = network.prepare(clean), network.prepare(noisy)
    projected = network.project(wanted)
    distillation = apart(wanted, network.decode(projected)).mean(dim=0).sum()
    return distillation + PROJECTION * projection_loss(disturbed, network.project(disturbed), projected)


def apart(one: Tensor, other: Tensor) -> Tensor:
    """1 − cosine of what each image and level is as one long vector: (B, L, C, h, w) twice → (B, L)."""
    return 1 - F.cosine_similarity(one.flatten(2), other.flatten(2), dim=2)


def projection_loss(noisy: Tensor, projected_noisy: Tensor, projected: Tensor) -> Tensor:
    """Normal images come out alike, noisy copies as their originals, and both unlike the noisy tokens that came in.

    Tokens (B, L, C, h, w) each. The paper's code takes the divergence of a batch and its shuffle, which are the same points,
    so that it is always 0; here it is that of the two halves of the batch.
    """
    half = len(projected) // 2
    points = projected.flatten(2).softmax(dim=2)  # (B, L, D)
    pairs = zip(points[:half].unbind(1), points[half:].unbind(1), strict=True)
    alike = torch.stack([sinkhorn_divergence(one, other) for one, other in pairs]).sum()
    restored = apart(projected_noisy, projected).mean(dim=0).sum()
    unlike = ((1 - apart(noisy, projected)) - MARGIN).clamp(min=0).mean(dim=0).sum()
    return (alike + RECONSTRUCTION * restored + CONTRAST * unlike) / (1 + RECONSTRUCTION + CONTRAST)


def sinkhorn_divergence(one: Tensor, other: Tensor, blur: float = BLUR, iterations: int = 20) -> Tensor:
    """How far two clouds of equal weights are apart: OT(x, y) − ½ OT(x, x) − ½ OT(y, y), with entropy ε = blur².

    The cost is half the squared distance. (N, D) and (M, D) → a number.

    Examples
    --------
    >>> round(sinkhorn_divergence(torch.zeros(3, 2), torch.ones(2, 2)).item(), 3)  # each point moves by √2
    1.0
    """
    return (
        _transport(one, other, blur**2, iterations)
        - (_transport(one, one, blur**2, iterations) + _transport(other, other, blur**2, iterations)) / 2
    )


def _transport(one: Tensor, other: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Dual value of entropic optimal transport; the potentials f and g are averaged with what each makes of the other."""
    cost = ((one[:, None] - other[None]) ** 2).sum(dim=2) / 2
    f, g = cost.new_zeros(len(one)), cost.new_zeros(len(other))

    def softmin(potential: Tensor, costs: Tensor) -> Tensor:
        return epsilon * (math.log(len(potential)) - ((potential - costs) / epsilon).logsumexp(dim=1))

    with torch.no_grad():
        for _ in range(iterations):
            f, g = (f + softmin(g, cost)) / 2, (g + softmin(f, cost.T)) / 2
    return softmin(g, cost).mean() + softmin(f, cost.T).mean()


def noised(picture: Picture, rng: np.random.Generator) -> Picture:
    """A copy of an (H, W, 3) picture with simplex noise in one rectangle."""
    height, width = picture.shape[:2]
    scale = max(height, width) / OF_SIDE
    sides = [min(side, max(1, round(int(rng.integers(*RECTANGLE)) * scale))) for side in (height, width)]
    top, left = (int(rng.integers(whole - side + 1)) for whole, side in zip((height, width), sides, strict=True))
    noise = octaves((3, *sides), rng).transpose(1, 2, 0)
    out = picture.astype(np.float32) / 255
    out[top : top + sides[0], left : left + sides[1]] += NOISE * noise
    return (out.clip(0, 1) * 255).round().astype(np.uint8)
