"""What is unknown: kinds of defect that a run has not seen, and images that do not show its product at all.

    python benchmarks/unknown.py DATA/hazelnut DATA/leather … --work DIR [--splits 3] [--precision bfloat16] [--skip kinds]

Each DATA folder has MVTec AD's layout. Folder names are only used for scoring, and to choose what is held out.

Kinds, with ground-truth masks: each kind of defect in turn is held out, and a run is made of a random half of all other
images (as many classes as there are other kinds). The rest is predicted: AUROC of the unknown score, held-out regions
against those of known kinds; and the share of these that is called unknown, beside the rate that was promised. Then it is
taken in by `update`: purity and recall of the new class that holds most of the kind.

Products, with PatchCore: a run is made of a random half of the images of each product. The share called "not this product"
of the other half; of the same with light and contrast changed by up to a tenth; of images of every other product; and of
frames that are black, white, out of focus, or wrongly exposed.

Features of an image, and rows that are finished, lie in DIR and are not computed again: another version of the program wants
another DIR.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from common import EXCLUDED, evenly, machine, positive, print_table
from sklearn.metrics import roc_auc_score

from anomalyncd.checksums import sha256, stable_hash
from anomalyncd.data import NORMAL_NAMES, load_dataset
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.data.gather import gather_normal
from anomalyncd.data.images import read_image
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.labels import NOT_THIS_PRODUCT
from anomalyncd.learn.features import SCENES, CropBatch, RegionEncoder
from anomalyncd.progress import Terminal

Picture = np.ndarray
Row = dict[str, Any]
SPOILT = 20  # images of which spoilt frames are made
JITTER = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for runs, features and rows that are finished")
    parser.add_argument("--seed", type=int, default=0, help="of the first split, and of the runs")
    parser.add_argument("--splits", type=positive, default=3, help="random halves for each kind that is held out")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--limit", type=positive, default=40, help="images of each other product")
    parser.add_argument("--normal", type=positive, default=100, help="images that PatchCore is fitted to, at most")
    parser.add_argument("--skip", choices=("kinds", "products"), help="a part to leave out")
    options = parser.parse_args()
    settings = {"precision": options.precision, "backbone": options.backbone, "random_state": options.seed}
    print(machine())
    print(f"{', '.join(path.name for path in options.data)}; {settings}, {options.splits} splits", flush=True)
    remember_features(options.work / "features", settings)
    finished = Finished(options.work / "rows.json")
    if options.skip != "kinds":
        kinds(options.data, options.splits, settings, options.work / "kinds", finished)
    if options.skip != "products":
        products(options.data, options.limit, options.normal, settings, options.work / "products", finished)


class Finished:
    """Rows by name, in a file that every new one is added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def row(self, name: str, make: Callable[[], Row]) -> Row:
        if name not in self.rows:
            self.rows[name] = make()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=1))
        return self.rows[name]


def kinds(data: Sequence[Path], splits: int, settings: Row, work: Path, finished: Finished) -> None:
    """Each kind of each set in turn as one that was not there."""
    everything: list[Row] = []
    table = []
    for folder in data:
        samples = load_dataset(folder / "test", masks=folder / "ground_truth", exclude=EXCLUDED).samples
        labels = sorted({str(sample.label) for sample in samples})
        for kind in (label for label in labels if label.lower() not in NORMAL_NAMES):
            names = {split: f"{folder.name}/{kind}/{split}" for split in range(splits)}
            rows = [
                finished.row(
                    name, lambda s=split, n=name, k=kind, all_=samples: held_out(all_, k, s, settings, work / n)
                )
                for split, name in names.items()
            ]
            everything += rows
            table.append([f"{folder.name} {kind}", *cells(rows)])
            print("  ".join(table[-1]), flush=True)
    print("\nKinds that were held out")
    columns = ("AUROC", "called unknown", "known called unknown", "not this product", "new classes", "purity", "recall")
    table.append(["mean", *cells(everything)])
    print_table(["held out", *columns], table)
    by_kind = np.array([[row["auroc"] for row in everything]]).reshape(-1, splits).mean(axis=1)
    known, called = (sum(row[name] for row in everything) for name in ("n_known", "n_called"))
    print(
        f"AUROC {by_kind.mean():.3f}, lowest of a kind {by_kind.min():.3f}; of {known} regions of known kinds "
        f"{called / known:.3f} were called unknown, promised {everything[0]['promised']:g}\n",
        flush=True,
    )


def cells(rows: Sequence[Row]) -> list[str]:
    names = ("auroc", "found", "false", "foreign", "opened", "purity", "recall")
    return [f"{np.mean([row[name] for row in rows]):.3f}" for name in names]


