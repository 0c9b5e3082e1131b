"""A run as a FiftyOne dataset: images with their classes, regions as boxes, and embeddings of regions to look at.

pip install fiftyone
anomalyncd export RUN --format fiftyone
python examples/fiftyone_dataset.py RUN
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fiftyone as fo

from anomalyncd import AnomalyNCD


def make_dataset(run: Path) -> fo.Dataset:
    """`class` of each image, `defects` as detections, and the features of each region as its attribute `features`."""
    here = {"dataset_dir": str(run / "export/fiftyone"), "data_path": "data.json"}
    boxes, classes = fo.types.FiftyOneImageDetectionDataset, fo.types.FiftyOneImageClassificationDataset
    data = fo.Dataset.from_dir(dataset_type=boxes, labels_path="labels.json", label_field="defects", **here)
    data.merge_dir(dataset_type=classes, labels_path="image_labels.json", label_field="class", **here)
    features = AnomalyNCD.load(run).region_features()
    for sample in data.iter_samples(autosave=True):
        for found in sample["defects"].detections:
            found["features"] = features.loc[(sample["class"]["image"], found["region"])].tolist()
    data.add_dynamic_sample_fields()  # so that FiftyOne knows of them
    return data


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--show", action="store_true", help="open the app")
    given = parser.parse_args(argv)

    data = make_dataset(given.run)
    print(data.count_values("class.label"))
    print(data.count_values("defects.detections.label"))
    if given.show:
        fo.launch_app(data).wait()


if __name__ == "__main__":
    main()
