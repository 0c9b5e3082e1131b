"""Two and three processes train as one does: the same losses, gradients, weights and files."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from anomalyncd.errors import DataError, RunError, SettingsError
from anomalyncd.learn import distributed
from anomalyncd.learn.distributed import ALONE, LostProcessError, ProcessGroup, join, process_group
from command import call
from learn.parallel_scenes import FITS, N_REGIONS, everything
from scenes import KINDS, write_scenes

SIZES = (2, 3)
TOLERANCE = 2e-5  # of a loss; seen: 4e-6
PATIENCE = 300  # seconds, for a machine that is busy; a quiet one needs a tenth


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return everything(ALONE, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """Size of a group → what each of its processes saw."""
    folder = tmp_path_factory.mktemp("groups")
    script = Path(__file__).with_name("parallel_scenes.py")
    subprocess.run([sys.executable, script, folder, *map(str, SIZES)], check=True, timeout=PATIENCE)
    assert not any((folder / str(size) / "bank.partial").exists() for size in SIZES)
    return {
        size: [json.loads((folder / str(size) / f"seen{rank}.json").read_text()) for rank in range(size)]
        for size in SIZES
    }


@pytest.mark.parametrize(("size", "busy", "told"), [(1, False, 0), (1, True, 0), (2, False, 1), (2, True, 0)])
def test_helpers_are_let_go_where_there_are_some_who_listen(monkeypatch, size, busy, told):
    group, sent = ProcessGroup(0, size), []
    group.busy = busy
    monkeypatch.setattr(group, "_broadcast", sent.append)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: None)
    group.dismiss()
    assert sent == [b""] * told


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FITS)
def test_several_processes_have_the_losses_of_one(alone, groups, size, name):
    expected = alone[name]["history"]
    for seen in groups[size]:
        assert [[*row] for row in seen[name]["history"]] == [[*row] for row in expected]
        for row, other in zip(seen[name]["history"], expected, strict=True):
            assert row == pytest.approx(other, abs=TOLERANCE)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FITS)
def test_several_processes_learn_the_weights_and_classes_of_one(alone, groups, size, name):
    for seen in (seen[name] for seen in groups[size]):
        np.testing.assert_allclose(seen["weight"], alone[name]["weight"], atol=2e-6)
        assert seen["last_block"].keys() == alone[name]["last_block"].keys()
        assert bool(seen["last_block"]) == name.startswith("paper")
        for part, value in seen["last_block"].items():
            np.testing.assert_allclose(value, alone[name]["last_block"][part], atol=2e-6)
        assert seen["classes"] == alone[name]["classes"]


@pytest.mark.parametrize("size", SIZES)
def test_all_processes_of_a_group_have_the_very_same_weights(groups, size):
    for name in FITS:
        first, *others = [{**seen[name], "reads": 0} for seen in groups[size]]
        assert all(other == first for other in others)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["gradients", "few gradients"])
def test_gradients_are_those_of_the_whole_batch(alone, groups, size, name):
    for seen in groups[size]:
        for gradient, expected in zip(seen[name], alone[name], strict=True):
            assert np.abs(expected).max() > 0
            np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_all_begin_with_the_network_of_the_leader(alone, groups, size):
    for seen in groups[size]:
        assert seen["weights"] == pytest.approx(alone["weights"], abs=1e-6)


def test_a_process_computes_its_share_only(alone, groups):
    assert alone["paper, bank"]["reads"] == N_REGIONS
    assert [seen["paper, bank"]["reads"] for seen in groups[2]] == [6, 5]
    assert [seen["paper, bank"]["reads"] for seen in groups[3]] == [4, 4, 3]
    assert alone["paper, fresh"]["reads"] == 2 * 2 * 5  # two epochs of two batches of five
    assert [seen["paper, fresh"]["reads"] for seen in groups[2]] == [2 * 2 * 3] * 2
    assert [seen["paper, fresh"]["reads"] for seen in groups[3]] == [2 * 2 * 2] * 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("views", ["bank", "fresh"])
def test_what_fails_in_one_process_fails_in_all_with_its_words(groups, size, views):
    said = [seen[f"{views} error"] for seen in groups[size]]
    own = [text for text in said if text == "DataError: crop 1 is damaged"]
    assert len(own) == 1
    told = f"RunError: process {said.index(own[0])} of {size}: crop 1 is damaged"
    assert [text for text in said if text not in own] == [told] * (size - 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_leader_notices_that_another_process_died(groups, size):
    assert groups[size][0]["loss"].startswith("LostProcessError: another process of this run has ended")


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 4), (2, 3), (5, 3), (6, 3), (32, 5)])
def test_shares_are_equal_and_begin_with_every_row_in_order(count, size):
    shares = [ProcessGroup(rank, size).share(count) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    joined = np.concatenate(shares)
    assert joined[:count].tolist() == list(range(count)) and joined.max() < count
    assert len(joined) - count < size


@pytest.mark.parametrize("device", ["cuda:1", "mps", "meta"])
def test_a_device_that_several_processes_cannot_share_is_refused(device):
    ALONE.check(torch.device(device), banked=True)
    with pytest.raises(SettingsError, match=f"device is {device}"):
        ProcessGroup(0, 2).check(torch.device(device), banked=False)


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingsError, match="2 processes need 2 GPUs here, but there are 1"):
        ProcessGroup(0, 2).check(torch.device("cuda"), banked=False)


def test_a_bank_is_refused_on_several_machines(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    ProcessGroup(0, 2).check(torch.device("cpu"), banked=False)
    with pytest.raises(SettingsError, match=r"learn\.views to fresh"):
        ProcessGroup(0, 2).check(torch.device("cpu"), banked=True)


def torchrun(*arguments):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "anomalyncd",
    ]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)


def test_discover_under_torchrun_ends_with_the_tables_of_one_process(tmp_path):
    line = write_scenes(tmp_path / "line", KINDS, seed=0)
    options = ["discover", line / "images", "--maps", line / "maps", "--classes", 4, "--backbone", "tiny"]
    options += [
        "--preset",
        "paper",
        "--set",
        "learn.epochs=2",
        "--set",
        "learn.batch_size=7",
        "--set",
        "learn.bank_views=2",
    ]
    one, two = tmp_path / "one", tmp_path / "two"
    plain = call(*options, "--out", one)
    shared = torchrun(*options, "--out", two, "--quiet")
    assert shared.returncode == 0, shared.stderr
    assert shared.stdout.count("Next: anomalyncd") == plain.output.count("Next: anomalyncd") == 1
    for name in ("images.csv", "regions.csv", "loss.csv"):
        # Trained features are kept in half precision, of which a last bit may differ; seen: 1e-5, and no loss differs.
        pd.testing.assert_frame_equal(
            pd.read_csv(two / name), pd.read_csv(one / name), check_exact=False, atol=5e-5, rtol=0
        )
    for name in ("manifest.csv", "groups.csv", "classes.json"):
        assert (two / name).read_bytes() == (one / name).read_bytes()
    assert "learning in 2 processes" in (two / "run.log").read_text(encoding="utf-8")

    # One crop is damaged, and one process alone meets it: one message, no result, nothing half-written.
    lost = next(path for path in sorted((two / "crops").rglob("*.png")) if not path.stem.endswith("_mask"))
    lost.write_bytes(b"")
    failed = torchrun(*options, "--out", two, "--quiet", "--set", "learn.epochs=1")
    assert failed.returncode != 0
    assert failed.stderr.count("error: ") == 1 and f"{lost}: a crop of this run is missing" in failed.stderr
    assert not (two / "images.csv").exists() and not [*two.rglob("*.partial")]


class Collective:
    """What `torch.distributed` does for one of several processes, the others being played by what is said here."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self):
        self.sent, self.others, self.ended = [], [], 0

    def all_gather(self, shares, own):
        assert not own.requires_grad
        for place, share in enumerate(shares):
            share.copy_(own if place == self.rank else self.others[place])

    def all_reduce(self, values, how=None):
        self.sent.append((values.tolist(), how))
        values.copy_(torch.minimum(values, self.others[0]) if how is not None else values + self.others[0])

    def broadcast(self, values, source):
        self.sent.append((values.tolist(), source))
        if self.others:
            values.copy_(self.others.pop(0))

    def destroy_process_group(self):
        self.ended += 1


