"""KungFu Lab: adaptive distributed training.

Names are loaded when they are first used, so that commands which need no arrays start fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kfcore import errors

if TYPE_CHECKING:
    from kfcore import monitors
    from kfcore.elastic_job import ElasticJob
    from kfcore.job import Job
    from kfcore.membership import Member, join
    from kfcore.memory import empty
    from kfcore.policy import (
        Checkpoint,
        Each,
        Exclude,
        LocalStep,
        Max,
        Mean,
        Min,
        Note,
        Observation,
        Policy,
        Resize,
        SetBucketBytes,
        SetCompression,
        SetHyper,
        SetLearningRate,
        SetLocalBatch,
        SetSchedule,
        SetSyncMode,
        Stop,
        Sum,
    )
    from kfcore.session import Session, SessionStats
    from kfcore.view import View
    from kfcore.world import init, inproc_world

__all__ = [
    "Checkpoint",
    "Each",
    "ElasticJob",
    "Exclude",
    "Job",
    "LocalStep",
    "Max",
    "Mean",
    "Member",
    "Min",
    "Note",
    "Observation",
    "Policy",
    "Resize",
    "Session",
    "SessionStats",
    "SetBucketBytes",
    "SetCompression",
    "SetHyper",
    "SetLearningRate",
    "SetLocalBatch",
    "SetSchedule",
    "SetSyncMode",
    "Stop",
    "Sum",
    "View",
    "empty",
    "errors",
    "init",
    "inproc_world",
    "join",
    "monitors",
]

# Where a name lives, unless it is one of kfcore.policy's.
_PLACES = {
    "ElasticJob": "kfcore.elastic_job",
    "Job": "kfcore.job",
    "Member": "kfcore.membership",
    "Session": "kfcore.session",
    "SessionStats": "kfcore.session",
    "View": "kfcore.view",
    "empty": "kfcore.memory",
    "init": "kfcore.world",
    "inproc_world": "kfcore.world",
    "join": "kfcore.membership",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kfcore' has no attribute {name!r}")
    if name == "monitors":
        return import_module("kfcore.monitors")
    return getattr(import_module(_PLACES.get(name, "kfcore.policy")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
