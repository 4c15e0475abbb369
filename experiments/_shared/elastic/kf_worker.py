"""A worker of this project for `experiments._shared.elastic`; see notes.py for arguments."""

import numpy as np
from notes import Notes

import kfcore as kf
from kfcore.elastic import ElasticState


def main() -> None:
    """Train until the experiment has seen enough."""
    notes = Notes()
    weights = np.ones(max(1, notes.plan["state_bytes"] // 8))
    with (
        kf.join() as member,
        kf.ElasticJob(
            member, ElasticState(weights=weights), local_batch=1, learning_rate=0.1
        ) as job,
    ):
        notes.once(f"ready-{member.id}")
        job.boundary()
        while True:
            workers = notes.resize_due(job.world_size) if job.rank == 0 else 0
            if workers:
                member.resize(workers, "the experiment")
            notes.compute(job.steps + 1, victim=job.rank == 1)
            grad = np.ones(1000)
            grad[-1] = notes.enough
            job.step([grad])
            weights[: len(grad)] -= job.learning_rate * grad[: len(weights)]
            notes.stepped(job.steps, job.world_size)
            if grad[-1] > 0:
                break
            job.boundary()


if __name__ == "__main__":
    main()
