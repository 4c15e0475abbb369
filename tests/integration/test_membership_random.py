"""Workers killed at random moments, also in a change: nothing is lost, nothing done twice."""

import random
import signal
import time

import pytest
from elastic_world import ElasticWorld

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("seed", range(60))
def test_training_goes_on_whenever_workers_are_killed(tmp_path, seed):
    rng = random.Random(seed)
    n, kills, joins = rng.choice([3, 4]), rng.choice([1, 2]), rng.choice([0, 1])
    plan = {"sleep_s": 0.004, "samples": 240, "epochs": 10}
    victims = rng.sample(range(n), kills)
    with ElasticWorld(tmp_path, n, plan) as world:
        world.until("the first view", lambda roster: roster.version == 1)
        for number in range(joins):
            world.join(f"j{number}")
        for victim in victims:
            # a newcomer comes after a second or two: some kills fall into its coming
            time.sleep(rng.uniform(0, 1.5 if joins else 0.5))
            world.workers[f"r{victim}"].send_signal(signal.SIGKILL)
        codes = world.codes()
    for name, code in codes.items():
        killed = name in {f"r{victim}" for victim in victims}
        # one that was killed at the end had ended before
        assert code == 0 or (killed and code == -signal.SIGKILL), world.last(name)
    world.check()
