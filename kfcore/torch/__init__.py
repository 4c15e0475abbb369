"""PyTorch on the core. Importing it adds the back end ``kf`` to ``torch.distributed``."""

from kfcore.torch.backend import register, session

__all__ = ["session"]

register()
