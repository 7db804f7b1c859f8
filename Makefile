# `make test` is the README's test command and what CI runs.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# More words for `make chaos`, such as CHAOS="--minutes 2 --seed 7".
CHAOS :=
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: help dev lock test test-all check bench soak chaos up-cluster demo-cluster down-cluster clean

help:            ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 12

dev:             ## Make the development environment from the lock files
	@./essaim --prepare dev

lock:            ## Resolve the dependencies anew and write the lock files (needs uv)
	$(COMPILE) pyproject.toml --extra celery --extra mariadb --extra postgresql --extra server -o requirements.lock
	$(COMPILE) pyproject.toml --all-extras --group dev -c requirements.lock -o requirements-dev.lock

test: dev        ## Run every test; installs the Debian packages they need when root
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test-all: dev    ## Also let every workflow fail and be killed at every step on every kind of database
	ESSAIM_TEST_ALL=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

check: dev       ## Run every static check
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/vulture
	$(BIN)/codespell src tests docs README.md CHANGELOG.md CONTRIBUTING.md

bench: dev       ## Measure, beside peers in the same minute; prints a table, writes bench.json
	$(BIN)/python -m essaim_lab.bench

soak: dev        ## Let 10,000 agents beat for ten minutes; writes soak.json
	$(BIN)/python -m essaim_lab.bench beats --minutes 10 --json soak.json

chaos: dev       ## Break every part of a deployment under load, ten minutes on each pair of servers
	PYTHONPATH=tests $(BIN)/python -m chaos --database mariadb --broker redis $(CHAOS)
	PYTHONPATH=tests $(BIN)/python -m chaos --database postgresql --broker rabbitmq $(CHAOS)

up-cluster: dev  ## Bring the deployment of deploy/ up on this computer, in a Docker engine of its own
	$(BIN)/python -m essaim_lab.deployment up

demo-cluster: dev ## Bring it up, play the demonstration through Caddy, scale, take it down
	$(BIN)/python -m essaim_lab.deployment demo

down-cluster:    ## Take the deployment away, data too
	$(BIN)/python -m essaim_lab.deployment down

clean:           ## Remove what the targets made (not the image cache, not your machines)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage bench.json soak.json
	find src tests -name __pycache__ -prune -exec rm -rf {} +
