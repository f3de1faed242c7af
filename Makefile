# `make help` lists the targets. Each target first installs its requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
LOCAL := $(VENV)/.set-up-local
TOOL := $(VENV)/.set-up-tool
READERS := $(VENV)/.readers

# Packages of a Python that was upgraded or removed are installed again.
$(shell test -e $(BIN)/python || rm -f $(STAMP) $(LOCAL) $(TOOL) $(READERS))

# Only from the command line: an exported KUBECONFIG may be for another cluster.
ifeq ($(origin KUBECONFIG),command line)
CLUSTER := --kubeconfig "$(KUBECONFIG)"
endif

# Also only from the command line, because resources in this project are billed.
ifeq ($(origin PROJECT),command line)
CLOUD := --project "$(PROJECT)" $(if $(ZONE),--zone "$(ZONE)")
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-workload demo-jobset demo-capacity recording local simulate test test-local test-real test-all test-cloud flight named-project explore planted soak mutants control-plane terraform-validate check format pages bench performance scale kubectl-tng release lock

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1 /' | awk '{ line = sprintf("%-19s", $$1); \
	for (i = 2; i <= NF; i++) { if (length(line " " $$i) > 80) { print line; line = sprintf("%19s", "") } line = line " " $$i } print line }'

setup: $(STAMP) ## Create the virtual environment .venv with all packages for contributors

# requirements-dev.txt includes local/requirements.txt, which includes replay/requirements.txt.
$(STAMP): requirements-dev.txt
	@$(PYTHON) infra/set_up.py $(VENV) requirements-dev.txt
	@touch $(LOCAL) $(TOOL) $@

$(LOCAL): local/requirements.txt
	@$(PYTHON) infra/set_up.py $(VENV) local/requirements.txt
	@touch $(TOOL) $@

$(TOOL): replay/requirements.txt
	@$(PYTHON) infra/set_up.py $(VENV) replay/requirements.txt
	@touch $@

$(READERS): tests/readers/requirements.txt $(STAMP)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r tests/readers/requirements.txt
	@touch $@

demo: $(LOCAL) ## Show a slice from apply to deletion; KUBECONFIG=PATH: on that cluster
	@$(BIN)/python -m local.show.demo $(CLUSTER) $(ARGS)

demo-workload: $(LOCAL) ## Show a workload that gets its slices; KIND=deployment, job, jobset or lws; KUBECONFIG=PATH
	@$(BIN)/python -m local.show.workload_demo "$(KIND)" $(CLUSTER) $(ARGS)

demo-jobset: $(LOCAL) ## Show a JobSet with a slice for each Job: demo-workload KIND=jobset
	@$(BIN)/python -m local.show.workload_demo jobset $(CLUSTER) $(ARGS)

demo-capacity: $(LOCAL) ## Show a slice that is had at the third candidate, then at the first; KUBECONFIG=PATH
	@$(BIN)/python -m local.show.capacity_demo $(CLUSTER) $(ARGS)

recording: $(LOCAL) ## Record the demo as docs/demo.svg
	@$(BIN)/python -m local.show.recording

local: $(LOCAL) ## Run the whole system on this machine until Ctrl-C; ARGS="--dir DIR" keeps credentials
	@$(BIN)/python -m local $(CLUSTER) $(ARGS)

simulate: $(LOCAL) ## Rehearse a manifest and its failures on a virtual clock: ARGS="-f FILE --faults SCRIPT"
	@$(BIN)/python -m local.simulate $(ARGS)

test: $(STAMP) ## Run the tests (half an hour on two cores)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not slow and not real" tests

test-local: $(STAMP) ## Run the tests of the stand-ins in local/, of make demo and make local
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not slow and not real" local/tests

test-real: $(STAMP) $(READERS) ## Run the tests on a real control plane, Pub/Sub's emulator and real processes
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "real and not slow"

test-all: $(STAMP) ## Run all tests, also the slow ones, on random examples; ARGS="-m slow": only these
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=random $(ARGS)

