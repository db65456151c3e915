# On a fresh machine with Python 3.10+ and make: `make demo`, `make test`. Each sets itself up.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check format docs package fuzz chaos clean

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

# Ten thousand damaged and hostile files, each read or refused in one line.
fuzz: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/hostile/fuzz.py 10000 0

# A hundred kills of commands, every file of a run damaged in three ways, and machines that die while
# they train together: the same bytes at the end. As root, the machines are network namespaces.
chaos: setup
	rm -rf runs/chaos
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/end_to_end/killed.py runs/chaos/killed 100 0
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/end_to_end/damaged.py runs/chaos/damaged
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python tests/end_to_end/nodes.py runs/chaos/nodes 5

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds wheel and sdist, installs the wheel into a new environment and uses it there.
package: setup
	$(BIN)/python -m pip install --quiet build
	rm -rf build dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/check_package.py dist

clean:
	rm -rf .venv runs build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
