# Everything a person does with this repository, one word each; `make help` lists them.
# A fresh clone needs Python 3.11 or newer; the rest is installed into .venv.

DEMO_SECONDS ?= 60
SOAK_SECONDS ?= 300
PYTEST_ARGS ?=
# Tests run in three processes, as tests/conftest.py shares them, so that two cores have work while one waits for a
# server or a JVM; `make test AT_ONCE=` runs them in one.
AT_ONCE ?= --numprocesses 3 --dist loadgroup --no-loadscope-reorder

# Where it is set, every process compiles all of Headrace anew: a third of a second, and a run of Spark has a dozen.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
PY := $(VENV)/bin/python
# Touched only after a complete install, so that an interrupted one is done again.
INSTALLED := $(VENV)/.installed
# Finds Java, or gets one where that is possible, before a command that needs it.
WITH_JAVA := home=$$(tools/java.sh) && JAVA_HOME=$$home

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types format docs bench soak services clean

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

demo: $(INSTALLED) ## play the demo for DEMO_SECONDS (60)
	@$(WITH_JAVA) $(VENV)/bin/headrace demo --seconds $(DEMO_SECONDS)

test: $(INSTALLED) ## all tests; PYTEST_ARGS="-m 'not spark'" for those without a JVM
	$(WITH_JAVA) $(PY) -m pytest $(AT_ONCE) --durations 20 $(PYTEST_ARGS)

check: lint types test docs ## what must be true before a change goes in

lint: $(INSTALLED) ## ruff: rules and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(INSTALLED) ## let ruff fix what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(INSTALLED) ## mypy, strict on src/
	$(VENV)/bin/mypy --strict src

docs: $(INSTALLED) ## build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

bench: $(INSTALLED) ## run the benchmarks beside their peers and write docs/benchmarks.md
	$(WITH_JAVA) $(PY) -m benchmarks $(BENCH)

soak: $(INSTALLED) ## kill and resume at random points for SOAK_SECONDS (300); then random tests with many more examples
	$(WITH_JAVA) $(PY) -m tests.soak --seconds $(SOAK_SECONDS)
	$(WITH_JAVA) $(PY) -m tests.connector_soak --seconds $(SOAK_SECONDS)
	$(WITH_JAVA) HYPOTHESIS_PROFILE=soak $(PY) -m pytest tests/crash/test_kills.py tests/crash/test_connector_kills.py
	HEADRACE_SOAK=1 $(PY) -m pytest tests/operators/test_hot_key.py --timeout 1800
	HYPOTHESIS_PROFILE=soak SOAK_SECONDS=$(SOAK_SECONDS) \
		$(PY) -m pytest $(AT_ONCE) -m "hypothesis and not spark" --timeout 3600 --verbose

services: ## install the Debian packages that tests use (needs root; otherwise says what is missing)
	@tools/services.sh

clean: ## remove everything that make made
	rm -rf $(VENV) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@tools/install.sh $(VENV)
	@touch $@
