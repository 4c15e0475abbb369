"""PyTorch on the core. Importing it adds the back end ``kf`` to ``torch.distributed``."""

from kfcore.torch.backend import register, session
from kfcore.torch.comm_hook import CommHook, comm_hook
from kfcore.torch.elastic import Elastic
from kfcore.torch.evaluation import evaluate
from kfcore.torch.optimizers import AdaptiveSGD, LocalSGD, SynchronousAveraging, SynchronousSGD
from kfcore.torch.pairs import PairAveraging

__all__ = [
    "AdaptiveSGD",
    "CommHook",
    "Elastic",
    "LocalSGD",
    "PairAveraging",
    "SynchronousAveraging",
    "SynchronousSGD",
    "comm_hook",
    "evaluate",
    "session",
]

register()
