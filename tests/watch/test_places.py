"""Files in the folders of their classes, whenever the process was killed and whatever came in between."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anomalyncd.watch.arrivals import marks_of
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import Ledger, content_id
from anomalyncd.watch.places import Places


@pytest.fixture
def scene(tmp_path: Path):
    source = tmp_path / "in" / "a.png"
    source.parent.mkdir()
    source.write_bytes(b"classed")
    ledger = Ledger(tmp_path / "l.watch", tables=False)
    target = tmp_path / "kinds" / "crack" / "a.png"
    entry = Entry({"id": content_id("a.png", "00"), "time": "2026", "image": "a.png"}, marks_of(source))
    ledger.commit([entry], places={entry.id: (str(source), str(target))})
    return ledger, source, target


@pytest.mark.parametrize("link", [False, True])
def test_a_file_is_placed_once(link: bool, scene, tmp_path: Path) -> None:
    ledger, source, target = scene
    places = Places(tmp_path / "kinds", link=link)
    todo = ledger.places()
    places.place(ledger)
    assert target.read_bytes() == b"classed" and source.exists() == link and ledger.places() == []
    for one in todo:  # a process that was killed before it could note that
        places._place(one)
    assert target.read_bytes() == b"classed" and source.exists() == link


def test_a_file_that_was_replaced_meanwhile_stays(scene, tmp_path: Path) -> None:
    ledger, source, target = scene
    source.write_bytes(b"something newer")
    Places(tmp_path / "kinds", link=False).place(ledger)
    assert source.read_bytes() == b"something newer" and not target.exists() and ledger.places() == []


def test_a_file_that_is_replaced_between_the_look_and_the_move_goes_back(scene, tmp_path: Path, monkeypatch) -> None:
    ledger, source, target = scene
    rename = os.rename

    def late(one: Path, other: Path) -> None:
        if Path(other) == target:
            source.write_bytes(b"something newer")
        rename(one, other)

    monkeypatch.setattr(os, "rename", late)
    Places(tmp_path / "kinds", link=False).place(ledger)
    assert source.read_bytes() == b"something newer" and not target.exists()


def test_another_file_system(scene, tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "link", refuse)
    ledger, source, target = scene
    Places(tmp_path / "kinds", link=False).place(ledger)
    assert target.read_bytes() == b"classed" and not source.exists() and len(list(target.parent.iterdir())) == 1


def test_names_are_safe_and_not_taken_twice(tmp_path: Path) -> None:
    places = Places(tmp_path, link=False)
    first = places.target("sub/a.png", "../x", "1" * 32)
    assert first == tmp_path / "_._x" / "sub_a.png"
    assert places.target("sub/a.png", "../x", "2" * 32, {str(first)}).name == f"sub_a-{'2' * 32}.png"
