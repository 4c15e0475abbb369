"""What programs get when ranks disagree, and when one of them dies in the backward pass."""

import faulthandler

import torch
import torch.distributed as dist
from checks import write
from torch.nn.parallel import DistributedDataParallel

import kfcore.torch  # noqa: F401 - makes "kf" known
from kfcore.errors import MismatchError


def failing(fn) -> str:
    try:
        fn()
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return f"{' '.join(kinds)}: {error}"
    return "no error"


faulthandler.dump_traceback_later(300, exit=True)
results = {}
dist.init_process_group("kf")
rank = dist.get_rank()
x = torch.ones(4 if rank == 0 else 2)
results["shapes"] = failing(lambda: dist.all_reduce(x))
results["untouched"] = x.tolist()
dist.destroy_process_group()

dist.init_process_group("kf")
y = torch.ones(3, dtype=torch.float32 if rank == 0 else torch.int32)
work = dist.all_reduce(y, async_op=True)
results["future"] = failing(lambda: work.get_future().wait())
results["is_mismatch"] = failing(work.wait).startswith(MismatchError.__name__)
results["success"] = work.is_success()
dist.destroy_process_group()

dist.init_process_group("kf")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(1, 4)).sum().backward()
if rank == 1:
    write(rank, results)  # ends this process in the middle of the job
results["backward"] = failing(lambda: model(torch.ones(1, 4)).sum().backward())
results["afterwards"] = failing(lambda: dist.all_reduce(torch.ones(1)))
write(rank, results)
