# Front door. Each target is a preset of CMakePresets.json or a script of tools/.
.DEFAULT_GOAL := all
JOBS := $(shell nproc)
.PHONY: all packages demo test full clean debug asan tsan fuzz arm cuda tidy format

all:
	@cmake --preset release >build/configure.log 2>&1 || { mkdir -p build; cmake --preset release; }
	@cmake --build build/release -j $(JOBS)
	@ln -sfn release/kondense build/kondense
