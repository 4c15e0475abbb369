"""A worker of the elastic PyTorch tests; writes what it did, as JSON lines.

Arguments: folder for logs, a plan as JSON (see `main`), the worker's name.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

import kfcore.torch as kft
from kfcore.elastic import ElasticSampler

SAMPLES, BATCH = 120, 12


class Rows(torch.utils.data.Dataset):
    """A regression with a little noise; the same numbers everywhere."""

    def __init__(self):
        draws = np.random.default_rng(5)
        self.x = draws.normal(size=(SAMPLES, 4)).astype(np.float64)
        self.y = np.tanh(self.x @ [1.0, -2.0, 0.5, 0.0]) + 0.1 * draws.normal(size=SAMPLES)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index, self.x[index], self.y[index]


def parts(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [15, 35], gamma=0.5)
    return model, optimizer, ElasticSampler(SAMPLES, seed=3, global_batch=BATCH), scheduler


def loss_of(model, x, y):
    return torch.nn.functional.mse_loss(model(x)[:, 0], y)


def static_batches(epochs):
    """The samples of each step while nobody is lost."""
    sampler = parts()[2]
    for _ in range(epochs):
        while (taken := sampler.take(1)) is not None:
            yield taken.of(0).tolist()
        sampler.next_epoch()


def serial(batches):
    """Weights and losses of one process without the library."""
    model, optimizer, _, scheduler = parts()
    data, losses = Rows(), []
    for rows in batches:
        optimizer.zero_grad()
        loss = loss_of(model, torch.tensor(data.x[rows]), torch.tensor(data.y[rows]))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        scheduler.step()
    return weights_of(model), losses


def weights_of(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def act(what, elastic, folder):
    word, _, rest = what.partition(" ")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "save":
        elastic.save(folder / "checkpoints", {"world_size": elastic.world_size})
    elif word == "resize":
        elastic.member.resize(int(rest), "the plan says so")
    elif word == "await":
        while len(elastic.member.roster.members) + len(elastic.member.roster.joiners) < int(
            rest
        ):
            time.sleep(0.01)


def main(folder, plan, name):
    torch.set_num_threads(1)
    model, optimizer, sampler, scheduler = parts(seed=len(name) + ord(name[-1]))
    if name == "r0":
        model.load_state_dict(parts()[0].state_dict())
    shared = torch.Generator().manual_seed(0 if name[0] == "r" else 99)
    with (
        (folder / f"{name}.jsonl").open("w", buffering=1) as log,
        kft.Elastic(
            model,
            optimizer,
            sampler,
            scheduler,
            generators={"shared": shared},
            log=folder / "events.jsonl",
        ) as elastic,
    ):

        def say(**event):
            log.write(json.dumps(event) + "\n")

        say(id=elastic.member.id, pid=os.getpid())
        data = Rows()
        options = plan.get("loader", {})
        while elastic.epoch < plan["epochs"]:
            for index, x, y in elastic.load(data, **options):
                step = elastic.steps + 1
                updates = next(iter(optimizer.state.values()), {"step": torch.tensor(0.0)})
                say(
                    at=step,
                    updates=int(updates["step"]),
                    drawn=torch.rand(1, generator=shared).item(),
                )
                for what in plan.get(name, {}).get(str(step), []):
                    act(what, elastic, folder)
                optimizer.zero_grad()
                loss = loss_of(model, x, y)
                loss.backward()
                elastic.step(loss)
                for what in plan.get(name, {}).get(f"after {step}", []):
                    act(what, elastic, folder)
                say(step=elastic.steps, members=elastic.world_size, used=index.tolist())
        say(end=elastic.steps, weights=weights_of(model), rate=optimizer.param_groups[0]["lr"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
