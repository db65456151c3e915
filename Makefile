# On a fresh machine with Python 3.10+ and make: `make demo`, `make test`. Each sets itself up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check format clean

setup: .venv/ready

# Rebuilt when the dependencies change; `ready` is written last, so an interrupted install starts over.
.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("annocoin needs Python 3.10 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/annocoin demo --out runs/demo

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/python -m pytest -n 2

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
