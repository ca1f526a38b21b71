# Everything a developer types. `make` alone lists it.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One thread of linear algebra each: the test processes already use all processors.
PYTEST ?= OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest
# Test processes. One prefers tests without a cluster, the others cluster tests, which mostly wait.
WORKERS ?= 3
# The tests start hundreds of processes: they keep compiled modules, also where the shell says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run console test test-unit test-slow soak search fuzz check format images manifests bench crds monitoring proto lock clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The environment is built again when the lock or the project's metadata changes.
$(READY): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "KGWE needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Installing KGWE into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV) \
		|| { echo "Cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Built again only if its source changes. `make run` goes on without pages where npm is not reachable.
console: $(READY) ## Build the pages of the console (Node from PATH, else from PyPI)
	@$(BIN)/python scripts/build_console.py

run: $(READY) ## Local cluster, simulated GPU fleet, KGWE on it, sample workloads; Ctrl-C stops all
	@$(BIN)/python scripts/build_console.py || true
	@$(BIN)/kgwe demo

test: $(READY) ## All tests but the slow ones
	@$(PYTEST) -n $(WORKERS) -m "not slow and not soak"

test-unit: $(READY) ## The tests that need no cluster
	@HYPOTHESIS_PROFILE=quick $(PYTEST) -n $(WORKERS) -m "not slow and not soak" tests/unit tests/property

test-slow: $(READY) ## The slow tests, and properties with more examples
	@HYPOTHESIS_PROFILE=thorough $(PYTEST) -n $(WORKERS) -m "(slow or hypothesis) and not soak"

soak: $(READY) ## Exhaustive attacks and long runs, once per release
	@$(PYTEST) -m soak -s

fuzz: $(READY) ## Many more inputs for every wire format, with a new seed (INPUTS=20000)
	@KGWE_FUZZ_INPUTS=$(or $(INPUTS),20000) KGWE_FUZZ_SEED=$$RANDOM $(PYTEST) tests/unit/fuzz

search: $(READY) ## New examples and another order: what it finds goes into a test of its own
	@HYPOTHESIS_PROFILE=search $(PYTEST) -n 2 -m "not slow and not soak" --randomly-seed=$$RANDOM tests/unit tests/property

check: $(READY) ## Lint, types, architecture, generated files
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/check_packages.py
	@$(BIN)/python scripts/check_docs.py
	@$(BIN)/kgwe crds --check
	@$(BIN)/kgwe crds --docs --check
	@$(BIN)/python -m kgwe.httpapi docs/reference/openapi.json --check
	@$(BIN)/python -m kgwe.monitoring --check
	@$(BIN)/kgwe console openapi docs/reference/openapi-console.json --check
	@$(BIN)/kgwe image dockerfile --check
	@$(BIN)/kgwe chart --check
	@echo "All checks passed."

format: $(READY) ## Format the code and mend what lint can mend
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

images: $(READY) ## Build the container images into dist/, for amd64 and arm64
	@$(BIN)/kgwe image build kgwe
	@$(BIN)/kgwe image build kgwe-agent

manifests: $(READY) ## Render the chart into dist/manifests: plain manifests and a kustomize base
	@mkdir -p dist/manifests
	@$(BIN)/kgwe install --dry-run --set namespace.create=true > dist/manifests/kgwe.yaml
	@printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [kgwe.yaml]\n' > dist/manifests/kustomization.yaml
	@echo "dist/manifests: kubectl apply --server-side -k dist/manifests"

bench: $(READY) ## Benchmarks at a size for a laptop
	@$(BIN)/kgwe bench cluster --scenario fill

crds: $(READY) ## Write deploy/crds, docs/reference and the charts' files from their sources
	@$(BIN)/kgwe crds --output deploy/crds
	@$(BIN)/kgwe crds --docs --output docs/reference
	@$(BIN)/python -m kgwe.httpapi docs/reference/openapi.json
	@$(BIN)/kgwe chart
	@$(BIN)/kgwe console openapi docs/reference/openapi-console.json

monitoring: $(READY) ## Write dashboards, rules and runbooks from src/kgwe/monitoring
	@$(BIN)/python -m kgwe.monitoring

proto: $(READY) ## Write the code of the protocols in src/kgwe/proto
	@$(BIN)/python -m kgwe.proto.generate

lock: $(READY) ## Pin the newest versions that fit into requirements/
	@$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate pyproject.toml --extra controller -o requirements/controller.txt
	@$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate pyproject.toml --extra agent -o requirements/agent.txt
	@$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate pyproject.toml --extra optimizer -o requirements/optimizer.txt
	@$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate pyproject.toml --extra all -o requirements/all.txt
	@$(BIN)/uv pip compile --quiet --upgrade --no-header --no-annotate pyproject.toml --all-extras --group dev -o requirements/dev.txt

clean: ## Stop local clusters and remove the environment and caches
	@if [ -x $(BIN)/kgwe ]; then $(BIN)/kgwe local down --all; fi
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
