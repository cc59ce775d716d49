# Everything from nothing: Python 3.11, gcc and make are enough. CONTRIBUTING.md says what each lane proves and how long it takes.
#   make demo        set up the product and run a real estimate
#   make test-fast   the unit tests: no job is traced, no process started
#   make test        what every commit must pass: linters, types, documents, and the tests with two releases of torch
#   make test-all    what a release must pass: adds packages, browsers, clusters, sanitizers, notebooks, every operator
#   make tests-serving  vLLM itself on the null GPU: 10 GB, and a minute for each start of an engine
#   make docs        build the site of docs/ into build/docs
VENV       ?= .venv
VENV_OLDER ?= .venv-older
VENV_SERVING ?= .venv-serving
PYTHON     ?= python3
BIN        := $(VENV)/bin
# Exact versions; `make test-nightly` sets UNPINNED and installs the newest ones.
PINNED      = $(if $(UNPINNED),,.ci/constraints/reference.txt)
PINNED_OLDER = $(if $(UNPINNED),,.ci/constraints/older.txt)
PINNED_SERVING = $(if $(UNPINNED),,.ci/constraints/serving.txt)
# Packages of benchmarks/ that are typed like the product and have tests of their own.
RESEARCH   := cluster measured peers.authors peers.baselines peers.planners repeats serving
# The tests of a file stay in one of these processes, because they share its fixtures. PYTEST_ARGS: more for pytest.
WORKERS    ?= 2
PYTEST      = -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

# Bytecode is written also where a machine forbids it: each process of the tests would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

# An environment serves the checkout that made it: setting up another one there would re-point its commands.
foreign = $(filter-out $(CURDIR),$(if $(wildcard $(1)/.checkout),$(shell cat $(1)/.checkout),$(CURDIR)))
$(foreach environment,$(VENV) $(VENV_OLDER) $(VENV_SERVING),$(if $(call foreign,$(environment)),\
    $(error $(environment) belongs to the checkout $(call foreign,$(environment)): set VENV, VENV_OLDER or VENV_SERVING to another folder)))

.PHONY: demo demo-gate demo-ray demo-slurm setup constraints test-fast test test-all test-nightly lint typecheck docs docs-outputs \
        unit-tests tests tests-older release-setup release-tests release-tests-older tests-serving wheel notebooks screenshots survey accuracy golden speed speed-check coverage seeded-faults clean

demo: $(VENV)/.demo
	$(BIN)/vramcast estimate torchvision:resnet50 --batch-size 32 --on a100-40gb

# What `vramcast check` says of a repository whose branch makes a model deeper (docs/ci-gate.md).
demo-gate: $(VENV)/.demo
	contrib/ci-gate/demo.sh $(BIN)/vramcast

# Four jobs and one card by a local Ray cluster (docs/ray-dask.md).
demo-ray: $(VENV)/.demo
	$(BIN)/python contrib/ray/demo.py

# Slurm's own daemons on this machine, and jobs which are shrunk, refused and queued again (docs/slurm.md); root, on Debian.
demo-slurm: $(VENV)/.demo
	contrib/slurm/demo/demo.sh $(BIN)/vramcast

setup: $(VENV)/.test $(VENV_OLDER)/.older

# Each stage adds to the one before it, in the same environment.
$(VENV)/.demo: pyproject.toml .ci/constraints/reference.txt
$(VENV)/.test: $(VENV)/.demo
$(VENV)/.release: $(VENV)/.test
$(VENV_OLDER)/.older: pyproject.toml .ci/constraints/older.txt
$(VENV)/.demo $(VENV)/.test $(VENV)/.release:
	@PYTHON=$(PYTHON) CONSTRAINTS=$(PINNED) .ci/setup $(VENV) $(@F:.%=%)
	@touch $@
$(VENV_OLDER)/.older:
	@PYTHON=$(PYTHON) CONSTRAINTS=$(PINNED_OLDER) .ci/setup $(VENV_OLDER) older
	@touch $@

$(VENV_SERVING)/.serving: pyproject.toml .ci/constraints/serving.txt
	@PYTHON=$(PYTHON) CONSTRAINTS=$(PINNED_SERVING) .ci/setup $(VENV_SERVING) serving
	@touch $@

# The exact versions in .ci/constraints, for what pyproject.toml asks for. UPGRADE=--upgrade takes the newest.
constraints: $(VENV)/.test
	.ci/lock $(BIN)/uv $(UPGRADE)

# -- lanes --------------------------------------------------------------------------------------------------------------
# Each prints its times at the end, as rows of the table in CONTRIBUTING.md.
test-fast: $(VENV)/.test
	@.ci/steps unit-tests

test: $(VENV)/.test $(VENV_OLDER)/.older
	@.ci/steps lint typecheck docs tests tests-older

# The packages of a release come after the steps of `make test`: with them, a package that `make test` lacks would not be missed.
test-all: $(VENV)/.test $(VENV_OLDER)/.older
	@.ci/steps lint typecheck docs tests tests-older release-setup release-tests release-tests-older seeded-faults

