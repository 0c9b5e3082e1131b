"""Other methods for the same tables, each built from this package's parts and named what it is."""

from __future__ import annotations

from importlib import import_module

from ...errors import SettingsError
from .base import Rival

# name → module:Class, imported on use; a method to come (UNO, AMEND, SCAN, IIC, GATCluster) is one more line and one file
RIVALS: dict[str, str] = {
    "anomaly-clustering": "anomaly_clustering:AnomalyClustering",
    "anomaly-clustering-semi": "anomaly_clustering:SemiSupervisedAnomalyClustering",
    "uniformaly": "uniformaly:UniFormaly",
    "gcd": "gcd:GCD",
    "simgcd": "simgcd:SimGCD",
}


def rival(name: str) -> type[Rival]:
    """The class of a rival.

    Examples
    --------
    >>> rival("gcd").__name__
    'GCD'
    """
    if name not in RIVALS:
        raise SettingsError(f"a rival must be one of {', '.join(RIVALS)}, but got {name!r}.")
    module, _, kind = RIVALS[name].partition(":")
    found: type[Rival] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found
