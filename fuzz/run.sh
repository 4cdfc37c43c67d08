#!/usr/bin/env bash
# Builds all fuzzers and runs each for a while: fuzz/run.sh [SECONDS]. New inputs go to build/fuzz/corpus.

set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}

cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target fuzzers >/dev/null
[ -d /dev/shm ] && export TMPDIR=/dev/shm  # kbit_weight writes files
for source in fuzz/*_fuzz.cc; do
  name=$(basename "$source" _fuzz.cc)
  mkdir -p "build/fuzz/corpus/$name"
  dictionary=()
  [ -f "fuzz/$name.dict" ] && dictionary=("-dict=fuzz/$name.dict")
  case $name in
    answer_events) longest=32 ;;
    *_grammar) longest=128 ;;
    *) longest=4096 ;;
  esac
  echo "fuzz: $name for $seconds s" >&2
  "build/fuzz/bin/${name}_fuzz" -max_total_time="$seconds" -max_len="$longest" -timeout=20 -rss_limit_mb=2048 \
    -verbosity=0 -print_final_stats=1 "${dictionary[@]}" "build/fuzz/corpus/$name" "fuzz/corpus/$name" 2>&1 |
    grep -E 'number_of_executed_units|ERROR|SUMMARY|Test unit written' || true
  [ "${PIPESTATUS[0]}" -eq 0 ] || exit 1
done
