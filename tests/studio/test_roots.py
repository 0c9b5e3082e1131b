"""What the picker may reach: the roots and nothing else, whatever is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.errors import SettingsError
from anomalyncd.studio.roots import OutsideError, Roots

PART = st.sampled_from(["..", ".", "", "a", "b", "out", "in", "/", "\\", "~", "a.png", "\0"]) | st.text(max_size=5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("roots")
    (folder / "root/a/b").mkdir(parents=True)
    (folder / "root/a.png").touch()
    (folder / "beside").mkdir()
    (folder / "root/out").symlink_to(folder / "beside")
    (folder / "root/in").symlink_to(folder / "root/a")
    return folder / "root"


@given(parts=st.lists(PART, max_size=5), number=st.integers(-2, 2))
def test_every_place_is_inside_or_refused(root: Path, parts: list[str], number: int) -> None:
    roots = Roots([root])
    try:
        found = roots.find(number, "/".join(parts))
    except OutsideError:
        return
    assert number == 0 and found.is_relative_to(root.resolve())


def test_links_inside_are_followed(root: Path) -> None:
    assert Roots([root]).find(0, "in/b") == root.resolve() / "a/b"


def test_a_listing_leaves_out_what_leads_out(root: Path) -> None:
    found = Roots([root]).list(0, "")
    assert found.folders == ["a", "in"] and found.images == ["a.png"] and found.n_images == 1


def test_a_root_that_is_not_there_is_said_at_once(root: Path) -> None:
    with pytest.raises(SettingsError, match="none found"):
        Roots([root / "nowhere"])
