"""Handwritten digits with PyTorch and a policy: as it stands, or under `kf run -n 4`.

The loop is plain PyTorch; `kf.Job` averages the gradients, measures them and lets policies
change the batch size and the learning rate while the model trains.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import kfcore as kf
import kfcore.torch as kft


class GrowBatch(kf.Policy):
    """Doubles the batch after an epoch whose gradient noise scale is above it."""

    monitors = (kf.monitors.GradientNoiseScale(decay=0.9),)

    def after_epoch(self, seen):
        """Ask for twice the batch."""
        if seen.world_size > 1 and seen.metrics["gns"] > seen.global_batch:
            return kf.SetLocalBatch(min(2 * seen.local_batch, 128), reason="noise above batch")
        return None


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32)
    y = torch.tensor(data.target)
    held_out = torch.arange(len(x)) % 5 == 0
    train_x, train_y, test_x, test_y = x[~held_out], y[~held_out], x[held_out], y[held_out]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with (
        kf.init() as session,
        kf.Job(session, local_batch=16, learning_rate=0.1, policies=[GrowBatch()]) as job,
    ):
        for _ in range(8):
            for batch in job.batches(len(train_x)):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
                loss.backward()
                outcome = job.step([p.grad for p in model.parameters()], loss=loss.item())
                if not outcome.skipped:
                    optimizer.param_groups[0]["lr"] = job.learning_rate
                    optimizer.step()

        def measure(mine):
            guesses = model(test_x[list(mine)]).argmax(dim=1)
            return {"right": float((guesses == test_y[list(mine)]).sum())}

        told = kft.evaluate(session, len(test_x), measure)
        if session.rank == 0:
            print(
                f"{session.world_size} workers, {job.steps} steps, local batch "
                f"{job.local_batch}: accuracy {told['right'] / told['samples']:.3f}"
            )


if __name__ == "__main__":
    main()
