"""What optimizers over several workers have in common: they stand for the one they wrap."""

from collections.abc import Callable
from typing import Any

import torch

from kfcore.session import Session
from kfcore.torch.memory import Flat, parameters_of

__all__ = ["Wrapper"]


class Wrapper(torch.optim.Optimizer):
    """An optimizer around another one; schedulers and gradient scalers take it for that one.

    Args:
        optimizer: Made over the model's parameters; its state and groups stay its own.
        session: Open session, which the caller closes.
        model: Its buffers are copied from rank 0 too; None: only the parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        session: Session,
        model: torch.nn.Module | None = None,
    ) -> None:
        # Optimizer.__init__ would copy the groups; everything it sets up is the inner one's
        self.inner = optimizer
        self._session = session
        self._trained = parameters_of(optimizer)
        if session.world_size > 1:
            everything = [p for group in optimizer.param_groups for p in group["params"]]
            buffers = [] if model is None else list(model.buffers())
            for flat in Flat.by_type(tensor.detach() for tensor in [*everything, *buffers]):
                session.broadcast(flat.pack())
                flat.unpack()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Likewise."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Likewise."""
        return self.inner.defaults

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update the parameters.

        Args:
            closure: Computes the loss and its gradients, for optimizers that want one.

        Returns:
            The loss, if there is a closure.
        """
        if closure is None:
            return self.inner.step()
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the wrapped optimizer's state."""
        self.inner.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the workers have agreed on the parameters already."""
        del param_group
        raise NotImplementedError("add parameters before wrapping the optimizer")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"
