"""What the cluster measures about itself while it trains, and values that do not exist.

A monitor is named in a policy's ``monitors``; it turns each step's agreed measurements into
metrics, the same on every rank. A metric that has no value is `Undefined`, never NaN.
"""

from kfcore.monitors.base import Monitor, RunningMonitor, StepView
from kfcore.monitors.gain import AdaScaleGain, StatisticalEfficiency
from kfcore.monitors.metric import Metric, Metrics, Undefined
from kfcore.monitors.money import Money
from kfcore.monitors.noise_scale import GradientNoiseScale
from kfcore.monitors.set import MonitorSet

__all__ = [
    "AdaScaleGain",
    "GradientNoiseScale",
    "Metric",
    "Metrics",
    "Money",
    "Monitor",
    "MonitorSet",
    "RunningMonitor",
    "StatisticalEfficiency",
    "StepView",
    "Undefined",
]
