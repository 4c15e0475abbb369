"""Start a job: one store and n worker processes, supervised to a common end."""

from kfcore.launch.spec import LaunchResult, LaunchSpec, WorkerResult
from kfcore.launch.supervisor import launch

__all__ = ["LaunchResult", "LaunchSpec", "WorkerResult", "launch"]
