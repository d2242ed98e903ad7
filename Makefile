# make train | make test | make lint | make test-slow; the environment is made if need be.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With an NVIDIA driver there, TensorFlow's CUDA libraries come along.
EXTRAS = test$(if $(wildcard /proc/driver/nvidia/version),$(comma)cuda)
comma := ,

.PHONY: train test test-slow lint clean

train: $(VENV)/installed
	$(BIN)/python -m tfmirror.train

test: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses=2

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
