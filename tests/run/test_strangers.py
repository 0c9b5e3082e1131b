"""A run that a stranger made: no name inside it leads out of it, whatever command opens it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.checksums import seal, unseal
from anomalyncd.errors import RunError
from anomalyncd.review.session import Session
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import FORMAT, RunFolder
from anomalyncd.run.tables import read_csv
from command import call, fail
from scenes import content

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes that anybody can make")
TOP = (
    ".lock", "run.log", "stages.json", "config.yaml", "model.safetensors", "classes.json", "images.csv", "regions.csv",
    "manifest.csv", "range.json", "tokens", "crops", "masks", "maps", "detector", "detector.json", "pictures", "export",
    "report.html", "report.html.partial", "classes.png", "commit", "commit.partial", "review.sqlite",
    "review.sqlite-wal", "review.sqlite-shm", "review.lock",
)  # fmt: skip
DEEP = (
    "tokens/00000.safetensors", "tokens/00001.safetensors.partial", "crops/000", "crops/000/000003_003_0.png",
    "masks/000/000003_003.png", "maps/scores.csv", "detector/detector.safetensors", "pictures/class_1.png",
)  # fmt: skip
READING = ("evaluate", "report", "export", "predict", "review")
WRITING = ("update", "discover", "save")


@pytest.fixture(autouse=True)
def no_command_waits_for_a_pipe() -> Iterator[None]:
    def tell(*_: object) -> None:
        raise TimeoutError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, tell)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody who trusts us."""
    folder = tmp_path / "home"
    (folder / "more").mkdir(parents=True)
    for name in ("letter.txt", "000003_003_0.png", "more/00000.safetensors"):
        (folder / name).write_text(f"my {name}")
    return folder


def do(command: str, run: Path, line: Path) -> None:
    """One command of each kind, with the functions behind it."""
    work, images = run.parent / "work", line / "images"
    if command == "evaluate":
        call("evaluate", run, "--labels", line / "labels.csv")
    elif command == "report":
        call("report", run, "--no-attention", "--quiet")
    elif command == "export":
        call("export", run, "--format", "coco", "--quiet")
    elif command == "predict":
        call("predict", run, images, "--out", work / "new.csv", "--quiet")
    elif command == "update":
        call("update", run, images, "--quiet")
    elif command == "discover":
        call("discover", images, "--out", run, "--detector", "musc", "--classes", 3, "--backbone", "tiny", "--quiet")
    elif command == "review":
        Session(run).close()
    else:
        AnomalyNCD.load(run).save(work / "saved")


def refused(command: str, run: Path, line: Path, words: str = "is a (link|pipe)") -> None:
    with pytest.raises(RunError, match=words) as error:
        do(command, run, line)
    assert "\n" not in str(error.value)


