"""How many kinds there are: an estimate from the features alone, with its evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import networkx
import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.linalg import eigh
from scipy.sparse.csgraph import laplacian
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

Floats = npt.NDArray[np.float32]
Points = npt.NDArray[np.float64]
SCALES = (5, 10, 20)  # a region's neighbours are the nearest N/5, N/10 and N/20 of all N
LEAST_NEIGHBOURS = 5
LEAST_REGIONS = 8  # fewer tell nothing
MOST_REGIONS = 1000  # that are looked at
STARTS = 3  # of Louvain's search, of which the best counts
BLOBS = 20  # clouds without kinds, for comparison
BLOB_REGIONS = 300  # that are compared with them
BLOB_KINDS = range(2, 9)  # numbers of clusters that they are compared at
STANDS_OUT = 4.0  # deviations among blobs from which on there are kinds at all


@dataclass(frozen=True)
class CountEstimate:
    """An estimate of the number of kinds, and what it rests on.

    count : the estimate; low, high : range of numbers that a somewhat coarser or finer look gives
    neighbours : of each scale at which the regions were looked at
    communities : answer of Louvain's communities at each scale; gaps : answer of the largest gap between eigenvalues
    structure : how far the best silhouette stands out from those of single clouds, in deviations; below 4 there is one kind
    """

    count: int
    low: int
    high: int
    neighbours: list[int]
    communities: list[int]
    gaps: list[int]
    structure: float

    def to_json_dict(self) -> dict[str, Any]:
        """Plain numbers, for a file."""
        return asdict(self)


def estimate_count(
    features: Floats, most: int, *, seed: int = 0, on_step: Callable[[], None] = lambda: None
) -> CountEstimate:
    """Estimate the number of kinds among unit vectors.

    First, are there any? A cloud without kinds can be cut into clusters too, so the silhouettes of Ward's clusters must
    stand out from those of Gaussian blobs of the very same covariance. If so, two criteria that know nothing of each other
    answer at three scales each: Louvain's communities in the graph of nearest neighbours, and the largest gap between the
    eigenvalues of that graph's Laplacian. True kinds show at every scale, what is cut out of a continuum at one only. Of the
    six answers the middle one is taken, of two middle ones the coarser; the range leaves the smallest and the largest out.

    Parameters
    ----------
    features : (R, D) unit vectors
    most : largest number to consider
    on_step : called after each of `N_STEPS` steps

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.eye(8, dtype=np.float32)[np.arange(60) % 3] + rng.normal(0, 0.1, (60, 8)).astype(np.float32)
    >>> estimate_count(x / np.linalg.norm(x, axis=1, keepdims=True), most=6).count
    3
    """
    rng = np.random.default_rng(seed)
    if len(features) > MOST_REGIONS:
        features = features[np.sort(rng.choice(len(features), MOST_REGIONS, replace=False))]
    n = len(features)
    most = min(most, n // 4)
    if n < LEAST_REGIONS or most < 2:
        return CountEstimate(1, 1, max(min(n, most), 1), [], [], [], 0.0)
    with threadpool_limits(1):  # more threads add up in the order in which they end
        structure = _structure(features.astype(np.float64), rng)
        on_step()
        if structure < STANDS_OUT:
            return CountEstimate(1, 1, 1, [], [], [], structure)
        neighbours = [max(LEAST_NEIGHBOURS, n // scale) for scale in SCALES]
        communities, gaps = [], []
        for k in neighbours:
            graph = neighbour_graph(features, k)
            communities.append(min(count_communities(graph), most))
            gaps.append(largest_gap(graph, most))
            on_step()
    answers = sorted(communities + gaps)
    middle = answers[(len(answers) - 1) // 2]
    return CountEstimate(middle, answers[1], answers[-2], neighbours, communities, gaps, structure)


N_STEPS = 1 + len(SCALES)  # of `estimate_count`, for a progress bar


def neighbour_graph(features: Floats, k: int) -> Points:
    """Weights (N, N) of a graph: the cosine where one of two regions is among the k nearest of the other, else 0.

    A neighbour that is not alike at all (cosine below 0) still is one, so that no region stands alone.
    """
    cosines = features.astype(np.float64) @ features.T.astype(np.float64)
    np.fill_diagonal(cosines, -np.inf)
    k = min(k, len(features) - 1)
    nearest = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
    weights = np.zeros_like(cosines)
    np.put_along_axis(weights, nearest, np.maximum(np.take_along_axis(cosines, nearest, axis=1), 1e-3), axis=1)
    return np.maximum(weights, weights.T)


def count_communities(graph: Points) -> int:
    """Number of communities that Louvain's method finds in a weighted graph (N, N), the best of a few starts."""
    edges = networkx.from_numpy_array(graph)
    found = [networkx.community.louvain_communities(edges, seed=start) for start in range(STARTS)]
    return len(max(found, key=lambda communities: networkx.community.modularity(edges, communities)))


def largest_gap(graph: Points, most: int) -> int:
    """The number K, from 2 to `most`, after which the eigenvalues of the graph's normalised Laplacian rise most.

    A graph of K parts without an edge between them has K eigenvalues of 0.
    """
    last = min(most, len(graph) - 1)
    values = eigh(laplacian(graph, normed=True), eigvals_only=True, subset_by_index=(0, last))
    return 2 + int(np.diff(values)[1:].argmax())


def _structure(points: Points, rng: np.random.Generator) -> float:
    """How far the silhouettes of clusters exceed those of blobs with the same covariance, in deviations of the latter."""
    if len(points) > BLOB_REGIONS:
        points = points[rng.choice(len(points), BLOB_REGIONS, replace=False)]
    _, lengths, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    lengths = lengths[: len(points) - 1]
    lengths = lengths[lengths > 1e-4 * max(lengths.max(), 1e-2)]
    if not len(lengths):  # all regions are the same
        return 0.0
    blobs = []
    for _ in range(BLOBS):
        directions = rng.standard_normal((len(points), len(lengths)))
        directions, _ = np.linalg.qr(directions - directions.mean(axis=0))
        blobs.append(_silhouettes(directions * lengths))
    usual = np.mean(blobs, axis=0)
    by_chance = (np.array(blobs) - usual).max(axis=1)
    excess = (_silhouettes(points) - usual).max()
    return float((excess - by_chance.mean()) / max(by_chance.std(), 1e-3))


def _silhouettes(points: Points) -> Points:
    """Of Ward's clusters, one for each of `BLOB_KINDS`; −1 where there are too few points."""
    distances, tree = pdist(points), linkage(points, "ward")
    square = squareform(distances)
    out = np.full(len(BLOB_KINDS), -1.0)
    for place, k in enumerate(BLOB_KINDS):
        labels = fcluster(tree, k, "maxclust")
        if 1 < len(np.unique(labels)) < len(points):
            out[place] = silhouette_score(square, labels, metric="precomputed")
    return out
