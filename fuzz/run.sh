#!/usr/bin/env bash
# Builds fuzzers and runs them one after the other: those that are named, or all.
#
#   fuzz/run.sh [SECONDS] [NAME...]    each for so long; 60 s where none is given
#   fuzz/run.sh --runs N [NAME...]     each for N executions
#
# The first half of each run has short inputs. New inputs go to build/fuzz/corpus/NAME, what was reached to
# build/fuzz/runs.jsonl, from which tools/fuzz_page.py --add makes the table in fuzz/README.md.

set -euo pipefail
cd "$(dirname "$0")/.."
limit=-max_total_time amount=60
if [ "${1:-}" = --runs ]; then
  limit=-runs amount=${2:?fuzz/run.sh --runs N}
  shift 2
elif [[ ${1:-} =~ ^[0-9]+$ ]]; then
  amount=$1
  shift
fi
names=("$@")
if [ $# -eq 0 ]; then
  for source in fuzz/*_fuzz.cc; do names+=("$(basename "$source" _fuzz.cc)"); done
fi

cmake --preset fuzz >/dev/null
cmake --build build/fuzz --target "${names[@]/%/_fuzz}" >/dev/null
[ -d /dev/shm ] && export TMPDIR=/dev/shm  # kbit_weight writes files
# What an execution frees is quarantined until it ends; more only leaves the caches. Leaks are looked for at the end of
# a run instead of after executions. Together a third of the time.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:thread_local_quarantine_size_kb=128:malloc_context_size=1:max_malloc_fill_size=0:allocator_release_to_os_interval_ms=-1}
TIMEFORMAT='%U %S'

# run NAME LONGEST: half of the amount with inputs of at most so many bytes.
run() {
  local log=build/fuzz/$1.log dictionary=() cpu status=0
  [ -f "fuzz/$1.dict" ] && dictionary=("-dict=fuzz/$1.dict")
  cpu=$({ time "build/fuzz/bin/$1_fuzz" "$limit=$((amount / 2))" -max_len="$2" -timeout=60 -rss_limit_mb=2048 -entropic=0 \
    -detect_leaks=0 -reload=0 -verbosity=1 -print_final_stats=1 -artifact_prefix=build/fuzz/ "${dictionary[@]}" \
    "build/fuzz/corpus/$1" "fuzz/corpus/$1" >"$log" 2>&1; } 2>&1) || status=$?
  local executions
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '{"fuzzer": "%s", "longest": %d, "executions": %d, "cpu_s": [%s], "date": "%s", "commit": "%s", "status": %d}\n' "$1" "$2" \
    "${executions:-0}" "${cpu/ /, }" "$(date -I)" "$(git describe --always --dirty=+)" "$status" | tee -a build/fuzz/runs.jsonl
  [ "$status" -eq 0 ] || { grep -E 'ERROR|SUMMARY|Test unit written' "$log" >&2; return 1; }
}

for name in "${names[@]}"; do
  mkdir -p "build/fuzz/corpus/$name"
  case $name in
    answer_events) lengths=(16 32) ;;
    *_grammar) lengths=(64 128) ;;
    *) lengths=(256 4096) ;;
  esac
  for longest in "${lengths[@]}"; do run "$name" "$longest"; done
done
