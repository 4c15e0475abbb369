"""Policies for DistributedDataParallel over whatever back end it has."""

import pytest
from torch_runs import run_ranks

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def test_policies_follow_gradients_of_any_back_end(tmp_path) -> None:
    ranks = run_ranks("hook.py", tmp_path, 2, "gloo", "kf")
    first = ranks[0]["kf"]
    assert all(value > 0 for value in first["gns"])
    for results in ranks:
        for run in results.values():
            # proposed after step 3, agreed on in step 4, in force from step 5
            assert run["rates"] == [0.2, 0.2, 0.2, 0.2, 0.1]
            assert run["far"] < 1e-6  # from one process on the same global batches
            assert run["gns"] == pytest.approx(first["gns"], rel=1e-4)
            assert run["loss"] == pytest.approx(first["loss"], rel=1e-5)
