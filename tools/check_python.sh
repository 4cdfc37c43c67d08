#!/usr/bin/env bash
# Builds the Python package beside libdsv4_kernels.so and runs its tests; those that need torch and a GPU report that
# they were skipped.
#
#   tools/check_python.sh [--torch] [LIBRARY] [BUILD]     defaults: build/cuda/lib/libdsv4_kernels.so build/python; the library
#                                                of preset cpu does for all tests but those on a GPU
#
# --torch: in build/venv-torch, with the packages of python/tests/requirements-torch.txt (torch for CPU tensors,
# transformers; PyPI's torch for Linux comes with CUDA's libraries, 7 GB on disk), so that the tests with torch tensors run.
#
# python3 runs the tests if it has nanobind, numpy and pytest. Otherwise these are installed, in the versions of
# python/tests/requirements.txt, into build/venv-python, which also has the packages of python3 (torch); python3 itself
# is not changed. Exit status 77, with the reason on the last line, when pip or the network is missing.

set -euo pipefail
cd "$(dirname "$0")/.."
torch=0
[ "${1:-}" = --torch ] && { torch=1; shift; }
library=$(realpath -m "${1:-build/cuda/lib/libdsv4_kernels.so}")
build=$(realpath -m "${2:-build/python}")
wanted=python/tests/requirements.txt venv=build/venv-python
[ $torch -eq 1 ] && wanted=python/tests/requirements-torch.txt venv=build/venv-torch

# The copy of the list is written last: without it the venv is incomplete or has other versions.
make_venv() {
  cmp -s "$wanted" "$venv/requirements.txt" && "$venv/bin/python" -c '' 2>/dev/null && return
  local log=$venv.log
  mkdir -p build
  if ! python3 -m venv --clear --system-site-packages "$venv" >"$log" 2>&1; then
    cat "$log"
    echo "python3 cannot make a venv, or has no pip for it: tools/setup.sh check installs python3-venv"
    exit 77
  fi
  if ! "$venv/bin/python" -m pip install --only-binary :all: --no-input --disable-pip-version-check --retries 1 \
      --timeout 20 -r "$wanted" >"$log" 2>&1; then
    cat "$log"
    # Anything else, such as a version that does not exist, is our mistake.
    grep -qiE 'connection broken|could not fetch|from versions: none|http error|timed out' "$log" || exit 1
    echo "python3 lacks some of nanobind, numpy, pytest, and pip does not reach the index to install them from"
    exit 77
  fi
  cp "$wanted" "$venv/requirements.txt"
}

python=$(command -v python3) || { echo "no python3: tools/setup.sh check installs it"; exit 77; }
if [ $torch -eq 1 ] || ! "$python" -c 'import nanobind, numpy, pytest' 2>/dev/null; then
  make_venv
  python=$venv/bin/python
fi
# --fresh: searches again, since python3 or nanobind may have changed.
cmake --fresh -S python -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDSV4_KERNELS_LIBRARY="$library" \
  -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" \
  -Dnanobind_DIR="$("$python" -m nanobind --cmake_dir)"
cmake --build "$build"
# The tests use no plugin; the machine's plugins may be for another pytest.
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 PYTHONPATH="$build" PYTHONDONTWRITEBYTECODE=1 \
  "$python" -m pytest -q -rs -p no:cacheprovider python/tests
