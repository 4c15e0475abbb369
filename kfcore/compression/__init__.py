"""Gradients in fewer bytes: what to call them, how they are coded, how they are averaged."""

from kfcore.compression.spec import Compression, parse

__all__ = ["Compression", "parse"]
