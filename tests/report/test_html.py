"""Covers html.py, cards.py and source.py: what stands in reports of odd runs, and that nothing in them can do harm."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd.blocks.shards import file_stem, pack_shard
from anomalyncd.config import make_config
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import RunError
from anomalyncd.learn.classifier import Classifier
from anomalyncd.learn.features import FeatureSpace
from anomalyncd.metrics import evaluate
from anomalyncd.regions.extract import Extracted
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord
from anomalyncd.report import cards, html, source
from anomalyncd.report.html import write_report
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import to_csv
from command import call

EVIL = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>&amp;"""
VOID = {"meta", "img", "br", "hr", "input", "link"}
IMAGES = [
    "image", "label", "class_name", "probability", "classes", "n_regions", "p_0", "p_1", "p_2", "unknown", "true_label",
]  # fmt: skip
REGIONS = [
    "image", "region", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "area", "score", "label", "class_name",
    "probability", "crop", "unknown",
]  # fmt: skip
MANIFEST = ["image", "status", "height", "width", "n_regions", "score", "threshold", "message", "file", "map"]
CONFIG = {"n_classes": 3, "model": {"backbone": "tiny", "input_size": 32}, "crop": {"size": 32}}


def make_run(folder: Path, n_images: int = 9, n_regions: int = 1, **changes: Any) -> Path:
    """A finished run without learning: a third of the images normal, the others with regions of class 1 or 2."""
    run, rng = folder / "run", np.random.default_rng(0)
    names = {0: "normal", 1: changes.get("name", "dent"), 2: "scratch"}
    stem = changes.get("stem", "part")
    images, manifest, regions, records = [], [], [], []
    for index in range(n_images):
        name, label = f"{stem}/{index:03d}.png", index % 3 if n_regions else 0
        file = folder / "images" / f"{index:03d}.png"
        mask_file = run / f"masks/{file_stem(index, name)}.png"
        for path in (file, mask_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(file), rng.integers(0, 255, (48, 64, 3), dtype=np.uint8))
        mask = np.zeros((48, 64), np.uint8)
        count = n_regions if label else 0
        for region in range(count):
            x, y = 4 + 20 * region, 8
            mask[y : y + 10, x : x + 12] = 255
            crop = f"crops/{file_stem(index, name)}_{region}.png"
            (run / crop).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(run / crop), rng.integers(0, 255, (32, 32, 3), dtype=np.uint8))
            cv2.imwrite(str(run / crop.replace(".png", "_mask.png")), np.eye(32, dtype=np.uint8) * 255)
            own = label if region == 0 else 3 - label
            chance = 0.9 - 0.01 * index - 0.1 * region
            regions.append(
                (name, region, x, y, 12, 10, x, y, 32, 120.0 + index, 0.8, own, names[own], chance, crop, 0.1)
            )
            place = {"box": (x, y, 12, 10), "square": (x, y, 32), "area": 120.0, "score": 0.8}
            records.append(Region(index=index, image=name, region=region, digest=f"{index}{region}", **place))
        cv2.imwrite(str(mask_file), mask)
        chance = 1.0 if label == 0 else 0.9 - 0.05 * index
        found = {0: "0", 1: "1" if n_regions == 1 else "1;2", 2: "2" if n_regions == 1 else "2;1"}[label]
        images.append(
            (name, label, names[label], chance, found, count, float(label == 0), 0.0, 0.0, 0.1, f"kind {label}")
        )
        manifest.append((name, "ok", 48, 64, count, 0.5, 0.5, "", str(file), ""))
    for number in range(changes.get("n_skipped", 0)):
        manifest.append((f"bad{number}.png", "skipped", 0, 0, 0, np.nan, np.nan, f"damaged {EVIL}", "", ""))
    table = pd.DataFrame(images, columns=IMAGES)
    if not changes.get("labels", True):
        table = table.drop(columns="true_label")
    output = RunFolder(run)
    output.finish("learn", "")
    output.write_text("images.csv", to_csv(table))
    output.write_text("regions.csv", to_csv(pd.DataFrame(regions, columns=REGIONS)))
    output.write_text("manifest.csv", to_csv(pd.DataFrame(manifest, columns=MANIFEST)))
    output.write_json("classes.json", {str(label): name for label, name in names.items()})
    output.write_text("loss.csv", "epoch,loss,entropy\n0,0.5,0.1\n1,0.25,0.2\n")
    config = make_config(CONFIG)
    output.write_text("config.yaml", config.to_yaml())
    model = DiscoveryModel(config)
    if records:
        weights = config.features.weights()
        labels = [row[11] for row in regions]
        base = rng.normal(size=(3, 8))
        part = np.stack([base[label] + 0.1 * rng.normal(size=8) for label in labels])[:, None, None].astype(np.float16)
        parts = dict.fromkeys(weights, part)
        space = FeatureSpace(weights).fit(parts)
        vectors = space.transform(parts)
        middles = np.stack([vectors[np.array(labels) == k].mean(axis=0) for k in (1, 2) if k in labels])
        model.classifier = Classifier(space, np.resize(middles, (2, middles.shape[1])).astype(np.float32))
        found_images = [ImageRecord(index, row[0]) for index, row in enumerate(images)]
        output.write("tokens/00000.safetensors", pack_shard(Extracted(found_images, records, parts=parts)))
    output.write("model.safetensors", model.pack())
    return run


