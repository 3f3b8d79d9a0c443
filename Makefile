# Commands for users and contributors. Requires Python 3.10 to 3.13, make and git.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_GPU := $(VENV)/.installed-gpu
COMMUNITIES := build/communities
DIST_TOOLS := build/dist-tools
PEERS := build/peers
CALLBACKS := build/callbacks
# A file runs in one process, since its tests share clusters and traced programs.
# How many there are, tests/conftest.py says.
TEST_FLAGS ?= --numprocesses auto --dist loadfile
SWEEP_FLAGS ?= --workload resnet50
SWEEP_GPU_FLAGS ?= --workload resnet50 --backends single,in_graph,tf_mirrored --mode weak
FUZZ_PROGRAMS ?= 10000
FUZZ_SEED ?= 1000
STATISTICS_FLAGS ?=
FAULTS ?= 34
FAILURES ?= 2000
FAILURES_SEED ?= 1000
SERIES ?= 34
LAUNCHERS ?= local slurm ray
BENCH_OUT ?= .benchmarks/new.json
BENCH_BASE ?= .benchmarks/old.json
BENCH_FLAGS ?=

.PHONY: help dist setup setup-gpu setup-peers sweep sweep-gpu test test-changed mutate test-full test-gpu test-communities test-peers fuzz check fmt lint types docs site fuzz-records faults failures series statistics validate bench bench-micro bench-compare lock clean

help:  ## List the targets.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## Install the locked versions, checked by hash, into .venv.

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 10) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else f"error: {sys.executable} is Python {sys.version.split()[0]}, but 3.10 to 3.13 is needed; run make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	@# The lock is complete, so nothing is resolved: old versions of pip fail on extras.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@# Python 3.13 has no labmaze; pyproject.toml says why that is no loss.
	@$(BIN)/python -m pip check > $(VENV)/pip-check.txt || ! grep -v ' requires labmaze, ' $(VENV)/pip-check.txt
	@touch $@

setup-gpu: $(STAMP_GPU)  # Add the locked libraries of CUDA (several GB), checked by hash; compile once what TensorFlow lacks for these GPUs.
	$(BIN)/python -m harness.doctor.gpu

$(STAMP_GPU): $(STAMP) requirements-gpu.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-gpu.lock
	@touch $@

# The stamp of each environment has the digest of its lock, which sweeps look at.
setup-peers: setup  # Create the environments of other frameworks (PyTorch, JAX), checked by hash.
	@$(BIN)/python -m harness.command.peers | while read -r name lock digest; do \
		[ "$$(cat $(PEERS)/$$name/.installed 2>/dev/null)" = "$$digest" ] && continue; \
		echo "$(PEERS)/$$name from $$lock"; \
		$(BIN)/python -m venv --clear $(PEERS)/$$name \
			&& $(PEERS)/$$name/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $$lock \
			&& echo "$$digest" > $(PEERS)/$$name/.installed || exit 1; \
	done

sweep: setup  ## Measure how ResNet-50 scales on this machine; prints the report's path.
	$(BIN)/python -m harness sweep $(SWEEP_FLAGS)

sweep-gpu: setup-gpu  ## Measure how ResNet-50 scales over this machine's GPUs.
	$(BIN)/python -m harness sweep --device gpu $(SWEEP_GPU_FLAGS)

test: setup  ## Run the tests; of large products, cases that cover all values.
	$(BIN)/python -m pytest $(TEST_FLAGS)

test-changed: setup  ## Run the tests that your change is most likely to break.
	$(BIN)/python .ci/changed_tests.py $(BASE) | xargs --no-run-if-empty $(BIN)/python -m pytest $(TEST_FLAGS)

mutate: setup  # Plant defects in the product and print which test catches each (90 minutes; ROOMS="engine sweep" for some).
	$(BIN)/python .ci/mutants.py $(ROOMS)

test-full: setup  # Run every test with the whole of its products (40 minutes on 2 cores).
	FULL_TESTS=1 $(BIN)/python -m pytest $(TEST_FLAGS)

test-gpu: setup-gpu  ## Run the tests that need GPUs; fails where there are none.
	REQUIRE_GPU=1 $(BIN)/python -m pytest tests/gpu

test-communities: $(COMMUNITIES)/.installed  # Run programs of tf_keras, Sonnet, Orbit, TF-Agents, TFP, KerasTuner and KerasHub (6 minutes).
	FULL_TESTS=1 TF_USE_LEGACY_KERAS=1 $(COMMUNITIES)/bin/python -m pytest -p no:cacheprovider tests/programs/test_communities.py tests/replicator/optimizer/test_other_libraries.py

test-peers: setup-peers $(CALLBACKS)/.installed  # Compare the first losses of other frameworks with ours, and run the callbacks of Lightning, Transformers and JAX, each in its environment (6 minutes).
	FULL_TESTS=1 REQUIRE_PEERS=1 $(BIN)/python -m pytest -p no:cacheprovider tests/workloads/peers
	REQUIRE_PEERS=1 $(CALLBACKS)/bin/python -m pytest -p no:cacheprovider tests/harness/client/test_callbacks.py

# Environments on top of .venv, which keeps its versions.
$(COMMUNITIES)/.installed: tests/programs/communities.lock
$(CALLBACKS)/.installed: tests/harness/client/callbacks.lock
$(COMMUNITIES)/.installed $(CALLBACKS)/.installed: $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	@$(BIN)/python -c 'import sysconfig; print("$(CURDIR)", sysconfig.get_path("purelib"), sep="\n")' > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $(filter %.lock,$^)
	@touch $@

