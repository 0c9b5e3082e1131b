"""Other methods for the same tables, each built from this package's parts and named what it is."""

from __future__ import annotations

from .anomaly_clustering import AnomalyClustering, SemiSupervisedAnomalyClustering
from .base import Rival
from .gcd import GCD
from .simgcd import SimGCD
from .uniformaly import UniFormaly

KINDS: tuple[type[Rival], ...] = (AnomalyClustering, SemiSupervisedAnomalyClustering, UniFormaly, GCD, SimGCD)
RIVALS = {kind.name: kind for kind in KINDS}
