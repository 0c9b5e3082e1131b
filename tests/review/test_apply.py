"""Apply with the heads that really learn, and a split by what they see. Covers apply.py and classes.py."""

from __future__ import annotations

import time

import numpy as np
import pytest

from anomalyncd.checksums import seal
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import RunError
from anomalyncd.review.classes import split_regions
from anomalyncd.run.folder import MANIFEST, REGIONS_TABLE, RETRAINED, RunFolder
from anomalyncd.run.store import RegionStore
from anomalyncd.run.tables import read_csv, read_names


def apply(client):
    content = {"key": f"apply-real-{next(client.numbers)}", "version": client.state["version"]}
    assert client.http.post("/api/apply", json=content).status_code == 202
    end = time.monotonic() + 60
    while (job := client.http.get("/api/version").json()["job"])["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.02)
    assert job["state"] == "done", job
    client.look()


def test_corrections_are_in_the_tables_and_in_the_model_afterwards(review, run):
    client = review(learner=relearn)
    before = client.counts()
    alarm, moved = client.regions(1)[:2]
    client.act("merge", **{"from": 3, "into": 2})
    client.act("name", label=2, name="line")
    client.act("false_alarm", regions=[alarm])
    client.act("move", regions=[moved], to=None)
    apply(client)
    table = read_csv(run / REGIONS_TABLE)
    assert table["label"].iloc[alarm] == 0 and table["label"].iloc[moved] == 4, "what a person placed stays"
    assert 3 not in set(table["label"]) and set(client.counts()) == {0, 1, 2, 4}
    assert client.counts()[2] >= before[2] + before[3] - 1
    assert read_names(run)[2] == "line" and DiscoveryModel.read(run, device="cpu").names[2] == "line"
    assert client.state["n_actions"] == 0 and client.state["n_changed"] == 0

    client.act("name", label=4, name="odd one")
    apply(client)
    again = read_csv(run / REGIONS_TABLE)
    assert again["label"].tolist() == table["label"].tolist(), "only a name was given"
    assert client.names()[4] == "odd one" and client.http.get("/api/moves").json()["total"] == 0


def test_a_class_is_split_by_what_the_trained_network_sees(run, monkeypatch):
    model = DiscoveryModel.read(run, device="cpu")
    model.classifier.last_block = {"weight": np.zeros(1, np.float32)}
    monkeypatch.setattr(DiscoveryModel, "read", lambda *_, **__: model)
    store = RegionStore(RunFolder(run)).read(len(read_csv(run / MANIFEST)))
    keys = [(region.image, region.region) for region in store.regions]
    with pytest.raises(RunError, match="missing or damaged"):
        split_regions(run, keys, 2)
    alike = [
        0 if row % 3 else len(keys) - 1 for row in range(len(keys))
    ]  # every third is like the last, the others like 0
    trained = {name: np.ascontiguousarray(part[alike]) for name, part in store.parts.items()}
    (run / RETRAINED).write_bytes(seal(trained, {}))
    assert split_regions(run, keys, 2).tolist() == [0 if row % 3 else 1 for row in range(len(keys))]
