#!/usr/bin/env bash
# Real clients against a real server: tools/check_serve.sh [PRESET]. Makes build/venv-serve with the newest `openai` and
# `anthropic` from PyPI, starts `dsv4 serve demo` with a scripted engine and with the bundled model, and runs
# tools/serve/check_clients.py. Exit status 77: the packages are not to be had.

set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-cpu}
binary=build/$preset/bin/dsv4
venv=build/venv-serve

[ -x "$binary" ] || { echo "check_serve: no $binary: build preset $preset first" >&2; exit 1; }
if ! [ -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import openai, anthropic' 2>/dev/null; then
  python3 -m venv "$venv" &&
    "$venv/bin/pip" install --quiet --disable-pip-version-check openai anthropic >build/venv-serve.log 2>&1 ||
    { echo "openai and anthropic are not to be had from PyPI"; exit 77; }
fi
exec "$venv/bin/python" tools/serve/check_clients.py "$binary"
