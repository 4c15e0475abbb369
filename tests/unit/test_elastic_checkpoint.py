"""Checkpoints: any world size, atomic, and every unfit file refused by name and reason."""

import os
import warnings

import numpy as np
import pytest
import torch

import kfcore as kf
from kfcore.config import Config
from kfcore.elastic import (
    CheckpointFolder,
    ElasticSampler,
    ElasticState,
    load_checkpoint,
    save_checkpoint,
)
from kfcore.elastic.rates import Cosine, WarmUp
from kfcore.errors import UsageError

GLOBAL_BATCH = 24
RATE = WarmUp(200, then=Cosine(0.01, 4000))


class Worker:
    """Trains with Adam over a session of any size, with one global batch whatever it is."""

    def __init__(self, session) -> None:
        draws = torch.Generator().manual_seed(0)  # threads share torch's global one
        self.x = torch.randn(500, 6, dtype=torch.float64, generator=draws)
        self.y = self.x.sin().sum(dim=1, keepdim=True)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).double()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(std=0.3, generator=draws)
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.sampler = ElasticSampler(500, seed=1, global_batch=GLOBAL_BATCH)
        self.job = kf.Job(session, local_batch=8, learning_rate=RATE, config=Config())
        self.state = ElasticState(
            job=self.job, model=self.model, optimizer=self.optimizer, sampler=self.sampler
        )

    def train(self, until: int) -> list[float]:
        losses = []
        while self.job.steps < until:
            for indices in self.job.batches(self.sampler):
                self.optimizer.zero_grad()
                loss = (self.model(self.x[indices]) - self.y[indices]).square().mean()
                loss.backward()
                self.job.step([p.grad for p in self.model.parameters()], loss=loss.item())
                self.optimizer.param_groups[0]["lr"] = self.job.learning_rate
                with self.state.changing():
                    self.optimizer.step()
                self.state.commit(self.job.steps)
                losses.append(self.job.metrics["loss"])
                if self.job.steps == until:
                    break
        return losses


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """30 steps at four workers, saved; and the ten losses that follow."""
    path = tmp_path_factory.mktemp("checkpoint") / "model.kfckpt"

    def rank(session):
        worker = Worker(session)
        worker.train(30)
        if session.rank == 0:
            save_checkpoint(path, worker.state, {"world_size": session.world_size})
        return worker.train(40)

    return path, kf.inproc_world(4, rank)[0]


@pytest.mark.parametrize("world_size", [6, 3, 1])
def test_a_checkpoint_goes_on_alike_at_any_world_size(trained, world_size):
    """Saved at 4, loaded at 6, 3 and 1, across the end of a pass and a rate under way (C6)."""
    path, expected = trained

    def rank(session):
        worker = Worker(session)
        info = load_checkpoint(path, worker.state)
        assert (info.step, info.note) == (30, {"world_size": 4})
        assert worker.state.step == worker.job.steps == 30
        return worker.train(40)

    for losses in kf.inproc_world(world_size, rank):
        np.testing.assert_allclose(losses, expected, rtol=1e-6)


def committed(value: float = 1.0, step: int = 3) -> tuple[ElasticState, np.ndarray]:
    weights = np.full(40, value)
    state = ElasticState(weights=weights)
    state.commit(step)
    return state, weights


def test_a_failed_save_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "c"
    save_checkpoint(path, committed(1.0)[0])

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=rf"{path}: cannot be written: No space left"):
        save_checkpoint(path, committed(2.0)[0])
    monkeypatch.undo()
    state, weights = committed(0.0)
    load_checkpoint(path, state)
    assert weights[0] == 1.0
    assert os.listdir(tmp_path) == ["c"]


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path, monkeypatch):
    done, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.listdir(tmp_path)), fsync(fd)))
    save_checkpoint(tmp_path / "c", committed()[0])
    assert [("c" in names) for names in done] == [False, True]


