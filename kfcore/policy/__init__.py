"""Policies: pure deciders from observations to actions, the same in both worlds."""

from kfcore.policy.actions import (
    Action,
    Note,
    Resize,
    SetHyper,
    SetLearningRate,
    SetLocalBatch,
    SetSchedule,
    Stop,
)
from kfcore.policy.base import Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Each, Max, Mean, Min, Signal, Sum

__all__ = [
    "Action",
    "Each",
    "LocalStep",
    "Max",
    "Mean",
    "Min",
    "Note",
    "Observation",
    "Policy",
    "Resize",
    "SetHyper",
    "SetLearningRate",
    "SetLocalBatch",
    "SetSchedule",
    "Signal",
    "Stop",
    "Sum",
]
