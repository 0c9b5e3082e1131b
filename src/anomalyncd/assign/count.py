"""How many kinds there are: an estimate from the features alone, with its range and what it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.sparse.csgraph import laplacian
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

from ..large import Rows

Points = npt.NDArray[np.float64]
Verdict = Literal["agreed", "cannot tell", "one kind", "too few"]
MOST_REGIONS = 1000  # that are looked at
LEAST_REGIONS = 6  # of which kinds can be told at all
NEIGHBOURS, SHARE = 10, 0.1  # of a region: so many, or that share of all, whichever is more
LEAST_MEMBERS = 5  # of a community that is a kind; smaller ones are rare kinds, see outliers.py
STARTS = 3  # of each search for communities
WIDE = 2  # where one way of counting finds so many times as many as another, nobody can tell
CLOUDS = 20  # without kinds, for comparison
MOST_IN_CLOUD = 400
CLEARLY = 2.5  # standard deviations above the clouds


@dataclass(frozen=True)
class CountEstimate:
    """An estimate of the number of kinds, and what it rests on.

    count, finer : the two answers in the middle, of which the coarser is the estimate; finer is None where they are the same
    low, high : the smallest and the largest answer
    verdict : `agreed`, `cannot tell` (answers differ widely), `one kind` (no more groups than a cloud without any has), or
        `too few` regions
    answers : way of counting → number of kinds; empty where there are too few regions
    above_clouds : how far the groups lie apart, in standard deviations above what clouds without groups show
    n_regions : that were looked at; neighbours : of each; a kind with fewer regions than these is easily missed
    """

    count: int
    low: int
    high: int
    finer: int | None
    verdict: Verdict
    answers: dict[str, int]
    above_clouds: float | None
    n_regions: int
    neighbours: int

    def to_json_dict(self) -> dict[str, Any]:
        """Plain numbers, for a file."""
        return asdict(self)


def estimate_count(features: Rows, most: int, *, seed: int = 0) -> CountEstimate:
    """Estimate the number of kinds among unit vectors.

    Four ways of counting, none of which has anything to tune: the number of Ward's clusters that lie apart best
    (silhouette); the largest gap among the eigenvalues of the net of nearest neighbours; and the communities in that net
    (Louvain), once with links as strong as the cosine, once as strong as the share of neighbours that two regions have in
    common. Of the two answers in the middle the coarser is taken. Groups that lie no further apart than those which the
    same search finds in clouds of the same spread without any groups are none: then there is one kind.

    Parameters
    ----------
    features : (R, D) unit vectors
    most : largest number to consider

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.eye(8, dtype=np.float32)[np.arange(60) % 3] + rng.normal(0, 0.1, (60, 8)).astype(np.float32)
    >>> found = estimate_count(x / np.linalg.norm(x, axis=1, keepdims=True), most=6)
    >>> found.count, found.verdict
    (3, 'agreed')
    """
    rng = np.random.default_rng(seed)
    some = np.asarray(_sample(features, MOST_REGIONS, rng), np.float64)
    neighbours = max(min(max(NEIGHBOURS, int(SHARE * len(some))), len(some) - 1), 0)
    most = min(most, len(some) // 2)
    if len(some) < LEAST_REGIONS or most < 2:
        return CountEstimate(1, 1, 1, None, "too few", {}, None, len(some), neighbours)
    with threadpool_limits(1):  # more threads add up in the order in which they end
        cosine, shared = neighbour_nets(some, neighbours)
        answers = {
            "silhouette": by_silhouette(some, most),
            "eigengap": by_eigengap(cosine, most),
            "communities": by_communities(cosine, most, rng),
            "shared neighbours": by_communities(shared, most, rng),
        }
        low, count, finer, high = sorted(answers.values())
        above = above_clouds(_sample(some, MOST_IN_CLOUD, rng), max(count, 2), rng)
    verdict: Verdict = "cannot tell" if high >= WIDE * low else "agreed"
    if count == 1 or above < CLEARLY:
        low, high, verdict = 1, 1, "one kind"
        count, finer = 1, finer if count == 1 else count
    return CountEstimate(
        count, low, high, finer if finer > count else None, verdict, answers, above, len(some), neighbours
    )


def neighbour_nets(points: Points, k: int) -> tuple[Points, Points]:
    """Two nets (R, R) of the regions, each of which has k nearest neighbours and itself.

    In the first a region is linked with its neighbours, by the cosine; in the second with all that share some of them, by
    their share of all the neighbours of the two.
    """
    cosines = points @ points.T
    np.fill_diagonal(cosines, np.inf)
    near = np.zeros(cosines.shape)
    np.put_along_axis(near, np.argpartition(-cosines, k, axis=1)[:, : k + 1], 1.0, axis=1)
    common = near @ near.T
    nets = np.maximum(near, near.T) * np.clip(cosines, 0, 1), common / (2 * (k + 1) - common)
    for net in nets:
        np.fill_diagonal(net, 0)
    return nets


def by_silhouette(points: Points, most: int) -> int:
    """The number of Ward's clusters whose members are nearest to their own cluster, compared with the next one."""
    distances = pdist(points)
    tree, square = linkage(distances, "ward"), squareform(distances)
    return 2 + int(np.argmax([_silhouette(tree, square, k) for k in range(2, most + 1)]))


