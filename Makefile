# Every target makes what it needs; a second call installs nothing. Python >= 3.11, make and git are enough to start.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# test,test-torch adds torch and transformers, whose tests are skipped without them
EXTRAS ?= test

.PHONY: help test test-core test-slow test-minimum mutants demo lint format bench docs docs-check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# one stamp for each set of packages, older than pyproject.toml when that has changed
$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(sort $(VENV)/.$(EXTRAS) $(VENV)/.torch $(VENV)/.docs): $(VENV)/.%: $(VENV)/.base
	$(PIP) --editable '.[$*]'
	touch $@

test: $(VENV)/.$(EXTRAS)  ## run the tests (six minutes on two cores)
	$(BIN)/pytest -n auto

test-core: $(VENV)/.$(EXTRAS)  ## run the core: no simulations, studies, processes, reference values, torch (a minute)
	$(BIN)/pytest -n auto -m 'not (slow or limits or studies or conformance or processes or accuracy or torch)' tests

test-slow: $(VENV)/.$(EXTRAS)  ## run the checks that take minutes: a thousand examples of every law
	$(BIN)/pytest -n auto -m slow
	$(BIN)/pytest -n auto tests/conformance --hypothesis-profile=thorough

# the oldest versions that pyproject.toml allows, on the oldest Python that is at hand; old versions and the newest of what
# they need deprecate each other's ways, which is no fault of ours
MINIMUM := .venv-minimum
MINIMUM_PYTHON ?= $(or $(shell command -v python3.11),$(PYTHON))
MINIMUM_PYTEST := $(MINIMUM)/bin/pytest -q -n auto -W default::DeprecationWarning

$(MINIMUM)/.ready: pyproject.toml .ci/minimum.py
	$(MINIMUM_PYTHON) -m venv --clear $(MINIMUM)
	$(MINIMUM)/bin/python .ci/minimum.py > $(MINIMUM)/constraints.txt
	$(MINIMUM)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint $(MINIMUM)/constraints.txt --editable '.[test-core]'
	touch $@

test-minimum: $(MINIMUM)/.ready  ## run the command line, sweeps and laws with the oldest versions allowed (three minutes)
	$(MINIMUM_PYTEST) -m 'not slow and not processes' tests/sweeps tests/test_cli.py tests/test_reproduction.py
	$(MINIMUM_PYTEST) tests/conformance -k 'Semicircle or QuarterCircle or MarchenkoPastur or FussCatalan'
	$(MINIMUM)/bin/bulkedge law attention-law --beta 1 --head-ratio 0.5 --at 1,2 --json

SEED ?= 1
mutants: $(VENV)/.$(EXTRAS)  ## change the source at sixty random places and count what the tests notice (hours); SEED=7
	$(BIN)/python tools/mutants.py --seed $(SEED)

# the scan comes first, because the page of the studies links what is there
demo: $(VENV)/.torch  ## scan the default model, run every study at its quick size, say where the page is
	@mkdir -p out/demo
	$(BIN)/bulkedge scan --html out/demo/scan.html
	$(BIN)/bulkedge reproduce --out out/demo

lint: $(VENV)/.$(EXTRAS)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.$(EXTRAS)  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.$(EXTRAS)  ## measure against the peers, in environments of their own, and write docs/benchmarks
	$(BIN)/python -m benchmarks

docs: $(VENV)/.docs  ## reproduce the figures, run the tutorials and build the documentation into docs/_build (eight minutes, then two)
	$(BIN)/bulkedge reproduce --out docs/figures/reproduced > /dev/null || test -f docs/figures/reproduced/index.html
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build
	$(BIN)/python docs/_ext/links.py docs/_build
	$(BIN)/python docs/_ext/measure.py docs/_build
	@echo "documentation: docs/_build/index.html"

# in a folder of its own, so that a later 'make docs' does not show pages without their outputs
docs-check: $(VENV)/.docs  ## build the documentation without running it, and check its links (half a minute)
	$(BIN)/sphinx-build -q -W --keep-going -D cells_run=0 docs out/docs-check
	$(BIN)/python docs/_ext/links.py out/docs-check --without-figures

clean:  ## remove everything that was built
	rm -rf $(VENV) $(MINIMUM) .venv-peers out docs/_build docs/figures build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
