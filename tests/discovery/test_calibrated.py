"""What scores mean, what was learned before, and what is said of the results: parts of `discover`, without a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anomalyncd.assign.false_alarms import FalseAlarms, NormalScores
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.discovery import fit as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import RunError
from anomalyncd.progress import Silent
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.stages import Stages

RNG = np.random.default_rng(0)
NORMAL, PEAKS = RNG.normal(0.5, 0.03, 40), RNG.normal(0.8, 0.05, 40)


class Heard(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []
        self.noted: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)

    def note(self, text: str) -> None:
        self.noted.append(text)


def results(labels: list[int], *, n_regions: int = 1) -> Any:
    return SimpleNamespace(labels=np.array(labels), regions=pd.DataFrame({"a": range(n_regions)}))


def test_classes_without_images_and_mostly_normal_ones_are_said() -> None:
    model = DiscoveryModel(make_config({"n_classes": 3, "detect": {"false_alarms": 0.02}}))
    line = NormalScores(0.5, 0.1, 30)

    def said(labels: list[int], *, n_regions: int = 1, known: bool = True) -> list[str]:
        model.false_alarms = FalseAlarms(line, line) if known else None
        heard = Heard()
        module._warn_of_results(model, results(labels, n_regions=n_regions), heard)
        return heard.warned

    assert said([0, 1, 2]) == [] and said([0, 1], n_regions=0) == []
    assert said([0, 1]) == ["class 2: no image is of this class in the end. Ask for fewer classes (--classes)."]
    assert said([0])[0].startswith("class 1, class 2: no image")
    mostly = [0] * 91 + [1] * 5 + [2] * 4
    assert said(mostly) == ["91% of the images score or look like normal ones. If more of them show a defect, raise "
                            "--sensitivity (now 0.02)."]  # fmt: skip
    assert said([0] * 90 + [1] * 5 + [2] * 5) == [] and said(mostly, known=False) == []


def begun(tmp_path: Path, **settings: Any) -> Stages:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir(exist_ok=True)
    return Stages(folder, make_config({"model": {"backbone": "tiny"}, "n_classes": 3}, settings), Heard())


def test_a_run_that_took_in_more_images_is_not_discovered_again(tmp_path: Path) -> None:
    stages = begun(tmp_path)
    dataset = Dataset([Sample("a", np.zeros((2, 2, 3)))], notes=["odd names"])
    module._check(stages, dataset)
    assert stages.progress.warned == ["odd names"]  # type: ignore[attr-defined]
    stages.folder.start("update", "k")
    with pytest.raises(RunError, match="this run has taken in more images since"):
        module._check(stages, dataset)


def novel(*, retrained: Any = None) -> Any:
    return SimpleNamespace(
        features=lambda retrained: {"retrained": retrained}, parts={}, regions=[], scenes=None,
        keep_features=lambda features: None, images=[],
    )  # fmt: skip


def test_what_was_learned_before_is_taken_with_the_names_that_people_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = begun(tmp_path)
    known = module._Known({1: "dent", 9: "old"}, {("a", 0): 1})
    assert module._learned(stages, novel(), known) is None
    stages.folder.write("model.safetensors", DiscoveryModel(stages.config).pack())
    known_by: list[Any] = []
    monkeypatch.setattr(module, "_know", lambda *given: known_by.append(given))
    before = stages.folder.place("model.safetensors").read_bytes()
    found = module._learned(stages, novel(), known)
    assert found is not None
    model, features, corrections = found
    assert model.names == {0: "normal", 1: "dent", 2: "class 2"} and corrections == {("a", 0): 1}
    assert features == {"retrained": False} and not known_by
    assert stages.folder.place("model.safetensors").read_bytes() == before
    other = begun(tmp_path, unknown={"false_rate": 0.3})
    found = module._learned(other, novel(), known)
    assert found is not None and found[0].config == other.config and len(known_by) == 1
    again = DiscoveryModel.read(stages.folder.path, device=other.config.device)
    assert again.config.unknown.false_rate == 0.3
    stages.folder.write("model.safetensors", b"damaged")
    assert module._learned(stages, novel(), known) is None


def test_without_a_region_there_is_nothing_to_learn(tmp_path: Path) -> None:
    for n_classes, classes in (("auto", [0]), (3, [0, 1, 2])):
        stages = begun(tmp_path, n_classes=n_classes)
        model = DiscoveryModel(stages.config)
        learned, features, fixed = module._learn(stages, model, novel(), None, None, None)  # type: ignore[arg-type]
        assert learned is model and model.classes.tolist() == classes and fixed == {} and features == {}
        assert "no image has an anomalous region" in stages.progress.warned[0]  # type: ignore[attr-defined]
        assert DiscoveryModel.read(stages.folder.path).classes.tolist() == classes


def test_looks_of_normal_images_are_those_of_whole_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = begun(tmp_path, features={"image": 0.0})
    assert module._describe_normal(stages, DiscoveryModel(stages.config)) is None
    stages = begun(tmp_path)
    picture, values = np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4))
    stages.normal = [Sample("a", picture, values), Sample("b", values, values), Sample("c", picture, values)]
    seen: list[Any] = []

    class Store:
        def __init__(self, folder: Any, prefix: str) -> None:
            seen.append(prefix)
            self.regions: list[Any] = []

        def fill(self, samples: Any, extractor: Any, key: str, advance: Any, engine: Any) -> Any:
            seen.append([sample.id for sample in samples])
            self.extractor = extractor
            stores.append(self)
            return self

    stores: list[Any] = []
    monkeypatch.setattr(module, "RegionStore", Store)
    model = DiscoveryModel(stages.config)
    assert module._describe_normal(stages, model) is None and seen == ["normal", ["a", "c"]]
    extractor = stores[0].extractor
    assert extractor.whole and extractor.config.crop.no_region == "learned" and extractor.binarizer is None
    wanted = extractor.config.features
    assert (wanted.class_token, wanted.patches) == (0, 0) and wanted.image == stages.config.features.image > 0
    monkeypatch.setattr(
        Store, "fill",
        lambda self, *given, **_: SimpleNamespace(
            regions=[SimpleNamespace(index=1), SimpleNamespace(index=0)],
            images=[SimpleNamespace(score=0.1), SimpleNamespace(score=0.2)],
            parts={"image": np.arange(8, dtype=np.float16).reshape(2, 2, 1, 2)},
        ),
    )  # fmt: skip
    found = module._describe_normal(stages, model)
    assert found is not None and found[0].tolist() == [0.2, 0.1] and found[1].tolist() == [[[1, 2]], [[5, 6]]]


class Flow:
    """What `discover` calls, noted in order; each answers what is said here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, bare: bool, told: tuple[str, ...] = ()) -> None:
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        picture = np.zeros((2, 2, 3), np.uint8)
        given = None if bare else picture[..., 0]
        self.dataset = Dataset([Sample("a", picture, given), Sample("b", picture, given)])
        self.store = SimpleNamespace(images=[], regions=[1], parts={})
        model = SimpleNamespace(false_alarms=None, names={}, classes=np.array([0]))
        self.result = SimpleNamespace(labels=np.array([0]), regions=pd.DataFrame())
        made = [Sample("a", picture, picture[..., 0]), Sample("b", picture, picture[..., 0])]
        answers = {
            "_check": None, "join_known": (self.dataset, SimpleNamespace(normal=told, key=["told"])), "read_names": {1: "x"},
            "read_corrections": {}, "make_maps": (made, None), "normal_samples": ["normal maps"], "_fit_range": None,
            "_find_regions": self.store, "report_files": {"c": "damaged"}, "_find_base_regions": "base regions",
            "_describe_normal": "looks", "manifest": "rows", "classify_stored": (self.result, {"f": b"1"}),
            "_warn_of_results": None, "_learned": "learned before", "_learn": (model, {}, {("a", 0): 1}),
        }  # fmt: skip
        for name, answer in answers.items():
            monkeypatch.setattr(module, name, self.noting(name, answer))

    def noting(self, name: str, answer: Any) -> Any:
        return lambda *given, **named: (self.told.append((name, given, named)), answer)[1]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.told]

    def of(self, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return next((given, named) for own, given, named in self.told if own == name)


def flowing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow, *, line: Any = None, **given: Any) -> Any:
    stages = begun(tmp_path)
    learned: list[Any] = []

    def learning(dataset: Any, base: Any, novel: Any, known: Any, read: Any, make: Any) -> Any:
        learned.append((dataset, base, novel, known, read()))
        return make()

    monkeypatch.setattr(stages, "learning", learning)
    monkeypatch.setattr(stages.folder, "commit", lambda files: learned.append(files))
    monkeypatch.setattr(module, "DiscoveryModel", lambda config: SimpleNamespace(false_alarms=line))
    found = module.discover(stages, flow.dataset, **given)
    return stages, learned, found