def held_out(samples: Sequence[Sample], kind: str, split: int, settings: Row, run: Path) -> Row:
    """A run without a kind, on half of the other images; then the rest."""
    rng = np.random.default_rng(settings["random_state"] + split)
    others = [sample for sample in samples if sample.label != kind]
    others = [others[place] for place in rng.permutation(len(others))]
    fitted, later = others[::2], others[1::2] + [sample for sample in samples if sample.label == kind]
    model = AnomalyNCD(len({sample.label for sample in others}), progress=Terminal(bars=False), **settings)
    model.fit(as_inputs(fitted), run=run)
    truth = {sample.id: sample.label for sample in samples}
    prediction = model.predict(as_inputs(later))
    regions = prediction.regions
    is_new = np.array([truth[name] == kind for name in regions["image"]])
    called = (regions["unknown"] > 0.5).to_numpy()
    change = model.update(as_inputs(later))
    after = model.regions_
    of_kind = (after["image"].map(truth) == kind).to_numpy()
    opened = {label: (after["label"] == label).to_numpy() for label in change.opened}
    largest = max(opened.values(), key=lambda members: (members & of_kind).sum(), default=np.zeros(len(after), bool))
    return {
        "auroc": float(roc_auc_score(is_new, regions["unknown"])),
        "found": float(called[is_new].mean()),
        "false": float(called[~is_new].mean()),
        "n_known": int((~is_new).sum()),
        "n_called": int(called[~is_new].sum()),
        "promised": model.model_.config.unknown.false_rate,
        "foreign": float((prediction.images["class_name"] == NOT_THIS_PRODUCT).mean()),
        "opened": len(opened),
        "purity": float((largest & of_kind).sum() / max(largest.sum(), 1)),
        "recall": float((largest & of_kind).sum() / of_kind.sum()),
    }


def as_inputs(samples: Sequence[Sample]) -> Dataset:
    return Dataset([Sample(sample.id, sample.image, mask=sample.mask) for sample in samples], masked=True)


def products(data: Sequence[Path], limit: int, n_normal: int, settings: Row, work: Path, finished: Finished) -> None:
    """Each product against itself, spoilt, and against each other."""
    tests = {folder.name: load_dataset(folder / "test", exclude=EXCLUDED).samples for folder in data}
    runs: dict[str, AnomalyNCD] = {}

    def run_of(folder: Path) -> AnomalyNCD:
        """Fitted to every other image, in a random order."""
        if folder.name not in runs:
            normal = replace(gather_normal(folder / "train" / "good"))
            normal = replace(normal, samples=evenly(normal.samples, n_normal))
            model = AnomalyNCD(
                len({sample.label for sample in tests[folder.name]}), progress=Terminal(bars=False), **settings
            )
            bare = Dataset([Sample(sample.id, sample.image) for sample in shuffled(folder.name)[::2]])
            runs[folder.name] = model.fit(bare, detector="patchcore", normal=normal, run=work / folder.name)
        return runs[folder.name]

    def shuffled(name: str) -> list[Sample]:
        rng = np.random.default_rng(settings["random_state"])
        return [tests[name][place] for place in rng.permutation(len(tests[name]))]

    def share(folder: Path, images: Sequence[Any]) -> Row:
        found = run_of(folder).predict(list(images)).images
        return {"share": float((found["class_name"] == NOT_THIS_PRODUCT).mean()), "n": len(found)}

    columns, table = ["itself", "jittered", *spoilt(np.zeros((8, 8, 3), np.uint8))], []
    rows: dict[tuple[str, str], Row] = {}
    for folder in data:
        new = [sample.image for sample in shuffled(folder.name)[1::2]]
        some = evenly(new, SPOILT)

        def made(how: str, some: Sequence[Any] = some) -> list[Picture]:
            return [spoilt(read_image(image))[how] for image in some]

        given: dict[str, Callable[[], Sequence[Any]]] = {
            "itself": lambda new=new: new,
            "jittered": lambda new=new: list(jittered(new, settings["random_state"])),
            **{how: lambda how=how, made=made: made(how) for how in columns[2:]},
            **{
                name: lambda name=name: [sample.image for sample in evenly(tests[name], limit)]
                for name in tests
                if name != folder.name
            },
        }
        for what, images in given.items():
            name = f"product {folder.name}/{what}"
            rows[folder.name, what] = finished.row(name, lambda f=folder, i=images: share(f, i()))
        others = [rows[folder.name, name]["share"] for name in tests if name != folder.name]
        shown = [*(rows[folder.name, what]["share"] for what in columns), min(others, default=np.nan)]
        table.append([folder.name, *(f"{value:.3f}" for value in shown)])
        print("  ".join(table[-1]), flush=True)
    print('\nShare of images called "not this product", by product of the run')
    print_table(["product", *columns, "lowest other product"], table)
    for what, chosen in (
        ("new images of the product", ["itself"]), ("the same, jittered", ["jittered"]), ("spoilt frames", columns[2:]),
        ("images of other products", list(tests)),
    ):  # fmt: skip
        pool = [row for (_, given_), row in rows.items() if given_ in chosen]
        total = sum(row["n"] for row in pool)
        print(f"{what}: {sum(row['share'] * row['n'] for row in pool) / max(total, 1):.4f} of {total}")


