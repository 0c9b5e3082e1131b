"""Settings: presets, layers, files, and what a user is told about a wrong one.

Covers settings_text and sections.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.config import (
    REMOVED,
    REPLACED,
    Config,
    make_config,
    merge_layers,
    setting_names,
)
from anomalyncd.errors import SettingsError
from anomalyncd.settings_text import parse_setting, read_config


def test_later_layers_win_and_others_stay() -> None:
    config = make_config({"learn": {"epochs": 3, "n_heads": 2}}, {"learn": {"epochs": 7}}, {"n_classes": 4})
    assert (config.learn.epochs, config.learn.n_heads, config.n_classes) == (7, 2, 4)
    assert config.crop == Config().crop


def test_layers_are_not_changed() -> None:
    first, second = {"learn": {"epochs": 3}}, {"learn": {"epochs": 4}}
    merge_layers(first, second)
    assert (first, second) == ({"learn": {"epochs": 3}}, {"learn": {"epochs": 4}})


def test_preset_paper_is_the_papers_run() -> None:
    paper = make_config(preset="paper")
    assert paper.preset == "paper"
    assert (paper.learn.epochs, paper.learn.learning_rate, paper.learn.entropy_weight) == (50, 0.003, 4.0)
    assert paper.learn.train_last_block and paper.learn.normal == "class" and paper.learn.start == "random"
    assert paper.features.weights() == {"class_token": 1.0}
    assert paper.crop.merge == "squares" and Config().crop.merge == "boxes"
    assert make_config({"preset": "paper"}) == paper
    assert make_config({"preset": "fast"}, {"preset": "paper"}).preset == "paper"


@pytest.mark.parametrize("preset", ["", None])
def test_no_preset_is_fast(preset: str | None) -> None:
    assert make_config(preset=preset).preset == "fast"


@pytest.mark.parametrize("preset", ["slow", 3, ["fast"], {"a": 1}])
def test_wrong_preset_names_the_right_ones(preset: object) -> None:
    with pytest.raises(SettingsError, match="preset must be one of fast, paper, but got"):
        make_config({"preset": preset})


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"learn": {"epoch": 3}}, "no setting learn.epoch, did you mean learn.epochs?"),
        ({"zzz": 1}, "no setting zzz."),
        ({"learn": {"epochs": "many"}}, "learn.epochs: .* but got 'many'."),
        ({"learn": {"epochs": -1}}, "learn.epochs: .* but got -1."),
        ({"learn": 5}, "learn: .* but got 5."),
        ({"learn": {"learning_rate": float("inf")}}, "learn.learning_rate: .*finite"),
        ({"merge": {"temperature": float("nan")}}, "merge.temperature"),
        ({"learn": {"momentum": 0.8}}, "no setting learn.momentum any more: it is always 0.9."),
        ({"binarize": {"method": "best"}}, "binarize.method: .*'mebin'"),
        ({"n_classes": 1}, "must be at least 2"),
        (
            {"n_classes": 0},
            "^n_classes: must be a whole number from 1 to 10,000, the normal class .*, or auto, but got 0.$",
        ),
        ({"n_classes": "many"}, "or auto, but got 'many'.$"),
        ({"n_classes": 10**12}, "n_classes"),
        ({"random_state": 2**32}, "random_state: .* 4294967295, but got 4294967296."),
        ({"binarize": {"min_map_size": 10**7}}, "binarize.min_map_size: .*4096"),
        ({"features": {"image": 1e308}}, "image must be at most 1,000,000, but got 1e.308"),
        ({"crop": {"size": 100}}, r"crop.size \(100\) must be at least model.input_size \(224\)"),
        ({"features": {"patches": 0, "image": 0}}, "at least one of class_token, patches and image"),
        ({"features": {"surround": 0}}, "no setting features.surround any more: see features.image."),
        ({"features": {"block": 3}}, "no setting features.block any more: see features.blocks."),
        ({"features": {"blocks": []}}, "features.blocks: "),
        ({"features": {"blocks": [3, -1]}}, "features.blocks.1: .* but got -1."),
        ({"learn": {"train_last_block": True}}, "needs features.class_token above 0"),
        (
            {"model": {"guidance": "all"}},
            r"model.guidance \(all\) .* would change nothing: set features.class_token above 0",
        ),
        ({"model": {"guidance": "none"}}, r"model.guidance \(none\) .* would change nothing"),
        ({"model": {"guided_blocks": 3}}, r"model.guided_blocks \(3\) .* would change nothing"),
    ],
)
def test_wrong_settings_are_named(layer: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        make_config(layer)


def test_guidance_may_be_set_where_it_reaches_the_features() -> None:
    for settings in ({"preset": "paper"}, {"features": {"class_token": 0.5}}):
        assert make_config({"model": {"guidance": "patch", "guided_blocks": 2}}, settings).model.guided_blocks == 2


def nested(value: object, times: int, width: int = 1) -> object:
    for _ in range(times):
        value = [value] * width
    return value


LOOP: dict[str, object] = {}
LOOP["self"] = LOOP


@pytest.mark.parametrize("value", [LOOP, nested(0, 100), nested(0, 9, 10)], ids=["loop", "deep", "a billion laughs"])
def test_settings_that_never_end_are_refused(value: object) -> None:
    """Before they are written out, which would take all memory."""
    assert make_config({"detect": {"settings": {"a": nested(0, 10, 2)}}}).to_yaml()
    for layer in ({"detect": {"settings": {"a": value}}}, {"zzz": value}, {"learn": value}):
        with pytest.raises(SettingsError, match="nested without end"):
            make_config(layer)


def test_a_setting_that_contains_itself(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"learn: .*nested without end"):
        parse_setting("learn=&a {b: *a}")
    (tmp_path / "loop.yaml").write_text("detect: {settings: &a {b: *a}}")
    with pytest.raises(SettingsError, match=r"loop\.yaml: .*nested without end"):
        read_config(tmp_path / "loop.yaml")


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as error:
        make_config({"learn": {"epochs": -1, "n_heads": 0}})
    assert "learn.epochs" in str(error.value) and "learn.n_heads" in str(error.value)
    assert "pydantic" not in str(error.value)


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_yaml_round_trip(preset: str, tmp_path: Path) -> None:
    config = make_config({"n_classes": 5, "model": {"weights": "some/file.safetensors"}}, preset=preset)
    file = tmp_path / "config.yaml"
    file.write_text(config.to_yaml(), encoding="utf-8")
    assert make_config(read_config(file)) == config


def test_what_was_removed_is_no_setting() -> None:
    assert not {*REMOVED, *REPLACED} & {*setting_names()}
    assert {*REPLACED.values()} <= {*setting_names()}


def test_every_setting_can_be_set_by_its_name() -> None:
    dump = Config(n_classes=3).model_dump(mode="json")
    for name in setting_names():
        value = dump
        for part in name.split("."):
            value = value[part]
        assert make_config({"n_classes": 3}, parse_setting(f"{name}={yaml.safe_dump(value)}")) == Config(n_classes=3)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("learn.epochs=5", {"learn": {"epochs": 5}}),
        ("device=cuda:1", {"device": "cuda:1"}),
        ("a.b.c=[1, 2]", {"a": {"b": {"c": [1, 2]}}}),
        ("x=", {"x": None}),
    ],
)
def test_parse_setting(text: str, parsed: dict[str, object]) -> None:
    assert parse_setting(text) == parsed


@pytest.mark.parametrize("text", ["learn.epochs", "=5", "  =5", "", "x=[1", "x={", "x=2024-99-99"])
def test_parse_setting_says_what_is_wrong(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_setting(text)


@given(st.text(max_size=30))
def test_any_text_is_a_setting_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(SettingsError):
        make_config(parse_setting(text))


@pytest.mark.parametrize("content", [b"- 1\n- 2\n", b"5", b"a: [", b"\xff\xfe\x00"])
def test_a_bad_file_of_settings_is_named(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=r"settings\.yaml"):
        read_config(file)


def test_a_missing_file_of_settings_is_named_and_an_empty_one_is_fine(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml"):
        read_config(tmp_path / "nowhere.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_config(tmp_path / "empty.yaml") == {}


def test_keys_that_are_no_text_are_unknown_settings(tmp_path: Path) -> None:
    (tmp_path / "numbers.yaml").write_text("1: 2\n")
    with pytest.raises(SettingsError, match="no setting 1"):
        make_config(read_config(tmp_path / "numbers.yaml"))
