"""Starts programs of ``torch_programs`` on several ranks and reads what they wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "torch_programs"


def run_ranks(
    program: str, folder: Path, workers: int, *arguments: object, torchrun: bool = False
) -> list[dict[str, Any]]:
    """What each rank wrote to ``folder``, by rank."""
    launcher = (
        ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        if torchrun
        else ["kfcore", "run", "-n", str(workers), sys.executable]
    )
    env = {name: value for name, value in os.environ.items() if name[:3] != "KF_"}
    with (folder / "output.txt").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", *launcher, PROGRAMS / program, folder, *map(str, arguments)],
            env={**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=380,
            check=False,
        )
    files = [folder / f"rank{rank}.json" for rank in range(workers)]
    assert all(file.exists() for file in files), (folder / "output.txt").read_text()[-4000:]
    return [json.loads(file.read_text()) for file in files]
