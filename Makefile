# make demo [ROWS=3000], test, test-slow, peers, soak [SOAK=1200], coverage, sanitize, lint, bench, dist [NEWEST=python3.13].
# Needs Python 3.11 or newer with venv and headers, a C compiler and make; everything else goes into .venv, and what
# `make bench` compares with into build/bench.

PYTHON ?= python3
NEWEST ?= $(PYTHON)
BIN := .venv/bin
BENCH := build/bench/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
KINDS := release debug coverage sanitize
SOURCES := setup.py pyproject.toml archive/__init__.py $(wildcard _core/*.p*)

CORE_TESTS := $(addprefix tests/test_,core.py rows.py pool.py draws.py file_object.py plain.py semantics.py)
CORE := $(addprefix $(CURDIR)/,_core/core.pyx _core/rows.pyx _core/pool.pyx _core/append.pyx _core/file.pyx $(wildcard _core/*.pxd))
SANITIZER := LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
    PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1

.PHONY: demo test test-slow peers soak coverage sanitize lint bench dist clean $(KINDS:%=place-%)

demo: place-release
	@$(BIN)/python -m archive.demo $(if $(ROWS),--rows $(ROWS))

test: place-debug
	@$(BIN)/python -m pytest $(ARGS)

test-slow: place-debug
	@$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

# The presets beside the packages they stand for, those of them that can be installed here.
peers: place-debug build/bench/ready
	@$(BENCH)/python -m pytest tests/test_peers.py -rs $(ARGS)

# A writer that is killed again and again, a live reader and a sampler beside each other, for 20 minutes.
soak: place-release
	@$(BIN)/python tests/soak.py $(SOAK)

# Which lines of the core its tests run; fails below the share set in pyproject.toml, or if a file is not there.
coverage: place-coverage
	@$(BIN)/python -m coverage run -m pytest $(CORE_TESTS) $(ARGS)
	@$(BIN)/python -m coverage report $(CORE)

# The core's tests and those of the file under AddressSanitizer and UBSan; not for leaks: the interpreter has some.
sanitize: place-sanitize
	@$(SANITIZER) $(BIN)/python -m pytest $(CORE_TESTS) tests/test_format.py -k "not other_codecs" --capture=sys $(ARGS)

lint: place-debug
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m mypy.stubtest archive._core archive._rows archive._pool archive._append archive._file --ignore-missing-stub --mypy-config-file pyproject.toml

# The short set of the benchmarks, beside every rival that can be installed here.
bench: place-release build/bench/ready
	@$(BENCH)/python -m benchmarks --short --results benchmarks/results.md $(ARGS)

# sdist, its wheel, and the wheel for every Python from 3.11 on, which is tested with the newest one at hand.
dist: .venv/ready
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ARCHIVE_ABI3=1 $(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist/abi3 dist/*.tar.gz
	@$(BIN)/python .ci/dist.py dist $(PYTHON) $(NEWEST)

clean:
	rm -rf .venv build dist archive/_*.so *.egg-info

# Kinds of extensions are kept side by side in build/; the one asked for is put in place, whichever was there.
$(KINDS:%=place-%): place-%: build/%/ready
	@for file in build/$*/*.so; do \
	    cmp -s $$file archive/$${file##*/} || { cp $$file build/new && mv -f build/new archive/$${file##*/}; }; \
	done

$(KINDS:%=build/%/ready): build/%/ready: $(SOURCES) .venv/ready
	@echo "building the extensions ($*)"
	@rm -rf build/$* archive/_*.so
	@ARCHIVE_BUILD=$* $(PIP) install --no-build-isolation --no-deps --editable .
	@mkdir -p build/$*
	@cp archive/_*.so build/$*
	@touch $@

.venv/ready: pyproject.toml
	@echo "making .venv (once)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python .ci/requirements.py build run gym test lint >.venv/requirements.txt
	@$(PIP) install --requirement .venv/requirements.txt
	@mkdir -p build
	@touch $@

# One by one: a rival that cannot be installed is missing, and the others are compared.
build/bench/ready: pyproject.toml
	@echo "making build/bench (once)"
	@$(PYTHON) -m venv build/bench
	@$(BENCH)/python .ci/requirements.py run gym test >build/bench/own.txt
	@$(BENCH)/python -m pip install --quiet --requirement build/bench/own.txt
	@$(BENCH)/python .ci/requirements.py bench | while read -r peer; do \
	    $(BENCH)/python -m pip install --quiet "$$peer" --requirement build/bench/own.txt || echo "without $$peer"; \
	done
	@$(BENCH)/python .ci/requirements.py bench-alone | while read -r peer; do \
	    $(BENCH)/python -m pip install --quiet --no-deps "$$peer" || echo "without $$peer"; \
	done
	@touch $@
