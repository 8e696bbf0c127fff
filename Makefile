# Everything there is to do, on a machine with Python 3.11 or newer and make. `make` alone lists it.
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-input $(if $(CI),--quiet) -c constraints.txt
WAITING := tests/flower/test_federations.py  # federations of real processes, which mostly wait: side by side, and after the rest
SOURCES := src tests docs examples $(wildcard benchmarks)

.DEFAULT_GOAL := help
.PHONY: help venv install demo test lint types docs bench browser proxy

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r t what; do printf '%-9s %s\n' "$$t" "$$what"; done

venv: $(VENV)/.made  ## make an empty .venv

install: $(VENV)/.installed  ## .venv with accord and the data sets of the hub, at the pinned versions

demo: $(VENV)/.installed  ## compare six algorithms on handwritten digits (about half a minute after the install)
	$(BIN)/accord compare

test: $(VENV)/.developing browser proxy  ## the whole suite, with every example in the documentation
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadgroup -rs --doctest-modules --ignore $(WAITING) src/accord tests
	OMP_NUM_THREADS=1 ACCORD_PATIENCE=$${ACCORD_PATIENCE:-2} $(BIN)/python -m pytest -n 3 -rs $(WAITING)

lint: $(VENV)/.developing  ## ruff: rules and format
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.developing  ## mypy, strict
	$(BIN)/mypy

docs: $(VENV)/.developing  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: $(VENV)/.developing  ## measure speed against plain PyTorch loops
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/speed.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/parts.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/engines.py

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "accord needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing into $(VENV); PyTorch is most of it."
	$(PIP) -e ".[hub]"
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	$(PIP) -e ".[all,dev]"
	@touch $@

# The report page's tests drive a real browser. Where there is none and we may install one, do; where not, those tests say why they skip.
browser:
	@command -v chromedriver > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver > /dev/null; } \
	  || echo "no browser: the tests that need one are skipped"

# The proxy of the documentation's page on real sites is tested with a real nginx, in the same way.
proxy:
	@command -v nginx > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq nginx-light > /dev/null; } \
	  || echo "no nginx: the test that needs it is skipped"
