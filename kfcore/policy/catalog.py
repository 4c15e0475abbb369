"""The policies that come with the project, by name."""

from kfcore.policy.base import Policy
from kfcore.policy.batch_rules import AdaBatch, Cabs, CriticalBatch
from kfcore.policy.compress import CompressOnSlowNetwork
from kfcore.policy.cost import CostAwareResize
from kfcore.policy.exclusion import ExcludeStragglers
from kfcore.policy.goodput import PolluxGoodput
from kfcore.policy.interference import InterferenceSchedule
from kfcore.policy.noise_scale import NoiseScaleBatch
from kfcore.policy.plateau import Plateau
from kfcore.policy.provisioning import MarginalThroughput
from kfcore.policy.rate_scaling import AdaScaleRate, LinearScaling, SqrtScaling
from kfcore.policy.scheduled import FixedSchedule, ScheduledBatch, ScheduledResize
from kfcore.policy.spot import SpotPreemption
from kfcore.policy.stragglers import NameStragglers
from kfcore.policy.sync import AdaComm, SmaThenAllreduce
from kfcore.policy.tuning import TuneSchedule

__all__ = ["BUILT_IN"]

BUILT_IN: dict[str, type[Policy]] = {
    policy.__name__: policy
    for policy in (
        AdaBatch,
        AdaComm,
        AdaScaleRate,
        Cabs,
        CompressOnSlowNetwork,
        CostAwareResize,
        CriticalBatch,
        ExcludeStragglers,
        FixedSchedule,
        InterferenceSchedule,
        LinearScaling,
        MarginalThroughput,
        NameStragglers,
        NoiseScaleBatch,
        Plateau,
        PolluxGoodput,
        ScheduledBatch,
        ScheduledResize,
        SmaThenAllreduce,
        SpotPreemption,
        SqrtScaling,
        TuneSchedule,
    )
}
