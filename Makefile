# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.pliant-ready
PYTEST := $(PY) -m pytest -q

.PHONY: demo test lint soak frameworks clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then watch a run grow, shrink, lose a replica and end bit-identical"
	@echo "make test    set up, then lint, types, contracts and every default test (under 15 minutes)"
	@echo "make soak    long randomised runs; SEED=n repeats one"
	@echo "make frameworks  install Hugging Face, torchvision, TensorBoard, MLflow; train our examples of them"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) tools/setup.py

demo: $(READY)
	$(PY) -m pliant demo

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/lint-imports

test: lint
	$(PYTEST) -n 2 --dist worksteal -m "not soak and not frameworks"

soak: $(READY)
	$(PYTEST) -m soak -s --timeout=7200

frameworks: $(READY)
	$(PY) -m pip install -q -c constraints.txt -e ".[engine,demo,dev,frameworks]"
	$(PYTEST) -m frameworks

clean:
	rm -rf .venv runs dist build
