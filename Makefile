# `make demo` and `make test` first set up .venv, once. What can be set, all of it optional:
#   PYTHON=python3.12               the Python that makes .venv
#   VENV=--system-site-packages     see that Python's packages: a torch there is used, none downloaded
#   PIP_FLAGS="--index-url ..."     options of every pip install
#   CXX=g++-13                      the C++ compiler
PYTHON ?= python3
VENV ?=
PIP_FLAGS ?=

TORCH = torch==2.13.0
KERNELS = src/latentkv/_kernels_cpu*.so
PIP = .venv/bin/python -m pip install -qq --disable-pip-version-check $(PIP_FLAGS)

.PHONY: demo test lint types mutants clean

demo: .venv/installed
	@.venv/bin/latentkv check
	@.venv/bin/latentkv show kimi-k3

test: .venv/installed
	@.venv/bin/python -m pytest

lint: .venv/installed
	@.venv/bin/python -m ruff check
	@.venv/bin/python -m ruff format --check

types: .venv/installed
	@.venv/bin/python -m mypy

mutants: .venv/installed
	@.venv/bin/python tests/mutants.py

clean:
	rm -rf .venv build dist src/latentkv.egg-info $(KERNELS)

# The two stamps are written last, so an interrupted set-up starts again.
.venv/installed: .venv/torch setup.py pyproject.toml $(wildcard src/latentkv/kernels/cpu/*.*)
	@rm -f $@
	@echo 'latentkv: building the kernels, installing latentkv and what its tests need'
	@$(PIP) --no-build-isolation --editable '.[test]'
	@ls $(KERNELS) >/dev/null 2>&1 || echo 'latentkv: no C++ compiler found, so it runs on its' \
		'definition, exact but slow: install g++, rm .venv/installed, and make again'
	@touch $@

.venv/torch:
	@$(PYTHON) .ci/environment.py $(VENV)
	@$(PIP) 'setuptools>=77'
	@.venv/bin/python -c 'import torch; assert torch.__version__ >= (2, 10)' 2>/dev/null || { \
		echo 'latentkv: installing $(TORCH)'; $(PIP) $(TORCH); }
	@echo '$(strip $(PYTHON) $(VENV))' > $@

# PYTHON or VENV given now, and not what .venv was made with: make it anew.
ifneq ($(filter command environment,$(origin PYTHON) $(origin VENV)),)
ifneq ($(strip $(PYTHON) $(VENV)),$(shell cat .venv/torch 2>/dev/null))
.PHONY: .venv/torch
endif
endif
