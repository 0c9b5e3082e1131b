"""The run folder and its log: whole files, one writer, stages, and no harm to what is not ours.

Covers log.
"""

from __future__ import annotations

import errno
import os
import warnings
from pathlib import Path

import pytest

from anomalyncd.checksums import stable_hash
from anomalyncd.errors import RunError
from anomalyncd.progress import Silent
from anomalyncd.run.folder import CORRECTIONS, RESULTS, RunFolder
from anomalyncd.run.log import logging_to


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    with RunFolder(tmp_path / "run").writing() as folder:
        return folder


def names(run: RunFolder) -> set[str]:
    return {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}


def test_a_stage_is_done_only_for_its_key(run: RunFolder) -> None:
    run.start("regions", "a")
    assert not run.is_done("regions", "a")
    run.finish("regions", "a")
    assert run.is_done("regions", "a") and not run.is_done("regions", "b") and not run.is_done("learn", "a")


def test_going_back_to_settings_whose_outputs_were_replaced_redoes_them(run: RunFolder) -> None:
    run.start("regions", "a", "tokens")
    run.write("tokens/0", b"of a")
    run.finish("regions", "a")
    run.start("regions", "b", "tokens")  # and killed here
    assert not run.is_done("regions", "a")
    run.start("regions", "a", "tokens")
    assert not (run.path / "tokens").exists()


def test_going_on_with_the_same_key_keeps_what_is_there(run: RunFolder) -> None:
    run.start("regions", "a", "tokens")
    run.write("tokens/0", b"first shard")
    run.start("regions", "a", "tokens")
    assert (run.path / "tokens/0").read_bytes() == b"first shard"


def test_a_stage_begun_anew_takes_old_results_away(run: RunFolder) -> None:
    for name in {*RESULTS, "config.yaml"} - {CORRECTIONS}:  # which people make
        run.write(name, b"old")
    run.start("regions", "new")
    assert not {*RESULTS} & names(run) and "config.yaml" in names(run)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"regions": 5}', b"\xff\xff", b'{"regions": "abc"}'])
def test_damaged_stages_mean_that_nothing_is_done(run: RunFolder, content: bytes) -> None:
    (run.path / "stages.json").write_bytes(content)
    assert not run.is_done("regions", "abc")
    run.start("regions", "abc")
    run.finish("regions", "abc")
    assert run.is_done("regions", "abc")


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "a/..", "/", "/etc/passwd", "a\0b"])
def test_a_name_that_leads_out_is_refused(name: str, run: RunFolder) -> None:
    for use in (run.place, run.remove, lambda name: run.write(name, b""), lambda name: run.commit({name: b""})):
        with pytest.raises(RunError, match="expected the name of a file inside the run"):
            use(name)


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a", "a..b/...", "größe/缺陷 1.png", "a/" + "n" * 300])
def test_other_names_are_places_in_the_run(name: str, run: RunFolder) -> None:
    assert run.place(name) == run.path / name and not run.place(name).exists()


def test_files_in_order_without_exports_and_what_is_half_written(run: RunFolder) -> None:
    for name in ("b/2", "b/1", "a", "tokens/export/x", "export/csv/x", "x.partial/y", "c/x.partial"):
        run.put(name, b"")
    assert list(run.files()) == [".lock", "a", "b/1", "b/2", "c/x.partial", "stages.json", "tokens/export/x"]
    assert list(run.files("b")) == ["b/1", "b/2"] and list(run.files("nowhere")) == []


def test_what_is_put_takes_the_place_of_what_was_there(run: RunFolder) -> None:
    for data in (b"first", b"second"):
        run.put("crops/0.png", data)
        assert (run.path / "crops/0.png").read_bytes() == data
    if hasattr(os, "link"):  # a copy of a run that shares its files, as backups do, is left as it is
        os.link(run.path / "crops/0.png", run.path.parent / "backup.png")
        run.put("crops/0.png", b"third")
        assert (run.path.parent / "backup.png").read_bytes() == b"second"


def test_half_written_files_are_swept_away(run: RunFolder) -> None:
    (run.path / "tokens/bank.partial").mkdir(parents=True)
    (run.path / "tokens/bank.partial/tokens.npy.partial").write_bytes(b"x")
    (run.path / "images.csv.partial").write_bytes(b"x")
    with run.writing():
        assert not list(run.path.rglob("*.partial"))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write("images.csv", b"old")

    def no_space(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match=r"No space left on device.*call the same command again"), run.writing():
        run.write("images.csv", b"new")
    assert (run.path / "images.csv").read_bytes() == b"old"
    assert not list(run.path.rglob("*.partial"))


