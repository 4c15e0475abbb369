"""Where a worker's configuration comes from, and in which order."""

import pytest

from kfcore.config import Config, child_environment
from kfcore.errors import UsageError

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run7",
}
KF = {"KF_RANK": "2", "KF_WORLD_SIZE": "3", "KF_STORE": "127.0.0.1:4000"}


def test_empty_environment_is_one_process_without_a_store():
    config = Config.from_env({})
    assert (config.rank, config.world_size, config.store_address) == (0, 1, None)


def test_kf_variables_are_all_read_back_from_to_env():
    config = Config(
        rank=2,
        world_size=3,
        local_rank=1,
        store_address="127.0.0.1:4000",
        job_id="j",
        job_secret="s",
        timeout_s=2.5,
        policies=("a.py:P", "b.py:Q"),
        interface="eth0",
        log_dir="logs",
        simd="portable",
    )
    assert Config.from_env(config.to_env()) == config
    assert len(config.to_env()) == 11


def test_kf_variables_win_over_torchruns():
    config = Config.from_env({**TORCHRUN, **KF})
    assert (config.rank, config.world_size, config.store_address) == (2, 3, "127.0.0.1:4000")
    assert config.job_id == "local"


def test_explicit_arguments_win_over_the_environment():
    config = Config.from_env({**KF, "KF_TIMEOUT_S": "5"}, timeout_s=9.0, rank=0)
    assert (config.rank, config.timeout_s) == (0, 9.0)


def test_torchrun_gives_a_store_beside_its_own_hosted_by_rank_0():
    config = Config.from_env(TORCHRUN)
    assert config.store_address == "127.0.0.1:29501"
    assert (config.rank, config.world_size, config.job_id) == (1, 4, "run7")
    assert not config.hosts_store
    assert Config.from_env({**TORCHRUN, "RANK": "0"}).hosts_store
    ipv6 = Config.from_env({**TORCHRUN, "MASTER_ADDR": "::1"})
    assert ipv6.store_address == "[::1]:29501"


def test_single_torchrun_process_needs_no_store():
    config = Config.from_env({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"})
    assert config.store_address is None


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"KF_RANK": "x"}, "KF_RANK must be an integer, got 'x'"),
        ({"KF_RANK": "3", "KF_WORLD_SIZE": "3"}, r"rank must be in \[0, 3\), got 3"),
        ({"KF_RANK": "0", "KF_WORLD_SIZE": "0"}, "world_size must be >= 1, got 0"),
        ({"KF_RANK": "0", "KF_WORLD_SIZE": "2"}, "KF_STORE is not set"),
        ({"KF_TIMEOUT_S": "soon"}, "KF_TIMEOUT_S must be seconds, got 'soon'"),
        ({"KF_TIMEOUT_S": "nan"}, "timeout_s must be finite and > 0"),
        ({**TORCHRUN, "MASTER_PORT": "65535"}, r"MASTER_PORT must be in \[1, 65534\]"),
    ],
)
def test_malformed_environment_is_refused_with_its_name(env, message):
    with pytest.raises(UsageError, match=message):
        Config.from_env(env)


def test_unknown_field_and_unspeakable_policy_are_refused():
    with pytest.raises(UsageError, match="unknown configuration field 'rnak'"):
        Config.from_env({}, rnak=1)
    with pytest.raises(UsageError, match="must not contain ';'"):
        Config(policies=("a;b.py:P",)).to_env()


def test_a_started_worker_keeps_the_machines_vector_level_and_nothing_else(monkeypatch):
    monkeypatch.setenv("KF_SIMD", "portable")
    monkeypatch.setenv("KF_RANK", "7")
    variables = child_environment(Config(rank=1, world_size=2, store_address="h:1"), {}, {})
    assert (variables["KF_SIMD"], variables["KF_RANK"]) == ("portable", "1")
