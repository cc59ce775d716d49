# Everything from nothing: Python 3.11, gcc and make are enough.
#   make demo    set up and run a real estimate
#   make test    set up and pass the tests, beside a CUDA build of torch and beside another build
VENV     ?= .venv
VENV_CPU ?= .venv-cpu
PYTHON   ?= python3
BIN      := $(VENV)/bin
# Packages of benchmarks/ which are typed like the product, and have tests of their own.
RESEARCH := authors baselines cluster planners

.PHONY: demo setup test lint typecheck test-cuda test-cpu survey accuracy golden clean

demo: $(VENV)/.ready
	$(BIN)/vramcast estimate torchvision:resnet50 --batch 32x3x224x224 --labels '32:int64<1000' --device a100-40gb

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

test: lint typecheck test-cuda test-cpu

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(VENV)/.ready
	$(BIN)/mypy -p vramcast $(RESEARCH:%=-p benchmarks.%)

test-cuda: $(VENV)/.ready
	$(BIN)/python -m pytest

# What knows nothing of torch is not run a second time.
test-cpu: $(VENV_CPU)/.ready
	$(VENV_CPU)/bin/python -m pytest --ignore tests/learner --ignore tests/datasets/histories --ignore tests/datasets/test_run.py \
		$(RESEARCH:%=--ignore tests/benchmarks/%)

survey: $(VENV)/.ready
	$(BIN)/python benchmarks/survey.py

accuracy: $(VENV)/.ready
	$(BIN)/python -m benchmarks.accuracy.report

# Sixty jobs whose answers must not change while the code does.
golden: $(VENV)/.ready
	$(BIN)/python -m benchmarks.golden

clean:
	rm -rf build .venv .venv-cpu *.egg-info
