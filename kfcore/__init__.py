"""KungFu Lab: adaptive distributed training."""

from kfcore import errors

__all__ = ["errors"]
