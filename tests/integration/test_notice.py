"""One worker of an elastic job is told to leave: real processes."""

import signal

import pytest
from elastic_world import ElasticWorld

import kfcore as kf
from kfcore.errors import UsageError
from kfcore.exits import EXIT_PREEMPTED
from kfcore.membership import LeaveOnNotice

pytestmark = pytest.mark.processes


def test_a_worker_that_gets_sigterm_leaves_at_the_next_boundary_and_the_others_go_on(tmp_path):
    with ElasticWorld(tmp_path, 3, {"r1": {"4": ["term"]}}) as world:
        assert world.codes() == {"r0": 0, "r1": 0, "r2": 0}
    world.check()
    (view,) = world.views()
    assert (view["step"], len(view["new"])) == (4, 2)  # step 4, in which it was told, is done
    assert view["reason"] == f"{world.id_of('r1')} is out: it asked to leave"
    assert world.last("r1")["error"] == "LeftError"


@pytest.mark.slow
def test_a_worker_that_finds_no_boundary_ends_with_the_grace(tmp_path):
    plan = {"grace_s": 0.5, "r1": {"4": ["term", "hang"]}}
    with ElasticWorld(tmp_path, 3, plan) as world:
        assert world.codes() == {"r0": 0, "r1": EXIT_PREEMPTED, "r2": 0}
    world.check()
    assert "told to leave 0.5 s ago" in (tmp_path / "r1.err").read_text()


def test_a_worker_that_may_not_leave_is_asked_what_else():
    asked = []
    with kf.join(rank=0, world_size=1) as member:
        before = signal.getsignal(signal.SIGTERM)
        with LeaveOnNotice(member, refused=lambda: asked.append("save")) as notice:
            signal.raise_signal(signal.SIGTERM)
            while not asked:
                pass
            assert notice.told
        assert signal.getsignal(signal.SIGTERM) is before
        with pytest.raises(UsageError, match="grace_s must be > 0, got 0"):
            LeaveOnNotice(member, grace_s=0)
