"""KungFu Lab: adaptive distributed training."""

from kfcore import errors
from kfcore.session import Session, SessionStats, inproc_world
from kfcore.view import View

__all__ = ["Session", "SessionStats", "View", "errors", "inproc_world"]
