# `make train` and `make test` set up everything they need in .venv; PYTHON chooses the interpreter.
PYTHON ?= python3
CONFIG ?= configs/digits.py
ARGS ?=
EXTRAS ?= test

VENV := .venv
BIN := $(VENV)/bin

.PHONY: train test docs clean

train: $(VENV)/installed
	$(BIN)/python train.py --config=$(CONFIG) $(ARGS)

test: $(VENV)/installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# The site, in docs/_build/html/index.html. The first build trains the run that a notebook opens and executes both notebooks.
docs:
	@$(MAKE) --no-print-directory EXTRAS=docs $(VENV)/installed-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# A stamp is newer than what it was made from: nothing is installed again until that changes.
$(VENV)/installed: setup.cfg constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-$(EXTRAS): setup.cfg constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	touch $(VENV)/installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make train PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build docs/api docs/notebooks
