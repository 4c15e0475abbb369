"""Policies in trainers of other libraries: callbacks for Lightning and Hugging Face.

Neither library is imported unless its callback is made.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from kfcore.errors import UsageError
from kfcore.job import Job
from kfcore.torch.comm_hook import CommHook, comm_hook
from kfcore.torch.memory import parameters_of
from kfcore.torch.rates import scale_rates

__all__ = ["TrainerPolicies", "lightning_callback", "transformers_callback"]


class TrainerPolicies:
    """Runs a job's policies beside a trainer that owns the loop.

    A model in DistributedDataParallel is measured by a communication hook, one in a single
    process by its gradients. Policies may change the learning rate, numbers in ``hyper``, and
    stop; the batch is the trainer's, so give `on_local_batch` if policies may change it.

    Args:
        on_local_batch: Called with the new samples a worker and step; None: the change is an
            error.
        **options: Of `kfcore.Job`: ``local_batch``, ``policies``, ``log`` and so on. The
            learning rate is the optimizer's.
    """

    def __init__(
        self, *, on_local_batch: Callable[[int], None] | None = None, **options: Any
    ) -> None:
        if "learning_rate" in options:
            raise UsageError("learning_rate: the trainer's optimizer has it")
        self._options, self._on_local_batch = options, on_local_batch
        self._hook: CommHook | None = None
        self.job: Job | None = None

    def begin(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Before the first step; once a training.

        Args:
            model: As the trainer runs it.
            optimizer: Of torch.
        """
        self._rate = float(optimizer.param_groups[0]["lr"])
        options = {**self._options, "learning_rate": self._rate}
        self._batch = int(options["local_batch"])
        if isinstance(model, DistributedDataParallel):
            self._hook = CommHook(model.process_group, **options)
            model.register_comm_hook(self._hook, comm_hook)
            self.job = self._hook.job
        else:
            self._hook, self.job = None, Job(**options)

    def before_update(
        self,
        optimizer: torch.optim.Optimizer,
        loss: float = math.nan,
        schedulers: tuple[Any, ...] = (),
    ) -> bool:
        """After the backward passes of a step, before the optimizer's.

        Args:
            optimizer: Its gradients are dropped when the step is skipped.
            loss: This worker's mean loss; NaN: not measured.
            schedulers: Of torch; follow a change of the rate.

        Returns:
            Whether to go on; False: a policy ended training.

        Raises:
            UsageError: `begin` was not called, or a policy changed the batch and nobody
                listens.
        """
        if self.job is None:
            raise UsageError("begin() was not called")
        if self._hook is not None:
            outcome = self._hook.step(loss=loss)
        else:
            grads = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
            outcome = self.job.step(grads, loss=loss)
        if outcome.skipped:
            optimizer.zero_grad(set_to_none=True)  # an update without gradients is none
        if self._rate and self.job.learning_rate != self._rate:
            scale_rates(optimizer, self.job.learning_rate / self._rate, schedulers)
            self._rate = self.job.learning_rate
        if self.job.local_batch != self._batch:
            self._batch = self.job.local_batch
            if self._on_local_batch is None:
                raise UsageError(
                    f"a policy set local_batch {self._batch}: give the callback on_local_batch"
                )
            self._on_local_batch(self._batch)
        return not self.job.stopped

    def end(self) -> None:
        """After training."""
        if self.job is not None:
            self.job.close()


def lightning_callback(**options: Any) -> Any:
    """A callback for ``lightning.Trainer(callbacks=[...])``.

    With several workers use ``DDPStrategy(process_group_backend="kf")``, or any other back end.

    Args:
        **options: Of `TrainerPolicies`.

    Returns:
        The callback; its ``policies.job`` carries metrics and settings.

    Raises:
        UsageError: Lightning is not installed.
    """
    try:
        from lightning.pytorch.callbacks import Callback  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("Lightning is not installed: pip install lightning") from error

    class PolicyCallback(Callback):  # type: ignore[misc]
        """Runs policies before each update."""

        def __init__(self) -> None:
            self.policies = TrainerPolicies(**options)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            del pl_module
            if len(trainer.optimizers) != 1:
                raise UsageError(f"policies need one optimizer, got {len(trainer.optimizers)}")
            self.policies.begin(trainer.strategy.model, trainer.optimizers[0])

        def on_before_optimizer_step(
            self, trainer: Any, pl_module: Any, optimizer: Any
        ) -> None:
            del pl_module
            schedulers = tuple(each.scheduler for each in trainer.lr_scheduler_configs)
            if not self.policies.before_update(optimizer, schedulers=schedulers):
                trainer.should_stop = True

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            del trainer, pl_module
            self.policies.end()

    return PolicyCallback()


def transformers_callback(**options: Any) -> Any:
    """A callback for ``transformers.Trainer``: ``trainer.add_callback(...)``.

    With several workers set ``ddp_backend="gloo"`` or another, and give the callback its
    trainer: ``callback.trainer = trainer``, so that it finds the wrapped model.

    Args:
        **options: Of `TrainerPolicies`.

    Returns:
        The callback; its ``policies.job`` carries metrics and settings.

    Raises:
        UsageError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError("transformers is not installed: pip install transformers") from error

    class PolicyCallback(TrainerCallback):  # type: ignore[misc]
        """Runs policies before each update."""

        def __init__(self) -> None:
            self.policies = TrainerPolicies(**options)
            self.trainer: Any = None

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **more: Any
        ) -> None:
            del state, control, more
            wrapped = model if self.trainer is None else self.trainer.model_wrapped
            if args.world_size > 1 and not isinstance(wrapped, DistributedDataParallel):
                raise UsageError("set callback.trainer = trainer: it knows the wrapped model")
            self.policies.begin(wrapped, _plain(optimizer))

        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, optimizer: Any, **more: Any
        ) -> None:
            del args, state
            scheduler = more.get("lr_scheduler")
            schedulers = () if scheduler is None else (scheduler,)
            if not self.policies.before_update(_plain(optimizer), schedulers=schedulers):
                control.should_training_stop = True

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            del args, state, control, more
            self.policies.end()

    return PolicyCallback()


def _plain(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer inside accelerate's wrapper."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner
