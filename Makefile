# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.pliant-ready
PYTEST := $(PY) -m pytest -q

# Some images forbid it; then each of the hundreds of interpreters that tests start compiles pliant anew.
export PYTHONDONTWRITEBYTECODE :=

# Slow tests wait for processes: one of three workers has them at first, the others what computes.
WORKERS := -n 3 --dist worksteal
QUICK := $(WORKERS) -m "not slow and not soak and not frameworks and not cluster"
DEFAULT := $(WORKERS) -m "not soak and not frameworks and not cluster"

.PHONY: demo test quick docs verify durations test-with test-device test-gpu test-cluster lint soak chaos frameworks clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then watch a run grow, shrink, lose a replica and end bit-identical"
	@echo "make test    set up, then lint, types, contracts and all quick tests, of each mechanism one (13 minutes on 2 cores)"
	@echo "make verify  the slow ones too: before a change is done (35 minutes)"
	@echo "make durations   make verify, and record in tests/durations.txt what each test took: over 2 seconds is slow"
	@echo "make docs    write the documentation as a site: build/docs/index.html"
	@echo "make test-with   what make verify runs, with TORCH=2.11.0 (the oldest) or another, PYTHON=python3.13 or another; TESTS=tests/core only those"
	@echo "make test-device all of it on a test accelerator, which g++ builds: a device that is not the CPU"
	@echo "make test-gpu what needs a GPU, by PYTHON=python3 as it is; STAGES=\"facts elastic\" only those"
	@echo "make test-cluster  under a Kubernetes control plane and Kueue, which it builds; needs root, Go 1.26 and etcd"
	@echo "make soak    long runs, and other examples for the property tests"
	@echo "make frameworks  install Hugging Face, torchvision, TensorBoard, MLflow; train our examples of them; install a wheel with pip, uv, pipx"
	@echo "make chaos   a thousand faults on four hosts in one run, 90 minutes at most; needs root; FAULTS=n as many, SEED=n repeats one"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) tools/setup.py

demo: $(READY)
	$(PY) -m pliant demo

# Fails on a link to a page or heading that is not there.
docs: $(READY)
	$(PY) -m sphinx -q -W --keep-going -b html docs build/docs

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	@$(MAKE) --no-print-directory docs

# Beside each other: types are checked by one process, and tests wait.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 lint quick

quick: $(READY)
	$(PYTEST) $(QUICK)

verify: lint
	$(PYTEST) $(DEFAULT)

durations: $(READY)
	$(PYTEST) $(DEFAULT) --durations-to tests/durations.txt

# Each pair of versions has an environment of its own, 5 GB.
test-with: TORCH ?= 2.11.0
test-with: VERSION = $(shell $(PYTHON) -c "import platform; print(platform.python_version())")
test-with: OTHER = .venv-torch$(TORCH)-python$(VERSION)
test-with:
	@$(PYTHON) tools/setup.py --torch $(TORCH) --venv $(OTHER)
	$(OTHER)/bin/python -m pytest -q $(DEFAULT) $(TESTS)

# Those whose examples are drawn anew, too: in "make test" they are the same for every commit.
DRAWN := $(addprefix tests/,core wire observe checkpoint spec simulate engine/reduce engine/state coordinator)
soak: $(READY)
	$(PYTEST) -m soak -s --timeout=7200 --hypothesis-profile=drawn
	$(PYTEST) -m "not soak" -n 2 --hypothesis-profile=drawn $(DRAWN)

frameworks: $(READY)
	$(PY) -m pip install -q -c constraints.txt -e ".[engine,dev,frameworks]"
	$(PYTEST) -m frameworks

# Some more than a thousand are planned: one or another finds nobody to happen to.
chaos: FAULTS ?= 1020
chaos: SEED ?= $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
test-device: $(READY)
	SIM_SEEDS=20 $(PYTEST) $(WORKERS) tests/accelerator

# By the machine's own Python and torch: nothing is set up, nothing is fetched.
test-gpu:
	PYTHONPATH=src PYTORCH_NVML_BASED_CUDA_CHECK=1 $(PYTHON) -m tests.gpu $(STAGES)

chaos: $(READY)
	SEED=$(SEED) FAULTS=$(FAULTS) $(PYTEST) -m chaos -p no:randomly -s tests/chaos

# One process: it has one cluster.  The first time it builds the servers, about 12 minutes.
test-cluster: $(READY)
	$(PY) -m tests.cluster.building
	$(PYTEST) tests/cluster

clean:
	rm -rf .venv .venv-* runs dist build
