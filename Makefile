# Everything a person or CI does with this repository. `make help` lists it.
# Needs Python 3.11 or newer, make and git; nothing else has to be prepared.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
# Without compiled bytecode every `atlas` command and every worker would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Twice quiet: errors only. Index warnings of one machine are nobody else's business.
PIP := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# Stamps: each says that its part of the set-up is done and newer than what it was made from.
CORE := $(VENV)/.core
PACKAGES := $(VENV)/.packages
SYSTEM := $(VENV)/.system
JOBS ?= 2

.PHONY: help setup start test test-quick smoke check format docs doctor bench chaos clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

setup: $(PACKAGES) $(SYSTEM) ## the environment in .venv and what the tests need from the system
	@echo "setup: ready"

start: $(CORE) ## a demo vault in ./demo and a real run, shown step by step
	@$(BIN)/python tools/start.py

test: setup ## all tests
	@$(BIN)/python -m pytest -n $(JOBS)

test-quick: $(PACKAGES) ## unit tests only
	@$(BIN)/python -m pytest tests/unit -m "not slow" -n $(JOBS)

smoke: $(CORE) ## new, run and verify in a temporary vault
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(BIN)/atlas new --vault "$$folder/vault"; \
	$(BIN)/atlas run summarizer --input '{"text": "A smoke test."}' --vault "$$folder/vault"; \
	$(BIN)/atlas verify --all --vault "$$folder/vault"; \
	echo "smoke: ok"

check: $(PACKAGES) ## format, lint, types, rooms, sizes, generated pages
	@echo "[1/6] format"; $(BIN)/ruff format --quiet --check .
	@echo "[2/6] lint"; $(BIN)/ruff check --quiet --output-format concise .
	@echo "[3/6] types"; $(BIN)/mypy --no-error-summary
	@echo "[4/6] rooms"; $(BIN)/lint-imports > $(VENV)/rooms.log 2>&1 || { cat $(VENV)/rooms.log; exit 1; }
	@echo "[5/6] sizes"; $(BIN)/python tools/size.py
	@echo "[6/6] generated pages"; $(BIN)/python -m atlas.vault.schema_docs --check docs/reference/schemas; \
	$(BIN)/python tools/cli_docs.py --check
	@echo "check: ok"

format: $(PACKAGES) ## format the code and fix what the linter can fix
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

docs: $(PACKAGES) ## write the generated pages of docs/reference
	@$(BIN)/python -m atlas.vault.schema_docs docs/reference/schemas
	@$(BIN)/python tools/cli_docs.py

doctor: $(CORE) ## what works on this machine, what is missing, and the fix
	@$(BIN)/atlas doctor

bench: $(PACKAGES) ## speed and size as ratios against a peer, measured now
	@$(BIN)/python bench/run.py

chaos: $(PACKAGES) ## kill drivers and workers at random and count what was lost or repeated
	@$(BIN)/atlas chaos --kills 200

clean: ## remove everything these commands created, the demo vault included
	@rm -rf $(VENV) .venv-bench bench/.cache demo dist build .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find src tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
		"Atlas needs Python 3.11 or newer; $(PYTHON) is %d.%d. Use: make PYTHON=/path/to/python3" % v[:2])' \
		|| { command -v $(PYTHON) >/dev/null || echo "No Python found. Use: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "[1/4] creating the environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Python's venv module does not work here; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "[2/4] installing Atlas and its packages, pinned in constraints.txt"
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

$(PACKAGES): $(CORE)
	@echo "[3/4] installing what checks and tests use (a minute or so)"
	@$(PIP) install -c constraints.txt --no-build-isolation -e ".[postgres,local,providers,dev]"
	@touch $@

$(SYSTEM): $(PACKAGES) tools/system_parts.py src/atlas/models/weights.py
	@echo "[4/4] fetching the small local model that the tests use (93 MB) and looking for system programs"
	@ATLAS_MODELS=$(VENV)/models $(BIN)/atlas models pull > /dev/null
	@$(BIN)/python tools/system_parts.py
	@touch $@
