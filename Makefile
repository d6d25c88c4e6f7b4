# Front door. Each target is a preset of CMakePresets.json or a script of tools/.
#   make          the program, at build/kondense      make demo    the whole job on a small model
#   make test     build and run the tests             make full    sanitizers, fuzzing, ARM, long tests
#   make gpu      the program with CUDA
.DEFAULT_GOAL := all
JOBS := $(shell nproc 2>/dev/null || echo 2)
CTEST := ctest --output-on-failure --no-tests=error --no-label-summary -j $(JOBS)
FUZZ_SECONDS ?= 60
.PHONY: all gpu packages demo test long farm-long soak api full debug asan tsan fuzz arm cuda lint tidy format man clean

define build
	@sh tools/configure.sh $(1)
	@cmake --build build/$(1) -j $(JOBS) --target $(or $(2),all)
endef

all:
	$(call build,release,kondense)
	@ln -sfn release/kondense build/kondense

# The program with CUDA, for the device architectures of cmake/cuda.cmake.
gpu:
	@PATH=$$PATH:/usr/local/cuda/bin; export PATH; \
	command -v nvcc >/dev/null || { echo "make gpu: nvcc is not installed (CUDA 13)" >&2; exit 1; }; \
	sh tools/packages.sh build && sh tools/configure.sh cuda && \
	cmake --build build/cuda -j $(JOBS) --target kondense && ln -sfn cuda/kondense build/kondense

packages:
	@sh tools/packages.sh build test

demo:
	@sh tools/packages.sh build
	@$(MAKE) --no-print-directory all
	@sh tools/demo.sh

test: packages
	$(call build,release)
	@ln -sfn release/kondense build/kondense
	@$(CTEST) -j $$(($(JOBS) + 1)) --test-dir build/release -LE long # some only wait

long: packages
	$(call build,release)
	@$(CTEST) --test-dir build/release -L long --no-tests=ignore

# The farm's faults, on SQLite and PostgreSQL, with a real Slurm where it is installed: half an hour.
farm-long: packages
	$(call build,release)
	@$(CTEST) -j 1 --test-dir build/release -L farm

# 64 clients against the real engine: plainly, then as long again with each sanitizer.
SOAK_SECONDS ?= 600
soak: packages
	@sh tools/packages.sh ci
	$(call build,release,kondense kondense_fake)
	@KONDENSE_SOAK=$(SOAK_SECONDS) sh tools/soak.sh build/release 64
	$(call build,asan,kondense kondense_fake)
	@KONDENSE_SOAK=$(SOAK_SECONDS) sh tools/soak.sh build/asan 24
	$(call build,tsan,kondense kondense_fake)
	@KONDENSE_SOAK=$(SOAK_SECONDS) sh tools/soak.sh build/tsan 16

# The table of docs/api.md, from the tests.
api: packages
	$(call build,release,kondense kondense_fake)
	@python3 tools/api_table.py build/release

debug: packages
	$(call build,debug)
	@$(CTEST) --test-dir build/debug -L 'unit|fuzz' -LE long

asan: packages
	@sh tools/packages.sh ci
	$(call build,asan)
	@$(CTEST) --test-dir build/asan -L 'unit|fuzz|fast' -LE 'long|figures'

tsan: packages
	@sh tools/packages.sh ci
	$(call build,tsan)
	@$(CTEST) --test-dir build/tsan -L 'unit|fast' -LE 'long|figures'

fuzz:
	@sh tools/packages.sh build ci
	$(call build,fuzz)
	@sh tools/fuzz.sh build/fuzz $(FUZZ_SECONDS)

arm:
	@sh tools/packages.sh build test arm
	$(call build,aarch64,kondense unit_tests)
	@$(CTEST) --test-dir build/aarch64 -L unit -LE 'long|heavy'

cuda:
	@sh tools/cuda.sh

lint:
	@sh tools/packages.sh build test ci
	@sh tools/configure.sh release
	@sh tools/lint.sh build/release

tidy: lint
	@sh tools/format.sh --check
	$(call build,release)
	@$(CTEST) --test-dir build/release -L style

format:
	@sh tools/packages.sh ci
	@sh tools/format.sh

man: all
	@sh tools/man.sh build/kondense docs/man

full: test asan tsan arm cuda fuzz tidy long

clean:
	rm -rf build
