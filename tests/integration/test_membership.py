"""Workers that die, stop, leave and come while they train: real processes."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from elastic_world import ElasticWorld

pytestmark = pytest.mark.processes


def finished(
    folder: Path, n: int, plan: dict[str, Any], codes: dict[str, int], **more: Any
) -> ElasticWorld:
    """Run a job whose workers need nothing from outside; its logs stay."""
    with ElasticWorld(folder, n, plan, **more) as world:
        assert world.codes() == codes
    world.check()
    return world


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_go_on_when_a_worker_is_killed(tmp_path, victim):
    sizes = {"1": 16, "4": 24}  # bytes of an operation: before and after the kill
    plan = {f"r{victim}": {"4": ["kill"]}, "bucket_bytes": sizes}
    codes = {"r0": 0, "r1": 0, "r2": 0, f"r{victim}": -signal.SIGKILL}
    world = finished(tmp_path, 3, plan, codes)
    (view,) = world.views()
    ids = [world.id_of(f"r{rank}") for rank in range(3)]
    assert view["old"] == ids
    assert view["new"] == [ids[rank] for rank in range(3) if rank != victim]
    assert view["step"] == 3
    assert view["reason"] == f"rank {victim} ({ids[victim]}) died"
    assert [view["ranks"][str(rank)] for rank in range(3)] == (
        [None, 0, 1] if victim == 0 else [0, None, 1]
    )
    roster_reason = world.views()[-1]["reason"]
    assert ids[victim] in roster_reason
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    installed = [
        (event["step"], event["old"], event["new"])
        for event in events
        if event["kind"] == "installed"
    ]
    assert installed == [(2, 64 << 20, 16), (5, 16, 24)]


def test_a_result_that_only_some_survivors_have_is_passed_on_not_computed_again(tmp_path):
    world = finished(tmp_path, 3, {"r1": {"3": ["lose-result"]}}, {"r0": 0, "r1": 0, "r2": 0})
    # r1 blames nobody who died: all three go on, and step 3 was committed in view 1 by all
    (view,) = world.views()
    assert view["old"] == view["new"]
    assert "all workers live" in view["reason"]
    for name in ("r0", "r1", "r2"):
        assert [line["view"] for line in world.log(name) if "step" in line][:4] == [1, 1, 1, 2]


def test_a_stopped_worker_is_expelled_and_told_when_it_goes_on(tmp_path):
    with ElasticWorld(tmp_path, 3, {"heartbeat_s": 1.5, "r1": {"3": ["stop"]}}) as world:
        world.until("view 2", lambda roster: roster.version == 2)
        assert world.workers["r0"].wait(100) == world.workers["r2"].wait(100) == 0
        world.workers["r1"].send_signal(signal.SIGCONT)
        assert world.workers["r1"].wait(100) == 76
    world.check()
    assert world.last("r1")["error"] == "ExpelledError"
    assert "was silent for" in world.last("r1")["text"]
    assert "was expelled: view 2 went on without it" in (tmp_path / "r1.err").read_text()


def test_each_sample_is_used_once_over_resizes_from_4_to_3_to_5_to_2(tmp_path):  # C1, C5
    """The batch of all workers is constant, so this is also the run of a static job."""
    plan = {
        "batch": 6,
        "r0": {"4": ["resize 3"], "7": ["resize 5", "await 5"], "12": ["resize 2"]},
    }
    with ElasticWorld(tmp_path, 4, plan) as world:
        world.until("a larger target", lambda roster: roster.target == 5)
        world.join("j0")
        world.join("j1")
        assert set(world.codes().values()) == {0}
    world.check()
    sizes = [len(view["new"]) for view in world.views()]
    assert [sizes[0], sizes[-1]] == [3, 2]
    assert sorted(sizes) == [2, 3, *([4] if 4 in sizes else []), 5]
    ends = [world.last(name) for name in world.workers]
    assert [end.get("error") for end in ends] == [None, None, *["LeftError"] * 4]
    assert ends[0]["updates"] == 20


def test_a_newcomer_has_the_whole_state_of_the_optimizer(tmp_path):  # C5
    plan = {"r0": {"5": ["await 3"]}, "sleep_s": 0.01, "epochs": 4}
    with ElasticWorld(tmp_path, 2, plan) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        world.join("j0")
        assert set(world.codes().values()) == {0}
    world.check()
    first = next(line for line in world.log("j0") if "step" in line)
    before = first["step"] - 1
    assert world.last("j0")["updates"] == 20
    assert len([line for line in world.log("j0") if "step" in line]) == 20 - before
    assert before >= 1


def test_a_chosen_worker_leaves_between_two_steps(tmp_path):
    plan = {"r0": {"3": ["leave"], "5": ["kill"]}, "r1": {"6": ["exclude 1"]}}
    world = finished(tmp_path, 3, plan, {"r0": 0, "r1": 0, "r2": 0})
    assert world.last("r0")["text"].endswith("it asked to leave")
    assert world.last("r2")["text"].endswith("the plan says so")
    first, second = world.views()
    assert first["new"] == [world.id_of("r1"), world.id_of("r2")]
    assert second["new"] == [world.id_of("r1")]
    assert all(step["step"] <= 4 for step in world.log("r0") if "step" in step)


def test_ranks_stay_in_order_over_deaths_and_a_newcomer(tmp_path):  # D1
    plan = {
        "schedule": "auto",
        "r3": {"2": ["kill"]},
        "r1": {"3": ["kill"]},
        "r0": {"4": ["await 3"]},
    }
    with ElasticWorld(tmp_path, 4, plan) as world:
        world.until("two deaths", lambda roster: roster.version == 3)
        world.join("j0")
        codes = world.codes()
    assert codes == {"r0": 0, "r1": -9, "r2": 0, "r3": -9, "j0": 0}
    world.check()
    a, b, c, d, e = (world.id_of(name) for name in ("r0", "r1", "r2", "r3", "j0"))
    assert [view["new"] for view in world.views()] == [[a, b, c], [a, c], [a, c, e]]
    assert [view["ranks"] for view in world.views()] == [
        {"0": 0, "1": 1, "2": 2, "3": None},
        {"0": 0, "1": None, "2": 1},
        {"0": 0, "1": 1},
    ]
    assert world.views()[0]["reason"] == f"rank 3 ({d}) died"
    # the job's schedule stays auto; what that is in a view is the same on all its members
    steps = [step for name in ("r0", "r2", "j0") for step in world.log(name) if "step" in step]
    assert {step["schedules"][0] for step in steps} == {"auto"}
    measured = {(step["view"], step["schedules"][1]) for step in steps}
    assert sorted(view for view, _ in measured) == [1, 2, 3, 4]
    assert all(spec.startswith("auto(latency_s=") for _, spec in measured)


def test_impossible_sizes_are_refused_and_two_newcomers_are_one_change(tmp_path):  # C13
    plan = {"r0": {"2": ["resize 1", "resize 5"], "3": ["await-target 4"]}}
    with ElasticWorld(tmp_path, 2, plan, sizes=(2, 4)) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        world.rosters.change(lambda roster: roster.resize(2, "nobody yet"))
        world.join("j0")
        world.join("j1")
        world.until("both wait", lambda roster: len(roster.joiners) == 2)
        world.rosters.change(lambda roster: roster.resize(4, "both are ready"))
        assert set(world.codes().values()) == {0}
    world.check()
    refused = [line["refused"] for line in world.log("r0") if "refused" in line]
    assert len(refused) == 2
    assert refused[0].startswith("world_size must be in [2, 4], the job's limits, got 1")
    assert [len(view["new"]) for view in world.views()] == [4]


def test_survivors_go_on_when_a_worker_dies_in_the_middle_of_a_change(tmp_path):  # B5
    plan = {"r1": {"3": ["kill-at-change"]}, "r0": {"4": ["await 4"]}}
    with ElasticWorld(tmp_path, 3, plan) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        world.join("j0")
        codes = world.codes()
    assert codes["r0"] == codes["r2"] == codes["j0"] == 0
    world.check()
    assert world.last("r0")["members"] == [world.id_of(n) for n in ("r0", "r2", "j0")]


def test_workers_end_with_the_reason_when_the_store_is_lost(tmp_path):  # B8
    with ElasticWorld(tmp_path, 2, {"r0": {"3": ["await 3"]}}) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        while not any(line.get("at") == 3 for line in world.log("r0")):
            world.workers["r0"].poll()
        world.workers["r0"].kill()
        world.store.close()
        world.server.close()
        assert world.workers["r1"].wait(100) == 1
    assert world.last("r1")["error"] == "TransportError"
    assert f"the job's store at {world.server.address} was lost" in world.last("r1")["text"]


def test_fewer_workers_than_the_job_needs_end_it_with_the_reason(tmp_path):
    with ElasticWorld(tmp_path, 3, {"r1": {"3": ["kill"]}}, sizes=(3, 3)) as world:
        codes = world.codes()
    assert codes == {"r0": 1, "r1": -9, "r2": 1}
    for name in ("r0", "r2"):
        assert world.last(name)["error"] == "NoQuorumError"
        assert "2 workers are left and the job needs 3" in world.last(name)["text"]


def test_a_worker_that_comes_when_the_job_is_over_ends_in_order(tmp_path):
    with ElasticWorld(tmp_path, 1, {"epochs": 1}) as world:
        assert world.codes() == {"r0": 0}
        world.join("j0")
        assert world.codes() == {"r0": 0, "j0": 0}
    assert world.last("j0")["error"] == "LeftError"
    assert world.last("j0")["text"] == "the job is over: the job finished"
