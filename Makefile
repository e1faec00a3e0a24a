# What there is to do with quire; CMake does the work. `make` alone prints this list.
.PHONY: help run install check check-full cuda-all bench format clean

help:
	@echo "make run         install what is missing, build, and let models/tiny-v41 tell a story"
	@echo "make install     build everything and install it (PREFIX=/usr/local, DESTDIR as usual)"
	@echo "make check       every test that belongs to a change (15 minutes on two cores)"
	@echo "make check-full  every test there is, under every build"
	@echo "make cuda-all    compile the CUDA backend for every target it has"
	@echo "make bench       build and run the benches"
	@echo "make format      clang-format over the sources"
	@echo "make clean       remove build/"

run:
	@tools/setup
	@tools/build quire_program
	@build/release/quire run --model models/tiny-v41 "Tell me a story about a dragon."

PREFIX ?= /usr/local
install:
	@tools/setup
	@tools/build all
	@cmake --install build/release --prefix "$(PREFIX)"

check:
	@tools/check

check-full:
	@tools/check full

cuda-all:
	@cmake -S . -B build/cuda-all -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON \
		-DQUIRE_CUDA_ARCHS="80-real;89-real;90a-real;100-real;120-real" >build/cuda-all.log
	@cmake --build build/cuda-all --target quire_cuda

bench:
	@tools/setup
	@tools/build all
	@tools/bench

format:
	@git ls-files '*.c' '*.h' '*.cu' '*.cuh' | xargs clang-format -i

clean:
	rm -rf build
