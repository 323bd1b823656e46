# make demo [ROWS=3000], test, test-slow, lint, dist.
# Needs Python 3.11 or newer with venv and headers, a C compiler and make; everything else goes into .venv.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
KINDS := release debug
SOURCES := setup.py pyproject.toml archive/__init__.py $(wildcard _core/*.p*)

.PHONY: demo test test-slow lint dist clean $(KINDS)

demo: release
	@$(BIN)/python -m archive.demo $(if $(ROWS),--rows $(ROWS))

test: debug
	@$(BIN)/python -m pytest $(ARGS)

test-slow: debug
	@$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

lint: debug
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m mypy.stubtest archive._core archive._file --ignore-missing-stub --mypy-config-file pyproject.toml

dist: .venv/ready
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist . >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@$(BIN)/python .ci/dist.py dist

clean:
	rm -rf .venv build dist archive/_core.*.so archive/_file.*.so *.egg-info

# The two kinds of extensions are kept side by side in build/; the one asked for is put in place, whichever was there.
$(KINDS): %: build/%/ready
	@for file in build/$@/*.so; do \
	    cmp -s $$file archive/$${file##*/} || { cp $$file build/new && mv -f build/new archive/$${file##*/}; }; \
	done

$(KINDS:%=build/%/ready): build/%/ready: $(SOURCES) .venv/ready
	@echo "building the extensions ($*)"
	@rm -rf build/$* archive/_core.*.so archive/_file.*.so
	@ARCHIVE_BUILD=$* $(PIP) install --no-build-isolation --no-deps --editable .
	@mkdir -p build/$*
	@cp archive/_core.*.so archive/_file.*.so build/$*
	@touch $@

.venv/ready: pyproject.toml
	@echo "making .venv (once)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/python .ci/requirements.py >.venv/requirements.txt
	@$(PIP) install --requirement .venv/requirements.txt
	@mkdir -p build
	@touch $@
