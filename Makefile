# `make demo` trains on this machine; `make test` runs all but the slow tests; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SLURM_PACKAGES := slurm-wlm munge iproute2
BROWSER_PACKAGES := chromium

.PHONY: demo test chaos lint slurm browser clean

demo: $(VENV)/.demo
	$(BIN)/python -m hpcddp submit --nodes 2 --cluster local --follow

test: $(VENV)/.test slurm browser
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# What takes minutes to an hour: many interruptions of one run, a thousand kills of a writer,
# a hundred cancels, the demo to its accuracy.
chaos: $(VENV)/.test slurm
	$(BIN)/python -m pytest -s -m slow

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(VENV)/.demo: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	touch $@

$(VENV)/.test: setup.cfg
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.demo

# Tests in tests/slurm start their own Slurm cluster; that takes root and these packages.
slurm:
	@if command -v slurmctld >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(SLURM_PACKAGES) >/dev/null; \
	else echo "No Slurm here and no root to install it: the tests in tests/slurm will be skipped."; fi

# One test opens a page in a real browser.
browser:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(BROWSER_PACKAGES) >/dev/null; \
	else echo "No chromium here and no root to install it: tests that open a page will be skipped."; fi

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .ruff_cache .hypothesis