explore: $(STAMP) ## Break worlds at random and let them heal: SEEDS=N; ARGS="--seed K": one world, with its trace
	@$(BIN)/python -m tests.explore $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

planted: $(STAMP) ## Count the seeds that the explorer needs for each planted bug
	@$(BIN)/python -m tests.explore.planted

soak: $(STAMP) ## Churn slices on real processes that are killed: MINUTES=N, SEED=N; ARGS="-k real": a real control plane
	@SOAK_MINUTES="$(MINUTES)" SOAK_SEED="$(SEED)" $(BIN)/python -m pytest -q tests/processes/test_soak.py \
	  $(or $(ARGS),-m "not real")

mutants: $(STAMP) ## Check that changes of single lines of the product make a test fail; ARGS="--seed N --count 100"
	@$(BIN)/python -m tools.mutants $(ARGS)

test-cloud: named-project $(STAMP) ## Test assumptions about Compute Engine in a real project: PROJECT=ID; ARGS=--dry-run shows the cost
	@$(BIN)/python -m tools.cloud $(CLOUD) $(ARGS)

flight: $(STAMP) ## Add a flight of test-cloud to the tests: FILE=flight-RUN.json (docs/test-cloud.md)
	@$(BIN)/python -m tests.flights $(if $(FILE),"$(FILE)")

named-project:
	$(if $(CLOUD),,$(error PROJECT is not set: make test-cloud PROJECT=ID [ZONE=ZONE] [ARGS=--dry-run]; see docs/test-cloud.md))

control-plane: $(LOCAL) ## Build a real control plane and get JobSet's CRD, for tests; ARGS=--run runs it until Ctrl-C
	@$(BIN)/python -m local.control_plane $(ARGS)

terraform-validate: $(STAMP) ## Validate the Terraform module, with its providers or a stand-in
	@$(BIN)/python -m tests.terraform
	@$(BIN)/python -m pytest -q -m real tests/unit/infra/terraform/test_terraform_cli.py

check: $(STAMP) ## Check lint, format, types, import contracts, shell scripts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/lint-imports --no-cache --config local/pyproject.toml
	@git grep --untracked -lE '^#!.*sh$$' -- ':!*.py' ':!*.md' | xargs $(BIN)/shellcheck

format: $(STAMP) ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

pages: $(STAMP) ## Render the reference pages and tables from the code; ARGS=--check: name those out of date
	@$(BIN)/python -m tools.pages $(ARGS)

bench: $(STAMP) ## Measure cold start, reaction, time and calls, as ratios of one run
	@$(BIN)/python -m tools.bench

performance: $(STAMP) ## Run the benchmark and write its output into docs/performance.md; ARGS="SECTION ..."
	@$(BIN)/python -m tools.performance $(ARGS)

scale: $(STAMP) ## Measure the capacity of one installation, into docs/scale.md (hours)
	@SCALE_KEEP=1 $(BIN)/python -m pytest -q tests/tools/scale
	@$(BIN)/python -m tools.pages

kubectl-tng: $(TOOL) ## Build kubectl tng as one file, build/kubectl-tng
	@echo "Packing kubectl tng with its packages (half a minute)"
	@$(BIN)/python -m tools.bundle build/kubectl-tng
	@ln -sf kubectl-tng build/kubectl_complete-tng
	@echo "Put build/ on your PATH: kubectl tng --help"

release: $(STAMP) ## Build the files of a release in build/release (docs/releasing.md); ARGS=--snapshot: without a tag
	@$(BIN)/python -m infra.release $(ARGS)

lock: $(STAMP) ## Pin the requirements again, with hashes (on Python 3.11)
	@for name in requirements relay/requirements webhook/requirements local/requirements requirements-dev replay/requirements tests/readers/requirements; do \
	  $(BIN)/pip-compile --quiet --allow-unsafe --generate-hashes --no-strip-extras --no-emit-index-url \
	    --no-emit-find-links --no-emit-trusted-host --output-file $$name.txt $$name.in || exit 1; done