fuzz: setup  # Compare FUZZ_PROGRAMS random steps and trainings with an interpreter.
	$(BIN)/python tests/support/run_series.py programs $(FUZZ_PROGRAMS) $(FUZZ_SEED)

check: lint types docs test  ## All checks of a change: format, lint, imports, types, site, tests.

fmt: setup  ## Format, and apply safe automatic fixes.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup  ## Check format, lint rules, spelling, import contracts and pipelines.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/python .ci/ceilings.py
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet .github/workflows .github/actions/gate/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions .github/actions/gate/action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.gitlab-ci --data-transform gitlab-ci docs/gitlab/pipeline.yml
	$(BIN)/hadolint Dockerfile

fuzz-records: setup  # Read 2,000 damaged studies and 2,000 other damaged files, parse 5,000 hostile command lines, kill 100 sweeps (an hour).
	HOSTILE_RECORDS=2000 HOSTILE_COMMAND_LINES=5000 DAMAGED_FILES=2000 $(BIN)/python -m pytest tests/harness/hostile/test_hostile_command_lines.py tests/harness/hostile/test_damaged_files.py
	HARNESS_KILLS=100 $(BIN)/python -m pytest tests/harness/run/test_kill_and_leave_nothing.py

faults: setup  # Inject faults: FAULTS trials on each of LAUNCHERS, kills of 100 gates, 1,000 failed writes, 9,000 failed reads, 120 power cuts, 14 faults of Slurm, 25 of an elastic job (two hours).
	for launcher in $(LAUNCHERS); do $(BIN)/python tests/faults/run_series.py $$launcher $(FAULTS) --faults || exit 1; done
	GATE_KILLS=100 $(BIN)/python -m pytest tests/harness/judging/test_gates.py -k kills
	WRITE_FAULTS=1000 READ_FAULTS=400 POWER_CUTS=120 $(BIN)/python -m pytest tests/harness/run/test_failed_calls_of_sweeps.py
	FULL_TESTS=1 $(BIN)/python -m pytest tests/harness/hostile/test_failed_calls.py
	FULL_TESTS=1 SLURM_KILLS=20 $(BIN)/python -m pytest tests/cluster_engines/test_slurm_faults.py
	ELASTIC_FAULTS=25 $(BIN)/python -m pytest tests/replicator/elastic/test_elastic.py

failures: setup  # Make FAILURES steps fail on all backends, and compare with undisturbed runs (half an hour).
	$(BIN)/python tests/support/run_series.py failures $(FAILURES) $(FAILURES_SEED)

series: setup  # Run SERIES trials of two processes in a row on each of LAUNCHERS (20 minutes).
	for launcher in $(LAUNCHERS); do $(BIN)/python tests/faults/run_series.py $$launcher $(SERIES) || exit 1; done

validate: statistics  ## Validate what is claimed: everything in tests/validation, in full.

statistics: setup  # Simulate thousands of sweeps and gates: how often intervals and verdicts are right.
	$(BIN)/python tests/validation/statistics/run_simulations.py --write docs/claims $(STATISTICS_FLAGS)

types: setup  ## Check types.
	$(BIN)/mypy

site: setup  ## Write the published studies' pages again, from their records.
	$(BIN)/python -m harness report docs/reports/studies/*/records.zip -o docs/reports

docs: setup  ## Write the documentation site to build/site, with every link checked.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## Measure the figures of docs/benchmarks (quiet machine, about 20 minutes).
	$(BIN)/python -m benchmarks

bench-micro: setup  # Measure micro-benchmarks in fresh processes, into BENCH_OUT (quiet machine, 6 minutes).
	$(BIN)/python -m benchmarks.micro run -o $(BENCH_OUT) $(BENCH_FLAGS)

bench-compare: setup  # Judge BENCH_OUT against BENCH_BASE by the rule of gate (its exit codes: python -m benchmarks.micro compare).
	$(BIN)/python -m benchmarks.micro compare $(BENCH_OUT) $(BENCH_BASE) $(BENCH_FLAGS)

dist: $(DIST_TOOLS)/.installed  # Build wheels and source archives twice from the commit, check them, and run the quick start from an empty environment (3 minutes).
	$(BIN)/python .ci/release/dist.py build/dist --twine $(DIST_TOOLS)/bin/twine
	$(BIN)/python .ci/release/quick_start.py build/dist/replicator_harness-*.whl

$(DIST_TOOLS)/.installed: $(STAMP) .ci/release/twine.lock
	$(BIN)/python -m venv --clear $(DIST_TOOLS)
	$(DIST_TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r .ci/release/twine.lock
	@touch $@

lock: setup  ## Resolve the newest allowed versions again and write all locks.
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra tensorflow --extra dev --universal --python-version 3.10 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet \
		--output-file requirements.lock
	@# The libraries of CUDA, on top of the same versions.
	$(BIN)/uv pip compile pyproject.toml --extra tensorflow --extra dev --extra gpu --universal --python-version 3.10 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet \
		--constraint requirements.lock --output-file build/with-cuda.lock
	$(BIN)/python .ci/only_in_first.py build/with-cuda.lock requirements.lock > requirements-gpu.lock
	$(BIN)/uv pip compile tests/programs/communities.in --no-deps --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet \
		--output-file tests/programs/communities.lock
	$(BIN)/uv pip compile .ci/release/twine.in --universal --python-version 3.10 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet \
		--output-file .ci/release/twine.lock

clean:  # Remove the environment and caches; records in runs/ stay.
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .hypothesis
