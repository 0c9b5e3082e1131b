PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := -m pip install --quiet
TESTED := --constraint constraints.txt
OLDEST := .venv-oldest

EXTRAS ?= serve,export,parquet

.PHONY: demo test test-browser test-oldest lint docs quality wheel constraints bundle audit clean

# The environment is made once, of the tested versions, and made again only when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(PIP) --upgrade $(TESTED) pip
	$(BIN)/python $(PIP) $(TESTED) --build-constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/anomalyncd demo --out demo-run

# Two processes, each with whole files, whose fixtures are made once. The pages in a real browser are test-browser's.
test: $(STAMP) lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/browser

# All tests once with the lower bounds of pyproject.toml, in an environment of their own; a stale version in it is replaced.
test-oldest:
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python $(PIP) --upgrade $(TESTED) pip
	$(OLDEST)/bin/python tools/versions.py oldest > $(OLDEST)/oldest.txt
	$(OLDEST)/bin/python $(PIP) --constraint $(OLDEST)/oldest.txt --build-constraint $(OLDEST)/oldest.txt --editable '.[dev]'
	NUMBA_CACHE_DIR=$(OLDEST)/numba $(OLDEST)/bin/python -m pytest -n 2 --dist loadfile

# Chromium and what drives it are installed where that is possible. Where it is not, the tests say in one line that they did not run.
test-browser: $(STAMP)
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  { apt-get -qq update; DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium; } >/dev/null 2>&1; } || true
	@$(BIN)/python -c 'import playwright' 2>/dev/null || $(BIN)/python $(PIP) $(TESTED) playwright || true
	$(BIN)/python -m pytest tests/browser

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks tools examples
	$(BIN)/ruff format --check src tests benchmarks tools examples
	$(BIN)/mypy

# The documentation site, into site/: strict, so that a dead link or a page that is in no menu ends it. (The variable silences
# what the theme says of its successor; it is maintained until May 2027.)
DOCS := $(VENV)/.installed-docs
$(DOCS): $(STAMP)
	$(BIN)/python $(PIP) $(TESTED) --build-constraint constraints.txt --editable '.[docs]'
	touch $@

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Look at site/index.html"

# Quality and speed on three procedural sets beside those of the last release; fails where they fell. Gets the weights.
quality: $(STAMP)
	$(BIN)/python benchmarks/quality.py

# The wheel and the source package in dist/, looked at, and the wheel tried in a clean environment without extras.
wheel: $(STAMP)
	@$(BIN)/python -c 'import build, twine, check_wheel_contents' 2>/dev/null || $(BIN)/python $(PIP) build twine check-wheel-contents
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python tools/try_wheel.py dist/*.whl

# The newest versions of everything, written down if all tests pass with them: look at the difference before it is committed.
constraints: $(STAMP)
	$(BIN)/python $(PIP) --upgrade --upgrade-strategy eager pip --editable '.[dev,docs]'
	$(BIN)/python -m pytest -n 2 --dist loadfile
	$(BIN)/python tools/versions.py tested > constraints.new
	mv constraints.new constraints.txt

# All that a machine without internet needs, in the folder bundle/. See docs/offline.md.
bundle: $(STAMP)
	$(BIN)/python tools/bundle/make_bundle.py --extras '$(EXTRAS)'

# Known vulnerabilities of what is installed. Needs internet, and says so where there is none.
audit: $(STAMP)
	@$(BIN)/python -c 'import pip_audit' 2>/dev/null || $(BIN)/python $(PIP) pip-audit || true
	@$(BIN)/python tools/audit.py

clean:
	rm -rf $(VENV) $(OLDEST) dist demo-run site .mypy_cache .ruff_cache .pytest_cache
