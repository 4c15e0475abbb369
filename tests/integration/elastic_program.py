"""A worker of the membership tests: Adam on least squares; logs every step it takes.

Arguments: folder for logs, and a plan as JSON: options, and what a worker does at which step.
A founder is called r<rank>, a worker that comes late j<number given by its starter>.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import kfcore as kf
from kfcore.elastic import ElasticSampler, ElasticState
from kfcore.errors import PeerLostError, UsageError
from kfcore.membership import LeaveOnNotice

WIDTH = 5


def data_of(plan):
    n = plan.get("samples", 60)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, WIDTH))
    return x, x @ np.arange(float(WIDTH)) + rng.normal(size=n)


class Buckets(kf.Policy):
    """Changes the size of operations after given steps."""

    def __init__(self, plan):
        self.plan = plan

    def after_step(self, seen):
        size = self.plan.get(str(seen.step))
        return size and kf.SetBucketBytes(size)


class Adam:
    def __init__(self):
        self.w, self.m, self.v, self.t = (np.zeros(n) for n in (WIDTH, WIDTH, WIDTH, 1))

    def apply(self, grad):
        self.t += 1
        self.m[:] = 0.9 * self.m + 0.1 * grad
        self.v[:] = 0.99 * self.v + 0.01 * grad**2
        mean, var = self.m / (1 - 0.9**self.t), self.v / (1 - 0.99**self.t)
        self.w -= 0.05 * mean / (np.sqrt(var) + 1e-8)


def gradient(x, y, w, indices):
    return 2 * x[indices].T @ (x[indices] @ w - y[indices]) / len(indices)


def act(what, job, member, say):
    """One thing that the plan has for this worker and step."""
    word, _, rest = what.partition(" ")
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif word == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif word == "leave":
        member.leave()
    elif word == "resize":
        try:
            member.resize(int(rest), "the plan says so")
        except UsageError as error:
            say(refused=str(error))
    elif word == "exclude":
        member.exclude(member.view.members[int(rest)], "the plan says so")
    elif word == "await":  # until so many workers are there or wait at the door
        while len(member.roster.members) + len(member.roster.joiners) < int(rest):
            time.sleep(0.01)
    elif word == "await-target":
        while member.roster.target != int(rest):
            time.sleep(0.01)
    else:
        sabotage(word, job, member)


def sabotage(word, job, member):
    """Fail at a chosen place inside the library, or be told to leave."""
    if word == "term":  # and go on only when the notice is known
        os.kill(os.getpid(), signal.SIGTERM)
        while member.id not in member.roster.leaving:
            time.sleep(0.01)
    elif word == "hang":
        time.sleep(600)
    elif word == "kill-at-change":
        member.install = lambda: os.kill(os.getpid(), signal.SIGKILL)
    elif word == "lose-result":  # the step was completed, but this worker does not know
        real = member.running

        def running(operation):
            member.running = real
            real(operation)
            raise PeerLostError("the test took the result away")

        kept = job._steps.control

        def control(step, *vectors):
            kept(step, *vectors)
            member.running = running
            job._steps.control = kept

        job._steps.control = control


def main(out, plan, name):
    x, y = data_of(plan)
    with (out / f"{name}.jsonl").open("w", buffering=1) as log:

        def say(**event):
            log.write(json.dumps(event) + "\n")

        member = kf.join(
            schedule=plan.get("schedule", "ring"),
            heartbeat_s=plan.get("heartbeat_s"),
            timeout_s=60,
        )
        say(id=member.id, pid=os.getpid())
        adam = Adam()
        state = ElasticState(w=adam.w, m=adam.m, v=adam.v, t=adam.t)
        sampler = ElasticSampler(len(x), seed=3, global_batch=plan.get("batch", 12))
        try:
            with (
                member,
                LeaveOnNotice(member, grace_s=plan.get("grace_s", 60)),
                kf.ElasticJob(
                    member,
                    state,
                    local_batch=4,
                    learning_rate=1,
                    policies=[Buckets(plan.get("bucket_bytes", {}))],
                    log=out / "events.jsonl",
                ) as job,
            ):
                train(plan, name, job, member, state, sampler, adam, (x, y), say)
        except BaseException as error:
            say(error=type(error).__name__, text=str(error))
            raise


def train(plan, name, job, member, state, sampler, adam, xy, say):
    while job.epoch < plan.get("epochs", 2):
        for indices in job.batches(sampler):
            part = job._parts[member.id]
            say(at=job.steps + 1, part=[int(i) for i in part], epoch=job.epoch)
            for what in plan.get(name, {}).get(str(job.steps + 1), []):
                act(what, job, member, say)
            if plan.get("sleep_s"):
                time.sleep(plan["sleep_s"])
            grad = gradient(*xy, adam.w, indices)
            skipped = job.step([grad]).skipped
            say(
                step=job.steps,
                rank=job.rank,
                view=job.controller.view_version,
                members=list(job._ids),
                skipped=skipped,
                schedules=[job.controller.schedule, member.session and member.session.schedule],
            )
            if not skipped:
                with state.changing():
                    adam.apply(grad)
    say(
        end=job.steps,
        w=adam.w.tolist(),
        updates=int(adam.t[0]),
        samples=job.controller.samples,
        members=list(member.view.members),
    )


def forked(out, plan, name, env):
    """The program in a process that was forked; errors end it with the code of a program."""
    os.environ.update(env)
    with (out / f"{name}.err").open("wb") as err:
        os.dup2(err.fileno(), 2)
    main(out, plan, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3])
