"""A worker of Horovod Elastic: commits each step; see notes.py for arguments."""

import os

import horovod.torch as hvd
import torch
from notes import Notes

VICTIM = "127.0.0.1"  # a host of its own, for the host of a dead worker is not used again


def main() -> None:
    """Train until the experiment has seen enough."""
    notes = Notes()
    hvd.init()
    model = torch.nn.Linear(max(1, notes.plan["state_bytes"] // 4), 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while True:
            victim = os.environ.get("HOROVOD_HOSTNAME") == VICTIM
            notes.compute(state.step + 1, victim=victim)
            grad = torch.ones(1000)
            grad[-1] = float(notes.enough)
            total = hvd.allreduce(grad, op=hvd.Sum, name="grad")
            state.step += 1
            notes.stepped(state.step, hvd.size())
            if total[-1] > 0:
                return
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