def jittered(images: Sequence[Any], seed: int) -> Iterator[Picture]:
    """Images with light and contrast changed by up to a tenth."""
    rng = np.random.default_rng(seed)
    for image in images:
        picture = read_image(image).astype(np.float32)
        light, contrast = rng.uniform(1 - JITTER, 1 + JITTER, 2)
        yield as_picture(((picture - picture.mean()) * contrast + picture.mean()) * light)


def spoilt(picture: Picture) -> dict[str, Picture]:
    """A frame as no camera should take it."""
    values, side = picture.astype(np.float32), max(picture.shape[:2])
    return {
        "black": np.zeros_like(picture),
        "white": np.full_like(picture, 255),
        "blurred": as_picture(cv2.GaussianBlur(values, (0, 0), 0.02 * side)),
        "light/8": as_picture(values / 8),
        "light/4": as_picture(values / 4),
        "light*4": as_picture(values * 4),
        "light*8": as_picture(values * 8),
    }


def as_picture(values: np.ndarray) -> Picture:
    return np.clip(values, 0, 255).round().astype(np.uint8)


def remember_features(folder: Path, settings: Row) -> None:
    """Let encoders look up what they have seen before: the network sees an image, with the same regions, only once."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = RegionEncoder.encode

    def encode(self: RegionEncoder, batch: CropBatch) -> dict[str, np.ndarray]:
        rows = [np.flatnonzero(batch.image_of == image) for image in range(len(batch.contexts))]
        own = [
            settings["precision"],
            settings["backbone"],
            self.config.model_dump(),
            self.blocks,
            self.input_size,
            self.scenes,
        ]
        files = [folder / f"{stable_hash(own, digest(part_of(batch, [i], rows)))}.npz" for i in range(len(rows))]
        missing = [image for image, file in enumerate(files) if not file.exists()]
        if missing:
            found = plain(self, part_of(batch, missing, rows))
            ends = np.cumsum([len(rows[image]) for image in missing])
            for place, (image, end) in enumerate(zip(missing, ends, strict=True)):
                parts = {name: values[end - len(rows[image]) : end] for name, values in found.items() if name != SCENES}
                np.savez(
                    files[image], **parts, **{name: found[name][place : place + 1] for name in found if name == SCENES}
                )
        stored = [dict(np.load(file)) for file in files]
        out: dict[str, np.ndarray] = {}
        for name in dict.fromkeys(name for one in stored for name in one):
            if name == SCENES:
                out[name] = np.concatenate([one[name] for one in stored])
            elif len(batch):
                some = next(one[name] for one in stored if name in one)
                out[name] = np.empty((len(batch), *some.shape[1:]), some.dtype)
                for own_rows, one in zip(rows, stored, strict=True):
                    if len(own_rows):
                        out[name][own_rows] = one[name]
        return out

    RegionEncoder.encode = encode  # type: ignore[method-assign]


def part_of(batch: CropBatch, images: Sequence[int], rows: Sequence[np.ndarray]) -> CropBatch:
    """Some images of a batch, with their regions."""
    chosen = np.concatenate([rows[image] for image in images])
    by_region = {name: getattr(batch, name) for name in ("crops", "masks", "context_masks", "crop_maps")}
    by_image = {name: getattr(batch, name) for name in ("contexts", "context_maps")}
    pictures = {name: None if values is None else values[chosen] for name, values in by_region.items()}
    pictures |= {name: None if values is None else values[list(images)] for name, values in by_image.items()}
    return CropBatch(image_of=np.repeat(np.arange(len(images)), [len(rows[image]) for image in images]), **pictures)


def digest(batch: CropBatch) -> list[str]:
    values = [getattr(batch, field.name) for field in fields(batch)]
    return [sha256(np.ascontiguousarray(value).tobytes()) for value in values if value is not None]


if __name__ == "__main__":
    main()
