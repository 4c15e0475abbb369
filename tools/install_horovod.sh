#!/usr/bin/env bash
# Build the real Horovod 0.28.1 (Gloo, PyTorch) into a virtual environment of its own and prove it with
# two processes. Used as a baseline by `kf bench --against horovod`; nothing in the tests depends on it.
#
#   tools/install_horovod.sh [VENV]      default: .venv-horovod; about 4 minutes on two idle cores
#
# Needs: python3, g++, make, cmake, and pip able to reach a package index. The folder is left usable by
# `VENV/bin/python`; torch is the version that requirements.lock pins.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath -m "${1:-.venv-horovod}")
version=0.28.1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }
if "$venv/bin/python" -c "import horovod.torch" 2> /dev/null; then
  echo "Horovod is already in $venv"
else
  # setuptools < 80: Horovod's setup.py still calls `setup.py install` machinery that later ones dropped.
  # cmake < 4: its bundled third-party projects ask for policies that CMake 4 no longer knows.
  pip install "$(grep '^torch==' requirements.lock)" "$(grep '^numpy==' requirements.lock)" \
    'setuptools<80' wheel packaging cloudpickle psutil pyyaml 'cmake<4'
  pip download --no-deps --no-binary :all: --no-build-isolation -d "$work" "horovod==$version"
  tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
  tree="$work/horovod-$version"
  # torch >= 2.9 headers need C++20; Horovod asks for 14 or 17 in its own folders. Its bundled Gloo keeps
  # the standard it was written for.
  sed -i 's/set(CMAKE_CXX_STANDARD 1[0-9])/set(CMAKE_CXX_STANDARD 20)/' \
    "$tree/CMakeLists.txt" "$tree/horovod/torch/CMakeLists.txt"
  find "$tree/third_party" -name CMakeLists.txt -path '*gloo*' -exec \
    sed -i -E 's/set\(CMAKE_CXX_STANDARD 1[14]\)/set(CMAKE_CXX_STANDARD 17)/; s/-std=c\+\+1[14]/-std=c++17/' {} +
  PATH="$venv/bin:$PATH" \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO \
    HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    MAKEFLAGS="-j$(nproc)" \
    "$venv/bin/python" -m pip --disable-pip-version-check install --no-build-isolation --no-deps "$tree"
fi

cat > "$work/proof.py" <<'PYTHON'
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.full((5,), float(hvd.rank() + 1)), op=hvd.Sum)
assert total.tolist() == [3.0] * 5, total
print(f"rank {hvd.rank()} of {hvd.size()}: all-reduce is right")
PYTHON
PATH="$venv/bin:$PATH" "$venv/bin/horovodrun" -np 2 --gloo -H localhost:2 "$venv/bin/python" "$work/proof.py"