def test_one_writer_at_a_time(run: RunFolder) -> None:
    with run.writing(), pytest.raises(RunError, match="another process is writing"), RunFolder(run.path).writing():
        pass
    with RunFolder(run.path).writing():
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="this is a file"), RunFolder(tmp_path / "file").writing():
        pass
    assert (tmp_path / "file").read_text() == "mine"


def test_somebody_elses_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks/0.png").write_bytes(b"mine")
    (tmp_path / "film.mkv.partial").write_bytes(b"mine too")
    with pytest.raises(RunError, match=r"holds other files \(film\.mkv\.partial\)"), RunFolder(tmp_path).writing():
        pass
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.png", "film.mkv.partial", "masks"]


def test_a_folder_whose_first_moment_was_its_last_is_ours(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / "stages.json.partial").touch()
    with RunFolder(tmp_path).writing():
        pass


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o500)
    denied = pytest.raises(RunError, match=r"run: cannot write the run \(Permission denied\)")
    with denied, RunFolder(tmp_path / "run").writing():
        pass


def test_replace_by_another_run(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write("base/tokens/0", b"old")
    run.write("images.csv", b"old")
    run.write("notes.txt", b"of the user")
    with RunFolder(tmp_path / "other").writing() as other:
        other.start("learn", "key")
        other.finish("learn", "key")
        other.write("images.csv", b"new")
        other.write("crops/0.png", b"new")
    moved: list[str] = []
    replace = os.replace
    with run.writing():
        monkeypatch.setattr(os, "replace", lambda old, new: (moved.append(Path(new).name), replace(old, new)))
        run.replace_by(other.path)
    assert moved[-3:] == ["crops", "stages.json", "images.csv"], "what says that a run is whole comes last"
    assert names(run) == {".lock", "images.csv", "crops/0.png", "notes.txt", "stages.json"}
    assert (run.path / "images.csv").read_bytes() == b"new" and run.is_done("learn", "key")


def test_stable_hash() -> None:
    assert stable_hash("a", 1) != stable_hash("a", 2)
    assert stable_hash(["ab", "c"]) != stable_hash(["a", "bc"])
    assert stable_hash() == "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"  # of "[]"


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(f"! {text}")


def test_the_log_keeps_what_was_called_said_and_warned_of(tmp_path: Path) -> None:
    heard = Heard()
    with (
        pytest.warns(UserWarning, match="of a library"),
        logging_to(tmp_path / "run.log", heard, "anomalyncd discover a --out b") as log,
    ):
        log.say("hello")
        log.warn("careful")
        log.note("only here")
        for _ in range(3):
            warnings.warn("of a library", stacklevel=1)
    with pytest.raises(RunError), logging_to(tmp_path / "run.log", heard, "second call") as log:
        raise RunError("it broke")
    lines = (tmp_path / "run.log").read_text(encoding="utf-8").splitlines()
    said = [line.split("  ", 1)[1] for line in lines]
    assert said[0] == "anomalyncd discover a --out b" and said[1].startswith("anomalyncd 0.")
    assert said[2:5] == ["hello", "warning: careful", "only here"]
    assert said.count("warning: of a library") == 1 and any(line.startswith("finished in ") for line in said)
    assert "second call" in said and said[-1] == "error: it broke"
    assert heard.lines == ["hello", "! careful"]


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="Windows asks for a right to make links")
def test_the_log_follows_no_link_that_comes_later(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    with logging_to(tmp_path / "run.log", Silent(), "call") as log:
        (tmp_path / "run.log").unlink()
        (tmp_path / "run.log").symlink_to(tmp_path / "letter.txt")
        log.note("not written")
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_no_run_fails_for_its_log(tmp_path: Path) -> None:
    with logging_to(tmp_path / "missing" / "run.log", Silent(), "call") as log:
        log.warn("not written")


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="Windows asks for a right to make links")
def test_a_folder_without_a_run_is_nothing_to_recover(tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to(tmp_path.parent)  # in a run this would be refused
    RunFolder(tmp_path).recover()


@pytest.mark.parametrize("more", [0, 1])
def test_a_json_file_may_be_so_large(more: int, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_json("a.json", {"ü": [2, 1], "a": None})
    text = run.place("a.json").read_text(encoding="utf-8")
    assert text == '{\n "a": null,\n "ü": [\n  2,\n  1\n ]\n}\n'
    monkeypatch.setattr("anomalyncd.run.folder.LARGEST_TEXT", len(text.encode()) - more)
    assert run.read_json("a.json") == (None if more else {"ü": [2, 1], "a": None})
    assert run.read_json("none.json") is None


@pytest.mark.parametrize("depth", [3, 4, 5])
def test_folders_in_folders_are_followed_so_deep(depth: int, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anomalyncd.run.folder.DEEPEST", 3)
    place = run.path.joinpath(*["d"] * depth)
    place.mkdir(parents=True)
    (place / "file").touch()
    if depth > 4:
        with pytest.raises(RunError, match="expected folders at most 3 deep, but this goes on: d/d/d/d"):
            list(run.files())
    else:
        assert "/".join(["d"] * depth) + "/file" in list(run.files())


def test_links_of_windows_are_links_too(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.path / "folder").mkdir()
    original = os.lstat

    class Status:
        def __init__(self, path: str, tag: int) -> None:
            self.st_mode, self.st_reparse_tag = original(path).st_mode, tag

    assert run.place("folder/x") == run.path / "folder" / "x"
    for tag, refused in ((0xA0000003, True), (0xA000000C, False)):
        monkeypatch.setattr(os, "lstat", lambda path, tag=tag: Status(path, tag))
        if refused:
            with pytest.raises(RunError, match="is a link"):
                run.place("folder/x")
        else:
            assert run.place("folder/x") == run.path / "folder" / "x"


def test_pipes_are_no_part_of_a_run(run: RunFolder) -> None:
    os.mkfifo(run.path / "pipe")
    with pytest.raises(RunError, match="is a pipe, socket or device"):
        run.place("pipe")
    with pytest.raises(RunError, match="is a pipe, socket or device"):
        list(run.files())


def test_keys_and_stages_of_a_run(run: RunFolder) -> None:
    assert run.key("learn") == "" and not run.has_begun("learn")
    run.start("learn", "k")
    assert run.key("learn") == "k" and run.has_begun("learn") and not run.is_done("learn", "k")
    assert run.read_json("stages.json") == {"format": 7, "learn": {"done": False, "key": "k"}}
    run.finish("learn", "k")
    assert run.is_done("learn", "k") and run.read_json("stages.json")["learn"] == {"done": True, "key": "k"}


def test_a_run_of_another_format_is_refused(tmp_path: Path) -> None:
    for content, words in (('{"format": 6}', "format 6, this one reads 7"), ('{"a": {}}', "no format number")):
        (tmp_path / "stages.json").write_text(content)
        for read in (RunFolder(tmp_path).recover, RunFolder(tmp_path).writing().__enter__):
            with pytest.raises(RunError, match=words):
                read()
    (tmp_path / "stages.json").write_text("damaged")
    RunFolder(tmp_path).recover()


def test_a_commit_that_was_begun_is_finished_by_who_reads_next(run: RunFolder) -> None:
    run.write_text("a.txt", "old")
    for name in ("commit/a.txt", "commit/new/b.txt"):
        run.write_text(name, "new")
    RunFolder(run.path).recover()
    assert run.place("a.txt").read_text() == run.place("new/b.txt").read_text() == "new"
    assert not run.place("commit").exists()


def test_files_are_replaced_as_one(run: RunFolder) -> None:
    run.write_text("a.txt", "old")
    run.commit({"a.txt": b"1", "new/b.txt": b"2"})
    assert run.place("a.txt").read_bytes() == b"1" and run.place("new/b.txt").read_bytes() == b"2"
    assert not [name for name in names(run) if name.startswith("commit")]
    with pytest.raises(RunError, match="expected the name of a file inside the run"):
        run.commit({"../a.txt": b"1"})


def test_work_of_people_is_refused_or_kept(run: RunFolder) -> None:
    run.keep_work("something")
    run.write_text("classes.json", '{"1": "dent", "2": "class 2"}')
    with pytest.raises(
        RunError, match=r"something, and the work of people would no longer fit: names of classes \(dent\)\."
    ):
        run.keep_work("something")
    assert run.kept is None
    run.force = True
    run.keep_work("something")
    assert run.kept == run.path / "kept" / "1" and (run.kept / "classes.json").exists()
    run.drop_results("more")
    assert run.kept == run.path / "kept" / "2" and not run.place("classes.json").exists()
    assert sorted(path.name for path in run.kept.iterdir()) == ["classes.json", "stages.json"]


def test_a_link_to_a_file_is_refused_wherever_it_lies(run: RunFolder) -> None:
    run.write_text("folder/real.txt", "1")
    (run.path / "folder" / "link.txt").symlink_to("real.txt")
    with pytest.raises(RunError, match="is a link"):
        list(run.files())
    (run.path / "folder" / "link.txt").unlink()
    (run.path / "elsewhere").symlink_to(run.path / "folder")
    with pytest.raises(RunError, match="is a link"):
        list(run.files())
