# make train | check | test | test-all | test-hours; the environment is made if need be.
#
#   make check        lint, types, and the tests that need no training: a minute
#   make test         all tests but the slow ones: four minutes on two cores
#   make test-all     the slow ones, which make test leaves out: under 20 minutes
#   make test-hours   what is left: by hand, for a change of what it tests
#   make test-faults  plants faults in copies of the package; shows which tests find them

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A file stays in one process, so that its runs are trained and its steps traced once.
PYTEST = $(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder
# With an NVIDIA driver there, TensorFlow's CUDA libraries come along.
EXTRAS = test$(if $(wildcard /proc/driver/nvidia/version),$(comma)cuda)
comma := ,

.PHONY: train check lint types test test-all test-hours test-faults clean

train: $(VENV)/installed
	$(BIN)/python -m tfmirror.train

check: lint types
	$(PYTEST) -m 'not training and not slow and not hours'

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed
	$(BIN)/mypy

test: $(VENV)/installed
	$(PYTEST)

test-all: $(VENV)/installed
	$(PYTEST) -m 'slow and not hours'

test-hours: $(VENV)/installed
	$(BIN)/python -m pytest -m hours

test-faults: $(VENV)/installed
	$(BIN)/python tests/plant_faults.py

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