class Page(HTMLParser):
    """Fails on tags that do not balance; keeps what tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def report(run: Path, **options: Any) -> Page:
    path = write_report(FinishedRun(run), **options)
    assert path == run / "report.html" and not list(run.rglob("*.partial"))
    page = Page(path.read_text(encoding="utf-8"))
    check(page)
    return page


def check(page: Page) -> None:
    """What holds for every report."""
    for _, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")]
        for name in ("src", "href", "action", "data", "srcset"):
            target = attrs.get(name) or "#"
            assert target.startswith("#") or re.fullmatch(r"data:image/webp;base64,[A-Za-z0-9+/=]+", target), target[
                :60
            ]
    ids = Counter(attrs["id"] for _, attrs in page.tags if "id" in attrs)
    assert max(ids.values()) == 1
    assert {href[1:] for _, attrs in page.tags if (href := attrs.get("href"))} <= set(ids)
    assert {names for _, attrs in page.tags if (names := attrs.get("aria-labelledby"))} <= set(ids)
    assert all("alt" in attrs for attrs in page.all("img"))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.scripts) == 1


def test_everything_is_there(tmp_path: Path) -> None:
    run = make_run(tmp_path, 12, n_regions=2, n_skipped=2)
    page = report(run)
    for heading in (
        "Summary", "Classes", "Class map", "Images with several classes", "Uncertain images", "Unknown images",
        "Files skipped", "Against the labels", "Attention", "Learning", "Settings",
    ):  # fmt: skip
        assert heading in page.words, heading
    assert "12 images: 4 normal (33 %), 8 with a defect, in 2 classes." in page.text
    assert [attrs["id"] for attrs in page.all("article")] == ["class-1", "class-2", "class-0"]
    marks = [attrs for attrs in page.all("use") if attrs.get("data-k")]
    assert Counter(attrs["data-k"] for attrs in marks) == {"1": 8, "2": 8}
    assert "dent + scratch" in page.text and "epoch 2" in page.text and "model.backbone" in page.text
    assert page.text.count("100% inside") >= 2  # with guidance, all of it
    shown = [attrs["alt"] or "" for attrs in page.all("img")]
    assert sum(alt.startswith("Region") for alt in shown) == 16 + 2  # all in cards, two again beside their attention
    assert all(attrs.get("loading") == "lazy" for attrs in page.all("img"))
    expected = evaluate([f"kind {k % 3}" for k in range(12)], [k % 3 for k in range(12)])
    assert expected.f1 == 1.0 and "F1 1.000" in page.text


def test_names_are_only_ever_text(tmp_path: Path) -> None:
    run = make_run(tmp_path, 9, n_regions=2, n_skipped=12, name=EVIL, stem=f"x{EVIL.replace('/', '')}")
    table = pd.read_csv(run / "images.csv")
    table["true_label"] = EVIL
    table.to_csv(run / "images.csv", index=False)
    page = report(run)
    assert page.text.count(EVIL) > 20
    assert len(page.all("script")) == 1
    assert all((attrs["src"] or "").startswith("data:image/webp") for attrs in page.all("img"))


def test_the_script_is_the_one_that_the_page_allows(tmp_path: Path) -> None:
    page = report(make_run(tmp_path, 3), attention=False)
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs) or ""
    assert f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert "http://" not in page.scripts[0] and "https://" not in page.scripts[0]
    assert "://" not in re.sub(r"data:image/webp;base64,[^\"]*", "", (tmp_path / "run/report.html").read_text())


def test_files_that_are_gone_leave_a_grey_field(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    whole = report(run)
    for path in [*(tmp_path / "images").iterdir(), *run.rglob("crops/**/*.png"), *run.rglob("masks/**/*.png")]:
        path.unlink()
    page = report(run)
    assert [attrs["id"] for attrs in page.all("img")] == ["sprite"]
    assert page.text.count("no picture") == len(whole.all("img")) - 1 - 6  # without the two rows of attention
    assert "the crops of this run are gone" in page.text


def test_without_a_model_there_is_no_map(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "model.safetensors").write_bytes(b"damaged")
    page = report(run)
    assert "Class map" not in page.words and "the backbone of this run cannot be loaded" in page.text
    assert "Representative regions" in page.words


@pytest.mark.parametrize(
    ("n_images", "n_regions", "says"),
    [
        (5, 0, "5 images: 5 normal (100 %), 0 with a defect, in 0 classes."),
        (1, 0, "1 image: 1 normal"),
        (2, 1, "2 images: 1 normal (50 %), 1 with a defect, in 1 class."),
        (3, 1, "in 2 classes."),
    ],
)
def test_hardly_anything_to_show(tmp_path: Path, n_images: int, n_regions: int, says: str) -> None:
    run = make_run(tmp_path, n_images, n_regions, labels=False)
    page = report(run)
    assert says in page.text and "Against the labels" not in page.words
    assert ("Class map" in page.words) == (n_regions > 0)
    assert "None: every file could be read." in page.text


def test_labels_of_none_or_of_some(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    table = pd.read_csv(run / "images.csv")
    table["true_label"] = [None] * 8 + ["dent"]
    table.to_csv(run / "images.csv", index=False)
    assert "1 image has a true label" in report(run).text
    table["true_label"] = None
    table.to_csv(run / "images.csv", index=False)
    assert "Against the labels" not in report(run).words


def test_folders_are_no_truth_unless_one_is_normal(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    table = pd.read_csv(run / "images.csv")
    table["true_label"] = table["image"].str.split("/").str[0]
    table.to_csv(run / "images.csv", index=False)
    page = report(run)
    assert "By folder" in page.words and "Against the labels" not in page.words and "F1" not in page.text
    assert "from the folder" in page.text
    table.loc[0, "true_label"] = "good"
    table.to_csv(run / "images.csv", index=False)
    assert "Against the labels" in report(run).words


def test_images_in_a_class_of_another_label_are_shown_by_pairs(tmp_path: Path) -> None:
    run = make_run(tmp_path, 12)
    images = pd.read_csv(run / "images.csv")
    images["true_label"] = images["label"].map({0: "good", 1: "dent", 2: "scratch"})
    for row, label in ((0, "dent"), (1, "good"), (4, "scratch"), (7, "scratch")):  # rows of classes 0, 1, 1, 1
        images.loc[row, "true_label"] = label
    (run / "images.csv").write_text(to_csv(images))
    found = source.ReportSource(FinishedRun(run))
    told = html.evaluation(found)
    assert told is not None
    listed = cards.mistakes(found, told)
    assert [(label, look.label, kind, count) for label, look, kind, (_, count) in listed] == [
        ("scratch", 1, "confused", 2), ("dent", 0, "missed", 1), ("good", 1, "false alarm", 1)
    ]  # fmt: skip
    assert "2 scratch in dent (confused)" in " ".join(
        write_report(FinishedRun(run)).read_text(encoding="utf-8").split()
    )


def test_unknown_and_uncertain_images_are_listed(tmp_path: Path) -> None:
    run = make_run(tmp_path, 9)
    images, regions = pd.read_csv(run / "images.csv"), pd.read_csv(run / "regions.csv")
    images.loc[1, ["label", "class_name", "unknown"]] = [-1, "unknown", 1.0]
    images.loc[2, "unknown"], images.loc[5, "unknown"] = 0.6, 0.5
    images.loc[4, ["probability", "p_1", "p_2"]] = [0.41, 0.41, 0.4]
    regions.loc[0, ["label", "class_name"]] = [-1, "unknown"]
    for name, table in (("images", images), ("regions", regions)):
        table.to_csv(run / f"{name}.csv", index=False)
    made = html.ReportSource(FinishedRun(run))
    assert [shot.title[-7:] for shot in cards.unknown(made)[0]] == ["001.png", "002.png"]
    assert cards.unknown(made)[0][1].lines == ("scratch (0.80)", "unknown 0.60")
    unsure, _ = cards.uncertain(made)
    assert [shot.title[-7:] for shot in unsure] == ["004.png", "008.png", "007.png"]
    assert unsure[0].lines == ("dent (0.41)", "or scratch (0.40)")
    assert "Far from every class" in report(run).text


def test_long_lists_are_cut_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, 30, n_regions=2, n_skipped=30)
    monkeypatch.setattr(cards, "MOST_LISTED", 4)
    monkeypatch.setattr(html, "MOST_SKIPPED", 5)
    page = report(run, attention=False)
    assert "4 of 20 are shown" in page.text and "The first 5 of 30" in page.text and "Attention" not in page.words


def test_a_page_never_grows_past_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, 12, n_regions=2)
    monkeypatch.setattr(html, "ReportSource", _small_album(html.ReportSource))
    page = report(run)
    uris = sum(len(attrs["src"] or "") for attrs in page.all("img"))
    assert 0 < uris <= 20_000
    assert "pictures were left out to keep this file small" in page.text


def _small_album(original: type[html.ReportSource]) -> type[html.ReportSource]:
    class Small(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.album = source.Album(limit=20_000)

    return Small


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    run = make_run(tmp_path, 24)
    first = write_report(FinishedRun(run)).read_bytes()
    assert write_report(FinishedRun(run)).read_bytes() == first


def test_an_earlier_report_outlives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, 3)
    before = write_report(FinishedRun(run), attention=False).read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(FinishedRun(run), attention=False)
    assert (run / "report.html").read_bytes() == before and not list(run.glob("*.partial"))


def test_settings_that_differ_come_first(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3)
    changed, others = html.run_settings(FinishedRun(run).config)
    assert {name: (value, default) for name, value, default in changed} == {
        "n_classes": ("3", "auto"),
        "crop.size": ("32", "224"),
        "model.backbone": ("tiny", "auto"),
        "model.input_size": ("32", "224"),
    }
    assert "learn.epochs" in [name for name, *_ in others]


def test_command_and_its_errors(tmp_path: Path) -> None:
    run = make_run(tmp_path, 6)
    said = call("report", run, "--no-attention", "--quiet").output
    assert f"{run / 'report.html'} (0." in said and "Next: anomalyncd review" in said
    assert "Attention" not in Page((run / "report.html").read_text(encoding="utf-8")).words
    with pytest.raises(RunError, match="expected a finished run"):
        write_report(FinishedRun(tmp_path))


def test_text_stands_out_on_both_pages() -> None:
    style = (Path(html.__file__).parent / "templates/report.css").read_text()
    blocks = re.findall(r":root[^{]*\{([^}]*)\}", style)
    themes = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks[:3]]
    light, dark, automatic = themes
    assert dark == automatic and set(light) == set(dark)
    for theme in (light, dark):
        for ink in ("ink", "faint", "link", "warn"):
            for ground in ("page", "card", "soft"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground)
        for colour in (*source.COLOURS, source.NORMAL_COLOUR, source.UNKNOWN_COLOUR):
            assert contrast(colour, theme["card"]) >= 3, colour  # of marks, by WCAG 1.4.11


def contrast(first: str, second: str) -> float:
    """By WCAG 2."""

    def luminance(colour: str) -> float:
        values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_many_classes_share_the_pictures() -> None:
    for n_classes in (1, 7, 66, 67, 400, 5000):
        first, last, whole = cards.shares(n_classes)
        assert n_classes * (first + last) <= max(cards.MOST_PICTURES, 18) and whole <= 3
    assert cards.shares(66) == (12, 6, 3)
