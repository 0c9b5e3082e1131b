"""Other methods for the same tables, each built from this package's parts and named what it is."""

from __future__ import annotations

from .amend import AMEND
from .anomaly_clustering import AnomalyClustering, SemiSupervisedAnomalyClustering
from .base import Rival
from .frozen import FrozenKMeans
from .gatcluster import GATCluster
from .gcd import GCD
from .iic import IIC
from .scan import SCAN
from .simgcd import SimGCD
from .uniformaly import UniFormaly
from .uno import UNO

KINDS: tuple[type[Rival], ...] = (
    AnomalyClustering,
    SemiSupervisedAnomalyClustering,
    UniFormaly,
    IIC,
    GATCluster,
    SCAN,
    UNO,
    GCD,
    SimGCD,
    AMEND,
    FrozenKMeans,
)
RIVALS = {kind.name: kind for kind in KINDS}