def swap(path: Path, kind: str, target: Path) -> None:
    """Put a link or a pipe in the place of whatever is there."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(target)


@pytest.mark.parametrize("name", TOP)
def test_at_the_top_of_a_run(name: str, run: Path, line: Path, outside: Path) -> None:
    before = content(outside)
    there = outside / ("more" if (run / name).is_dir() else "letter.txt")
    for kind, target in (("link", there), ("link", outside / "gone"), ("pipe", there)):
        swap(run / name, kind, target)
        for command in ("evaluate", "discover"):
            refused(command, run, line)
    assert content(outside) == before


@pytest.mark.parametrize("command", [*READING, *WRITING])
def test_whatever_the_command(command: str, run: Path, line: Path, outside: Path) -> None:
    before = content(outside)
    for name in (
        ".lock",
        "run.log",
        "stages.json",
        "crops",
        "pictures",
        "export",
        "report.html.partial",
        "review.lock",
    ):
        shutil.copytree(run, run.parent / "bad" / "run")
        swap(run.parent / "bad/run" / name, "link", outside)
        refused(command, run.parent / "bad/run", line)
        shutil.rmtree(run.parent / "bad")
    assert content(outside) == before


@pytest.mark.parametrize("name", DEEP)
def test_inside_its_folders(name: str, run: Path, line: Path, outside: Path) -> None:
    before = content(outside)
    for kind in ("link", "pipe"):
        swap(run / name, kind, outside if name == "crops/000" else outside / "letter.txt")
        for command in WRITING:
            refused(command, run, line)
    assert content(outside) == before


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_reading_goes_no_way_out(kind: str, run: Path, line: Path, outside: Path) -> None:
    before = content(outside)
    for name in DEEP:
        if name != "crops/000":
            swap(run / name, kind, outside / "letter.txt")
    for command in READING:  # which may not need these files
        with suppress(RunError):
            do(command, run, line)
    assert content(outside) == before


@pytest.mark.parametrize("command", [*READING, *WRITING])
@pytest.mark.parametrize("target", ["crops/letter.txt", "tokens/more/00000.safetensors"])
def test_a_commit_does_not_write_through_a_link(
    target: str, command: str, run: Path, line: Path, outside: Path
) -> None:
    swap((run / target).parent, "link", outside if target.startswith("crops") else outside / "more")
    (run / "commit" / target).parent.mkdir(parents=True)
    (run / "commit" / target).write_text("bad")
    (run / "commit/classes.json").write_text("{}")
    before, names = content(outside), (run / "classes.json").read_bytes()
    refused(command, run, line)
    assert content(outside) == before
    assert (run / "classes.json").read_bytes() == names, "all is looked at before anything is moved"


@pytest.mark.parametrize("command", [*READING, *WRITING])
@pytest.mark.parametrize("name", ["commit", "commit/crops", "commit/crops/000", "commit/letter.txt"])
def test_a_commit_does_not_take_files_from_elsewhere(
    name: str, command: str, run: Path, line: Path, outside: Path
) -> None:
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    swap(run / name, "link", outside / "letter.txt" if name.endswith(".txt") else outside)
    before = content(outside)
    refused(command, run, line)
    assert content(outside) == before and not (run / "letter.txt").exists()


@pytest.mark.parametrize("name", ["report.html", "pictures/count.png", "classes.png", "tokens/00000.safetensors"])
def test_a_file_being_written_does_not_go_through_a_link(name: str, run: Path, outside: Path) -> None:
    before = content(outside)
    for place in (name, f"{name}.partial"):
        swap(run / place, "link", outside / "letter.txt")
        with pytest.raises(RunError, match="is a link"):
            RunFolder(run).write(name, b"bad")
        (run / place).unlink()
    swap(run / name, "link", outside / "letter.txt")
    with pytest.raises(RunError, match="is a link"):
        RunFolder(run).put(name, b"bad")
    assert content(outside) == before


def test_sweeping_goes_no_further_than_the_run(run: Path, line: Path, outside: Path) -> None:
    (run / "tokens/bank.partial").mkdir()
    swap(run / "tokens/bank.partial/deep", "link", outside)
    swap(run / "tokens/bank.partial/tokens.npy", "pipe", outside)
    before = content(outside)
    do("update", run, line)
    assert content(outside) == before and not (run / "tokens/bank.partial").exists()
    for name in ("x.partial", "tokens/x.partial"):
        swap(run / name, "link", outside)
        refused("update", run, line)
        assert content(outside) == before
        (run / name).unlink()


def test_a_run_with_a_link_is_not_saved_and_nothing_is_saved_through_one(
    finished: Path, run: Path, line: Path, outside: Path
) -> None:
    before, model = content(outside), AnomalyNCD.load(run)
    swap(run / "crops/000/000003_003_0.png", "link", outside / "000003_003_0.png")
    with pytest.raises(RunError, match="is a link"):
        model.save(run.parent / "copy")
    assert not list((run.parent / "copy").rglob("*.png"))
    swap(run / "crops", "link", outside)
    with pytest.raises(RunError, match="is a link"):
        AnomalyNCD.load(finished).save(run)
    assert content(outside) == before


@pytest.mark.parametrize("name", ["export", "export/coco", "export/coco.partial", "export/coco.old.partial"])
@pytest.mark.parametrize("named", [False, True])
def test_an_export_does_not_leave_the_run(name: str, named: bool, run: Path, outside: Path) -> None:
    (outside / "export.json").write_text('{"format": "coco", "files": ["letter.txt"]}')
    swap(run / name, "link", outside)
    before = content(outside)
    fail("export", run, "--format", "coco", "--quiet", *(("--out", run / "export/coco") if named else ()))
    assert content(outside) == before


def test_an_export_that_is_there_is_no_pipe(run: Path) -> None:
    (run / "export/coco").mkdir(parents=True)
    os.mkfifo(run / "export/coco/export.json")
    assert "holds other files" in fail("export", run, "--format", "coco", "--quiet")


def test_a_table_may_name_images_outside_and_nothing_else(run: Path, outside: Path) -> None:
    """A stranger's table must not make `export` carry a letter into a folder that is handed on."""
    os.mkfifo(outside / "pipe.png")
    table = pd.read_csv(run / "manifest.csv", keep_default_na=False)
    table.loc[:1, "file"] = [str(outside / "letter.txt"), str(outside / "pipe.png")]
    table.to_csv(run / "manifest.csv", index=False)
    for link in ((), ("--link",)):
        found = call("export", run, "--format", "folders", *link)
        assert "2 images (file gone" in found.stderr
        files = [path for path in (run / "export/folders").rglob("*") if path.is_file()]
        assert len(files) == len(table) - 2 + 1 and not any(b"my letter" in path.read_bytes() for path in files)
    call("report", run, "--no-attention", "--quiet")


