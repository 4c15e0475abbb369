"""Measures this package beside other systems, interleaved in one run on one machine."""

from kfcore.compare.contenders import CONTENDERS, Contender, missing_reason
from kfcore.compare.runner import Case, Sample, compare, floors

__all__ = ["CONTENDERS", "Case", "Contender", "Sample", "compare", "floors", "missing_reason"]
