"""What the frozen trunk gives without any learning: k-means of the class tokens of whole images. A control, in no paper."""

from __future__ import annotations

from typing import ClassVar

from ...learn.cluster import kmeans
from .base import Features, Inputs, Labels
from .views import ViewRival


class FrozenKMeans(ViewRival):
    """k-means of frozen class tokens; it takes the views that rivals which learn have kept."""

    name: ClassVar[str] = "frozen-kmeans"

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        features = self._class_tokens(inputs.cache, inputs.images)[:, 0].cpu().numpy()
        return features, kmeans(features, self.n_classes, self.random_state)
