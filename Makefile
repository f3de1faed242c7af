# `make help` lists what there is. All targets set themselves up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
LOCAL := $(VENV)/.set-up-local
READERS := $(VENV)/.readers

# Only from the command line: an exported KUBECONFIG names somebody's cluster, and nobody has asked.
ifeq ($(origin KUBECONFIG),command line)
CLUSTER := --kubeconfig "$(KUBECONFIG)"
endif

# Only from the command line, too: what is made in this project costs somebody money.
ifeq ($(origin PROJECT),command line)
CLOUD := --project "$(PROJECT)" $(if $(ZONE),--zone "$(ZONE)")
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-jobset recording local test test-local test-real test-all test-cloud named-project control-plane terraform-validate check format bench performance scale kubectl-tng release lock

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 20

setup: $(STAMP) ## Make the virtual environment in .venv, with all that a contributor needs

# What `make demo` and `make local` need is a part of what a contributor needs.
$(STAMP): requirements-dev.txt
	@$(PYTHON) infra/set_up.py $(VENV) requirements-dev.txt
	@touch $(LOCAL) $@

$(LOCAL): requirements-local.txt
	@$(PYTHON) infra/set_up.py $(VENV) requirements-local.txt
	@touch $@

$(READERS): tests/readers/requirements.txt $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r tests/readers/requirements.txt
	@touch $@

demo: $(LOCAL) ## Show a slice's whole life, from apply to gone; KUBECONFIG=PATH: on that cluster
	@$(BIN)/python -m local.show.demo $(CLUSTER) $(ARGS)

demo-jobset: $(LOCAL) ## Show a JobSet's whole life, a slice for each Job; KUBECONFIG=PATH: on that cluster
	@$(BIN)/python -m local.show.jobset_demo $(CLUSTER) $(ARGS)

recording: $(LOCAL) ## Record the demo as docs/demo.svg
	@$(BIN)/python -m local.show.recording

local: $(LOCAL) ## Run everything on this machine until Ctrl-C; ARGS="--dir DIR" keeps its state
	@$(BIN)/python -m local $(CLUSTER) $(ARGS)

test: $(STAMP) ## Run the tests (about five minutes on two cores)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not slow and not real" tests

test-local: $(STAMP) ## Run the tests of the stand-ins in local/, of make demo and make local
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not slow and not real" local/tests

test-real: $(STAMP) $(READERS) ## Run the tests on real parts: a control plane, Pub/Sub, whole lives of processes
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "real and not slow"

test-all: $(STAMP) ## Run all tests, the long ones too, on random examples
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=random

test-cloud: named-project $(STAMP) ## Ask a real project what is not known of Compute Engine: PROJECT=ID; ARGS=--dry-run says the cost
	@$(BIN)/python -m tests.cloud $(CLOUD) $(ARGS)

named-project:
	$(if $(CLOUD),,$(error say which project: make test-cloud PROJECT=ID [ZONE=ZONE] [ARGS=--dry-run]; see docs/test-cloud.md))

control-plane: $(LOCAL) ## Get a real control plane and JobSet's definition for the tests; ARGS=--run runs it until Ctrl-C
	@$(BIN)/python -m local.control_plane $(ARGS)

terraform-validate: $(STAMP) ## Let Terraform validate the module, with its providers or a stand-in
	@$(BIN)/python -m tests.terraform
	@$(BIN)/python -m pytest -q -m real tests/unit/infra/test_terraform_cli.py

check: $(STAMP) ## Lint, format, types, import contracts, shell scripts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@git grep --untracked -lE '^#!.*sh$$' -- ':!*.py' ':!*.md' | xargs $(BIN)/shellcheck

format: $(STAMP) ## Fold and sort the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## Measure cold start, reaction, time and calls, as ratios of one run
	@$(BIN)/python -m tests.bench

performance: $(STAMP) ## Run the benchmark, and write it into docs/performance.md; ARGS="SECTION ..."
	@$(BIN)/python -m tests.performance $(ARGS)

scale: $(STAMP) ## Measure how much one installation carries, into docs/scale.md (hours)
	@SCALE_KEEP=1 $(BIN)/python -m pytest -q tests/scale
	@$(BIN)/python -m tests.scale.figures

kubectl-tng: $(STAMP) ## Build the operator's tool as one file, build/kubectl-tng, for kubectl
	@$(BIN)/python -m replay.bundle build/kubectl-tng
	@ln -sf kubectl-tng build/kubectl_complete-tng
	@echo "Put build/ on your PATH: kubectl tng --help"

release: $(STAMP) ## Make the files of a release in build/release (docs/releasing.md); ARGS=--snapshot tries it
	@$(BIN)/python -m infra.release $(ARGS)

lock: $(STAMP) ## Pin the requirements again, with hashes (on Python 3.11)
	@for name in requirements relay/requirements webhook/requirements requirements-local requirements-dev replay/requirements tests/readers/requirements; do \
	  $(BIN)/pip-compile --quiet --allow-unsafe --generate-hashes --strip-extras --no-emit-index-url \
	    --no-emit-find-links --no-emit-trusted-host --output-file $$name.txt $$name.in || exit 1; done