@pytest.fixture
def played(monkeypatch):
    collective = Collective()
    monkeypatch.setattr(distributed, "dist", collective)
    return collective


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_of_all_processes_are_gathered_in_order(played, rank):
    """Five rows of two tensors, three of them here, and the last process computes one twice."""
    whole = torch.arange(15.0).view(5, 3), torch.arange(10.0).view(5, 2, 1) + 100
    rows = [[0, 1, 2], [3, 4, 0]]
    played.rank = rank
    played.others = [torch.cat([tensor[own].flatten(1) for tensor in whole], dim=1) for own in rows]
    given = [tensor[rows[rank]].clone().requires_grad_() for tensor in whole]
    found = ProcessGroup(rank, 2).gather(given, 5)
    for tensor, expected in zip(found, whole, strict=True):
        torch.testing.assert_close(tensor.detach(), expected)
    (found[0] * torch.arange(5.0)[:, None]).sum().backward()
    expected = [0.0, 1.0, 2.0] if rank == 0 else [3.0, 4.0, 0.0]  # the row that is there twice has no say
    assert given[0].grad[:, 0].tolist() == expected
    assert ALONE.gather(given, 3)[0] is given[0]


def test_gradients_are_added_up(played):
    net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
    net[0].weight.grad, net[0].bias.grad = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
    played.others = [torch.tensor([10.0, 20.0, 30.0])]
    ALONE.sum_gradients(net)
    assert net[0].bias.grad.tolist() == [3]
    ProcessGroup(0, 2).sum_gradients(net)
    assert net[0].weight.grad.tolist() == [[11, 22]] and net[0].bias.grad.tolist() == [33]
    assert net[1].weight.grad is None


