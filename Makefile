# Every target sets itself up: Python 3.11+, pip, git and make are all it needs.
PYTHON ?= python3
PY := .venv/bin/python
READY := .venv/.ready
DOCS := .venv/.docs

# Also what builds the package has the pinned version: by the first variable for pip before 25.3, by the second since.
install = PIP_CONSTRAINT=$(2) PIP_BUILD_CONSTRAINT=$(2) $(1)/bin/python -m pip install --quiet \
	--disable-pip-version-check --editable ".[$(or $(3),dev)]"

.PHONY: demo docs test test-slow test-oldest test-newest reproduce-quick bench stress torture leaks mutation lint audit \
	clean always

# The README's picture and the table behind it; wants MNIST (see CONTRIBUTING.md).
docs/images/features.png: $(READY)
	$(PY) benchmarks/features.py

demo: $(READY)
	$(PY) -m discernel demo

# Each test computes with one thread, so as many run at once as there are cores, four at most (each takes a torch).
PYTEST = -m pytest -q --numprocesses auto --maxprocesses 4

test: $(READY)
	$(PY) $(PYTEST)

test-slow: $(READY)
	$(PY) $(PYTEST) -m slow

# The tests with the oldest versions that pyproject.toml allows, and with the newest there are today.
test-oldest test-newest: test-%: .venv-%/.ready
	.venv-$*/bin/python $(PYTEST)

# The whole of the paper's experiments in small, from nothing: every method, the figures and the page of claims.
QUICK ?= digits letter
reproduce-quick: $(READY)
	rm -rf build/reproduce
	$(PY) -m discernel reproduce $(QUICK) --quick --out build/reproduce
	$(PY) -m discernel reproduce $(QUICK) --quick --schedule fast --out build/reproduce

# The quick benchmarks: a step beside its arithmetic, and the default schedule beside the paper's. OpenBLAS is to choose
# its kernels by the processor, whatever the environment says.
bench: $(READY)
	env -u OPENBLAS_CORETYPE $(PY) benchmarks/step.py
	$(PY) benchmarks/time_to_quality.py --data digits --components 50 --out build/time_to_quality_digits.json

# Kill fits at random moments, resume them, and compare with undisturbed ones to the bit.
KILLS ?= 200
stress: $(READY)
	$(PY) -m tests.stress --kills $(KILLS)

# Ten thousand fits on odd data, and as many damaged files of each kind.
torture: $(READY)
	$(PY) -m pytest -q -m torture tests/test_torture.py tests/test_fuzz.py

# What 200 fits leave behind.
leaks: $(READY)
	$(PY) -m tests.leaks

# Whether the tests notice mutants of the modules that everything rests on; goes on with tests/results/mutation.csv.
# MUTANTS of each module, all of them if it is empty.
MUTANTS ?= 80
mutation: export OMP_NUM_THREADS = 1
mutation: $(READY)
	$(PY) -m tests.mutation $(addprefix --sample ,$(MUTANTS))

# The site, in build/docs: every example and figure is run, warnings are errors, links within it are followed.
docs: $(DOCS)
	$(PY) -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -d build/doctrees docs build/docs
	$(PY) docs/links.py build/docs

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyrefly check

# Installing again happens only when what is to be installed has changed.
$(READY): pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(call install,.venv,constraints.txt)
	touch $@

$(DOCS): $(READY)
	$(call install,.venv,constraints.txt,docs)
	touch $@

.venv-%/.ready: pyproject.toml constraints-%.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	$(call install,.venv-$*,constraints-$*.txt) $(UPGRADE)
	touch $@

.venv-newest/.ready: always
.venv-newest/.ready: UPGRADE := --upgrade --upgrade-strategy eager

# Known vulnerabilities of what `make` installs. What cannot be looked up is a failure (--strict), not a pass.
audit:
	test -x .venv-audit/bin/python || $(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip-audit
	.venv-audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt || { \
	  echo "Not passed: a package above is vulnerable, or PyPI could not be asked about it." >&2; exit 1; }

clean:
	rm -rf build docs/generated docs/gallery .venv .venv-* .pytest_cache .ruff_cache .hypothesis
