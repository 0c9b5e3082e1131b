PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

EXTRAS ?= serve,export,parquet

.PHONY: demo test test-browser lint bundle audit clean

# The environment is made once and made again only when the dependencies change.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/anomalyncd demo --out demo-run

# Two processes, each with whole files, whose fixtures are made once.
test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# Chromium and what drives it are installed where that is possible. Where it is not, the tests say in one line that they did not run.
test-browser: $(STAMP)
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } >/dev/null 2>&1; } || true
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python -m pip install --quiet playwright || true
	$(BIN)/python -m pytest tests/browser

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/mypy

# All that a machine without internet needs, in the folder bundle/. See docs/offline.md.
bundle: $(STAMP)
	$(BIN)/python tools/bundle/make_bundle.py --extras '$(EXTRAS)'

# Known vulnerabilities of what is installed. Needs internet, and says so where there is none.
audit: $(STAMP)
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python -m pip install --quiet pip-audit || true
	@$(BIN)/python tools/audit.py

clean:
	rm -rf $(VENV) demo-run .mypy_cache .ruff_cache .pytest_cache