def _change(at: int, to: bytes):
    return lambda raw: raw[:at] + to + raw[at + len(to) :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: b"", "not a checkpoint: it begins with b''"),
        (lambda _: b"PK\x03\x04 a zip file", "not a checkpoint: it begins with b'PK"),
        (lambda raw: raw[:12], "cut short: it has 12 bytes"),
        (_change(8, b"\x07"), "checkpoint version 7, this reads 1"),
        (lambda raw: raw[:40], "cut short: 24 of"),
        (_change(14, b"\xff"), "damaged: a description of 16"),
        (_change(20, b"\x00"), "damaged: its description is unreadable"),
        (lambda raw: raw[:-1], "cut short: it holds .* bytes of state"),
        (lambda raw: raw + b"x", "cut short: it holds"),
        (_change(-9, b"\x55"), "damaged: its bytes do not have the digest"),
    ],
)
def test_an_unfit_file_is_refused_by_name_and_reason_and_changes_nothing(
    tmp_path, damage, reason
):
    path = tmp_path / "c"
    save_checkpoint(path, committed(5.0)[0])
    path.write_bytes(damage(path.read_bytes()))
    state, weights = committed(0.0)
    with pytest.raises(UsageError, match=f"{path}: {reason}"):
        load_checkpoint(path, state)
    assert not weights.any()


def test_a_checkpoint_of_something_else_says_what_differs(tmp_path):
    path = tmp_path / "c"
    with pytest.raises(UsageError, match=rf"{path}: cannot be read: No such file"):
        load_checkpoint(path, committed()[0])
    save_checkpoint(path, committed()[0])
    with pytest.raises(UsageError, match=r"parts \['model'\], got \['weights'\]"):
        load_checkpoint(path, ElasticState(model=np.zeros(40)))
    with pytest.raises(UsageError, match=r"part 'weights' is float64\[41\]"):
        load_checkpoint(path, ElasticState(weights=np.zeros(41)))
    with pytest.raises(UsageError, match="note must be plain JSON"):
        save_checkpoint(path, committed()[0], {"x": object()})
    with pytest.raises(UsageError, match="nothing is committed"):
        save_checkpoint(path, ElasticState(weights=np.zeros(40)))


def test_a_folder_keeps_the_newest_and_passes_over_a_broken_one(tmp_path):
    folder = CheckpointFolder(tmp_path / "all", keep=2)
    assert folder.load(committed()[0]) is None
    for step in range(8, 12):
        folder.save(committed(float(step), step)[0])
    assert [file.name for file in folder.files()] == [
        "step-000000011.kfckpt",
        "step-000000010.kfckpt",
    ]
    folder.files()[0].write_bytes(b"half")
    state, weights = committed(0.0, 0)
    with pytest.warns(RuntimeWarning, match="trying an older one.*not a checkpoint"):
        info = folder.load(state)
    assert (info.step, weights[0], state.step) == (10, 10.0, 10)
    folder.files()[1].write_bytes(b"")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UsageError, match="it begins with b''"):
            folder.load(state)
    with pytest.raises(UsageError, match="keep must be >= 1, got 0"):
        CheckpointFolder(tmp_path, keep=0)


def test_a_jobs_progress_of_another_job_is_refused():
    job = kf.Job(None, local_batch=2, learning_rate=0.1, hyper={"beta": 1.0}, config=Config())
    good = job.capture()
    for change, message in (
        ({"step": -1}, "counts must be integers >= 0"),
        ({"hyper": {}}, r"hyper-parameters \['beta'\], got \[\]"),
        ({"policies": {"Strange": {}}}, "no policy is named 'Strange'"),
        ({"more": 1}, "a job's progress has"),
    ):
        with pytest.raises(UsageError, match=message):
            job.restore({**good, **change})
    job.restore({**good, "local_batch": 16, "hyper": {"beta": 2.0}, "samples": 99})
    assert (job.local_batch, job.hyper["beta"], job.controller.samples) == (16, 2.0, 99)
