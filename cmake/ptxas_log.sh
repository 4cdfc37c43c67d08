#!/usr/bin/env bash
# Launcher of nvcc (CMAKE_CUDA_COMPILER_LAUNCHER): what `-Xptxas -v` reports of OBJECT goes to OBJECT.ptxas for
# tools/check_ptxas.py, everything else that the compiler says to stderr as usual.
#
#   ptxas_log.sh [--seed] COMMAND ... -o OBJECT ...
#
# --seed gives nvcc the object's name as the seed of names that it invents, which otherwise have the number of its process
# in files that define nothing but templates (docs/releases.md).

set -uo pipefail
seed=
[ "$1" = --seed ] && { seed=1; shift; }
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
[ -n "$object" ] || exec "$@"
[ -n "$seed" ] && set -- "$@" "-frandom-seed=$object"

said=$(mktemp)
trap 'rm -f "$said"' EXIT
"$@" 2>"$said"
status=$?
report='^(ptxas info|    [0-9]+ bytes stack frame)'
grep -E "$report" "$said" >"$object.ptxas"
grep -vE "$report" "$said" >&2
exit $status
