# `make` alone lists what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := postgres,mysql,console,kv,archive,certificate
# One more than there are cores: tests of locks, of time limits and of killed processes wait much of their time.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n > 3 ? 4 : n + 1 )))
SERVERS := postgresql mariadb-server mariadb-plugin-rocksdb faketime chromium pgbouncer \
  postgresql-15-cron postgresql-15-partman percona-toolkit prometheus

.PHONY: help dist demo test mysql tidb matrix helm django check chaos scale galera bench bench-full docs servers fetched clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: $(STAMP) ## a table, a policy, rows that expire: the whole story on a scratch file
	@$(BIN)/lapse demo

test: $(STAMP) servers fetched check ## run the checks and all tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

check: $(STAMP) ## lint, format, types and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

mysql: $(STAMP) servers fetched ## every test of MySQL, those that make test leaves out as well; LAPSE_TEST_MYSQL_URL names another server
	LAPSE_TEST_ALL=1 $(BIN)/python -m pytest -n $(JOBS) tests/conformance tests/mysql tests/safety -k "mysql and not mariadb" $(ARGS)

tidb: $(STAMP) ## build tidb-server into the user's cache, once (ten minutes of a processor), and run TiDB's scenarios and the conformance suite on it
	$(BIN)/python -m tests.backends.tidb_build
	LAPSE_TEST_TIDB=1 LAPSE_TEST_ONLY=tidb $(BIN)/python -m pytest tests/tidb tests/conformance tests/unit/engines/mysql/test_tidb.py $(ARGS)

matrix: $(STAMP) servers ## conformance and engine tests on every server that README names; writes docs/engines.md
	$(BIN)/python -m tests.matrix -n $(JOBS) $(ARGS)

helm: $(STAMP) ## build helm into the user's cache, once (two minutes of a processor, with Go), and try the chart with it
	@folder=$$($(BIN)/python -c "from tests.backends.packages import cache_folder; print(cache_folder())"); \
	command -v helm > /dev/null || test -x "$$folder/helm" || GOBIN="$$folder" go install helm.sh/helm/v3/cmd/helm@$(HELM)
	$(BIN)/python -m pytest tests/console/test_deploy.py $(ARGS)

HELM ?= v3.22.0
# Django 6 needs Python 3.12 or newer: the first that runs, from the path or from pyenv.
DJANGOS ?= 4.2 5.2 6.0
NEWEST_PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 \
  $$(ls -rd "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-9].*/bin/python 2>/dev/null) $(PYTHON); do \
  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && echo "$$python" && break; done)
django: $(STAMP) servers fetched ## the tests of Django under each of its supported versions, in environments of their own
	@grep -vi '^django==' constraints.txt > .venv/without-django.txt; \
	for version in $(DJANGOS); do \
	  case $$version in 4.*|5.*) python="$(PYTHON)";; *) python="$(NEWEST_PYTHON)";; esac; \
	  echo "Django $$version"; test -x .venv-django-$$version/bin/python || "$${python:?Django $$version needs Python 3.12}" -m venv .venv-django-$$version; \
	  .venv-django-$$version/bin/python -m pip install --quiet --disable-pip-version-check -c .venv/without-django.txt \
	    -e ".[$(EXTRAS)]" "django==$$version.*" \
	    $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['dev'])") \
	    && .venv-django-$$version/bin/python -m pytest -n $(JOBS) tests/django -m "slow or not slow" $(ARGS) || exit 1; \
	done

chaos: $(STAMP) servers fetched ## minutes of killed, frozen and failing workers on every server
	$(BIN)/python -m pytest tests/chaos tests/conformance/test_holds_at_any_moment.py tests/safety/test_behind_its_back.py -m slow -s $(ARGS)

scale: $(STAMP) servers ## a thousand policies on four workers, and two thousand leaves: their statements are counted
	$(BIN)/python -m pytest tests/conformance/test_thousands.py -m slow $(ARGS)

galera: SERVERS = mariadb-server galera-4 rsync
galera: $(STAMP) servers ## a Galera cluster of three nodes, one of which is killed in the middle of jobs
	$(BIN)/python -m pytest tests/galera -m slow -s $(ARGS)

bench bench-full: SERVERS += redis-server
bench: $(STAMP) servers ## measure against everything a user would pick instead, and write docs/performance.md
	PYTHONPATH=. $(BIN)/python -m bench $(ARGS)

bench-full: $(STAMP) servers ## ten million rows of which a tenth has expired, and a log of as many; most of an hour
	PYTHONPATH=. $(BIN)/python -m bench --part full $(ARGS)

docs: $(STAMP) ## write the parts of docs/ that the code knows best, and the site into site/
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/build.py site

dist: $(STAMP) ## build wheel and sdist into dist/ and install the wheel into a fresh environment
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m pytest tests/unit/test_dist.py -m slow $(ARGS)

clean: ## remove the virtual environment and all caches
	rm -rf $(VENV) .venv-django-* dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The dependency group is read here because older versions of pip do not know the word.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]" \
	  $$($(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['dev'])")
	@touch $@

# Servers that this machine's Debian does not have are unpacked or built in the user's cache, once. Nothing is installed.
fetched: $(STAMP) servers
	@command -v apt-get >/dev/null || exit 0; \
	$(BIN)/python -m tests.backends.packages mysql || { echo "could not fetch mysql" >&2; [ "$$CI" != true ]; }
	@if ! command -v go >/dev/null; then echo "no Go here: the tests of S3 are skipped" >&2; [ "$$CI" != true ]; exit; fi; \
	$(BIN)/python -m tests.backends.s3_build || { echo "could not build versitygw" >&2; [ "$$CI" != true ]; }

# Tests of a server that is not there are skipped, except on CI, where that would hide a failure.
servers:
	@if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then exit 0; fi; \
	missing=$$(for name in $(SERVERS); do \
	  dpkg-query -W -f '$${Status}' $$name 2>/dev/null | grep -q 'ok installed' || echo $$name; done); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	echo "installing" $$missing; export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } \
	  || { echo "could not install" $$missing >&2; [ "$$CI" != true ]; }