def by_eigengap(net: Points, most: int) -> int:
    """The number of eigenvalues of the net's Laplacian below the largest step: of parts that hardly hang together."""
    last = min(most, len(net) - 1)
    values = eigh(laplacian(net, normed=True), eigvals_only=True, subset_by_index=[0, last])
    return 2 + int(np.diff(values)[1:].argmax())


def by_communities(net: Points, most: int, rng: np.random.Generator) -> int:
    """Groups with more links inside than chance would have: the best of a few searches by Louvain's method."""
    found = max((louvain(net, rng) for _ in range(STARTS)), key=lambda labels: modularity(net, labels))
    return min(max(int((np.bincount(found) >= LEAST_MEMBERS).sum()), 1), most)


def louvain(net: Points, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Communities (R,) of a net (R, R): regions move to the community with which modularity gains most, until none does;
    then communities are the regions of a smaller net, and so on (Blondel et al. 2008).

    Examples
    --------
    >>> louvain(np.kron(np.eye(2), np.ones((3, 3))) - np.eye(6), np.random.default_rng(0)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    labels = np.arange(len(net))
    while True:
        degrees, total, community = net.sum(axis=1), max(net.sum(), 1e-12), np.arange(len(net))
        inside, moved = degrees.copy(), True  # of each community, the sum of its members' degrees
        while moved:
            moved = False
            for node in rng.permutation(len(net)):
                own = community[node]
                inside[own] -= degrees[node]
                links = np.bincount(community, weights=net[node], minlength=len(net))
                links[own] -= net[node, node]
                gain = links - inside * degrees[node] / total
                best = int(gain.argmax())
                if gain[best] > gain[own] + 1e-9:
                    community[node], moved = best, True
                inside[community[node]] += degrees[node]
        _, community = np.unique(community, return_inverse=True)
        if len(community) == community.max() + 1:
            return labels
        labels, members = community[labels], np.eye(community.max() + 1)[community]
        net = members.T @ net @ members


def modularity(net: Points, labels: npt.NDArray[np.int64]) -> float:
    """Share of the links that lie within communities (R,), less what chance would put there."""
    members, total = np.eye(labels.max() + 1)[labels], max(net.sum(), 1e-12)
    degrees = members.T @ net.sum(axis=1)
    return float((members * (net @ members)).sum() / total - (degrees**2).sum() / total**2)


def above_clouds(points: Points, count: int, rng: np.random.Generator) -> float:
    """How far Ward's clusters lie apart, in standard deviations above those of clouds without groups.

    A cloud has the very covariance of the points: its coordinates along the main axes are those of a Gaussian, made
    orthogonal. A long cloud falls into halves of a fair silhouette, so it takes more than that to be two kinds.
    """
    centred = points - points.mean(axis=0)
    axes, spread, _ = np.linalg.svd(centred, full_matrices=False)
    kept = spread[: len(points) - 1] > 1e-6 * max(spread[0], 1e-12)
    spread = spread[: len(points) - 1][kept]
    if not len(spread):
        return 0.0

    def apart(cloud: Points) -> float:
        distances = pdist(cloud)
        return _silhouette(linkage(distances, "ward"), squareform(distances), count)

    clouds = []
    for _ in range(CLOUDS):
        noise = rng.standard_normal((len(points), len(spread)))
        clouds.append(apart(np.linalg.qr(noise - noise.mean(axis=0))[0] * spread))
    own = apart(axes[:, : len(kept)][:, kept] * spread)
    return (own - float(np.mean(clouds))) / max(float(np.std(clouds)), 1e-6)


def _silhouette(tree: Points, distances: Points, count: int) -> float:
    labels = fcluster(tree, count, "maxclust")
    return float(silhouette_score(distances, labels, metric="precomputed")) if labels.max() > 1 else -1.0


def _sample(points: Rows, most: int, rng: np.random.Generator) -> Points:
    rows: Points = points if len(points) <= most else points[np.sort(rng.choice(len(points), most, replace=False))]  # type: ignore[assignment]
    return rows
