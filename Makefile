# make demo, make test: each sets up all it needs (Python >= 3.10, a C++20 compiler and make must be there). Also: lint, bench, clean.
PYTHON ?= python3
ifeq ($(origin CXX),default)  # make's own default is g++, wherever c++ leads
CXX := c++
endif
export CXX
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find csrc -type f 2>/dev/null) CMakeLists.txt setup.py pyproject.toml
CPP := $(shell find csrc tests -name '*.cpp' -o -name '*.h' 2>/dev/null)

# More ranks than cores, and root, are normal in tests.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1

.PHONY: demo test lint format bench clean tools
.DELETE_ON_ERROR:

demo: $(VENV)/.built
	$(BIN)/python examples/demo.py

test: $(VENV)/.built
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.built
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CPP)

format: $(VENV)/.built
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/.built
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist demo *.egg-info decentcomm/*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/.deps: requirements-dev.txt requirements-mpich.txt | tools
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@# MPICH owns the same file names as Open MPI, so it gets a folder of its own; only tests use it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-installed --prefix $(VENV)/mpich -r requirements-mpich.txt
	touch $@

$(VENV)/.built: $(VENV)/.deps $(SOURCES)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	touch $@

tools:
	@command -v $(PYTHON) >/dev/null || { echo "decentcomm needs Python 3.10 or newer: '$(PYTHON)' was not found; install it or run 'make PYTHON=/path/to/python3'." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "decentcomm needs Python 3.10 or newer: '$(PYTHON)' is $$($(PYTHON) -V 2>&1); run 'make PYTHON=/path/to/newer'." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "decentcomm needs Python's venv module: install it (Debian: apt install python3-venv)." >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "decentcomm needs Python's C headers: install them (Debian: apt install python3-dev)." >&2; exit 1; }
	@echo 'int main() { auto f = []<class T>(T) {}; f(0); }' | $(CXX) -std=c++20 -x c++ -fsyntax-only - 2>/dev/null || { echo "decentcomm needs a C++20 compiler: '$(CXX)' was not found or is too old (g++ >= 10 works); install one or run 'make CXX=/path/to/c++'." >&2; exit 1; }
