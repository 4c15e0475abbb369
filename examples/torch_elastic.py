"""Handwritten digits on workers that come and go: `kf run -n 3 --elastic 1:4`.

One worker is killed in the middle; the others go on, and each sample is used once a pass all
the same. A worker that comes late gets model, optimizer, schedule and place in the data.
"""

import os
import signal

import torch
from sklearn.datasets import load_digits
from torch import nn

import kfcore.torch as kft
from kfcore.elastic import ElasticSampler

EPOCHS, KILL_AT = 8, 40


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = load_digits()
    x = torch.tensor(data.data / 16, dtype=torch.float32)
    y = torch.tensor(data.target)
    held_out = torch.arange(len(x)) % 5 == 0
    train = torch.utils.data.TensorDataset(x[~held_out], y[~held_out])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    sampler = ElasticSampler(len(train), global_batch=48)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=240)
    with kft.Elastic(model, optimizer, sampler, scheduler) as elastic:
        while elastic.epoch < EPOCHS:
            for inputs, targets in elastic.load(train):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                elastic.step(loss, clip_norm=5.0)
                if elastic.steps == KILL_AT and os.environ.get("KF_RANK") == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
        with torch.no_grad():
            right = (model(x[held_out]).argmax(dim=1) == y[held_out]).float().mean()
        if elastic.rank == 0:
            print(f"{elastic.steps} steps, {EPOCHS} passes: accuracy {right:.3f}")


if __name__ == "__main__":
    main()
