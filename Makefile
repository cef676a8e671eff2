# Every target sets up what it needs; all that must be there is make and Python 3.11 or newer.
PYTHON ?= python3

BIN   := .venv/bin
STAMP := .venv/.installed
PIP   := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help run test test-long check format format-check lint types api bench bench-check faults \
  faults-long soak mutants coverage audit lock venv venv-locked clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

run: $(STAMP) ## train on the 3×3 labyrinth, evaluate, write table and pictures to runs/quickstart
	$(BIN)/lwm quickstart

test: $(STAMP) ## all tests but those marked long
	$(BIN)/python -m pytest

test-long: $(STAMP) ## the tests that train for minutes
	$(BIN)/python -m pytest -m long

check: format-check lint types test ## format, lint, types, tests: CI also runs faults and audit

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

faults: $(STAMP) ## the fault campaign, short form (minutes); FORM=long, ONLY="sigkill viewer"
	$(FAULTS) --form $(or $(FORM),short) $(if $(filter no,$(ROWS)),--no-rows) $(if $(ONLY),--only $(ONLY)) $(if $(TRIES),--tries $(TRIES))

faults-long: $(STAMP) ## the fault campaign, long form but for the soak (hours)
	$(FAULTS) --form long --only $(filter-out soak,$(ATTACKS))

soak: $(STAMP) ## MINUTES (120) of small-scale Atari: memory, file handles and speed stay flat
	$(FAULTS) --form long --only soak --minutes $(or $(MINUTES),120)

mutants: $(STAMP) ## mutation testing of the mathematical core; TRIES=20: a sample of each module
	$(BIN)/python -m faults.mutation --rows results/faults.csv $(if $(TRIES),--tries $(TRIES))

coverage: $(STAMP) ## branch coverage of the mathematical core by its own tests, at least 95 %
	$(BIN)/python -m coverage run -m pytest -q $(CORE:%=tests/test_%.py)
	$(BIN)/python -m coverage report -m --fail-under=95 --include='$(CORE_FILES)'

audit: $(STAMP) ## known weaknesses of the pinned dependencies, where the registry allows it
	$(BIN)/python .ci/audit.py

lock: $(STAMP) ## write requirements.lock: the pins with hashes
	$(BIN)/python .ci/lock.py

venv: $(STAMP) ## build .venv (the other targets do this by themselves)

venv-locked: ## build .venv from requirements.lock: every file but torch's checked against its hash
	$(PYTHON) -m venv .venv
	$(PIP) install --progress-bar off --require-hashes --no-deps -r requirements.lock
	$(PIP) install --progress-bar off -c constraints.txt torch
	$(PIP) install --progress-bar off --no-deps --no-build-isolation -e .
	@touch $(STAMP)

clean: ## remove .venv, caches and build output; runs/ stays
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

ATTACKS := sigkill signals disk corruption hostile command-lines degenerate two-processes viewer soak
CORE    := returns whitening intrinsic replay
CORE_FILES := */lwm/returns.py,*/lwm/whitening.py,*/lwm/intrinsic.py,*/lwm/replay.py
FAULTS  := $(BIN)/python -m faults

faults faults-long soak mutants: export PYTHONPATH := tests

# The networks are small and the tests compare runs bit for bit: one BLAS thread, everywhere.
test test-long coverage mutants: export OMP_NUM_THREADS := 1
test test-long coverage mutants: export MKL_NUM_THREADS := 1
test test-long coverage mutants: export OPENBLAS_NUM_THREADS := 1

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
