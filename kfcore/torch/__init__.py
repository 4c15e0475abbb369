"""PyTorch on the core. Importing it adds the back end ``kf`` to ``torch.distributed``."""

from kfcore.torch.backend import register, session
from kfcore.torch.evaluation import evaluate
from kfcore.torch.optimizers import AdaptiveSGD, LocalSGD, SynchronousAveraging, SynchronousSGD
from kfcore.torch.pairs import PairAveraging

__all__ = [
    "AdaptiveSGD",
    "LocalSGD",
    "PairAveraging",
    "SynchronousAveraging",
    "SynchronousSGD",
    "evaluate",
    "session",
]

register()
