"""From images to classes: make a small inspection line, find its kinds of defect, look at them, and class new images.

python examples/first_script.py --out first-script
"""

from __future__ import annotations

import argparse
from pathlib import Path

from anomalyncd import AnomalyNCD, plot
from anomalyncd.demo import make_line
from anomalyncd.run.evaluate import evaluate_run


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("first-script"))
    parser.add_argument("--images", type=int, default=8, help="of each kind")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--backbone", default="auto")
    given = parser.parse_args(argv)

    # Images in class folders, and an anomaly map for each. Folder names are used to measure only, never to learn.
    for name, seed in (("line", 0), ("new", 1)):
        make_line(
            given.out / name, seed=seed, n_per_class=given.images, n_normal=given.images, n_combined=0, size=given.size
        )

    model = AnomalyNCD(n_classes=7, backbone=given.backbone)
    model.fit(given.out / "line/images", maps=given.out / "line/maps", run=given.out / "run")
    print(model.images_["class_name"].value_counts())

    scores, _ = evaluate_run(model.run_)
    print(f"NMI {scores.nmi:.3f}, ARI {scores.ari:.3f}, F1 {scores.f1:.3f}")
    for name in ("classes", "scores", "class_map", "confusion"):
        getattr(plot, name)(model).savefig(given.out / f"{name}.png")

    found = model.predict(given.out / "new/images", maps=given.out / "new/maps")
    print(found.images[["image", "class_name", "probability", "unknown"]].head())
    print(f"Pictures are in {given.out}. Name the classes: anomalyncd review {given.out / 'run'}")


if __name__ == "__main__":
    main()
