"""anomalib detects, anomalyncd sorts: train any of its models, and hand over what `Engine.predict` returns.

pip install 'anomalyncd[anomalib]'
python examples/anomalib_predictions.py IMAGES --normal GOOD --out RUN
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from anomalib.data import Folder, PredictDataset
from anomalib.engine import Engine
from anomalib.models import Padim

from anomalyncd import AnomalyNCD, from_anomalib


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--normal", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classes", type=int, help="estimated by default")
    parser.add_argument("--size", type=int, default=256, help="of the images that the model sees")
    parser.add_argument("--network", default="resnet18", help="of Padim")
    parser.add_argument("--untrained", action="store_true", help="a network without weights, where none can be fetched")
    parser.add_argument("--backbone", default="auto", help="of anomalyncd")
    given = parser.parse_args(argv)

    size = (given.size, given.size)
    model = Padim(
        backbone=given.network, layers=["layer1", "layer2"], pre_trained=not given.untrained, n_features=30,
        pre_processor=Padim.configure_pre_processor(image_size=size), post_processor=False,  # scores as they are
    )  # fmt: skip
    with TemporaryDirectory() as work:
        engine = Engine(default_root_dir=work, accelerator="cpu", devices=1, barebones=True, limit_val_batches=0)
        normal = Folder(
            "normal",
            normal_dir=given.normal,
            num_workers=0,
            train_batch_size=8,
            val_split_mode="none",
            test_split_mode="none",
        )
        engine.fit(model, datamodule=normal)
        predictions = engine.predict(model, dataset=PredictDataset(given.images, image_size=size))

    found = from_anomalib(predictions)
    classes = given.classes or "auto"
    sorted_ = AnomalyNCD(classes, backbone=given.backbone).fit(found.images, maps=found.maps, run=given.out)
    print(sorted_.images_["class_name"].value_counts())
    print(f"Next: anomalyncd review {given.out}")


if __name__ == "__main__":
    main()
