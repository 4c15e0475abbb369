"""Policies: pure deciders from observations to actions, the same in both worlds."""

from kfcore.policy.actions import (
    Action,
    Resize,
    SetHyper,
    SetLearningRate,
    SetLocalBatch,
    SetSchedule,
    Stop,
)
from kfcore.policy.base import Policy
from kfcore.policy.observation import LocalStep, Observation
from kfcore.policy.signals import Max, Mean, Min, Signal, Sum

__all__ = [
    "Action",
    "LocalStep",
    "Max",
    "Mean",
    "Min",
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
