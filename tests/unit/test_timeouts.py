"""One time-out is set; all other limits follow from it, and impossible orders are refused."""

import threading

import numpy as np
import pytest
from worlds import TRANSPORTS, run_world

from kfcore.config import Config
from kfcore.errors import DeadlineError, UsageError
from kfcore.store import StoreServer, connect_store
from kfcore.timeouts import TimeOuts


def test_a_silent_worker_is_given_up_before_the_operation_ends():
    for timeout_s in (1.0, 1.5, 4.0, 12.0, 60.0, 3600.0):
        assert 0.5 <= 2 * TimeOuts.of(timeout_s).heartbeat_s <= timeout_s


@pytest.mark.parametrize(
    ("timeout_s", "heartbeat_s"), [(5.0, 10.0), (5.0, 3.0), (5.0, 0.1), (0.8, None)]
)
def test_an_impossible_order_is_refused_with_the_rule(timeout_s, heartbeat_s):
    with pytest.raises(UsageError, match=r"heartbeat_s must be in \[0\.5, timeout_s / 2\]"):
        TimeOuts.of(timeout_s, heartbeat_s)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_out_is_a_time(timeout_s):
    with pytest.raises(UsageError, match="timeout_s must be finite and > 0"):
        TimeOuts.of(timeout_s)


def test_a_lost_store_is_given_up_within_the_time_out():
    server = StoreServer("127.0.0.1", 0, "")
    client = connect_store(
        Config(rank=0, world_size=2, store_address=server.address, timeout_s=0.5)
    )
    assert client is not None
    with client:
        assert client._reconnect_s == 0.5
        server.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_silent_rank_is_found_within_the_time_of_an_operation(transport):
    raised = threading.Event()

    def work(session):
        session.barrier()
        if session.rank == 1:
            raised.wait(60)
            return ""
        with pytest.raises(DeadlineError) as caught:
            session.all_reduce(np.zeros(4), timeout_s=0.5)
        raised.set()
        return str(caught.value)

    text = run_world(transport, 2, work, timeout_s=60)[0]
    assert "no sign of life from ranks [1]" in text
