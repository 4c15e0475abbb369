"""Everything that torch.distributed offers for tensors on the CPU, over the back end kf."""

import os

import backend_collectives  # noqa: F401 - its checks come first
import backend_models  # noqa: F401 - then these
import torch
import torch.distributed as dist
from backend_world import RANK, SIZE, TOTAL, ranked, same
from checks import check, run_all


@check
def refusals_leave_the_group_usable() -> None:
    for bad in (
        lambda: dist.all_reduce(ranked(2), dist.ReduceOp.BAND),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.all_gather_into_tensor(torch.empty(3 * SIZE + 1), ranked(3)),
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64), dist.ReduceOp.MAX),
        lambda: dist.recv(torch.ones(1)),
    ):
        try:
            bad()
        except (ValueError, NotImplementedError):
            pass
        else:
            raise AssertionError(bad)
    x = ranked(2)
    dist.all_reduce(x)
    same(x, TOTAL)


@check
def group_can_be_made_anew() -> None:
    dist.destroy_process_group()
    dist.init_process_group("kf")
    x = ranked(2)
    dist.all_reduce(x)
    same(x, TOTAL)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "0")
    run_all(RANK)
