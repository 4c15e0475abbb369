"""Workers as Ray actors, on a local Ray; the parts that need none are always tested."""

import numpy as np
import pytest

import kfcore as kf
import kfcore.ray
from kfcore.errors import UsageError


def test_workers_of_a_node_count_from_zero():
    found = kfcore.ray.places(["a", "b", "a", "a"])
    assert [place["KF_RANK"] for place in found] == ["0", "1", "2", "3"]
    assert [place["KF_LOCAL_RANK"] for place in found] == ["0", "0", "1", "2"]
    assert [place["KF_LOCAL_WORLD_SIZE"] for place in found] == ["3", "1", "3", "3"]


def test_no_workers_are_refused():
    with pytest.raises(UsageError, match="workers must be >= 1, got 0"):
        kfcore.ray.run(print, 0)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(400)
def test_actors_reduce_and_the_first_failure_ends_them():
    ray = pytest.importorskip("ray")

    def total(scale):  # inside: Ray sends such functions by value
        with kf.init() as session:
            mine = np.full(3, scale * (session.rank + 1.0))
            return session.rank, session.all_reduce(mine).tolist()

    def fail_on_one(_):
        with kf.init() as session:
            if session.rank == 1:
                raise ValueError("rank 1 has enough")
            session.recv(np.zeros(1), 1)

    ray.init(num_cpus=3, include_dashboard=False, configure_logging=False)
    try:
        assert kfcore.ray.run(total, 3, args=[2.0]) == [(r, [12.0] * 3) for r in range(3)]
        with pytest.raises(ValueError, match="rank 1 has enough"):
            kfcore.ray.run(fail_on_one, 2, args=[1.0], env={"KF_TIMEOUT_S": "120"})
    finally:
        ray.shutdown()
