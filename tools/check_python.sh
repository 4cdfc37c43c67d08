#!/usr/bin/env bash
# Builds the Python package beside libdsv4_kernels.so and runs its tests; those that need torch and a GPU say that they
# were skipped.
#
#   tools/check_python.sh [LIBRARY] [BUILD]     defaults: build/cuda/lib/libdsv4_kernels.so build/python
#
# Exit status 77, and the reason on the last line, where python3 lacks what this needs (tools/setup.sh does not
# install it: pip install nanobind numpy pytest).

set -euo pipefail
cd "$(dirname "$0")/.."
library=$(realpath -m "${1:-build/cuda/lib/libdsv4_kernels.so}")
build=$(realpath -m "${2:-build/python}")

if ! python3 -c 'import nanobind, numpy, pytest' 2>/dev/null; then
  echo "python3 lacks some of nanobind, numpy, pytest: pip install nanobind numpy pytest"
  exit 77
fi
cmake -S python -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDSV4_KERNELS_LIBRARY="$library" \
  -DPython_EXECUTABLE="$(python3 -c 'import sys; print(sys.executable)')" \
  -Dnanobind_DIR="$(python3 -m nanobind --cmake_dir)"
cmake --build "$build"
PYTHONPATH="$build" PYTHONDONTWRITEBYTECODE=1 python3 -m pytest -q -rs -p no:cacheprovider python/tests
