"""Parts of membership on their own: doors, rosters as text, what a step keeps, samples back."""

import socket

import numpy as np
import pytest

from kfcore import _native
from kfcore.elastic import ElasticSampler
from kfcore.errors import ExpelledError, InternalError, LeftError, UsageError
from kfcore.events import EventLog
from kfcore.membership import RosterStore, found_job, handover
from kfcore.membership.door import Door, Life, knock
from kfcore.membership.results import StepBuffers
from kfcore.membership.roster import read_roster, write_roster
from kfcore.store import StoreClient, StoreServer


def test_a_door_tells_who_lives_who_is_dead_and_who_is_silent():
    alive = Door("127.0.0.1", "alive", "secret")
    dead = Door("127.0.0.1", "dead", "secret")
    dead.close()
    dead.close()  # twice is harmless
    with socket.create_server(("127.0.0.1", 0)) as stopped:  # accepted by the kernel alone
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        doors = [("alive", alive.address), ("dead", dead.address), ("stopped", address)]
        assert knock(doors, "secret", 1.0) == {
            "alive": Life.ALIVE,
            "dead": Life.DEAD,
            "stopped": Life.SILENT,
        }
    # another worker has the port now, or a stranger
    assert knock([("somebody", alive.address)], "secret", 60.0) == {"somebody": Life.DEAD}
    assert knock([("alive", alive.address)], "other", 60.0) == {"alive": Life.DEAD}
    assert knock([], "secret", 1.0) == {}
    alive.close()


def test_a_roster_survives_its_text():
    roster = _native.make_roster(2, 1, 4)
    roster.arrive(1, _native.Member("b", "1.2.3.4:5", "1.2.3.4:6", "host", 7))
    again = read_roster(write_roster(roster))
    assert again.arrived[1].door == "1.2.3.4:6"
    again.arrive(0, _native.Member("a"))
    again.join(_native.Member("j"))
    again.exclude("b", "slow")
    again.call_roll(1, "a", "b hung up")
    again.conclude(1, ["b"], "b died")
    last = read_roster(write_roster(again))
    assert [member.id for member in last.members] == ["a"]
    assert (last.departed("b").how, last.departed("b").host) == (_native.Departure.lost, "host")
    assert write_roster(last) == write_roster(again)
    with pytest.raises(InternalError, match="not a roster"):
        read_roster('{"version": 1}')


def test_moves_from_outside_reach_the_roster_and_refusals_come_back():
    with StoreServer() as server, StoreClient(server.address) as store:
        rosters = RosterStore(store)
        assert rosters.read() == (None, 0)
        with pytest.raises(UsageError, match="was not started as an elastic job"):
            rosters.change(lambda roster: roster.resize(2, ""))
        found_job(store, founders=2, min_size=2, max_size=3)
        found_job(store, founders=9, min_size=9, max_size=9)  # somebody was first
        with pytest.raises(UsageError, match=r"must be in \[2, 3\].*got 4 \(more\)"):
            rosters.change(lambda roster: roster.resize(4, "more"))
        roster, key = rosters.change(lambda roster: roster.resize(3, "more"))
        assert (roster.target, key) == (3, 2)
        assert rosters.change(lambda roster: roster.resize(3, "more"))[1] == 2


def test_the_last_result_stays_while_the_next_step_is_reduced():
    buffers = StepBuffers()
    grads = [np.arange(3.0), np.ones((2, 2), np.float32), np.full(2, np.nan)]
    buffers.take_in(1, grads, 0.5)
    buffers.control(1, np.zeros(4), np.zeros(2))
    assert [array.dtype.name for array in buffers.arrays(1)] == [
        *("float64", "float32", "float64", "float64")
    ]
    buffers.arrays(1)[0][:3] = 7  # reduced
    buffers.take_in(2, grads, 0.0)  # clears what is not finite
    assert not np.any(buffers.arrays(2)[0])
    np.testing.assert_array_equal(grads[0], np.arange(3.0))  # untouched
    buffers.give_out(1, grads)
    np.testing.assert_array_equal(grads[0], np.full(3, 7.0))
    np.testing.assert_array_equal(grads[1], np.full((2, 2), 0.5))


def test_samples_given_back_come_next_and_the_place_can_be_saved():
    sampler = ElasticSampler(20, seed=5, global_batch=6)
    first = sampler.take(3)
    before = first.indices.copy()
    sampler.give_back(first.of(1))
    np.testing.assert_array_equal(first.indices, before)
    assert sampler.position == 4
    other = ElasticSampler(20, seed=5, global_batch=6)
    other.load_state_dict(sampler.state_dict())
    seen = [*first.of(0), *first.of(2)]
    while (step := sampler.take(2)) is not None:
        np.testing.assert_array_equal(step.indices, other.take(2).indices)
        seen += list(step.indices)
        if len(seen) == 10:
            np.testing.assert_array_equal(step.indices[:2], first.of(1))
    assert sorted(seen) == list(range(20))
    with pytest.raises(UsageError, match="of 1 samples 0 were handed out"):
        ElasticSampler(20, seed=5).give_back(np.array([1]))


def test_an_event_log_goes_on_where_a_killed_worker_left_it(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path, clock=iter([0.0, 5.0]).__next__) as log:
        log({"kind": "note"})
    with path.open("a") as file:
        file.write('{"time_s": 6, "ki')  # killed in the middle of a line
    with EventLog(path, clock=iter([100.0, 101.0]).__next__, append=True) as log:
        log({"kind": "view"})
    assert path.read_text().splitlines() == [
        '{"time_s": 5.0, "kind": "note"}',
        '{"time_s": 6.0, "kind": "view"}',
    ]


def test_exits_of_workers_that_are_out_need_no_handling():
    assert (ExpelledError("too slow").code, LeftError("bye").code) == (76, 0)
    for kind in (ExpelledError, LeftError):
        with pytest.raises(SystemExit, match="why"):
            raise kind("why")


def test_a_state_is_cut_into_loads_that_cover_it_once():
    sizes = [10, 0, 9 << 20, 60_000, 7, 60_000, 64 << 10, 4 << 20, 3]
    loads = handover._loads(sizes)
    covered = {leaf: 0 for leaf, size in enumerate(sizes)}
    for cuts in loads:
        assert len(cuts) == 1 or all(end <= 64 << 10 for _, _, end in cuts)
        for leaf, begin, end in cuts:
            assert begin == covered[leaf] < end <= begin + (4 << 20)
            covered[leaf] = end
    assert covered == dict(enumerate(sizes))
    assert handover._loads([]) == handover._loads([0]) == []
