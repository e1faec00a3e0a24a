# What there is to do with quire; CMake does the work. `make` alone prints this list.
.PHONY: help run check check-full bench format clean

help:
	@echo "make run         install what is missing, build, and let models/tiny-v41 tell a story"
	@echo "make check       every test that belongs to a change (15 minutes on two cores)"
	@echo "make check-full  every test there is, under every build"
	@echo "make bench       build and run the benches"
	@echo "make format      clang-format over the sources"
	@echo "make clean       remove build/"

run:
	@tools/setup
	@tools/build quire_program
	@build/release/quire run --model models/tiny-v41 "Tell me a story about a dragon."

check:
	@tools/check

check-full:
	@tools/check full

bench:
	@tools/setup
	@tools/build all
	@tools/bench

format:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
