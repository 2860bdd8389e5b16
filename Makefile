# Two commands do everything on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.

VENV ?= .venv
BIN := $(VENV)/bin
# The first Python on the path that is new enough; `make PYTHON=/path/to/python …` names another one.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# Of the packages a third is ever imported: Python compiles that when it is, which takes less than all at once.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Two test workers on two cores: more threads inside them only get into each other's way.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

.PHONY: help demo test test-slow test-thorough test-random lint style types docs bench accuracy clean
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.installed-demo ## plan T5-3B for 4 nodes of 8 V100, print the plan and draw it
	@mkdir -p demo
	$(BIN)/automap infer examples/t5_3b_v100.npz --topo C --out demo/plan.json --plot demo/plan.png

test: style types ## style, types and the fast tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not thorough and not random"

test-slow: $(VENV)/.installed-dev ## of what takes longer one case of each test: trainings, the wheel, pages of the documentation
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-thorough: $(VENV)/.installed-dev ## before a release: all other cases, half an hour
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal -m thorough

test-random: $(VENV)/.installed-dev ## by hand: thousands of random cases where the others draw hundreds, for hours
	$(ONE_THREAD) HYPOTHESIS_PROFILE="new examples every time" $(BIN)/python -m pytest -n 2 --dist worksteal \
		-m "random or hypothesis"

lint: style types ## style and types only

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --summary=none

docs: $(VENV)/.installed-dev ## the documentation as a web site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev ## every benchmark that needs no other files; results belong into benchmarks/results/
	@for script in $(filter-out benchmarks/common.py benchmarks/joint_fit.py benchmarks/sailor.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(BIN)/python $$script || [ $$? -eq 2 ] || exit 1; done

accuracy: $(VENV)/.installed-dev ## how far the clock is off the measured steps in ROWS, files or folders: docs/reference/accuracy.md
	$(ONE_THREAD) $(BIN)/python benchmarks/accuracy.py $(ROWS)

clean: ## remove what the other commands made
	rm -rf $(VENV) build demo site *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "automap needs Python 3.11 or newer: install it, or name it with make PYTHON=/path/to/python"; exit 2; }
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(f"automap needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}" if v < (3, 11) else 0)'
	@"$(PYTHON)" -m venv $(VENV) || { rm -f $@; echo "$(PYTHON) cannot make a virtual environment: install its venv module (python3-venv)"; exit 2; }

# Editable installs: a changed source file needs no second installation.
$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[plot]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[all,dev]'
	@touch $@ $(VENV)/.installed-demo
