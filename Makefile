# Every target sets up what it needs; all that must be there is make and Python 3.11 or newer.
PYTHON ?= python3

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help run test test-long check format format-check lint types api bench bench-check venv clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

run: $(STAMP) ## train on the 3×3 labyrinth, evaluate, write table and pictures to runs/quickstart
	$(BIN)/lwm quickstart

test: $(STAMP) ## all tests but those marked long
	$(BIN)/python -m pytest

test-long: $(STAMP) ## the tests that train for minutes
	$(BIN)/python -m pytest -m long

check: format-check lint types test ## everything CI checks

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

format-check: $(STAMP) ## fail if `make format` would rewrite anything
	$(BIN)/ruff format --check .

lint: $(STAMP) ## ruff's lint rules
	$(BIN)/ruff check .

types: $(STAMP) ## mypy on src/lwm
	$(BIN)/mypy

api: ## write docs/api.md from the docstrings
	$(PYTHON) docs/make_api.py

bench: $(STAMP) ## speed on the labyrinth, by stage
	$(BIN)/lwm bench labyrinth

bench-check: $(STAMP) ## fail if speed, as ratios, has fallen by more than 15 % of results/bench.json
	$(BIN)/lwm bench check

venv: $(STAMP) ## build .venv (the other targets do this by themselves)

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The networks are small and the tests compare runs bit for bit: one BLAS thread, everywhere.
test test-long: export OMP_NUM_THREADS := 1
test test-long: export MKL_NUM_THREADS := 1
test test-long: export OPENBLAS_NUM_THREADS := 1

# setuptools goes in first and the package is built without isolation: an isolated build ignores
# constraints.txt, and would download a second, unpinned build backend.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "lwm needs Python 3.11 or newer; '$(PYTHON)' is not. Try: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@echo "Building .venv (once; takes a minute or a few) ..."
	@$(PYTHON) -m venv .venv || { \
	  echo "Could not create .venv. On Debian or Ubuntu: install the package python3-venv." >&2; \
	  exit 1; }
	$(PIP) install --progress-bar off -c constraints.txt 'setuptools>=77'
	$(PIP) install --progress-bar off -c constraints.txt --no-build-isolation -e '.[dev,tb]'
	@touch $@