def test_the_steps_of_a_run_on_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, bare=False)
    stages, learned, found = flowing(tmp_path, monkeypatch, flow, normal=["n"])
    assert flow.names == [
        "_check", "join_known", "read_names", "read_corrections", "_fit_range", "_find_regions", "report_files", "_learned",
        "_learn", "manifest", "classify_stored", "_warn_of_results",
    ]  # fmt: skip
    assert stages.normal == ["n"] and found.skipped == {"c": "damaged"} and found.result is flow.result
    assert list(stages.seconds) == ["range", "regions", "learning"]
    dataset, base, novel, known, before = learned[0]
    assert (
        dataset is flow.dataset
        and base is None
        and novel is flow.store
        and known == ["told"]
        and before == "learned before"
    )
    assert learned[1]["f"] == b"1" and b"n_classes: 3" in learned[1]["config.yaml"]
    assert flow.of("_learn")[0][2:5] == (flow.store, None, None)
    assert flow.of("classify_stored")[1]["fixed"] == {("a", 0): 1} and flow.of("classify_stored")[0][3] == "rows"


def test_the_steps_where_the_detector_makes_the_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flow = Flow(monkeypatch, bare=True, told=("b",))
    stages, learned, _ = flowing(tmp_path, monkeypatch, flow, base="base", normal=["n"], detector="d")
    assert flow.of("make_maps")[1] == {"normal": ["n"], "detector": "d"}
    assert stages.normal[0] == "normal maps" and [sample.id for sample in stages.normal[1:]] == ["b"]
    assert all(sample.map is not None for sample in learned[0][0]) and learned[0][1] == "base"
    assert list(stages.seconds) == ["maps", "range", "regions", "base set", "learning"]
    assert flow.of("_learn")[0][3] == "base regions"


