"""`anomalyncd detect`: maps and scores of images, measured where the truth is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from anomalyncd.binarize import MEBin
from anomalyncd.demo import make_line
from anomalyncd.metrics import box_rates
from command import call, fail
from metrics.test_detection import slow_aupro

FAST = ["--backbone", "tiny", "--quiet"]
SMALL = ["--set", "detect.settings.size=64", "--set", "detect.settings.map_size=64"]
CHEAP = """
import json
import cv2, numpy as np
from anomalyncd.detect import Detection, Detector

class Darkness(Detector):
    name, needs_normal, calls = "darkness", False, 0
    def __init__(self, power=1.0): self.power = power
    def fit(self, normal_images): return self
    def maps(self, images):
        for image in images:
            type(self).calls += 1
            small = cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA).astype(np.float32)
            yield (np.abs(small - np.median(small, axis=(0, 1))).mean(axis=2) / 255) ** self.power
    def detect(self, images):
        for found in self.maps(images):
            yield Detection(found, float(found.mean()))  # not the largest value
    def save(self, folder):
        folder.mkdir()
        (folder / "power.json").write_text(json.dumps(self.power))
    @classmethod
    def load(cls, folder, *, device="auto"): return cls(json.loads((folder / "power.json").read_text()))
"""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A product as MVTec AD has it."""
    root = tmp_path_factory.mktemp("a product")
    line = make_line(root / "line", n_per_class=3, n_normal=4, n_combined=0, size=96, kinds=["hole", "print"])
    (line / "images").rename(root / "test")
    (line / "masks").rename(root / "ground_truth")
    shutil.rmtree(line)
    return root


@pytest.fixture
def darkness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "cheapdetector.py").write_text(CHEAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "cheapdetector", raising=False)
    return "cheapdetector:Darkness"


def read_maps(out: Path) -> dict[str, np.ndarray]:
    return {
        path.relative_to(out / "maps").with_suffix("").as_posix(): np.load(path)
        for path in (out / "maps").rglob("*.npy")
    }


def true_masks(product: Path) -> dict[str, np.ndarray]:
    masks = {}
    for image in (product / "test").rglob("*.png"):
        name = image.relative_to(product / "test")
        mask = cv2.imread(str(product / "ground_truth" / name), cv2.IMREAD_GRAYSCALE)
        masks[name.with_suffix("").as_posix()] = np.zeros((96, 96), bool) if mask is None else mask > 127
    return masks


@pytest.mark.parametrize("given", [".", "test"])
def test_maps_scores_and_metrics(given: str, product: Path, darkness: str, tmp_path: Path) -> None:
    out = tmp_path / "my maps"
    result = call("detect", product / given, "--out", out, "--detector", darkness, "--quiet")
    maps, masks = read_maps(out), true_masks(product)
    assert set(maps) == set(masks) and all(found.dtype == np.float32 for found in maps.values())
    scores = pd.read_csv(out / "scores.csv")
    assert list(scores.columns) == ["image", "score", "label"] and len(scores) == 10
    assert (scores["image"].str.split("/").str[0] == scores["label"]).all()
    stems = scores["image"].str.removesuffix(".png").tolist()
    np.testing.assert_allclose(scores["score"], [maps[name].mean() for name in stems], rtol=1e-5)

    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["n_images"] == 10 and metrics["n_defective"] == 6
    assert metrics["image_auroc"] == pytest.approx(roc_auc_score(scores["label"] != "good", scores["score"]))
    full = {name: cv2.resize(found, (96, 96), interpolation=cv2.INTER_LINEAR) for name, found in maps.items()}
    truth = np.concatenate([masks[name].ravel() for name in stems])
    assert metrics["pixel_auroc"] == pytest.approx(
        roc_auc_score(truth, np.concatenate([full[name].ravel() for name in stems])), abs=1e-3
    )
    exact = slow_aupro([full[name] for name in stems], [masks[name] for name in stems], 0.3)
    assert metrics["aupro"] == pytest.approx(exact, abs=1e-3)
    large = [cv2.resize(maps[name], (256, 256), interpolation=cv2.INTER_LINEAR) for name in stems]
    binarizer = MEBin().fit(large)
    boxes = box_rates([binarizer.binarize(found).mask for found in large], [masks[name] for name in stems])
    assert (metrics["box_fpr"], metrics["box_fnr"]) == (boxes.fpr, boxes.fnr)

    for word in ("image AUROC", "pixel AUROC", "AUPRO", "box FPR", "box FNR", f"{metrics['aupro']:.3f}"):
        assert word in result.stdout
    assert "10 images, 0 files skipped" in result.stdout
    assert f"--maps '{out / 'maps'}' --out RUN" in result.stdout
    call(
        "discover", product / given, "--maps", out / "maps", "--classes", 3, "--out", tmp_path / "run", *FAST,
        "--set", "features.views=1", "--set", "learn.epochs=1",
    )  # fmt: skip


