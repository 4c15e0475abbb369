"""Systems under test: laws of Horovod's loop, and the published shape of the scaling figure."""

from pathlib import Path

import numpy as np
import pytest

import kfsim
from kfsim.cluster import Cluster
from kfsim.network import Links
from kfsim.systems import Horovod, Kf, StepWork
from kfsim.workload import load_model

EXPERIMENT = Path(__file__).resolve().parents[2] / "experiments" / "e01_scaling_vs_horovod"
GRADIENT_BYTES = 25_583_592 * 4


def work(n: int) -> StepWork:
    return StepWork(
        model=load_model("resnet50"),
        bytes_per_element=4,
        begin_s=np.zeros(n),
        compute_s=np.full(n, 0.6),
        forward_fraction=1 / 3,
        control_bytes=128,
        schedule="ring",
    )


def links(n: int) -> Links:
    return Links(Cluster(hosts=n, nic_gbps=8.0))


@pytest.mark.parametrize(
    "system", [Kf(), Kf(bucket_mib=1.0), Horovod(), Horovod(fusion_mib=1.0)]
)
def test_every_gradient_byte_is_reduced_once(system):
    done = system.exchange(work(8), links(8))
    size = GRADIENT_BYTES + (128 if isinstance(system, Kf) else 0)
    assert done.comm_bytes == size
    assert done.bytes_sent.sum() == 2 * 7 * size


def test_horovod_fuses_up_to_the_threshold_and_not_at_all_with_zero():
    fused = Horovod(cycle_ms=1000.0).exchange(work(4), links(4))
    assert fused.collectives == 2  # 102 MB in buffers of 64 MiB, all ready at the one wake-up
    single = Horovod(cycle_ms=1000.0, fusion_mib=0).exchange(work(4), links(4))
    assert single.collectives == 214


def test_horovod_starts_nothing_before_a_wake_up():
    done = Horovod(cycle_ms=700.0).exchange(work(4), links(4))
    ring_s = 2 * 3 / 4 * GRADIENT_BYTES / 1e9
    assert done.finish_s.max() == pytest.approx(0.7 + ring_s, abs=2e-3)


def test_horovod_without_response_cache_pays_for_each_request():
    cached = Horovod(cycle_ms=700.0).exchange(work(32), links(32))
    plain = Horovod(cycle_ms=700.0, response_cache=False, request_us=10.0)
    extra_s = plain.exchange(work(32), links(32)).finish_s - cached.finish_s
    assert extra_s.max() == pytest.approx(214 * 32 * 10e-6, rel=1e-6)


def test_horovod_on_a_slower_path_is_slower():
    # One wake-up, because a slower path may happen to meet the cycles better.
    times = [
        Horovod(path_gbps=gbps, cycle_ms=700.0).exchange(work(8), links(8)).finish_s.max()
        for gbps in (None, 8.0, 4.0, 1.0)
    ]
    assert times[0] == times[1] < times[2] < times[3]


@pytest.fixture(scope="module")
def rate_at_32() -> dict[str, float]:
    """Samples per second of one worker among 32."""
    return {
        name: kfsim.simulate(kfsim.load(EXPERIMENT / f"scenario_{name}.toml")).summary[
            "per_worker_samples_per_s"
        ]
        for name in ("ideal", "kf", "horovod_untuned", "horovod_tuned")
    }


def test_ideal_is_the_rate_of_a_single_device(rate_at_32):
    assert rate_at_32["ideal"] == pytest.approx(49.5, rel=0.01)


def test_ours_is_predicted_within_five_percent_of_the_published_point(rate_at_32):
    # 43.43 +- 1.21 img/s a GPU, 88 % of ideal; no constant of the scenario was fitted on it.
    assert rate_at_32["kf"] == pytest.approx(43.43, rel=0.05)


def test_untuned_horovod_meets_the_point_that_it_was_fitted_on(rate_at_32):
    assert rate_at_32["horovod_untuned"] == pytest.approx(12.70, rel=0.01)


def test_systems_are_in_the_published_order_and_nobody_beats_the_ideal(rate_at_32):
    assert rate_at_32["horovod_untuned"] < rate_at_32["kf"] < rate_at_32["ideal"]
    assert rate_at_32["horovod_untuned"] < rate_at_32["horovod_tuned"] < rate_at_32["ideal"]
    assert rate_at_32["kf"] / rate_at_32["horovod_untuned"] == pytest.approx(3.42, rel=0.06)


def test_256_workers_need_one_replay_a_bucket():
    scenario = kfsim.load(EXPERIMENT / "scenario_kf.toml").with_values(
        {"cluster.hosts": 256, "run.steps": 2, "system.schedule": "ring"}
    )
    rows = kfsim.simulate(scenario).rows
    assert [row["collectives"] for row in rows] == [4, 4]
    assert all(row["step_s"] > row["compute_s"] for row in rows)
