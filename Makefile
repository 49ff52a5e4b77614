# Every target makes what it needs; a second call installs nothing. Python >= 3.11, make and git are enough to start.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# test,test-torch adds torch and transformers, whose tests are skipped without them
EXTRAS ?= test

.PHONY: help test test-slow demo lint format bench docs clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# one stamp for each set of packages, older than pyproject.toml when that has changed
$(VENV)/.base: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/.$(EXTRAS) $(VENV)/.docs: $(VENV)/.%: $(VENV)/.base
	$(PIP) --editable '.[$*]'
	touch $@

test: $(VENV)/.$(EXTRAS)  ## run the tests (five minutes on two cores)
	$(BIN)/pytest -n auto

test-slow: $(VENV)/.$(EXTRAS)  ## run the checks that take minutes: a thousand examples of every law
	$(BIN)/pytest -n auto -m slow
	$(BIN)/pytest -n auto tests/conformance --hypothesis-profile=thorough

demo: $(VENV)/.base  ## run every study at its quick size, check its claims, and say where the page is
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

docs: $(VENV)/.docs  ## build the documentation into docs/_build
	$(BIN)/sphinx-build -q -W --keep-going docs docs/_build
	@echo "documentation: docs/_build/index.html"

clean:  ## remove everything that was built
	rm -rf $(VENV) .venv-peers out docs/_build docs/figures build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
