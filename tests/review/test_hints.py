"""What helps to decide: likeness against plain loops, suggestions of hand-made files, filters, history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import read_csv


@pytest.mark.parametrize("limit", [large.LARGE, 3])
def test_similar_regions_are_the_nearest_by_features(
    client: Any, run: Path, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many, whose vectors are kept in 16 bits, as well."""
    monkeypatch.setattr(large, "LARGE", limit)
    found = FinishedRun(run, device="cpu")
    vectors = np.asarray(found.model.classifier.space.transform(found.features), np.float64)  # type: ignore[union-attr]
    lengths = [float(np.sqrt((v * v).sum())) for v in vectors]
    alike = {
        other: float((vectors[4] * vectors[other]).sum()) / lengths[4] / lengths[other]
        for other in range(len(vectors))
        if other != 4
    }
    answer = client.http.get("/api/regions/4/similar", params={"limit": 5}).json()
    likest = sorted(alike.values(), reverse=True)[:5]
    assert answer["alike"] == pytest.approx(likest, abs=2e-3)
    assert [alike[each["id"]] for each in answer["regions"]] == pytest.approx(likest, abs=2e-3)
    assert len(client.http.get("/api/regions/4/similar", params={"limit": 200}).json()["regions"]) == len(vectors) - 1
    assert client.http.get("/api/regions/999/similar").status_code == 409


def test_regions_are_filtered_by_probability_and_size(client: Any, run: Path) -> None:
    table = read_csv(run / "regions.csv")
    label = int(table["label"].max())
    of_class = table[table["label"] == label]
    middle = float(of_class["probability"].median())
    assert set(client.regions(label, surest=middle)) == set(of_class.index[of_class["probability"] <= middle])
    half = table["area"].median()
    assert set(client.regions(label, size="small")) == set(of_class.index[of_class["area"] <= half])
    assert set(client.regions(label, size="large")) == set(of_class.index[of_class["area"] > half])
    assert client.http.get(f"/api/classes/{label}/regions", params={"size": "huge"}).status_code == 422


def hints(client: Any) -> Any:
    answer = client.http.get("/api/hints")
    assert answer.status_code == 200
    return answer.json()


def test_suggestions_come_from_the_tree_and_only_of_classes_that_are_there(run: Path, review: Any) -> None:
    table = read_csv(run / "regions.csv")
    one, other, *_ = sorted(set(table["label"]) - {0})
    key = [str(table["image"][0]), int(table["region"][0])]
    part = {"n_regions": 2, "examples": [key]}
    steps = [([one], [other], 0.1), ([one, other], [9], 0.2), ([one], [9], 0.1), ([one], [other], 0.9)]
    merges = [{"classes": [a, b], "share": share} for a, b, share in steps]
    splits = [{"class": label, "share": 0.1, "parts": [part, part]} for label in (one, 9)]
    RunFolder(run).write_json("tree.json", {"merges": merges, "splits": splits})
    RunFolder(run).write_text("groups.csv", f"group,image,region\n1,{key[0]},{key[1]}\n2,nowhere.png,0\n")
    client = review()
    found = hints(client)
    assert found["merges"] == [{"one": one, "other": other, "share": 0.1}]
    assert [hint["label"] for hint in found["splits"]] == [one] and found["splits"][0]["sizes"] == [2, 2]
    assert found["rare"] == [[0]]
    client.act("merge", **{"from": other, "into": one})
    assert hints(client)["merges"] == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"merges": [{}], "splits": [1]}', '{"merges": [[1]], "splits": []}']
)
def test_damaged_files_give_no_suggestions(run: Path, review: Any, content: str) -> None:
    (run / "tree.json").write_text(content)
    (run / "groups.csv").write_text("group,image\nx,y\n")
    assert hints(review()) == {"merges": [], "splits": [], "rare": []}


def test_the_history_is_what_can_be_undone(client: Any) -> None:
    label = max(client.counts())
    client.act("name", label=label, name="dent")
    client.act("false_alarm", regions=client.regions(label)[:2])
    found = client.http.get("/api/history").json()
    assert [step["text"] for step in found["done"]] == ["call 2 regions false alarm", f"name class {label} “dent”"]
    client.undo()
    found = client.http.get("/api/history").json()
    assert len(found["done"]) == 1 and [step["text"] for step in found["undone"]] == ["call 2 regions false alarm"]


def test_normal_images_are_those_without_a_defect_the_most_suspicious_first(client: Any, run: Path) -> None:
    def normal() -> Any:
        return client.http.get("/api/normal", params={"limit": 100}).json()

    table = read_csv(run / "images.csv")
    start = normal()
    assert start["total"] == (table["label"] == 0).sum() == 2 and all(one["regions"] == [] for one in start["images"])
    regions = read_csv(run / "regions.csv")
    name = regions["image"][3]
    mine = regions.index[regions["image"] == name].tolist()
    client.act("false_alarm", regions=mine)
    now = normal()
    assert now["total"] == 3 and [one["regions"] for one in now["images"] if one["regions"]] == [mine]
    chances = dict(zip(table["image"], table["false_alarm"], strict=True))
    listed = [one["false_alarm"] for one in now["images"]]
    assert listed == sorted(listed) and chances[name] in listed
    client.undo()
    assert normal()["total"] == 2
    assert client.http.get("/api/normal", params={"offset": 2}).json()["images"] == []
