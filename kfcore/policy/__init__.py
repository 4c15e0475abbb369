"""Policies: pure deciders from observations to actions, the same in both worlds."""

from kfcore.policy.actions import (
    Action,
    Checkpoint,
    Exclude,
    Note,
    Resize,
    SetBucketBytes,
    SetCompression,
    SetHyper,
    SetLearningRate,
    SetLocalBatch,
    SetSchedule,
    SetSyncMode,
    Stop,
)
from kfcore.policy.base import Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Each, Max, Mean, Min, Signal, Sum

__all__ = [
    "Action",
    "Checkpoint",
    "Each",
    "Exclude",
    "LocalStep",
    "Max",
    "Mean",
    "Min",
    "Note",
    "Observation",
    "Policy",
    "Resize",
    "SetBucketBytes",
    "SetCompression",
    "SetHyper",
    "SetLearningRate",
    "SetLocalBatch",
    "SetSchedule",
    "SetSyncMode",
    "Signal",
    "Stop",
    "Sum",
]
