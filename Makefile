# Every target sets up what it needs and a second run does nothing that is already done.
# Variables you may set: PYTHON (interpreter of the virtual environment), VENV, JOBS, CXX.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
BIN := $(VENV)/bin
PY := $(BIN)/python
KF := $(BIN)/kf
CMAKE := $(BIN)/cmake
NATIVE := $(shell find native -type f \( -name '*.cc' -o -name '*.h' -o -name 'CMakeLists.txt' \) -not -path 'native/tests/*' -not -path "native/bench/*" -not -path "native/fuzz/*")
NATIVE_FORMATTED := $(shell find native -type f \( -name '*.cc' -o -name '*.h' \))
CMAKE_FLAGS := -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja)
DEMO_OUT ?= out/demo

.DELETE_ON_ERROR:
.PHONY: help demo paper test lint format bench sanitize sanitize-python fuzz test-native test-python test-slow stub inplace clean soak

help:
	@echo 'make demo      build, run one policy in both worlds and the scaling experiment, draw figures'
	@echo 'make paper     the report as PDF, from results/ alone'
	@echo 'make test      lint, native tests, Python tests, documentation examples'
	@echo 'make test-slow the tests that take minutes or gigabytes'
	@echo 'make lint      format, types, docstrings, import directions'
	@echo 'make format    rewrite the sources in the agreed format'
	@echo 'make bench     native and Python benchmarks (speed; never part of make test)'
	@echo 'make soak      random faults on elastic jobs for SOAK_SECONDS (1800); prints the seed of each'
	@echo 'make sanitize  native tests under ASan+UBSan and TSan (sanitize-python: worlds of processes)'
	@echo 'make fuzz      fuzz what strangers and peers may send (FUZZ_S seconds a target)'

# ---- set-up: a virtual environment, then the package with its C++ module -------------------

$(VENV)/.deps: requirements.lock
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.deps pyproject.toml $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" $(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  -Cbuild.tool-args=-j$(JOBS) -e .
	@touch $@

# ---- what users run ------------------------------------------------------------------------

demo: $(VENV)/.installed
	$(KF) experiment run e02_one_policy_two_worlds e01_scaling_vs_horovod --quick --out $(DEMO_OUT)

paper: $(VENV)/.installed
	$(PY) tools/check_claims.py
	$(PY) tools/build_paper.py out/paper.pdf

test: lint test-native test-python
	@if [ -f build/left-out ]; then echo; cat build/left-out; fi

bench: $(VENV)/.installed
	$(PY) -m pytest tests/benchmarks --benchmark-enable --benchmark-only
	$(KF) bench all-reduce -n 2

# ---- checks --------------------------------------------------------------------------------

lint: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(NATIVE_FORMATTED)
	$(BIN)/mypy
	$(BIN)/pydoclint --quiet kfcore kfsim
	$(BIN)/lint-imports

format: $(VENV)/.deps
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(NATIVE_FORMATTED)

# GoogleTest comes from the system (Debian: libgtest-dev); without it the native tests are left out, loudly.
test-native: $(VENV)/.deps
	@mkdir -p build && rm -f build/left-out
	@$(CMAKE) -S native -B build/tests $(CMAKE_FLAGS) -DKF_TESTS=ON -DKF_WERROR=ON > build/tests.log 2>&1 \
	  || { if grep -q 'GTest' build/tests.log; then \
	    echo 'left out: native tests (no GoogleTest; on Debian: apt-get install libgtest-dev libgmock-dev)' > build/left-out; rm -rf build/tests; \
	    else cat build/tests.log; exit 1; fi; }
	@if [ ! -f build/left-out ]; then set -e -o pipefail; \
	  $(CMAKE) --build build/tests -j $(JOBS) | tail -n 3; \
	  $(BIN)/ctest --test-dir build/tests --output-on-failure --timeout 120 -j $(JOBS) --progress --quiet; fi

test-python: $(VENV)/.installed
	$(PY) -m pytest

# Large sizes, random and exhaustive tests; not part of the gate.
test-slow: $(VENV)/.installed
	$(PY) -m pytest -m slow --timeout 1800

