"""Train a small network on scikit-learn's handwritten digits, on any number of processes.

python examples/digits.py
kf run -n 4 --policy examples/policies/grow_batch.py:GrowBatch python examples/digits.py
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import kfcore as kf


class Digits:
    """The model and its data as a `kfcore.task.Task`: 1,797 images of 8 x 8, ten classes.

    Args:
        hidden: Width of the hidden layer.
        seed: Of the weights and of the split; the same on every rank.
    """

    def __init__(self, hidden: int = 64, seed: int = 0) -> None:
        images, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(labels))
        x = torch.from_numpy((images[order] / 16).astype(np.float32))
        y = torch.from_numpy(labels[order].astype(np.int64))
        self.n_samples = len(y) * 4 // 5
        self._train = x[: self.n_samples], y[: self.n_samples]
        self._held_out = x[self.n_samples :], y[self.n_samples :]
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 10)
        )
        # torch's own default range, but from a generator of our own: ranks that share a process
        # share torch's global one.
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in (self.model[0], self.model[2]):
                bound = layer.in_features**-0.5
                layer.weight.uniform_(-bound, bound, generator=generator)
                layer.bias.uniform_(-bound, bound, generator=generator)
        self._loss = torch.nn.CrossEntropyLoss()
        self._parameters = list(self.model.parameters())
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        # The very memory of the gradients: averaging these averages what `apply` uses.
        self._grads: list[NDArray[Any]] = [p.grad.numpy() for p in self._parameters]

    def gradients(self, indices: NDArray[np.int64]) -> tuple[float, list[NDArray[Any]]]:
        """Loss and gradient of some training images."""
        for grad in self._grads:
            grad.fill(0)
        rows = torch.from_numpy(indices)
        loss = self._loss(self.model(self._train[0][rows]), self._train[1][rows])
        loss.backward()
        return loss.item(), self._grads

    def apply(self, learning_rate: float) -> None:
        """One step of plain gradient descent."""
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.sub_(parameter.grad, alpha=learning_rate)

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy on the held-out fifth."""
        with torch.no_grad():
            scores = self.model(self._held_out[0])
            right = (scores.argmax(dim=1) == self._held_out[1]).float().mean()
            return {
                "loss": self._loss(scores, self._held_out[1]).item(),
                "accuracy": right.item(),
            }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, help="end after this many steps")
    parser.add_argument("--local-batch", type=int, default=8, help="samples a rank and step")
    parser.add_argument("--learning-rate", type=float, default=0.5)
    parser.add_argument(
        "--transport",
        choices=("auto", "tcp"),
        default="auto",
        help="tcp: also between workers of one host, which else share memory",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="write one JSON line a step")
    parser.add_argument("--events", type=Path, help="write decisions as JSON lines")
    parser.add_argument("--record", action="store_true", help="with what policies saw")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)  # one core a process: ranks share this machine
    task = Digits(seed=options.seed)
    with (
        kf.init(transport=options.transport) as session,
        kf.Job(
            session,
            local_batch=options.local_batch,
            learning_rate=options.learning_rate,
            monitors=[kf.monitors.GradientNoiseScale(decay=0.9)],
            log=options.events,
            record=options.record,
        ) as job,
    ):
        rows: list[dict[str, Any]] = []

        def on_step(job: kf.Job, _loss: float) -> None:
            rows.append(
                {
                    "step": job.steps,
                    "epoch": job.epoch,
                    "loss": job.metrics.value("loss"),
                    "local_batch": job.local_batch,
                    "global_batch": job.global_batch,
                    "noise_scale": job.metrics.value("gns"),
                }
            )

        result = job.train(
            task,
            epochs=options.epochs,
            max_steps=options.steps,
            seed=options.seed,
            on_step=on_step,
        )
        if job.rank == 0:
            if options.log:
                options.log.parent.mkdir(parents=True, exist_ok=True)
                lines = (json.dumps(row) + "\n" for row in rows)
                options.log.write_text("".join(lines))
            print(
                f"{job.world_size} workers, {job.steps} steps, local batch {job.local_batch}: "
                f"held-out loss {result['loss']:.4f}, accuracy {result['accuracy']:.3f}"
            )


if __name__ == "__main__":
    main()
