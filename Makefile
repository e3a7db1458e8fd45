# A fresh machine needs python3 (3.10 or newer) and make; a C++ compiler makes training faster but is not required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make test EXTRAS=dev,flower` runs the tests of Flower too; without it they are skipped.
EXTRAS ?= dev
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
CHECKED := src tests examples docs/site_hooks.py setup.py
export OMP_WAIT_POLICY := PASSIVE

# `make test LOCK=requirements.lock` installs exactly what the lock lists, checked by hash; torch, which comes from an index of
# its own, by the version in constraints.txt.
LOCK ?=

.PHONY: run test test-full test-arm unit mutants lint format coverage docs site clean lock

run: $(STAMP)
	$(BIN)/fedqssl run quickstart

# Each worker starts with neighbouring tests, which share what they prepare, and takes over others' when it has none left.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint
	$(PYTEST) -m 'not slow'

test-full: lint
	$(PYTEST)

# The kernels on ARM, under QEMU: needs Debian's g++-aarch64-linux-gnu, g++-arm-linux-gnueabihf and qemu-user (else it skips).
test-arm: $(STAMP)
	$(BIN)/python -m pytest -p no:randomly tests/arm

# Under a minute on two idle cores.
unit: $(STAMP)
	$(PYTEST) -m unit

# Deliberate slips in copies of the code, all of which the tests must notice. For some: make mutants MUTANTS='--only runs/ --jobs 1'
mutants: $(STAMP)
	$(BIN)/python tests/run_mutants.py $(MUTANTS)

coverage: $(STAMP)
	$(PYTEST) -m 'not slow' --cov --cov-report=term:skip-covered --cov-report=html

lint: $(STAMP)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini

format: $(STAMP)
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

docs:
	$(MAKE) --no-print-directory site EXTRAS=docs

site: $(STAMP)
	$(BIN)/mkdocs build --strict

# Everything for Python 3.11 on Linux with its hashes. torch is left out: CI takes it from an index that has CPU builds only.
lock: $(STAMP)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --extra flower --extra docs -c constraints.txt --generate-hashes \
		--no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 --quiet -o build/all.lock
	$(BIN)/python tests/support/lock_without_torch.py build/all.lock requirements.lock

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -o -name '*.egg-info' -prune | xargs rm -rf

# The editable install also builds the C++ kernels (setup.py); a changed kernel source builds them anew.
$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py src/fedqssl/quant/kernels/*.cpp src/fedqssl/quant/kernels/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(LOCK),)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r $(LOCK)
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
endif
	touch $@
