# A fresh machine needs python3 (3.10 or newer) and make; a C++ compiler makes training faster but is not required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make test EXTRAS=dev,flower` runs the tests of Flower too; without it they are skipped.
EXTRAS ?= dev
comma := ,
STAMP := $(VENV)/.installed-$(subst $(comma),-,$(EXTRAS))
export OMP_WAIT_POLICY := PASSIVE

.PHONY: run test test-full lint clean

run: $(STAMP)
	$(BIN)/fedqssl run quickstart

test: lint
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-full: lint
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check src tests
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.so' -o -name '*.egg-info' -prune | xargs rm -rf

# The editable install also builds the C++ kernels (setup.py); a changed kernel source builds them anew.
$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py src/fedqssl/quant/kernels/*.cpp src/fedqssl/quant/kernels/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@
