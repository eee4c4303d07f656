# The README's commands, each complete on its own on a fresh machine.
#   make demo    set up, build, and train: real text, a hang on purpose, its recovery, the summary
#   make demo-nodes    the same on two nodes, one of which is lost on purpose
#   make test    set up, build, and run every test
PRESET ?= dev
BUILD := build/$(PRESET)
# Two compilations with LibTorch headers take about 1.5 GB each, so there are never more jobs than cores.
JOBS ?= $(shell nproc)

.PHONY: all setup arrow configure demo demo-nodes test test-fast lint format packed package wheel release clean

all: configure
	@cmake --build $(BUILD) -j $(JOBS)

setup:
	@tools/setup

# For Parquet in nsa-fetch; everything else builds without it.
arrow: setup
	@tools/fetch-arrow > /dev/null

configure: setup
	@tools/configure $(PRESET)

demo:
	@tools/setup --without-tests
	@tools/configure $(PRESET)
	@cmake --build $(BUILD) -j $(JOBS) --target nsactl nsad nsa-shim nsa-evidence nsa-worker nsa-model
	@text=$$(tools/fetch-text) && $(BUILD)/bin/nsactl demo --state build/demo --text "$$text" $(DEMO_OPTIONS)

# Two network namespaces represent two machines; needs root.
demo-nodes: configure
	@cmake --build $(BUILD) -j $(JOBS) --target nsactl nsad nsa-shim nsa-evidence nsa-worker
	@tools/demo-nodes $(BUILD)

test: arrow all
	@tools/fetch-tokenizer > /dev/null
	@tools/fetch-text wordnet > /dev/null
	@tools/run-tests $(BUILD) $(TEST_OPTIONS)

# The tests without LibTorch, which take seconds.
test-fast:
	@tools/setup --without-torch
	@tools/configure $(PRESET) -DNSA_WITH_TORCH=OFF
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/run-tests $(BUILD) --exclude torch --exclude e2e

lint:
	@tools/lint

format:
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' | xargs clang-format-19 -i

# Packages are made from a release build: the programs without benchmarks and tests.
packed: arrow
	@tools/fetch-text wordnet > /dev/null
	@tools/configure release
	@cmake --build build/release -j $(JOBS) --target packed

package: packed
	@tools/make-archive build/release build/packages

wheel: packed
	@tools/make-wheel build/release build/packages

release: packed
	@tools/make-release --build build/release

clean:
	rm -rf build