# Random faults on elastic jobs, for SOAK_SECONDS; SOAK_HOSTS=4 (root) runs workers in namespace hosts.
SOAK_SECONDS ?= 1800
SOAK_HOSTS ?= 0
soak: $(VENV)/.installed
	$(PY) tools/soak.py --seconds $(SOAK_SECONDS) --hosts $(SOAK_HOSTS) $(if $(SOAK_SEED),--seed $(SOAK_SEED))

sanitize: $(VENV)/.deps
	for kind in address,undefined thread; do \
	  $(CMAKE) -S native -B build/sanitize-$$kind $(CMAKE_FLAGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKF_TESTS=ON -DKF_SANITIZE=$$kind \
	  && $(CMAKE) --build build/sanitize-$$kind -j $(JOBS) \
	  && $(BIN)/ctest --test-dir build/sanitize-$$kind --output-on-failure --timeout 600 -j $(JOBS) || exit 1; done

# The module itself, in worlds of processes.
sanitize-python: $(VENV)/.deps
	for kind in address,undefined thread; do \
	  $(CMAKE) -S native -B build/sanitize-$$kind $(CMAKE_FLAGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKF_TESTS=ON -DKF_BINDINGS=ON \
	    -DPython_EXECUTABLE=$(abspath $(PY)) -DKF_SANITIZE=$$kind \
	  && $(CMAKE) --build build/sanitize-$$kind -j $(JOBS) --target _native \
	  && $(PY) tools/sanitize_python.py $$kind build/sanitize-$$kind || exit 1; done

# What strangers and peers may send, FUZZ_S seconds a target. Needs clang with libFuzzer.
FUZZ_S ?= 120
FUZZ_CXX ?= $(firstword $(shell command -v clang++ clang++-19 clang++-18 clang++-17 clang++-16 clang++-15 clang++-14))
FUZZ_TARGETS ?= $(notdir $(wildcard native/fuzz/corpus/*))
fuzz: $(VENV)/.deps
	@test -n "$(FUZZ_CXX)" || { echo 'make fuzz needs clang with libFuzzer; on Debian: apt-get install clang libclang-rt-14-dev (or set FUZZ_CXX)'; exit 1; }
	CXX="$(FUZZ_CXX)" $(CMAKE) -S native -B build/fuzz $(CMAKE_FLAGS) -DCMAKE_BUILD_TYPE=RelWithDebInfo -DKF_FUZZ=ON
	$(CMAKE) --build build/fuzz -j $(JOBS)
	@set -e; for target in $(FUZZ_TARGETS); do mkdir -p build/fuzz/found/$$target; echo "fuzzing $$target for $(FUZZ_S) s"; \
	  build/fuzz/fuzz_$$target -max_total_time=$(FUZZ_S) -max_len=1024 -timeout=20 -print_final_stats=1 -verbosity=0 \
	    -artifact_prefix=build/fuzz/$$target- build/fuzz/found/$$target native/fuzz/corpus/$$target; done

# ---- for developers ------------------------------------------------------------------------

# The typed stub of the C++ module, committed; a test compares it with what the module says.
stub: $(VENV)/.installed
	$(PY) -m nanobind.stubgen -m kfcore._native -o kfcore/_native.pyi

# Build without installing: puts kfcore/_native.*.so beside the sources (for use with PYTHONPATH=.).
inplace:
	@mkdir -p build
	$(CMAKE) -S native -B build/dev $(CMAKE_FLAGS) -DKF_BINDINGS=ON -DPython_EXECUTABLE=$(abspath $(PY)) -DKF_TESTS=ON -DKF_WERROR=ON > build/dev.log 2>&1 || (cat build/dev.log; exit 1)
	$(CMAKE) --build build/dev -j $(JOBS)
	# renamed into place: a program that has the old file loaded keeps it
	for file in build/dev/_native*.so build/dev/floor_bench; do \
	  cp $$file kfcore/.new && mv kfcore/.new kfcore/$$(basename $$file) || exit 1; done

clean:
	rm -rf build out $(VENV)/.installed
