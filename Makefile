# `make demo` and `make test` do all the set-up that a fresh machine needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := serve,train,services,export,games,ray,aws,spark,cassandra,redis,wandb,mlflow,video,dev
UV := $(shell command -v uv || echo $(VENV)/bin/uv)
UV_PIN := uv==0.13.7
# PyPI's Linux wheel of torch is the CUDA build. Where a CPU build can be reached: make setup TORCH=cpu
TORCH ?=
export UV_LINK_MODE ?= hardlink

.PHONY: setup demo test test-all check servers bench bench-peers docs clean constraints fuzz

setup: $(VENV)/.ready  ## .venv with pinned dependencies

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Sparring needs Python 3.11 or newer; call make PYTHON=python3.11 …"; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@command -v uv >/dev/null || [ -x $(BIN)/uv ] || $(BIN)/python -m pip install -q --disable-pip-version-check "$(UV_PIN)"
	@echo "installing pinned dependencies into $(VENV) (the first time takes a minute or two) …"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(UV) pip install -q -c constraints.txt $(if $(TORCH),--torch-backend $(TORCH)) -e '.[$(EXTRAS)]'
	@touch $@

demo: setup  ## everything on this machine, games in the browser
	@$(BIN)/spar demo

# What fails beside other tests is run once more, alone: a fault fails again, a busy machine seldom does. Both are printed.
AGAIN = $(BIN)/pytest -q --last-failed --last-failed-no-failures none

test: setup  ## the quick tests: no servers, nothing that is long by nature; some 10 minutes on 2 cores
	$(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not servers" || $(AGAIN) -m "not slow and not servers"

test-all: setup  ## what `make test` leaves out: learning, kills, Ray, RLlib, Spark and real servers (`make servers`)
	$(BIN)/pytest -q -n 2 --dist loadfile -m "slow or servers" || $(AGAIN) -m "slow or servers"

check: setup  ## format, lint, types, shape; under a minute
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/shape

# S names some of them: make servers S="cassandra s3 kinesis"
servers: setup  ## real servers for the tests, under $$SPARRING_SERVERS or ~/.cache/sparring/servers; once, some 10 minutes of CPU
	@$(BIN)/python tests/servers/install.py $(S)

# P names some of them: make bench-peers P="sb3 cleanrl"; a benchmark makes by itself the ones that it needs
bench-peers: setup  ## the peers of the benchmarks, each in its own environment under ~/.cache/sparring/peers
	$(BIN)/python -m bench.peers.environments $(P)

bench: setup  ## every claim in the docs, quick form; `spar bench NAME` for one in full
	$(BIN)/spar bench all --quick

docs: setup  ## the generated pages: settings, commands
	$(BIN)/python -m docs.reference

fuzz: setup  ## a million mutated chunks and messages; 5,000 requests of each kind of caller, generated from /openapi.json
	FUZZ_INPUTS=1000000 $(BIN)/pytest -q tests/wire/test_fuzz.py --timeout 3600
	FUZZ_REQUESTS=5000 $(BIN)/pytest -q tests/gateway/test_gateway_fuzz.py --timeout 7200 --log-cli-level INFO

constraints:  ## resolve constraints.txt anew
	@{ echo '# Exact versions with hashes of everything any extra needs. Written by `make constraints`.'; \
	  $(UV) pip compile pyproject.toml --all-extras --generate-hashes --no-emit-index-url --no-header -q --python-version 3.11; } > constraints.new
	@mv constraints.new constraints.txt

clean:  ## all that was made, but not the data folder
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
