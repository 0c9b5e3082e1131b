"""The regions of a run, clustered by a method of your own: any of scikit-learn's, on the features that the run keeps.

python examples/own_clustering.py RUN
"""

from __future__ import annotations

import argparse

import pandas as pd
from sklearn.cluster import HDBSCAN

from anomalyncd import AnomalyNCD


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of `anomalyncd discover`")
    parser.add_argument("--smallest", type=int, default=3, help="regions of a group")
    given = parser.parse_args(argv)

    model = AnomalyNCD.load(given.run)
    features = model.region_features()  # rows as those of model.regions_, indexed by image and region
    groups = HDBSCAN(min_cluster_size=given.smallest, copy=True).fit_predict(features)
    print(pd.crosstab(model.regions_["class_name"], groups, colnames=["group (−1: none)"]))


if __name__ == "__main__":
    main()
