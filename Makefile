# `make test` is the README's test command and what CI runs.
SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# More words for `make chaos`, such as CHAOS="--minutes 2 --seed 7".
CHAOS :=
# Machines of `make up-cluster`, such as WORKERS=10; as many as said last.
WORKERS :=
# More words for `make audit`, such as AUDIT="--database all.zip" where there is no internet.
AUDIT :=
COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate

.PHONY: help dev lock test test-all test-libvirt slurm-libvirt check bench bench-libvirt bench-school soak chaos audit up-cluster demo-cluster down-cluster man clean

help:            ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 16

dev:             ## Make the development environment from the lock files
	@./essaim --prepare dev

lock:            ## Resolve the dependencies anew and write the lock files (needs uv)
	$(COMPILE) pyproject.toml --extra celery --extra postgresql --extra school --extra server -o requirements.lock
	$(COMPILE) pyproject.toml --extra celery --extra compare --extra nix --extra postgresql --extra school --extra server --group dev -c requirements.lock -o requirements-dev.lock
	for extra in compare libvirt nix; do $(COMPILE) pyproject.toml --extra $$extra -c requirements-dev.lock -o requirements-$$extra.lock || exit 1; done

test: dev        ## Run every test; installs the Debian packages they need when root
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test-all: dev    ## Also let every workflow fail and be killed at every moment of every step on every database
	ESSAIM_TEST_ALL=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test-libvirt: dev ## Make machines on a KVM server without root, in a loopback of this computer (minutes)
	ESSAIM_TEST_LIBVIRT=1 $(BIN)/python -m pytest tests/kvm tests/drivers/test_libvirt_*.py tests/images/test_debian_disk.py tests/images/test_tiny.py

slurm-libvirt: dev ## The SLURM example on three Debian virtual machines there (slow under emulation)
	ESSAIM_TEST_LIBVIRT_SLURM=1 $(BIN)/python -m pytest -s tests/kvm/test_slurm_vms.py

check: dev       ## Run every static check
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/vulture
	$(BIN)/codespell src tests docs README.md CHANGELOG.md CONTRIBUTING.md

audit: dev       ## Write a bill of materials (sbom.json) and look for known vulnerabilities in it
	$(BIN)/python -m essaim_lab.audit $(AUDIT)

bench: dev       ## Measure, beside peers in the same minute; prints a table, writes bench.json
	$(BIN)/python -m essaim_lab.bench

bench-libvirt: dev ## Measure virtual machines beside kcli and virsh; writes bench-libvirt.json
	./essaim --prepare libvirt
	$(BIN)/python -m essaim_lab.bench libvirt --json bench-libvirt.json

bench-school: dev ## Enrol 600 students on a simulated Proxmox cluster, beside other policies; writes bench-school.json
	$(BIN)/python -m essaim_lab.bench school --json bench-school.json

soak: dev        ## Let 10,000 agents beat for ten minutes; writes soak.json
	$(BIN)/python -m essaim_lab.bench beats --minutes 10 --json soak.json

chaos: dev       ## Break every part of a deployment under load, ten minutes on each pair of servers
	PYTHONPATH=tests $(BIN)/python -m chaos --database mariadb --broker redis $(CHAOS)
	PYTHONPATH=tests $(BIN)/python -m chaos --database postgresql --broker rabbitmq $(CHAOS)

up-cluster: dev  ## Bring the deployment of deploy/ up on this computer, in a Docker engine of its own; WORKERS=10 machines, also while it runs
	$(BIN)/python -m essaim_lab.deployment up $(WORKERS)

demo-cluster: dev ## Bring it up, play the demonstration through Caddy, scale, take it down
	$(BIN)/python -m essaim_lab.deployment demo

down-cluster:    ## Take the deployment away, data too
	$(BIN)/python -m essaim_lab.deployment down

man: dev         ## Write the manual pages: essaim.1, and one for each command (man ./essaim.1)
	@$(BIN)/python -P -m essaim.cli.manual .

clean:           ## Remove what the targets made (not the image cache, not your machines)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage bench.json bench-libvirt.json bench-school.json soak.json sbom.json essaim.1 essaim-*.1
	find src tests -name __pycache__ -prune -exec rm -rf {} +
