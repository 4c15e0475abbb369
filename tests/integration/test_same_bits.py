"""Sums are the same bits on all ranks and from run to run, whoever comes first."""

import hashlib

import pytest
from test_session_tcp import World

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SCRIPT = """
    import hashlib, random, time
    with kfcore.init(timeout_s=60) as s:
        values = np.random.default_rng(s.rank)
        sizes = np.random.default_rng(7).integers(1, 20000, 30)
        late = random.Random()
        tensors = [values.standard_normal(n).astype(np.float32) for n in sizes]
        digest = hashlib.sha256()
        for at in range(0, 30, 3):
            time.sleep(late.random() * 0.004)
            handles = [s.all_reduce(t, "avg", async_op=True) for t in tensors[at : at + 3]]
            for handle in handles:
                handle.wait()
        s.grouped_all_reduce(tensors)
        for t in tensors:
            digest.update(t.tobytes())
        assert s.consensus(digest.digest())
        print(digest.hexdigest())
"""


def test_results_are_the_same_bits_from_run_to_run_and_on_all_ranks():
    seen = set()
    for _ in range(2):
        with World(4, SCRIPT, timeout_s=60) as world:
            seen.update(world.finish(120))
    assert len(seen) == 1
    assert len(seen.pop().strip()) == 2 * hashlib.sha256().digest_size
