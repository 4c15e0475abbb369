"""`kfcore.torch.Elastic` on real processes: killed, joined, resized, with loading processes."""

import contextlib
import signal
import sys
from collections import Counter, defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from elastic_world import ElasticWorld
from torch_runs import PROGRAMS

import kfcore as kf
import kfcore.torch as kft
from kfcore.elastic import ElasticSampler
from kfcore.errors import UsageError
from kfcore.torch.feed import Feed

sys.path.insert(0, str(PROGRAMS))
import elastic as program

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


class TorchWorld(ElasticWorld):
    program_file = PROGRAMS / "elastic.py"
    patience_s = 270.0


def batches_of(world, ended):
    """Samples of each step; every worker in ``ended`` has the weights of a serial run."""
    used = defaultdict(list)
    for name in world.workers:
        for line in world.log(name):
            if "step" in line:
                used[line["step"]] += line["used"]
    batches = [used[step] for step in sorted(used)]
    assert sorted(used) == list(range(1, len(batches) + 1))
    weights, _ = program.serial(batches)
    for name in ended:
        end = world.last(name)
        assert end.get("end") == len(batches), (world.folder / f"{name}.err").read_text()
        np.testing.assert_allclose(end["weights"], weights, rtol=1e-6, atol=1e-9)
    counts = Counter(index for batch in batches for index in batch)
    assert set(counts.values()) == {world.plan["epochs"]}
    assert len(counts) == program.SAMPLES
    return batches


def test_adam_over_a_newcomer_and_a_kill_equals_a_static_run(tmp_path):  # C5, C6
    """20 steps of two workers, a third comes, one is killed; the global batches stay."""
    plan = {
        "epochs": 4,
        "r0": {"after 20": ["save"], "21": ["await 3"]},
        "r1": {"30": ["kill"]},
    }
    with TorchWorld(tmp_path, 2, plan) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        world.join("j0")
        assert world.codes() == {"r0": 0, "r1": -signal.SIGKILL, "j0": 0}
    batches = batches_of(world, ["r0", "j0"])
    static = list(program.static_batches(4))
    assert list(map(sorted, batches[:29])) == list(map(sorted, static[:29]))
    first = next(line for line in world.log("j0") if "at" in line)
    assert first["updates"] == first["at"] - 1 >= 1  # it got Adam's own count
    mine = {line["at"]: line["drawn"] for line in world.log("r0") if "at" in line}
    assert [line["drawn"] for line in world.log("j0") if "at" in line] == [
        mine[step] for step in range(first["at"], len(batches) + 1)
    ]
    assert [len(view["new"]) for view in world.views()] == [3, 2]
    assert goes_on_alone(tmp_path / "checkpoints") == 20


def goes_on_alone(folder):
    """Load what several workers saved into one, train on; the step it was saved at."""
    model, optimizer, sampler, scheduler = program.parts(seed=77)
    shared = {"shared": torch.Generator()}
    with (
        kf.join(rank=0, world_size=1) as member,
        kft.Elastic(
            model, optimizer, sampler, scheduler, member=member, generators=shared
        ) as elastic,
    ):
        assert elastic.resume(folder)
        saved_at, losses, data = elastic.steps, [], program.Rows()
        while elastic.epoch < 3:
            for _, x, y in elastic.load(data):
                optimizer.zero_grad()
                loss = program.loss_of(model, x, y)
                loss.backward()
                elastic.step(loss)
                losses.append(loss.item())
    weights, expected = program.serial(program.static_batches(3))
    np.testing.assert_allclose(losses, expected[saved_at:], rtol=1e-6)
    np.testing.assert_allclose(program.weights_of(model), weights, rtol=1e-6, atol=1e-9)
    return saved_at


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_loading_processes_survive_a_resize_and_a_kill(method, persistent, tmp_path):  # K1
    plan = {
        "epochs": 2,
        "loader": {
            "num_workers": 2 if method == "fork" else 1,  # the others import torch anew
            "multiprocessing_context": method,
            "persistent_workers": persistent,
        },
        "r0": {"5": ["resize 2"]},
        "r1": {"14": ["kill"]},
    }
    with TorchWorld(tmp_path, 3, plan) as world:
        assert world.codes() == {"r0": 0, "r1": -signal.SIGKILL, "r2": 0}
    batches_of(world, ["r0"])
    assert [len(view["new"]) for view in world.views()] == [2, 1]
    for name in ("r0", "r2"):
        errors = (tmp_path / f"{name}.err").read_text()
        assert "leaked" not in errors
        assert "Traceback" not in errors


@contextlib.contextmanager
def alone(seed=0, **more):
    model, optimizer, sampler, scheduler = program.parts(seed)
    with (
        kf.join(rank=0, world_size=1) as member,
        kft.Elastic(model, optimizer, sampler, scheduler, member=member, **more) as elastic,
    ):
        yield model, optimizer, scheduler, elastic


def test_a_checkpoint_in_the_middle_of_a_step_and_a_foreign_one_are_refused(tmp_path):
    with alone() as (model, _, _, elastic):
        loaded = elastic.load(program.Rows())
        _, x, y = next(loaded)
        with pytest.raises(UsageError, match="after `step`: a batch is under way"):
            elastic.save(tmp_path)
        program.loss_of(model, x, y).backward()
        elastic.step()
        assert elastic.save(tmp_path).name == "step-000000001.kfckpt"
        loaded.close()
    other = {"more": torch.Generator()}
    with (
        alone(generators=other) as (_, _, _, elastic),
        pytest.raises(UsageError, match="parts"),
    ):
        elastic.resume(tmp_path)


class HalveRate(kf.Policy):
    def after_step(self, seen):
        return kf.SetLearningRate(0.01, reason="test") if seen.step == 2 else None


def test_a_policy_scales_the_rates_of_optimizer_and_scheduler():
    with alone(policies=[HalveRate()]) as (model, optimizer, scheduler, elastic):
        rates, data = [], program.Rows()
        while elastic.epoch < 2:
            for _, x, y in elastic.load(data):
                optimizer.zero_grad()
                program.loss_of(model, x, y).backward()
                elastic.step(clip_norm=1.0)
                rates.append(optimizer.param_groups[0]["lr"])
    assert set(rates[:2]) == {0.02}
    assert set(rates[3:14]) == {0.01}
    assert rates[-1] == 0.005  # the scheduler's milestone, on the new rate
    assert scheduler.base_lrs == [0.01]


def test_arguments_out_of_range_are_refused():
    model, optimizer, _, _ = program.parts()
    with pytest.raises(UsageError, match="give the sampler a global_batch or the job a local"):
        kft.Elastic(model, optimizer, ElasticSampler(5))
    with pytest.raises(UsageError, match="scheduler_per must be step or epoch, got 'day'"):
        kft.Elastic(model, optimizer, program.parts()[2], scheduler_per="day")
    with (
        alone() as (_, _, _, elastic),
        pytest.raises(UsageError, match="batch_size: the elastic sampler chooses"),
    ):
        next(elastic.load(program.Rows(), batch_size=3))


def test_what_was_loaded_ahead_is_dropped_when_a_step_needs_something_else():
    sampler = ElasticSampler(24, shuffle=False, global_batch=6)
    feed, size, given = Feed(list(range(24))), 2, []
    for step in range(4):
        indices = sampler.take(size).of(0)
        foresee = partial(sampler.foresee, 0, size)
        given.append(feed.take(indices, foresee).tolist())
        size = 3 if step == 1 else size
    assert given == [[0, 1, 2], [6, 7, 8], [12, 13], [18, 19]]
