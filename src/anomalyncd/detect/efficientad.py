"""EfficientAD (Batzner et al., WACV 2024): a small student fails to follow its teacher where an image is abnormal.

The teacher is a block of the trunk, whose tokens are 384 wide as the paper's own teacher is. The student sees the pixels of
a few patches, so it learns what normal details look like; the autoencoder squeezes the whole image through 64 numbers, so it
learns how normal parts go together, and where the two disagree, they do not. The schedule is a short one for a CPU, and the
student is shown no pictures of other things, by which the paper keeps it from learning too much.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from ..model.distill import StudentTeacher
from .base import Picture
from .learned import LearnedDetector
from .training import seeded

RATE, DECAY = 1e-3, 1e-5  # of Adam
DROP_AT, DROP = 0.95, 0.1  # from this share of the steps on, the rate is a tenth
BATCH = 4
HARD = 0.999  # quantile of the student's errors, above which they are learned from
JITTER = 0.2  # of brightness, contrast or saturation of what the autoencoder sees
LOW, HIGH = 0.9, 0.995  # quantiles of the errors of normal patches that become 0 and 0.1


class EfficientAD(LearnedDetector):
    """One-class detector: mean of the student–teacher and student–autoencoder errors of each patch.

    Parameters
    ----------
    steps : of training with 4 images each
    settings : see `LearnedDetector` and `TokenDetector`; of `blocks` there is one by default, at half of the depth, and
        several are learned side by side
    """

    name = "efficientad"
    with_pixels = True

    def __init__(self, *, steps: int = 1000, **settings: object) -> None:
        super().__init__(steps=steps, **settings)  # type: ignore[arg-type]

    @property
    def used_blocks(self) -> tuple[int, ...]:
        return self.blocks or (max(0, self.vit.n_blocks // 2 - 1),)

    def remember(self, tensors: dict[str, Tensor]) -> StudentTeacher:
        n_blocks, _, _, width = tensors["standard.mean"].shape
        network = StudentTeacher(n_blocks, width, self.vit.patch_size)
        network.load_state_dict(tensors)
        return network.eval()

    def trained(self, pictures: Sequence[Picture], unseen: Sequence[Picture]) -> StudentTeacher:
        rng = np.random.default_rng(self.seed)
        plain = self.read(pictures, "Teacher")
        varied = self.read([jittered(picture, rng) for picture in pictures], "Teacher, jittered")
        with seeded(self.seed):
            network = StudentTeacher(len(self.used_blocks), self.vit.width, self.vit.patch_size)
        network.standard.fit(tokens[..., : network.width] for tokens in plain)
        network.to(self.device)

        def loss(places: list[int]) -> Tensor:
            return objective(network, self.stacked(plain, places), self.stacked(varied, places))

        optimiser = torch.optim.Adam(network.parameters(), weight_decay=DECAY)
        self.learn(
            network, optimiser, plain, loss, batch=BATCH, rate=lambda done: RATE * (DROP if done >= DROP_AT else 1)
        )
        with torch.inference_mode():
            grids = self.read(unseen, "Normal errors")
            network.quantiles.copy_(scale([network.errors(self.stacked([grid], [0])) for grid in grids]))
        return network


def objective(network: StudentTeacher, plain: Tensor, varied: Tensor) -> Tensor:
    """Losses of student and autoencoder; tokens and pixels of images, and of the same ones jittered."""
    teacher, pictures = network.split(plain)
    first, _ = network.student(pictures).chunk(2, dim=1)
    teacher_varied, pictures_varied = network.split(varied)
    _, second = network.student(pictures_varied).chunk(2, dim=1)
    own: Tensor = network.autoencoder(pictures_varied, teacher.shape[-2:])
    by_autoencoder: Tensor = ((own - teacher_varied) ** 2).mean() + ((second - own) ** 2).mean()
    return hard_mean((first - teacher) ** 2) + by_autoencoder


def hard_mean(errors: Tensor, share: float = HARD) -> Tensor:
    """Mean of the errors that are at least their quantile `share`, which lies between two of them.

    Examples
    --------
    >>> hard_mean(torch.arange(101.0), 0.95).item()  # of 95 … 100
    97.5
    """
    values = errors.flatten()
    count = len(values) - int(np.ceil(share * (len(values) - 1) - 1e-9))
    return values.topk(count).values.mean()


def scale(errors: Sequence[Tensor]) -> Tensor:
    """Quantiles that become 0 and 0.1, of errors (B, 2, h, w) of normal images: (2, 2), a row for each kind of error."""
    values = torch.cat([some.transpose(0, 1).flatten(1) for some in errors], dim=1)
    low, high = (torch.from_numpy(np.quantile(values.cpu().numpy(), share, axis=1)) for share in (LOW, HIGH))
    return torch.stack([low, torch.maximum(high, low + 1e-6)], dim=1).float()


def jittered(picture: Picture, rng: np.random.Generator) -> Picture:
    """A copy whose brightness, contrast or saturation is up to a fifth more or less."""
    values = picture.astype(np.float32)
    grey = cv2.cvtColor(values, cv2.COLOR_RGB2GRAY)[..., None]
    ground = (np.float32(0), grey.mean(), grey)[int(rng.integers(3))]  # brightness, contrast, saturation
    out = ground + (values - ground) * rng.uniform(1 - JITTER, 1 + JITTER)
    return out.clip(0, 255).round().astype(np.uint8)
