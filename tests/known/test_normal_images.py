"""What may be wrong with images that are given as normal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from anomalyncd.data.dataset import Sample
from anomalyncd.known.normal_images import suspects_table, warn_of_overlap
from anomalyncd.progress import Silent


class Heard(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_suspects_are_listed_the_oddest_first() -> None:
    normal, heard = [Sample(f"{name}.png", Path(f"{name}.png")) for name in "abcdefgh"], Heard()
    table = suspects_table({6: 4.5, 1: 9.0, 0: 4.5}, normal, heard)
    assert table is not None
    assert table.to_dict("list") == {"image": ["b.png", "a.png", "g.png"], "deviations": [9.0, 4.5, 4.5]}
    assert "3 of 8 normal images" in heard.warned[0] and ": b.png, a.png, g.png." in heard.warned[0]
    suspects_table(dict.fromkeys(range(6), 5.0), normal, heard)
    assert "e.png, …" in heard.warned[1] and "f.png" not in heard.warned[1]


def test_nothing_is_said_of_a_clean_folder() -> None:
    heard = Heard()
    assert suspects_table({}, [Sample("a.png", Path("a.png"))], heard) is None and not heard.warned


def test_a_warning_where_all_images_are_among_the_normal_ones() -> None:
    def warned(images: list[str], normal: list[str]) -> int:
        said: list[str] = []
        given = [[Sample(name, Path(name)) for name in names] for names in (images, normal)]
        warn_of_overlap(*given, SimpleNamespace(warn=said.append))  # type: ignore[arg-type]
        return len(said)

    assert warned(["a.png", "b.png"], ["b.png", "a.png", "c.png"]) == 1
    assert warned(["a.png"], ["a.png", "b.png"]) == 1 and warned(["a.png", "c.png"], ["a.png", "b.png"]) == 0
    assert warned(["a.png", "b.png"], ["b.png"]) == warned(["a.png"], ["b.png"]) == warned(["a.png"], []) == 0
