# Every target makes what it needs; a second call installs nothing. Python >= 3.11, make and git are enough to start.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# test-torch adds torch, transformers and Triton, whose tests are skipped without them
EXTRAS ?= test
# the exact versions that the tests gate on, also while pip builds this package (by the second variable from pip 26 on)
LOCK := constraints.txt
export PIP_CONSTRAINT ?= $(CURDIR)/$(LOCK)
export PIP_BUILD_CONSTRAINT ?= $(PIP_CONSTRAINT)

.PHONY: help test test-core test-slow test-newest test-minimum smoke lock mutants demo demo-all lint format bench docs docs-check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# one stamp for each set of packages, older than the lock when that has changed
$(VENV)/.base: pyproject.toml $(LOCK)
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.version_info >= (3, 11) or sys.exit(f"bulkedge needs Python 3.11 or newer; $(PYTHON) is {v}. Name another one: make PYTHON=python3.12 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(sort $(VENV)/.$(EXTRAS) $(VENV)/.torch $(VENV)/.docs): $(VENV)/.%: $(VENV)/.base
	@case '$*' in *torch*|docs) echo "$(DOWNLOAD)";; esac
	$(PIP) --editable '.[$*]'
	touch $@

DOWNLOAD := Installing torch and transformers into $(VENV): 0.3 GB to download, or 3 GB where pip takes torch with CUDA (Linux with no CPU build at hand).

PYTEST := $(BIN)/pytest -n auto --dist worksteal

test: $(VENV)/.$(EXTRAS)  ## run the tests (three minutes on two cores; five where torch is installed)
	$(PYTEST) -q -rs

test-core: $(VENV)/.$(EXTRAS)  ## run the core: no simulations, studies, processes, reference values, torch (a minute)
	$(PYTEST) -m 'not (slow or limits or studies or conformance or processes or accuracy or torch)' tests

test-slow: $(VENV)/.$(EXTRAS)  ## run the checks that take minutes: a thousand examples of every law
	$(PYTEST) -m slow
	$(PYTEST) tests/conformance --hypothesis-profile=thorough

# the newest of everything, in an environment of its own: what it reports does not gate, and a warning of another package
# is a warning
NEWEST := .venv-newest
NEWEST_EXTRAS ?= test

test-newest:  ## report how the tests fare with the newest version of every dependency; does not gate
	$(PYTHON) -m venv --clear $(NEWEST)
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --editable '.[$(NEWEST_EXTRAS)]'
	@$(NEWEST)/bin/python tools/newer.py $(LOCK)
	$(NEWEST)/bin/pytest -n auto --dist worksteal -q -o filterwarnings=error::bulkedge.support.errors.RegimeWarning

# uv resolves for all platforms and Pythons at once; torch stays where the kernels were last tested on a GPU
HELD := torch==2.13.0
lock:  ## resolve all extras anew and write the lock (needs nothing installed)
	python3 -m venv out/uv && PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= out/uv/bin/python -m pip install --quiet uv
	echo '$(HELD) hatchling hatch-vcs' | tr ' ' '\n' | out/uv/bin/uv pip compile pyproject.toml - --universal --python-version 3.11 --all-extras \
	    --upgrade --no-emit-index-url --no-annotate --no-strip-markers --quiet --custom-compile-command 'make lock' --output-file $(LOCK)

# the oldest versions that pyproject.toml allows, on the oldest Python that is at hand; old versions and the newest of what
# they need deprecate each other's ways, which is no fault of ours
MINIMUM := .venv-minimum
MINIMUM_PYTHON ?= $(or $(shell command -v python3.11),$(PYTHON))
MINIMUM_PYTEST := $(MINIMUM)/bin/pytest -q -n auto -W default::DeprecationWarning

$(MINIMUM)/.ready: pyproject.toml .ci/minimum.py
	$(MINIMUM_PYTHON) -m venv --clear $(MINIMUM)
	$(MINIMUM)/bin/python .ci/minimum.py > $(MINIMUM)/constraints.txt
	PIP_CONSTRAINT= PIP_BUILD_CONSTRAINT= $(MINIMUM)/bin/python -m pip install --quiet --disable-pip-version-check \
	    --constraint $(MINIMUM)/constraints.txt --editable '.[test-core]'
	touch $@

test-minimum: $(MINIMUM)/.ready  ## run the command line, sweeps and laws with the oldest versions allowed (three minutes)
	$(MINIMUM_PYTEST) -m 'not slow and not processes' tests/sweeps tests/test_cli.py tests/test_reproduction.py
	$(MINIMUM_PYTEST) tests/conformance -k 'Semicircle or QuarterCircle or MarchenkoPastur or FussCatalan'
	$(MINIMUM)/bin/bulkedge law attention-law --beta 1 --head-ratio 0.5 --at 1,2 --json

smoke: $(VENV)/.base  ## build the wheel, install it without extras in a fresh environment and try its commands
	rm -rf out/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/wheel .
	$(BIN)/python .ci/smoke.py out/wheel

SEED ?= 1
mutants: $(VENV)/.$(EXTRAS)  ## change the source at sixty random places and count what the tests notice (hours); SEED=7
	$(BIN)/python tools/mutants.py --seed $(SEED)

demo: $(VENV)/.torch  ## scan a small decoder and check a headline claim of each paper (a minute)
	@$(BIN)/bulkedge demo --out out/demo

demo-all: $(VENV)/.torch  ## run every study at its quick size; the page has all claims (three minutes)
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
docs-check: $(VENV)/.docs  ## build the documentation without running it, and check its links (a minute)
	$(BIN)/sphinx-build -q -W --keep-going -D cells_run=0 docs out/docs-check
	$(BIN)/python docs/_ext/links.py out/docs-check --without-figures

clean:  ## remove everything that was built
	rm -rf $(VENV) $(MINIMUM) $(NEWEST) .venv-peers out docs/_build docs/figures build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