def test_all_get_the_parameters_of_the_leader(played):
    net = torch.nn.Linear(2, 1)
    ALONE.equalize(net)
    assert not played.sent
    played.others = [torch.tensor([[5.0, 6.0]]), torch.tensor([7.0])]
    ProcessGroup(1, 2).equalize(net)
    assert (
        net.weight.tolist() == [[5, 6]] and net.bias.tolist() == [7] and [source for _, source in played.sent] == [0, 0]
    )


def test_an_attempt_fails_in_all_where_it_failed_in_one(played, monkeypatch):
    group = ProcessGroup(1, 3)
    said = []
    monkeypatch.setattr(group, "_broadcast", lambda message, source: (said.append((message, source)), b"why")[1])
    played.others = [torch.tensor([3])]  # nobody failed
    assert group.attempt(lambda: 7) == 7 and not said and played.sent == [([3], torch.distributed.ReduceOp.MIN)]
    group.busy = True

    def broken():
        raise DataError("own words")

    with pytest.raises(DataError, match="own words"):
        group.attempt(broken)
    assert said == [(b"own words", 1)] and not group.busy and played.sent[-1][0] == [1]
    played.others = [torch.tensor([0])]
    with pytest.raises(RunError, match="process 0 of 3: why"):
        group.attempt(lambda: 7)
    assert said[-1][1] == 0

    def strange():
        raise ValueError("odd")

    played.others = [torch.tensor([3])]
    with pytest.raises(ValueError, match="odd"):
        group.attempt(strange)
    assert said[-1] == (b"ValueError: odd", 1)
    assert ALONE.attempt(lambda: 1) == 1


def test_a_message_goes_to_all(played):
    leader = ProcessGroup(0, 2)
    assert leader._broadcast(b"abc") == b"abc" and played.sent == [([3], 0), ([97, 98, 99], 0)]
    assert leader._broadcast(b"") == b"" and played.sent[2:] == [([0], 0)]
    played.others = [torch.tensor([2]), torch.tensor([104, 105], dtype=torch.uint8)]
    assert ProcessGroup(1, 2)._broadcast(b"") == b"hi"
    played.others = [torch.tensor([2]), torch.tensor([104, 105], dtype=torch.uint8)]
    assert ProcessGroup(0, 3)._broadcast(b"", 2) == b"hi" and played.sent[-1][1] == 2


def test_a_task_is_handed_out_and_waited_for(played, monkeypatch):
    group, said, attempts = ProcessGroup(0, 2), [], []
    monkeypatch.setattr(group, "_broadcast", lambda message: (said.append(message), b'{"a": 1}')[1])
    monkeypatch.setattr(group, "attempt", lambda work: attempts.append(group.busy))
    with group.work_on({"a": 1}):
        assert group.busy
    assert said == [b'{"a": 1}'] and attempts == [True] and not group.busy
    with ALONE.work_on({"a": 1}):
        assert not ALONE.busy
    assert group.wait() == {"a": 1} and group.busy and said[-1] == b""
    group.busy = False
    monkeypatch.setattr(group, "_broadcast", lambda message: b"")
    assert group.wait() is None and played.ended == 1 and not group.busy


def test_a_lost_process_is_said(monkeypatch):
    def lost(*given, **named):
        raise RuntimeError("connection closed")

    monkeypatch.setattr(torch.distributed, "broadcast", lost)
    with pytest.raises(LostProcessError, match="another process of this run has ended"):
        ProcessGroup(0, 2)._broadcast(b"x")


@pytest.mark.parametrize(("local", "gpus", "chosen"), [(None, 0, []), ("1", 2, [1]), ("2", 2, []), ("0", 1, [0])])
def test_each_process_takes_a_gpu_of_its_own(monkeypatch, local, gpus, chosen):
    seen, begun = [], []
    monkeypatch.setattr(distributed, "_group", ALONE)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *given, **named: begun.append((given, named)))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    group = join()
    assert (group.rank, group.size, group.leads) == (2, 3, False) and process_group() is group and seen == chosen
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    assert begun == [((backend,), {"timeout": timedelta(days=30)})]