# What `make test-all` says with today's newest releases of all that it installs; answers and speed as before.
test-nightly:
	@$(MAKE) --no-print-directory test-all golden speed-check UNPINNED=yes VENV=.venv-nightly VENV_OLDER=.venv-nightly-older
	@$(MAKE) --no-print-directory tests-serving

# -- steps --------------------------------------------------------------------------------------------------------------
lint: $(VENV)/.test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@mkdir -p build && .ci/layers $(BIN) > build/layers.log 2>&1 || { cat build/layers.log; exit 1; }
	@said=$$($(BIN)/deptry --no-ansi . 2>&1) || { echo "$$said" >&2; exit 1; }
	@$(BIN)/python -m tests.prose

typecheck: $(VENV)/.test
	@$(BIN)/mypy --num-workers $(WORKERS) -p vramcast $(RESEARCH:%=-p benchmarks.%)

# Ten seconds, without network. A warning is an error: a missing page, a broken reference.
docs: $(VENV)/.test
	@$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs

unit-tests: $(VENV)/.test
	@$(BIN)/python $(PYTEST) --hypothesis-profile fast --ignore tests/benchmarks -m "not integration and not release"

tests: $(VENV)/.test
	@$(BIN)/python $(PYTEST) -m "not release"

# What depends on torch, with an older release of it.
tests-older: $(VENV_OLDER)/.older
	@$(VENV_OLDER)/bin/python $(PYTEST) -m "torch and not release"

release-setup: $(VENV)/.release

release-tests: $(VENV)/.release
	@$(BIN)/python $(PYTEST) -m release

release-tests-older: $(VENV_OLDER)/.older
	@$(VENV_OLDER)/bin/python $(PYTEST) -m "torch and release"

# vLLM itself on the null GPU, in an environment of its own: 10 GB, and a minute for each start of an engine.
tests-serving: $(VENV_SERVING)/.serving
	@$(VENV_SERVING)/bin/python $(PYTEST) tests/serving

# The wheel for PyPI, in build/wheel, and a first estimate from it without a compiler. It has the null GPU for this environment's
# torch, or for the one in each folder of PREBUILD (site-packages, separated by colons). auditwheel chooses the tag.
wheel: $(VENV)/.release
	@rm -rf build/wheel build/lib* build/bdist.*
	VRAMCAST_PREBUILD=$(PREBUILD) $(BIN)/python -m build --wheel --no-isolation --outdir build/wheel/linux . > build/wheel.log
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m auditwheel repair --plat auto --wheel-dir build/wheel build/wheel/linux/*.whl
	$(BIN)/python -m benchmarks.front_door.clean_root build/wheel/*.whl

# The outputs that the pages show, written anew: look at the difference before you commit it.
docs-outputs: $(VENV)/.test
	VRAMCAST_WRITE_OUTPUTS=1 $(BIN)/python -m pytest -q -n 0 -m integration tests/docs

# The lines of the product that `make tests` runs, those in jobs' processes included.
coverage: export COVERAGE_ROOT := $(CURDIR)
coverage: $(VENV)/.test
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/python -m coverage run $(PYTEST) -m "not release"
	@$(BIN)/python -m coverage combine --quiet 2> /dev/null
	@rm -f build/coverage/data.*  # what processes that were killed left half written
	@$(BIN)/python -m coverage report

# Each fault of tests/seeded_faults in a copy of this checkout: `make test` has a test that finds it. FAULTS: other options.
FAULTS ?= --lane commit
seeded-faults: $(VENV)/.test
	@$(BIN)/python -m tests.seeded_faults $(FAULTS)

# The outputs in notebooks/: look at the difference before you commit it.
notebooks: $(VENV)/.test
	$(BIN)/python -m benchmarks.site.notebooks

# The pictures in docs/, and those of the site in build/pictures, to look at. Needs a Chromium, and the group `pictures`.
screenshots: docs
	$(BIN)/python -m benchmarks.site.screenshots
	$(BIN)/python -m benchmarks.site.site_pictures

survey: $(VENV)/.test
	$(BIN)/python -m benchmarks.surveys.survey

# Errors on the measured runs in benchmarks/measured, with the release of transformers that those runs had.
accuracy: $(VENV)/.test build/transformers-4.51
	$(BIN)/python -m benchmarks.accuracy.report

build/transformers-4.51: | $(VENV)/.test
	$(BIN)/python -m pip install --quiet --target $@.part --no-deps transformers==4.51.3 'tokenizers==0.21.*' \
	    'huggingface_hub==0.36.*' requests urllib3 charset_normalizer
	mv $@.part $@

# Sixty jobs whose answers must not change while the code does.
golden: $(VENV)/.test
	$(BIN)/python -m benchmarks.golden

# The table of speed in docs/evidence.md, for a machine with nothing else to do; the check fails if a ratio grew by 15 %.
speed: $(VENV)/.test
	$(BIN)/python -m benchmarks.speed.command_line --write

speed-check: $(VENV)/.test
	$(BIN)/python -m benchmarks.speed.command_line --check

clean:
	rm -rf build .venv .venv-older .venv-serving *.egg-info
