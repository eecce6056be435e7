# Every target sets itself up: Python 3.11+, pip, git and make are all it needs.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready

.PHONY: demo test test-slow reproduce-quick lint clean

# The README's picture and the table behind it.
docs/images/accuracies.png: $(READY)
	$(PY) -m discernel demo --out docs/images
	rm docs/images/model.safetensors

demo: $(READY)
	$(PY) -m discernel demo

test: $(READY)
	$(PY) -m pytest -q

test-slow: $(READY)
	$(PY) -m pytest -q -m slow

# The whole of the paper's experiments in small, from nothing: every method, the figures and the page of claims.
QUICK ?= digits letter
reproduce-quick: $(READY)
	rm -rf build/reproduce
	$(PY) -m discernel reproduce $(QUICK) --quick --out build/reproduce
	$(PY) -m discernel reproduce $(QUICK) --quick --schedule fast --out build/reproduce

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyrefly check

# Installing again happens only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis
