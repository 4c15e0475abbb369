"""A simulator of training clusters that runs the schedules, engine and policies of kfcore."""

from kfsim.result import Result
from kfsim.scenario import Scenario, load
from kfsim.simulate import simulate

__all__ = ["Result", "Scenario", "load", "simulate"]
