"""Several jobs on one cluster whose hosts come, go, fail and cost money."""

from kfsim.fleet.config import FleetConfig, load_fleet, parse_fleet
from kfsim.fleet.engine import FleetResult, run_fleet
from kfsim.fleet.schedulers import JobView, Scheduler

__all__ = [
    "FleetConfig",
    "FleetResult",
    "JobView",
    "Scheduler",
    "load_fleet",
    "parse_fleet",
    "run_fleet",
]
