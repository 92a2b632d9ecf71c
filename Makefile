# Everything that Tenure's developers and first-time users run. `make` alone lists the targets.
#
# Set-up needs Python 3.11 or newer; the embedded node needs root on Debian. Everything else is installed by the
# targets themselves, once, into .venv and the git-ignored .cache (keyed by content).

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-$(shell cat requirements/dev.txt pyproject.toml | sha256sum | cut -c1-12)
ARGS ?=

.PHONY: help setup demo test test-unit test-integration test-e2e test-deep bench acceptance generate verify check \
        cluster-up cluster-down image lock clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(READY) ## Make the virtual environment (every other target does it when needed)

$(READY): requirements/dev.txt pyproject.toml
	@echo "-> Python environment in $(VENV) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install -q --disable-pip-version-check "uv>=0.7"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@rm -f $(VENV)/.ready-*; touch $@

demo: setup ## See it work: a cluster, an operator, three agents; one is stopped, one is marked, one crashes
	@$(BIN)/python -m examples.demo

test: setup ## All tests: unit, integration, end to end
	@$(BIN)/python -m tests.run all $(ARGS)

test-unit: setup ## Seconds, no cluster
	@$(BIN)/python -m tests.run unit $(ARGS)

test-integration: setup ## A real control plane, a real PostgreSQL, real processes
	@$(BIN)/python -m tests.run integration $(ARGS)

test-e2e: setup ## A real node: the image, the chart, real pods
	@$(BIN)/python -m tests.run e2e $(ARGS)

test-deep: setup ## The searches over random histories, ten to twenty-five times as long, and every crash of an adoption
	@TENURE_HYPOTHESIS=search $(BIN)/python -m pytest tests/properties tests/integration/storage/test_records_model.py \
		tests/integration/servers/test_crash_matrix.py tests/integration/hosted/test_the_operator_dies.py $(ARGS)

bench: setup ## Measure, as ratios to a floor of the same run; table on stdout, JSON in .cache/bench
	@$(BIN)/python -m tests.bench $(ARGS)

acceptance: setup ## Which promised behaviours have a test
	@$(BIN)/python tools/acceptance.py

generate: setup ## Make the generated files: CRDs, RBAC, reference pages
	@$(BIN)/python tools/generate.py

verify: setup ## Fail when a generated file is stale
	@$(BIN)/python tools/generate.py --check

check: setup verify ## Lint, types, layers, generated files
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

cluster-up: setup ## Start the test cluster and say how to use it
	@$(BIN)/python -m tests.cluster up

cluster-down: setup ## End the test cluster and remove every trace of it
	@$(BIN)/python -m tests.cluster down

image: setup ## Build the image with the Dockerfile
	@$(BIN)/python -m tests.cluster image

lock: setup ## Pin the dependencies anew (requirements/*.txt)
	@$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --extra operator --extra server --extra backend pyproject.toml -o requirements/runtime.txt
	@$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --extra operator --extra server --extra backend --group dev pyproject.toml -c requirements/runtime.txt -o requirements/dev.txt

clean: ## Remove what the targets made (the cluster first: make cluster-down)
	@rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
