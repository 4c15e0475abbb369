"""DistributedDataParallel with a policy, over gloo and over kf."""

import sys

import torch
import torch.distributed as dist
from checks import write
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import kfcore as kf
import kfcore.torch as kft


class Halve(kf.Policy):
    monitors = (kf.monitors.GradientNoiseScale(decay=0.5),)

    def after_step(self, seen):
        if seen.step == 3:
            return kf.SetLearningRate(seen.learning_rate / 2, reason="half way")
        return None


def train(backend: str) -> dict[str, object]:
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    plain = nn.Linear(5, 2)
    model = DistributedDataParallel(nn.Linear(5, 2), bucket_cap_mb=0.00001)
    model.module.load_state_dict(plain.state_dict())
    x = torch.randn(19, 5, generator=torch.Generator().manual_seed(4))
    hook = kft.CommHook(local_batch=2, learning_rate=0.2, policies=[Halve()])
    model.register_comm_hook(hook, kft.comm_hook)
    rates, gns, taken = [], [], []
    with hook.job as job:
        for batch in job.batches(len(x), shuffle=False):
            model.zero_grad()
            loss = model(x[batch]).square().mean()
            loss.backward()
            rate = job.learning_rate
            outcome = hook.step(loss=loss.item())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(rate * parameter.grad)
            rates.append(rate)
            taken.append(not outcome.skipped)
            gns.append(float(job.metrics["gns"]) if job.metrics["gns"] else None)
        # the same steps by one process: 4 samples each, 3 in the last of 5
        for step, rate in enumerate(rates):
            plain.zero_grad()
            plain(x[4 * step : 4 * step + 4]).square().mean().backward()
            with torch.no_grad():
                for parameter in plain.parameters():
                    parameter.sub_(rate * parameter.grad)
        far = max(
            (a - b).abs().max().item()
            for a, b in zip(model.module.parameters(), plain.parameters(), strict=True)
        )
        loss = job.metrics["loss"]
    dist.destroy_process_group()
    return {"rank": rank, "size": size, "rates": rates, "far": far, "gns": gns, "loss": loss}


results = {backend: train(backend) for backend in sys.argv[2:]}
write(results["kf"]["rank"], results)
