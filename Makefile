# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.pliant-ready
PYTEST := $(PY) -m pytest -q

.PHONY: demo test lint core unit processes soak bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then watch a run grow, shrink, lose a replica and end bit-identical"
	@echo "make test    set up, then lint, types, contracts and every default test (under 15 minutes)"
	@echo "make soak    long randomised runs; SEED=n repeats one"

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
	$(PYTEST) -m "not soak"

soak: $(READY)
	$(PYTEST) -m soak -s --timeout=7200

clean:
	rm -rf .venv runs dist build