def test_a_second_call_does_nothing_twice(product: Path, darkness: str, tmp_path: Path) -> None:
    command = ("detect", product, "--out", tmp_path / "out", "--detector", darkness, "--quiet")
    call(*command)

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.npy")}

    before, metrics = times(), (tmp_path / "out/metrics.json").read_bytes()
    call(*command)
    assert times() == before and (tmp_path / "out/metrics.json").read_bytes() == metrics
    call(*command, "--set", "detect.settings.power=2.0")
    assert not set(times().values()) & set(before.values())
    next((tmp_path / "out/maps").rglob("*.npy")).unlink()
    call(*command, "--set", "detect.settings.power=2.0")
    assert len(times()) == 10


def test_a_call_that_broke_off_leaves_nothing_half_done(
    product: Path, darkness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cheapdetector  # type: ignore[import-not-found]

    def save(self: object, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    command = ("detect", product, "--out", out, "--detector", darkness, "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(cheapdetector.Darkness, "save", save)
        assert "No space left on device" in fail(*command)
    assert not (out / "scores.csv").exists() and not (out / "detector").exists()
    call(*command)
    assert len(pd.read_csv(out / "scores.csv")) == 10 and [p.name for p in (out / "detector").iterdir()] == [
        "power.json"
    ]
    assert not list(out.rglob("*.partial"))


def test_discover_goes_on_in_the_same_folder(product: Path, darkness: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call("detect", product, "--out", out, "--detector", darkness, *FAST)
    before = {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")}
    call("discover", product, "--config", out / "config.yaml", "--classes", 3, "--out", out, "--quiet",
         "--set", "features.views=1", "--set", "learn.epochs=1")  # fmt: skip
    assert {path: path.stat().st_mtime_ns for path in (out / "maps").rglob("*.npy")} == before
    results = (out / "images.csv").read_bytes(), (out / "config.yaml").read_bytes()
    call("detect", product, "--out", out, "--detector", darkness, *FAST)
    assert ((out / "images.csv").read_bytes(), (out / "config.yaml").read_bytes()) == results
    assert "made by its own detector" in fail(
        "predict", out, product, "--maps", out / "maps", "--out", tmp_path / "new.csv"
    )
    call("predict", out, product, "--out", tmp_path / "new.csv", "--quiet")


def test_folder_names_and_masks_do_not_reach_the_detector(product: Path, tmp_path: Path) -> None:
    for index, image in enumerate(sorted((product / "test").rglob("*.png"))):
        (tmp_path / "flat").mkdir(exist_ok=True)
        (tmp_path / "flat" / f"{index:02d}.png").symlink_to(image)
    command = (*FAST, *SMALL)
    call("detect", product, "--out", tmp_path / "named", *command)
    result = call("detect", tmp_path / "flat", "--out", tmp_path / "bare", *command)
    assert list(pd.read_csv(tmp_path / "bare/scores.csv").columns) == ["image", "score"]
    assert not (tmp_path / "bare/metrics.json").exists() and "AUROC" not in result.stdout
    named, bare = read_maps(tmp_path / "named"), read_maps(tmp_path / "bare")
    for name, index in zip(sorted(named), sorted(bare), strict=True):
        np.testing.assert_array_equal(named[name], bare[index])


def test_labels_alone_give_the_auroc_of_images(product: Path, darkness: str, tmp_path: Path) -> None:
    shutil.copytree(product / "test", tmp_path / "images")
    result = call("detect", tmp_path / "images", "--out", tmp_path / "out", "--detector", darkness, "--quiet")
    assert set(json.loads((tmp_path / "out/metrics.json").read_text())) == {"n_images", "n_defective", "image_auroc"}
    assert "image AUROC" in result.stdout and "pixel" not in result.stdout
    (tmp_path / "images/good").rename(tmp_path / "images/fine")  # a name that nobody knows
    call("detect", tmp_path / "images", "--out", tmp_path / "out", "--detector", darkness, "--quiet")
    assert not (tmp_path / "out/metrics.json").exists()
    # Masks tell as well which images are normal.
    masked = ("--masks", product / "ground_truth")
    call("detect", tmp_path / "images", "--out", tmp_path / "out", "--detector", darkness, "--quiet", *masked)
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert metrics["n_defective"] == 6 and metrics["n_images"] == 10 and "aupro" in metrics


def test_a_table_with_masks(product: Path, darkness: str, tmp_path: Path) -> None:
    shutil.copytree(product / "test", tmp_path / "test")
    shutil.copytree(product / "ground_truth", tmp_path / "truth")
    rows = []
    for image in sorted((tmp_path / "test").rglob("*.png")):
        mask = tmp_path / "truth" / image.relative_to(tmp_path / "test")
        rows.append(f"{image.relative_to(tmp_path)},{mask if mask.exists() else ''}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["image,mask", *rows]) + "\n")
    out = tmp_path / "out"
    result = call("detect", table, "--out", out, "--detector", darkness, *FAST)
    call("detect", product, "--out", tmp_path / "same", "--detector", darkness, *FAST)
    assert (out / "metrics.json").read_text() == (tmp_path / "same/metrics.json").read_text()
    assert (out / "maps/test/hole/000.npy").exists()
    following = result.stdout.splitlines()[-1].removeprefix("Next: anomalyncd ").replace(" N ", " 3 ").split()
    call(*following, "--quiet", "--set", "features.views=1", "--set", "learn.epochs=1")
    table.write_text("image\n" + "\n".join(str(path) for path in sorted((product / "test").rglob("*.png"))) + "\n")
    assert "short relative paths" in fail("detect", table, "--out", out, "--detector", darkness)


def test_bad_files(product: Path, darkness: str, tmp_path: Path) -> None:
    for folder in ("test", "ground_truth"):
        shutil.copytree(product / folder, tmp_path / "p" / folder)
    (tmp_path / "p/test/hole/bad.png").write_text("not a picture")
    (tmp_path / "p/ground_truth/hole/000.png").write_text("not a mask")
    (tmp_path / "p/ground_truth/print/001.png").unlink()
    out = tmp_path / "out"
    command = ("detect", tmp_path / "p", "--out", out, "--detector", darkness, "--quiet")
    for _ in range(2):
        result = call(*command)
        warnings = [line for line in result.stderr.splitlines() if line.startswith("warning")]
        assert len(warnings) == 3 and "hole/bad.png" in warnings[0] and "ground_truth/hole/000.png" in warnings[1]
        assert "print/001.png: no mask" in warnings[2]
        assert "11 images, 1 file skipped" in result.stdout and "skipped hole/bad.png" in result.stdout
    assert len(pd.read_csv(out / "scores.csv")) == 10
    found = call(
        "discover", tmp_path / "p", "--maps", out / "maps", "--classes", 3, "--out", tmp_path / "run", *FAST,
        "--set", "features.views=1", "--set", "learn.epochs=1",
    )  # fmt: skip
    assert "10 images" in found.stdout and "1 file skipped" in found.stdout and "hole/bad.png" in found.stderr
    (tmp_path / "bad").mkdir()
    shutil.copy(tmp_path / "p/test/hole/bad.png", tmp_path / "bad")
    assert "none of the 1 images could be read" in fail("detect", tmp_path / "bad", "--out", tmp_path / "x", *FAST)
    shutil.copy(tmp_path / "p/test/hole/001.png", tmp_path / "p/test/hole/bad.jpg")
    assert "hole/bad.jpg and hole/bad.png would have the same map" in fail(*command)


def test_excluded_classes(product: Path, darkness: str, tmp_path: Path) -> None:
    command = ("detect", product, "--out", tmp_path / "out", "--detector", darkness, "--quiet")
    result = call(*command, "--exclude", "hole", "--exclude", "wholes")
    assert "no class of this name" in result.stderr and "--exclude hole" in result.stdout
    assert len(read_maps(tmp_path / "out")) == 7
    result = call(*command, "--exclude", "hole", "--exclude", "print")  # no mask is left, and nobody asked for masks
    assert json.loads((tmp_path / "out/metrics.json").read_text())["n_defective"] == 0 and "–" in result.stdout


def test_the_detector_of_an_earlier_run(product: Path, tmp_path: Path) -> None:
    normal = ("--normal", product / "test/good")
    call("detect", product, *normal, "--out", tmp_path / "one", *FAST, *SMALL)
    assert "name: patchcore" in (tmp_path / "one/config.yaml").read_text()
    call("detect", product / "test/hole", "--from", tmp_path / "one", "--out", tmp_path / "two", "--quiet")
    call("detect", product / "test/hole", "--from", tmp_path / "two", "--out", tmp_path / "three", "--quiet")
    known = read_maps(tmp_path / "one")
    for folder in ("two", "three"):
        for name, found in read_maps(tmp_path / folder).items():
            np.testing.assert_allclose(found, known[f"hole/{name}"], rtol=1e-3, atol=1e-4)
    again = ("detect", product / "test/hole", "--from", tmp_path / "one", "--out", tmp_path / "four")
    for wrong in (
        ["--tile", 32],
        ["--backbone", "dino_vitb8"],
        ["--detector", "musc"],
        normal,
        ["--set", "detect.settings.size=32"],
    ):
        assert "--from takes a detector as it is" in fail(*again, *wrong)
    assert "it has no detector/" in fail("detect", product, "--from", product, "--out", tmp_path / "four")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--detector", "patchcore"], "needs images of normal products: give them with --normal"),
        (["--normal", "nowhere"], "nowhere: expected a folder of normal images"),
        (["--detector", "oracle"], "detector must be one of"),
        (["--masks", "nowhere"], "nowhere: expected a folder of masks"),
        (["--tile", "64", "--detector", "a:B"], "--tile works with patchcore, musc, "),
        (["--set", "detect.settings.sise=3"], "Did you mean size?"),
        (["--device", "cray"], "device 'cray' cannot be used"),
    ],
)
def test_what_detect_does_not_take(options: list[str], words: str, product: Path, tmp_path: Path) -> None:
    assert words in fail("detect", product, "--out", tmp_path / "out", *FAST, *options)
    assert not (tmp_path / "out/scores.csv").exists()


def test_tiles_and_normal_images_that_are_not_needed(product: Path, tmp_path: Path) -> None:
    normal = ("--normal", product / "test/good")
    result = call(
        "detect", product, "--detector", "musc", *normal, "--tile", 64, "--out", tmp_path / "out", *FAST, *SMALL
    )
    assert "needs no normal images" in result.stderr
    assert "tile: 64" in (tmp_path / "out/config.yaml").read_text()


def test_what_is_left_out_is_said_by_every_command(product: Path, darkness: str, tmp_path: Path) -> None:
    images, out, words = tmp_path / "images", tmp_path / "out", "1 file of other formats left out: hole/x.gif"
    shutil.copytree(product / "test", images)
    (images / "hole/x.gif").touch()
    options = ("--detector", darkness, "--out", out, *FAST)
    assert words in call("detect", images, *options).stderr and words in (out / "run.log").read_text()
    more = ("--classes", 3, "--set", "features.views=1", "--set", "learn.epochs=1")
    assert words in call("discover", images, *options, *more).stderr
    assert words in call("predict", out, images, "--out", tmp_path / "new.csv", "--quiet").stderr


def test_a_finished_run_is_not_replaced(product: Path, darkness: str, tmp_path: Path) -> None:
    """Neither by its own detector, nor by maps of other images."""
    run, settings = tmp_path / "run", ["--set", "features.views=1", "--set", "learn.epochs=1", *FAST]
    call("discover", product, "--detector", darkness, "--classes", 3, "--out", run, *settings)

    def files() -> dict[Path, bytes]:
        found = (path for path in run.rglob("*") if path.is_file() and path.name not in ("run.log", ".lock"))
        return {path: path.read_bytes() for path in found}

    before = files()
    assert "would replace the detector" in fail("detect", product / "test/hole", "--from", run, "--out", run, "--quiet")
    command = ("detect", product / "test/hole", "--detector", darkness, "--out", run, "--quiet")
    assert "finished run of other images" in fail(*command)
    assert files() == before
    call("detect", product / "test/hole", "--from", run, "--out", tmp_path / "new", "--quiet")
    assert len(read_maps(tmp_path / "new")) == 3
    call("detect", product, "--detector", darkness, "--out", run, *FAST)  # the same images: nothing to replace
    assert (run / "images.csv").read_bytes() == before[run / "images.csv"]


def test_normal_images_of_a_product_and_of_no_product(product: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(product, tmp_path / "product")
    patchcore = ["--detector", "patchcore", *FAST, *SMALL]
    assert "masks of defects in ground_truth/" in fail(
        "detect", copy, "--normal", copy, "--out", tmp_path / "out", *patchcore
    )
    shutil.copytree(copy / "test/good", copy / "train/good")
    call("detect", copy, "--normal", copy, "--out", tmp_path / "out", *patchcore)
    call("detect", copy, "--normal", copy / "train/good", "--out", tmp_path / "other", *patchcore)
    one, other = read_maps(tmp_path / "out"), read_maps(tmp_path / "other")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    inside = copy / "train/good/run"
    assert "the run would lie inside" in fail(
        "detect", copy, "--normal", copy / "train/good", "--out", inside, *patchcore
    )
    assert "the run would lie inside" in fail(
        "discover", copy, "--normal", copy / "train/good", "--out", inside, *patchcore
    )
    result = call("detect", copy / "test/good", "--normal", copy / "test", "--out", tmp_path / "all", *patchcore)
    assert "are among the normal images" in result.output
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.png").write_text("no picture")
    message = fail("detect", copy, "--normal", tmp_path / "bad", "--out", tmp_path / "none", *patchcore)
    assert "a.png" in message


@pytest.mark.parametrize("others", [0, 3])
def test_holes_in_a_map_of_ones_own_detector(
    others: int, product: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = CHEAP.replace("** self.power", "** self.power * hole(type(self).calls)").replace("Darkness", "Holes")
    code = code.split("    def detect")[0] + "    def save" + code.split("    def save")[1]
    code += f"""
def hole(count):
    out = np.ones((64, 64), np.float32)
    out[: {{2: 64, 3: 3}}.get(count, {others})] = np.nan
    return out
"""
    (tmp_path / f"holes{others}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    result = call("detect", product, "--detector", f"holes{others}:Holes", "--out", tmp_path / "out", "--quiet")
    assert "no score, so it is left out of the metrics of images" in result.output
    scores = pd.read_csv(tmp_path / "out/scores.csv")["score"]
    assert np.isfinite(scores).sum() == 9
    metrics = json.loads((tmp_path / "out/metrics.json").read_text())
    assert metrics["n_images"] == 9 and 0 <= metrics["image_auroc"] <= 1
    assert ("aupro" in metrics) == (others == 0)  # of pixels only maps without holes tell


def test_maps_of_a_table_are_not_asked_for_where_a_detector_makes_them(
    product: Path, darkness: str, tmp_path: Path
) -> None:
    names = [path.as_posix() for path in sorted((product / "test").rglob("*.png"))]
    rows = [f"{name},{'gone.npy' if place == 1 else ''}" for place, name in enumerate(names)]
    (product / "list.csv").write_text(
        "\n".join(["image,map", *(row.replace(f"{product.as_posix()}/", "") for row in rows)])
    )
    call("detect", product / "list.csv", "--detector", darkness, "--out", tmp_path / "out", "--quiet")
    assert len(read_maps(tmp_path / "out")) == 10
    assert "does not exist" in fail("discover", product / "list.csv", "--out", tmp_path / "run", *FAST)
