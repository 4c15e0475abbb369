"""Start a job: one store and n worker processes, supervised to a common end."""

from kfcore.launch.launcher import join, launch
from kfcore.launch.spec import LaunchResult, LaunchSpec, WorkerResult

__all__ = ["LaunchResult", "LaunchSpec", "WorkerResult", "join", "launch"]
