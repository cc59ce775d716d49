# Everything from nothing: Python 3.11, gcc and make are enough.
#   make demo       set up and run a real estimate
#   make test-fast  the unit tests: no job is traced, no process started
#   make test       set up and pass all tests, beside a CUDA build of torch and beside another build
#   make docs       build the site of docs/ into build/docs
VENV     ?= .venv
VENV_CPU ?= .venv-cpu
PYTHON   ?= python3
BIN      := $(VENV)/bin
# Packages of benchmarks/ which are typed like the product, and have tests of their own.
RESEARCH := authors baselines cluster planners serving
# What knows nothing of torch: it is not run a second time beside another build.
NO_TORCH := docs learner simulator charts native schedulers service datasets/histories $(RESEARCH:%=benchmarks/%) \
            $(addsuffix .py,$(addprefix test_,bound cache context correction devices packaging plans) datasets/test_run \
            cli/test_train tracer/test_warm tracer/test_cudnn_fetch $(addprefix views/test_,curves placement save style))
# A file's tests stay together in one of so many processes: they share what its fixtures made. PYTEST_ARGS: more for pytest.
WORKERS  ?= 2
PYTEST    = -m pytest -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

.PHONY: demo demo-gate demo-ray demo-slurm setup notebooks screenshots test test-fast lint typecheck test-cuda test-cpu survey accuracy golden docs docs-outputs clean

demo: $(VENV)/.ready
	$(BIN)/vramcast estimate torchvision:resnet50 --batch 32x3x224x224 --labels '32:int64<1000' --device a100-40gb

# What `vramcast check` says of a repository whose branch makes a model deeper (docs/ci-gate.md).
demo-gate: $(VENV)/.ready
	contrib/ci-gate/demo.sh $(BIN)/vramcast

# Four jobs and one card by a local Ray cluster (docs/ray-dask.md).
demo-ray: $(VENV)/.ready
	$(BIN)/python contrib/ray/demo.py

# Slurm's own daemons on this machine, and jobs which are shrunk, refused and queued again (docs/slurm.md); root, on Debian.
demo-slurm: $(VENV)/.ready
	contrib/slurm/demo/demo.sh $(BIN)/vramcast

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@

# No pin for the build: where pip finds a CPU-only one it takes that, elsewhere a CUDA build.
$(VENV_CPU)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV_CPU)
	$(VENV_CPU)/bin/pip install --quiet --upgrade pip
	$(VENV_CPU)/bin/pip install --quiet torch==2.13.0 -e '.[test]'
	touch $@

test:
	@for lane in lint typecheck docs test-cuda test-cpu; do \
		start=$$(date +%s); $(MAKE) --no-print-directory $$lane || exit 1; echo "$$lane took $$(($$(date +%s) - start)) s"; \
	done

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.ready
	$(BIN)/mypy -p vramcast $(RESEARCH:%=-p benchmarks.%)

# Ten seconds, without network. A warning is an error: a missing page, a broken reference.
docs: $(VENV)/.ready
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs build/docs

# The outputs which the pages show, written anew: look at the difference before you commit it.
docs-outputs: $(VENV)/.ready
	VRAMCAST_WRITE_OUTPUTS=1 $(BIN)/python -m pytest -q -n 0 -m integration tests/docs

# No job is traced and no process started: a minute.
test-fast: $(VENV)/.ready
	$(BIN)/python $(PYTEST) -m "not integration and not slow" --ignore tests/benchmarks

test-cuda: $(VENV)/.ready
	$(BIN)/python $(PYTEST)

test-cpu: $(VENV_CPU)/.ready
	$(VENV_CPU)/bin/python $(PYTEST) $(NO_TORCH:%=--ignore tests/%)

# The outputs in notebooks/: look at the difference before you commit it.
notebooks: $(VENV)/.ready
	$(BIN)/python -m benchmarks.notebooks

# The pictures in docs/: needs a Chromium, and pip install 'vramcast[pictures]'.
screenshots: $(VENV)/.ready
	$(BIN)/python -m benchmarks.screenshots

survey: $(VENV)/.ready
	$(BIN)/python benchmarks/survey.py

accuracy: $(VENV)/.ready
	$(BIN)/python -m benchmarks.accuracy.report

# Sixty jobs whose answers must not change while the code does.
golden: $(VENV)/.ready
	$(BIN)/python -m benchmarks.golden

clean:
	rm -rf build .venv .venv-cpu *.egg-info
