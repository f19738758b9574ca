# Everything a newcomer needs: `make quickstart`, `make test`. Each installs what it uses into .venv first.

ROOT := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
RUN := cd $(ROOT) && .venv/bin/python
VENV := $(ROOT).venv/made
QUICK := $(ROOT).venv/quick
INSTALLED := $(ROOT).venv/installed
SYNC := cd $(ROOT) && UV_PROJECT_ENVIRONMENT=.venv .venv/bin/uv sync --python .venv/bin/python --quiet --locked
OLDEST := $(ROOT).venv-oldest/installed
COMPILERS := $(ROOT).venv-compilers/installed
COMPILING := tests/attention/pallas/test_tpu.py tests/attention/pallas/test_gpu.py tests/preflight/test_tpu.py tests/preflight/test_gpu.py
UV := 0.13.8
# Many container images set this. Every process of the tests would then compile jax and its libraries from source again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install cuda tpu quickstart quickstart-far tables test test-all test-full test-oldest test-compilers test-hopper test-endurance reliability lint docs links wheel clean

install: $(INSTALLED)  ## only that

cuda tpu: $(INSTALLED)  ## JAX for NVIDIA GPUs, or for TPUs, as well
	$(SYNC) --inexact --extra dev --extra $@

quickstart: $(QUICK)  ## train a method of each kind, look far beyond the training context, write runs/quickstart/report.html
	$(RUN) -m bam_jax.sweep experiments/quickstart.py --runs=runs/quickstart
	$(RUN) -m bam_jax.report runs/quickstart

quickstart-far: $(QUICK)  ## after it: the same model to 2048 times its training context, some minutes
	$(RUN) -m bam_jax.evaluate --run=runs/quickstart/bam-ladder-effective-ssmax-seed0 --eval=passkey --lengths=65536,131072 --depths=3
	$(RUN) -m bam_jax.report runs/quickstart

tables: $(INSTALLED)  ## every table and figure of both papers at the toy scale: trains and evaluates what is missing, writes runs/tables
	$(RUN) -m bam_jax.sweep experiments/bam_*.py experiments/cable_*.py --scale=toy
	$(RUN) -m bam_jax.tables experiments/bam_*.py experiments/cable_*.py --scale=toy

test: $(INSTALLED)  ## the suite of a contributor
	$(RUN) -m pytest -n auto

test-all: lint docs test-oldest test-compilers test-hopper test-full  ## static checks, the site, the oldest supported jax, the compilers of kernels, GPU kernels interpreted, the full products

test-full: $(INSTALLED)  ## the full products and long runs, as XLA optimises them for users
	cd $(ROOT) && JAX_DISABLE_MOST_OPTIMIZATIONS=0 .venv/bin/python -m pytest -n auto -m 'full and not endurance'

test-oldest: $(OLDEST)  ## what users import into their own models, and GPU kernels of one bias compiled, with the oldest supported versions
	cd $(ROOT) && .venv-oldest/bin/python -m pytest -n auto -k 'not h100 or ggd' \
	tests/encodings/test_encodings.py tests/encodings/test_own.py tests/attention/test_*.py tests/attention/pallas

test-compilers: $(COMPILERS)  ## the kernels through the compilers of TPUs and GPUs; neither is needed
	cd $(ROOT) && .venv-compilers/bin/python -m pytest -n auto $(COMPILING) tests/benchmarks/test_tpu_static.py

test-hopper: $(INSTALLED)  ## the GPU kernels, interpreted thread by thread
	$(RUN) -m pytest -n auto -m hopper tests/attention

test-endurance: $(INSTALLED) $(COMPILERS)  ## kills, saves, repeated faults, more meshes and all pairs of settings, too long for continuous integration
	$(RUN) -m pytest -n auto -m endurance
	cd $(ROOT) && .venv-compilers/bin/python -m pytest -n auto -m endurance $(COMPILING)

reliability: $(INSTALLED)  ## the figures of docs/reliability.md, hours; stopped, it goes on
	$(RUN) tests/endurance/run.py
	$(RUN) tests/endurance/run.py --page

lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	cd $(ROOT) && .venv/bin/lint-imports --no-logo --no-cache
	cd $(ROOT) && .venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	cd $(ROOT) && .venv/bin/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	cd $(ROOT) && .venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	cd $(ROOT) && .venv/bin/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff

docs: $(INSTALLED)  ## the site, in site; a warning is an error
	cd $(ROOT) && if command -v npm >/dev/null && [ ! -e .venv/mathjax ]; then \
	npm install --silent --no-save --no-package-lock --prefix .venv/mathjax mathjax@3.2.2 || rm -rf .venv/mathjax; fi
	cd $(ROOT) && JAX_PLATFORMS=cpu .venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs site

links: $(INSTALLED)  ## every address on the pages answers; the list is in links
	cd $(ROOT) && JAX_PLATFORMS=cpu .venv/bin/python -m sphinx --keep-going --quiet -b linkcheck docs links

wheel: $(INSTALLED)  ## what is published: a wheel and an sdist, in dist
	cd $(ROOT) && rm -rf dist && .venv/bin/python -m hatchling build

clean:
	cd $(ROOT) && rm -rf .venv .venv-uv .venv-oldest .venv-compilers

# Where python3 is older than 3.12, uv finds or fetches another.
$(VENV): $(ROOT)pyproject.toml
	@cd $(ROOT) && if python3 -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then python3 -m venv .venv; \
	else python3 -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet uv==$(UV) \
	&& .venv-uv/bin/uv venv --quiet --clear --seed --python 3.12 .venv && rm -rf .venv-uv; fi \
	|| { echo "error: bam_jax needs Python 3.12, and uv could not fetch it: install it as python3, or set UV_PYTHON_INSTALL_MIRROR" >&2; exit 2; }
	cd $(ROOT) && .venv/bin/python -m pip install --quiet uv==$(UV)
	touch $@

# What the quickstart needs, and no more.
$(QUICK): $(VENV) $(ROOT)uv.lock
	$(SYNC) --inexact --extra train --extra results --extra figures
	touch $@

$(INSTALLED): $(VENV) $(ROOT)uv.lock
	$(SYNC) --inexact --extra dev
	touch $@ $(QUICK)

$(OLDEST): $(INSTALLED)
	cd $(ROOT) && .venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv-oldest
	cd $(ROOT) && .venv/bin/uv pip install --quiet --python .venv-oldest/bin/python --resolution lowest-direct --editable '.[dev]' 'jax-cuda13-pjrt>=0.11.2' 'jax-cuda13-plugin>=0.11.2' 'nvidia-cuda-nvcc>=13' 'nvidia-nvvm>=13'
	touch $@

$(COMPILERS): $(INSTALLED)
	cd $(ROOT) && .venv/bin/uv venv --quiet --clear --python .venv/bin/python .venv-compilers
	cd $(ROOT) && UV_PROJECT_ENVIRONMENT=.venv-compilers .venv/bin/uv sync --python .venv-compilers/bin/python --quiet --locked --extra dev --extra compilers
	touch $@
