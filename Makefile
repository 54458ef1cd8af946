# Every target sets up what it needs in .venv; a stamp makes the second call quick.
# With PYTHON=python3.13, or any other, the environment is one of its own: .venv-3.13.
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
endif
VENV   ?= .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
BIN    := $(VENV)/bin
# Most modules of large packages are never imported: Python compiles the others when they are.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
JOBS   ?= auto

# Tests start many processes, which should not compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo quick fast test long examples check docs schema bench clean

help:            ## what there is to make
	@grep -hE '^[a-z]+: .*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.core   ## optimize a support desk of six models, offline
	@$(BIN)/promptiter init --force build/demo > /dev/null
	@$(BIN)/promptiter run build/demo

quick: check fast   ## lint, types, import contract, and the tests that are not marked slow: the daily round

fast: $(VENV)/.dev   ## the tests of `make quick` alone
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not slow and not long" --hypothesis-profile quick

test: check      ## lint, types, import contract, and every test but the longest
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m "not long"

long: $(VENV)/.dev   ## the tests that take longest, which `make test` leaves out
	$(BIN)/pytest -n $(JOBS) --dist worksteal -m long

examples: $(VENV)/.dev   ## run every example, also the longer ones
	$(BIN)/pytest -n $(JOBS) --dist worksteal tests/test_examples.py

check: $(VENV)/.dev   ## lint, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs   ## build the documentation into site/
	$(BIN)/mkdocs build --strict

schema: $(VENV)/.dev   ## generate the JSON Schemas of promptiter.yaml and task.yaml again
	$(BIN)/python -m promptiter.config.schema
	$(BIN)/python -m promptiter.config.task_yaml.task_schema

bench: $(VENV)/.dev   ## measure, compared with lower bounds of the same run
	$(BIN)/python -m benchmarks.bench_imports
	$(BIN)/python -m benchmarks.bench_traces
	$(BIN)/python -m benchmarks.bench_fuzz
	$(BIN)/python -m benchmarks.bench_recovery
	$(BIN)/python -m benchmarks.bench_evaluate
	$(BIN)/python -m benchmarks.bench_endpoint
	$(BIN)/python -m benchmarks.bench_backward
	$(BIN)/python -m benchmarks.bench_blame
	$(BIN)/python -m benchmarks.bench_leaks
	$(BIN)/python -m benchmarks.bench_learning
	$(BIN)/python -m benchmarks.bench_journal
	$(BIN)/python -m benchmarks.bench_stores
	$(BIN)/python -m benchmarks.bench_server
	$(BIN)/python -m benchmarks.bench_server --two-servers
	$(BIN)/python -m benchmarks.bench_sandbox
	$(BIN)/python -m benchmarks.bench_rounds
	$(BIN)/python -m benchmarks.bench_growth
	$(BIN)/python -m benchmarks.bench_bars
	$(BIN)/python -m benchmarks.bench_worlds
	$(BIN)/python -m benchmarks.bench_searches
	$(BIN)/python -m benchmarks.bench_searches --tables
	$(BIN)/python -m benchmarks.bench_forecast
	$(BIN)/python -m benchmarks.bench_final_test
	$(BIN)/python -m benchmarks.final_test_runs
	$(BIN)/python -m benchmarks.judge_runs
	$(BIN)/python -m benchmarks.bench_honesty
	$(BIN)/python -m benchmarks.bench_affected_cases
	$(BIN)/python -m benchmarks.bench_try

clean:           ## remove everything that make made
	rm -rf .venv .venv-* site build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "promptiter needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python pyproject.toml
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.core $@

$(VENV)/.docs: $(VENV)/bin/python pyproject.toml
	@$(PIP) --editable '.[docs]'
	@touch $(VENV)/.core $@
