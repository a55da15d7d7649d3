# Everything here needs git, make and Python >= 3.11 alone: the first use makes .venv from the pinned requirements.

PYTHON ?= python3
PIP_OPTIONS ?=
DB ?= results/frostline.db
BASE ?= HEAD~1
HEAD ?= HEAD
ARGS ?=
SUITE ?=
JOBS ?= 2
TRIALS ?= results/method.jsonl
ALARMS ?= results/alarms.jsonl
SITE ?= .site
CHROMIUM ?= chromium

export FROSTLINE_DB := $(DB)
unexport PYTHONPATH

BIN := .venv/bin
ROOMS := kernels harness suites results dashboards

.DEFAULT_GOAL := help
.PHONY: help bench-grpo bench-head bench-norms bench-cross-entropy report compare crossover dashboard gate method alarms test test-browser lint pins clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "Variables: PYTHON=$(PYTHON), DB=$(DB), ARGS (more options for the command), SUITE (of the crossover: grpo, cross_entropy), PIP_OPTIONS (for pip at the set-up), JOBS=$(JOBS) (files of tests at a time)"

bench-grpo: .venv/run.stamp ## the frozen/trainable table of the GRPO head on this machine
	$(BIN)/frostline run grpo $(ARGS)

bench-head: .venv/run.stamp ## the head beside its matrix products alone and other heads, and whether it reaches its bars
	$(BIN)/frostline run head_floor $(ARGS)
	$(BIN)/frostline chart floor --out results

bench-norms: .venv/run.stamp ## what freezing the parameters of a norm saves in its backward, beside other norms
	$(BIN)/frostline run norms --isolation fork $(ARGS)
	$(BIN)/frostline chart norms --out results

bench-cross-entropy: .venv/run.stamp ## cross entropy over the head beside eager torch and other heads, and whether it reaches its bars
	$(BIN)/frostline run cross_entropy $(ARGS)

report: .venv/run.stamp ## the table and the verdicts of the last session
	$(BIN)/frostline report $(ARGS)

compare: .venv/run.stamp ## a verdict on two revisions: make compare BASE=main HEAD=my-branch
	$(BIN)/frostline compare $(BASE) $(HEAD) $(ARGS)

crossover: .venv/run.stamp ## the charts of peak memory and step time over sequence length, measuring what is missing: make crossover SUITE=cross_entropy
	$(BIN)/frostline chart crossover $(SUITE) --out results$(addprefix /,$(SUITE)) $(ARGS)

dashboard: .venv/run.stamp ## a static site of everything in the database, and where it is
	$(BIN)/frostline site build --out $(SITE) $(ARGS)

gate: .venv/run.stamp ## exit 1 when the head is worse than where it left the main branch
	$(BIN)/frostline gate $(ARGS)

method: .venv/develop.stamp ## measure how far verdicts can be trusted, beside other tools (50 minutes, resumable), into docs/method.md
	$(BIN)/python -P -m frostline.harness.trials --out $(TRIALS) $(ARGS)
	$(BIN)/python -P -m frostline.results.trials_report $(TRIALS) docs/method.md
	$(BIN)/python -P -m frostline.dashboards.trials $(TRIALS) docs/images

alarms: .venv/run.stamp ## measure how often the gate alarms at a change of comments only (50 runs, resumable), into docs/ci.md
	$(BIN)/python -P -m frostline.harness.trials.alarms --out $(ALARMS) $(ARGS)
	$(BIN)/python -P -m frostline.results.alarms $(ALARMS) docs/ci.md

test: .venv/develop.stamp ## the tests; without a GPU, Triton's interpreter runs the kernels
	$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile $(ARGS)

test-browser: .venv/develop.stamp ## the site in a real browser; needs Chromium (Debian: apt-get install chromium)
	@command -v $(CHROMIUM) >/dev/null || { echo "CHROMIUM=$(CHROMIUM): not found. Install it (Debian: apt-get install chromium), or name one: make test-browser CHROMIUM=/usr/bin/google-chrome" >&2; exit 2; }
	CHROMIUM=$(CHROMIUM) $(BIN)/pytest -m browser tests/dashboards $(ARGS)

lint: .venv/develop.stamp ## ruff, mypy in strict mode, the arrows between the rooms, and the workflows
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	mkdir -p .typecheck/frostline
	for room in $(ROOMS); do ln -sfn ../../$$room .typecheck/frostline/$$room; done
	$(BIN)/mypy
	PYTHONPATH=.typecheck $(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yml
	@if command -v actionlint > /dev/null; then actionlint; else echo "actionlint is not installed: expressions and shell steps of workflows were not linted"; fi

pins: ## write the requirements files anew, with the newest releases that pyproject.toml allows
	rm -rf .venv/pins
	$(PYTHON) -m venv .venv/pins
	.venv/pins/bin/pip install $(PIP_OPTIONS) torch==2.13.0 "triton==3.7.1; sys_platform == 'linux'" setuptools -e .
	$(call freeze) > requirements.txt
	.venv/pins/bin/pip install $(PIP_OPTIONS) -c requirements.txt -e '.[dev]'
	{ echo "-r requirements.txt"; $(call freeze) | grep -vxFf requirements.txt; } > requirements-dev.txt
	rm -rf .venv/pins

clean: ## remove .venv and every cache of the tools; the database stays
	rm -rf .venv .site .typecheck .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info

# Without the tags of a build (torch 2.13.0+cpu) and the CUDA libraries, which torch itself pins: the pins hold on every platform.
freeze = .venv/pins/bin/pip freeze --all --exclude pip --exclude-editable \
	| sed -E -e 's/\+.*//' -e '/^(nvidia|cuda)-/d' \
	-e "s/^(triton|liger_kernel|cut-cross-entropy)==.*/&; sys_platform == 'linux'/"

.venv/run.stamp: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "PYTHON=$(PYTHON): Python >= 3.11 is needed; name one: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch $@

.venv/develop.stamp: .venv/run.stamp requirements-dev.txt
	$(BIN)/python -m pip install --disable-pip-version-check $(PIP_OPTIONS) -r requirements-dev.txt
	@touch $@
