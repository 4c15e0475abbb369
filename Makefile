# Every target sets up what it needs; a second run does nothing that is already done.
PYTHON ?= python3
VENV ?= .venv
BUILD ?= build/dev
JOBS ?= $(shell nproc)
PY := $(VENV)/bin/python

.PHONY: inplace

# Developer build without installing: puts kfcore/_native.*.so beside the sources.
inplace:
	cmake -S native -B $(BUILD) -G Ninja -DKF_BINDINGS=ON -DPython_EXECUTABLE=$(abspath $(PY)) -DKF_TESTS=ON -DKF_WERROR=ON > $(BUILD).log 2>&1 || (cat $(BUILD).log; exit 1)
	cmake --build $(BUILD) -j $(JOBS)
	cp $(BUILD)/_native*.so kfcore/
