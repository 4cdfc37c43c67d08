#!/usr/bin/env bash
# Launcher of nvcc (CMAKE_CUDA_COMPILER_LAUNCHER): what `-Xptxas -v` reports of OBJECT goes to OBJECT.ptxas for
# tools/check_ptxas.py, everything else that the compiler says to stderr as usual.
#
#   ptxas_log.sh COMMAND ... -o OBJECT ...

set -uo pipefail
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
status=$?
report='^(ptxas info|    [0-9]+ bytes stack frame)'
grep -E "$report" "$said" >"$object.ptxas"
grep -vE "$report" "$said" >&2
exit $status