def test_the_log_of_a_review_deletes_nothing(run: Path, outside: Path) -> None:
    """SQLite rolls back what a journal beside its file says, and then deletes the file that the journal names."""
    Session(run).close()
    log, victim = run / "review.sqlite", str(outside / "letter.txt").encode()
    page, magic = log.read_bytes()[:4096], bytes.fromhex("d9d505f920a163d7")
    n_pages, checksum = log.stat().st_size // 4096, (1 + sum(page[3896:0:-200])) % 2**32
    head = (magic + struct.pack(">5I", 1, 1, n_pages, 512, 4096)).ljust(512, b"\0")
    journal = head + struct.pack(">I", 1) + page + struct.pack(">I", checksum)
    journal += struct.pack(">I", 0x40000000 // 4096 + 1) + victim + struct.pack(">2I", len(victim), sum(victim)) + magic
    (run / "review.sqlite-journal").write_bytes(journal)
    before = content(outside)
    Session(run).close()
    assert content(outside) == before


ARRAYS = {
    "deeper": lambda values: values[None],
    "flat": lambda values: values.reshape(-1),
    "shorter": lambda values: values[:-1],
    "narrower": lambda values: values[..., :-1],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_a_model_that_do_not_fit_each_other_are_one_line(kind: str, run: Path, line: Path) -> None:
    file = run / "model.safetensors"
    arrays, notes = unseal(file)
    for name in arrays:
        changed = np.ascontiguousarray(ARRAYS[kind](arrays[name]))
        if changed.shape == arrays[name].shape:
            continue
        file.write_bytes(seal({**arrays, name: changed}, notes))
        if kind == "shorter" and name in ("product.scenes", "looks.normal", "looks.defects"):
            AnomalyNCD.load(run)  # an example less is a model too
        else:
            with pytest.raises(RunError, match="damaged, or not a model of anomalyncd"):
                AnomalyNCD.load(run)
                raise AssertionError(name)
    file.write_bytes(seal({**arrays, "weight": arrays["weight"][None]}, notes))
    for command in ("predict", "update"):
        refused(command, run, line, "damaged, or not a model of anomalyncd")


@pytest.mark.parametrize("value", ["x", None, 10**30, [1, 2]])
def test_the_highest_label_of_a_model_is_a_number(value: object, run: Path, line: Path) -> None:
    file = run / "model.safetensors"
    arrays, notes = unseal(file)
    meta = {**json.loads(notes["anomalyncd"]), "highest": value}
    file.write_bytes(seal(arrays, {**notes, "anomalyncd": json.dumps(meta)}))
    refused("update", run, line, "damaged, or not a model of anomalyncd")


SHARDS = {
    "a region of no image": lambda arrays, records: records["regions"][0].update(index=-1),
    "a region of an image that was not read": lambda arrays, records: [r.update(error="x") for r in records["images"]],
    "arrays deeper": lambda arrays, records: arrays.update(image=arrays["image"][None]),
    "a row too few": lambda arrays, records: arrays.update(image=arrays["image"][1:]),
    "a scene too few": lambda arrays, records: arrays.update(scenes=arrays["scenes"][1:]),
}


@pytest.mark.parametrize("kind", SHARDS)
def test_a_shard_whose_parts_do_not_fit_each_other_is_damaged(kind: str, run: Path, line: Path) -> None:
    shard = run / "tokens" / "00000.safetensors"
    arrays, notes = unseal(shard)
    records = json.loads(notes["records"])
    SHARDS[kind](arrays, records)
    whole = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    shard.write_bytes(seal(whole, {**notes, "records": json.dumps(records)}))
    refused("update", run, line, "does not fit what the run has stored")


@pytest.mark.parametrize("column", ["classes", "unknown", "probability", "n_regions"])
def test_a_table_without_one_of_its_columns_is_one_line(column: str, run: Path, line: Path) -> None:
    read_csv(run / "images.csv").drop(columns=column).to_csv(run / "images.csv", index=False)
    refused("report", run, line, f"it has no column {column}")


def test_a_file_of_the_manifest_without_a_folder_is_looked_for_here(run: Path) -> None:
    table = read_csv(run / "manifest.csv")
    table.loc[0, "file"] = "x"
    table.to_csv(run / "manifest.csv", index=False)
    call("export", run, "--format", "labelstudio", "--quiet")
    assert FinishedRun(run).file(table["image"][0]) == Path("x").absolute()


def test_the_run_itself_may_be_a_link(run: Path, line: Path) -> None:
    (run.parent / "link").symlink_to(run)
    for command in (*READING, *WRITING):
        do(command, run.parent / "link", line)
    assert (run / "report.html").is_file() and (run / "export/coco").is_dir()


def test_links_of_an_export_to_images_are_nobodys_concern(run: Path, line: Path, tmp_path: Path) -> None:
    (run / "export/folders").mkdir(parents=True)
    (run / "export/folders/a.png").symlink_to(line / "images/003.png")
    for command in ("update", "save", "report"):
        do(command, run, line)
    assert (tmp_path / "work/saved/export/folders/a.png").is_symlink()


@pytest.mark.parametrize("written", ['{"format": 4}', "{}", '{"format": "5"}', '{"learn": {"key": "a", "done": true}}'])
def test_a_run_of_another_format_gets_one_line(written: str, run: Path, line: Path) -> None:
    (run / "stages.json").write_text(written)
    found = "format 4" if "4" in written else "no format number"
    for command in (*READING, *WRITING):
        refused(command, run, line, rf"run: made by another version of anomalyncd \({found}, this one reads {FORMAT}\)")
    assert (run / "stages.json").read_text() == written


def test_a_run_without_a_record_of_its_stages_is_of_no_format(run: Path, line: Path) -> None:
    (run / "stages.json").unlink()
    for command in READING:
        refused(command, run, line, "no format number")
