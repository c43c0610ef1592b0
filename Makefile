# On a fresh machine with Python >= 3.11, make and git:
#
#   make reproduce      trains the papers' figures and tables on digits, plots the CIFAR-10 results
#                       and further studies from stored runs, builds a web site
#   make reproduce ALL=1           trains the studies too
#   make test           every fast test
#
# Each target builds .venv first when it is missing or older than pyproject.toml.
#
#   make setup TORCH_INDEX=URL     CPU-only machine: torch and torchvision come first, both from URL, an index of
#                                  CPU builds (see pytorch.org, "Compute platform: CPU"); several GB less to fetch
#   make reproduce PROFILE=lite ARGS="table1 -p epochs=5"
#   make test ARGS="-k solver"     in a process for each core, eight at most; -n 2 in ARGS makes it two
#   PYTHON=python3.12 make setup   another interpreter
#   make setup LATEST=1            the newest packages instead of the exact versions in constraints.txt

PYTHON  ?= python3
PROFILE ?= quick
ARGS    ?=
TORCH_INDEX ?=
export PYTHON PROFILE TORCH_INDEX

# No recipe expands a path into the text of a shell command: a name with a quotation mark or a $ in it would be read as
# shell code. Folders are relative, and what the user gives reaches the shell in variables of the environment.
VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread per run: small networks lose time with more, and the number of threads changes the last bits of a
# result. PASSIVE makes idle threads sleep where the user asks for several.
OMP_NUM_THREADS ?= 1
OMP_WAIT_POLICY ?= PASSIVE
export OMP_NUM_THREADS OMP_WAIT_POLICY

.PHONY: help setup packages constraints reproduce test test-slow lab bench peers figures lint clean clean-results

help:
	@sed -n 's/^# \{0,1\}//;1,15p' Makefile

setup: $(STAMP)

comma := ,
EXTRAS := notebooks,docs,cluster,dev
CONSTRAINTS = $(if $(LATEST),,$(addprefix -c ,$(wildcard constraints.txt)))
# GB that a set-up takes; with an index of CPU builds a third of it.
GIGABYTES = $(if $(TORCH_INDEX),2,7)
$(STAMP): pyproject.toml $(wildcard constraints.txt)
	@command -v "$$PYTHON" >/dev/null 2>&1 || { \
		echo "make: no '$$PYTHON' on the PATH. Install Python 3.11 or newer, or name one: PYTHON=/path/to/python3 make $(MAKECMDGOALS)" >&2; exit 1; }
	@"$$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: nclib needs Python 3.11 or newer, '$$PYTHON' is $$("$$PYTHON" -V 2>&1). Name a newer one: PYTHON=python3.11 make $(MAKECMDGOALS)" >&2; exit 1; }
	@"$$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: '$$PYTHON' comes without venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -w . || { \
		echo "make: this clone is read-only or belongs to another user. Clone it into a folder of your own." >&2; exit 1; }
	@test ! -e $(VENV) || test -w $(VENV) || { \
		echo "make: $(VENV) belongs to another user. Have it removed, or clone again into a folder of your own." >&2; exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1e6) }'); \
	used=$$(du -sk $(VENV) 2>/dev/null | awk '{ print int($$1 / 1e6) }'); \
	test "$$((free + used))" -ge $(GIGABYTES) || { \
		echo "make: the set-up takes $(GIGABYTES) GB, and $$free GB are free on this disk. Make room, or clone onto another disk." >&2; exit 1; }
	"$$PYTHON" -m venv $(VENV)
	@$(MAKE) --no-print-directory packages || { \
		echo "make: the packages are not installed, and pip says why above: most often there is no network, or the disk is full. Then type again: make $(MAKECMDGOALS)" >&2; exit 1; }
	@touch $(STAMP)

# pip would compile every module on one core, even the packages' own tests. A few modules are
# written for a newer Python: they cannot be compiled, and nothing imports them.
PIP_INSTALL = $(BIN)/python -m pip install --no-compile $(CONSTRAINTS)
packages:
	$(if $(TORCH_INDEX),$(PIP_INSTALL) --index-url "$$TORCH_INDEX" torch torchvision)
	$(PIP_INSTALL) -e ".[$(EXTRAS)]"
	@$(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true

# Exact versions of all packages, for every supported Python: the newest that fit together today.
constraints:
	"$$PYTHON" -m venv build/uv && build/uv/bin/python -m pip install -q uv
	{ sed -n '/^#/p' constraints.txt; build/uv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --no-annotate \
	  --no-header --quiet --upgrade $(foreach extra,$(subst $(comma), ,$(EXTRAS)),--extra $(extra)); } > build/constraints.txt && mv build/constraints.txt constraints.txt

reproduce: setup
	$(BIN)/nclib reproduce --largest --profile "$$PROFILE" $(if $(ALL),--all) $(ARGS)

# Idle test processes take work from busy ones.
# Compiled modules are kept, as some tests start processes.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal
test: setup
	$(PYTEST) $(ARGS)

test-slow: setup
	$(PYTEST) -m slow $(ARGS)

# The whole clone is to be seen in it, as the index links to docs.
lab: setup
	$(BIN)/jupyter lab --ServerApp.root_dir=. $(firstword $(wildcard notebooks/index.ipynb) notebooks) $(ARGS)

# The core against its peers. It wants idle cores.
bench: SCRIPTS = training solver
bench: peers
peers: setup
	$(BIN)/python -m pip install -q -e ".[peers]"

bench: setup
	@set -e; for name in $(SCRIPTS); do echo "benchmarks/bench_$$name.py"; $(BIN)/python "benchmarks/bench_$$name.py" $(ARGS); done

# The pictures and tables that README and docs show, drawn anew from results/reference/: nothing is trained.
figures: setup
	$(BIN)/python -m nclib.papers.make_figures

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check nclib tests benchmarks
	@notebooks=$$(git ls-files 'notebooks/*.ipynb'); [ -z "$$notebooks" ] || $(BIN)/nbstripout --verify --keep-id $$notebooks

# Environment and caches only: nothing in results/ or data/ is touched.
clean:
	rm -rf $(VENV) build dist nclib_deq.egg-info .pytest_cache .ruff_cache
	find . -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# Every trained run, figure and table of every profile in results/; README.md, reference/ and sealed/ stay.
clean-results:
	find results -mindepth 1 -maxdepth 1 ! -name README.md ! -name reference ! -name sealed -print -exec rm -rf {} +
