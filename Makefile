# The targets a developer runs; CI runs the same ones.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Compiled at set-up, unless you say 0: without bytecode an import of Prefect takes three times as
# long. It is then written at first use, where the environment may be written.
export UV_COMPILE_BYTECODE ?= 1
UV := $(BIN)/python -m uv pip install --python $(BIN)/python --quiet
PACKAGES := flows tasks infra deployments

.PHONY: setup setup-dev demo deploy check format test test-real test-gpu bench tree lock clean

setup: $(VENV)/.runtime
setup-dev: $(VENV)/.dev

# A stamp and not the interpreter: a set-up that was cut off is then taken up again.
$(VENV)/.uv:
	@$(PYTHON) -c 'import sys; sys.exit("draftmill needs Python 3.11 or newer: set PYTHON=") if sys.version_info < (3, 11) else None'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@touch $@

$(VENV)/.runtime: $(VENV)/.uv requirements.lock pyproject.toml
	@echo "installing requirements.lock (once; one to three minutes)"
	@$(UV) --requirements requirements.lock
	@$(UV) --no-deps --editable .
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q $(PACKAGES)
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m flows.process.seed
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime requirements-dev.lock
	@echo "installing requirements-dev.lock (once)"
	@$(UV) --requirements requirements-dev.lock
	@touch $@

demo: setup
	@$(BIN)/draftmill demo

# Every flow onto the Prefect server at PREFECT_API_URL, with CONFIG as the default of its runs;
# NOTIFY names the block that notifications go through (slack-webhook/ops).
CONFIG ?= rtx-pro-6000-8x
deploy: setup
	@$(BIN)/python -m deployments.deploy $(CONFIG) $(if $(NOTIFY),--notify $(NOTIFY))

format: setup-dev
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/bandit -q -r flows tasks infra deployments -ll

test: setup-dev
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --quiet -n 2 --dist loadfile --no-loadscope-reorder

# Large real parts: trainers, CUDA wheels, SGLang on the CPU, Prefect, a browser, faults at length.
# Each part has its budget of minutes, so the slowest tests are told.
test-real: setup-dev
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --quiet -m real -n 2 --dist loadfile \
	    --no-loadscope-reorder --durations=40 --durations-min=10

# On a box with a GPU; elsewhere every test is skipped with the reason.
test-gpu: setup-dev
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --quiet -m gpu -rs tests/gpu

bench: setup-dev
	$(BIN)/python -m tests.bench --json bench-latest.json

# The README's tree, from the first line of each file.
tree: setup-dev
	$(BIN)/python -m tests.support.readme_tree

# Pins versions only: no index address, no hashes of one index's files.
lock: setup-dev
	$(BIN)/python -m uv pip compile --universal --python-version 3.11 --no-header --no-annotate \
	    --quiet pyproject.toml --output-file requirements.lock
	$(BIN)/python -m uv pip compile --universal --python-version 3.11 --no-header --no-annotate \
	    --quiet pyproject.toml --group dev --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) build *.egg-info