@pytest.mark.parametrize(
    ("line", "normal", "regions", "described"),
    [
        (SimpleNamespace(moved=False), ["n"], [1], True), (SimpleNamespace(moved=True), ["n"], [1], False),
        (None, ["n"], [1], False), (SimpleNamespace(moved=False), [], [1], False),
        (SimpleNamespace(moved=False), ["n"], [], False),
    ],
)  # fmt: skip
def test_when_normal_images_are_looked_at(
    line: Any, normal: list[str], regions: list[int], described: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(monkeypatch, bare=False)
    flow.store.regions = regions
    flowing(tmp_path, monkeypatch, flow, line=line, normal=normal)
    assert ("_describe_normal" in flow.names) is described
    assert flow.of("_learn")[0][4] == ("looks" if described else None)


def test_the_range_and_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = begun(tmp_path, binarize={"method": "otsu", "min_map_size": 0})
    picture, maps = np.zeros((4, 4, 3), np.uint8), [np.full((4, 4), value) for value in (1.0, 3.0)]
    dataset = Dataset([Sample(str(k), picture, values) for k, values in enumerate(maps)])
    stages.normal = [Sample("n", picture, np.full((4, 4), 0.5))]
    seen: list[Any] = []
    monkeypatch.setattr(module, "calibrated", lambda figures, progress: (seen.append(figures), "line")[1])
    model = DiscoveryModel(stages.config)
    module._fit_range(stages, model, dataset)
    assert model.binarizer is not None and (model.binarizer.low_, model.binarizer.high_) == (1, 3)
    assert model.false_alarms == "line"
    assert {name: values.tolist() for name, values in seen[0].items()} == {
        "scores": [1, 3], "peaks": [1, 3], "normal_scores": [0.5], "normal_peaks": [0.5],
    }  # fmt: skip
    for settings in ({"has_normal": False}, {"learn": {"normal": "class"}}):
        other = begun(tmp_path, binarize={"method": "otsu", "min_map_size": 0}, **settings)
        plain = DiscoveryModel(other.config)
        module._fit_range(other, plain, dataset)
        assert plain.false_alarms is None and plain.binarizer is not None
    masked = DiscoveryModel(stages.config)
    module._fit_range(stages, masked, Dataset([Sample("a", picture)]))
    assert masked.binarizer is None and len(seen) == 1
