#!/usr/bin/env bash
# Builds fuzzers and runs them one after the other: those that are named, or all.
#
#   fuzz/run.sh [SECONDS] [NAME...]         each for so long; 60 s where none is given
#   fuzz/run.sh --runs N [NAME...]          each for N executions
#   fuzz/run.sh --jobs J ...                J processes at a time, each with a seed of its own; those of --runs make at most
#                                           100,000 executions each, so that what was counted outlives a machine
#   fuzz/run.sh --until S ...               with --runs: starts no more after S seconds, and those that run end then
#   fuzz/run.sh --rest ...                  with --runs: less what build/fuzz/runs.jsonl has already
#   fuzz/run.sh --built ...                 does not build: programs are in build/fuzz/bin, as on a machine without the
#                                           sources, where FUZZ_COMMIT is the commit to record
#   fuzz/run.sh --unpack NAME...            only unpacks seeds, to be changed by hand
#   fuzz/run.sh --pack NAME...              packs them again
#
# Seeds are unpacked from fuzz/corpus/NAME.tar.gz to build/fuzz/seeds/NAME, unless those there are newer. The first half
# of each run has short inputs. New inputs go to build/fuzz/corpus/NAME, what was reached to build/fuzz/runs.jsonl, from
# which `python3 tools/pages --add fuzz` makes the table in fuzz/README.md.

set -euo pipefail
cd "$(dirname "$0")/.."
limit=-max_total_time amount=60 jobs=1 until=0 rest=0 build=1 seeds=use names=()
while [ $# -gt 0 ]; do
  case "$1" in
    --runs) limit=-runs amount=${2:?fuzz/run.sh --runs N}; shift ;;
    --jobs) jobs=${2:?fuzz/run.sh --jobs J}; shift ;;
    --until) until=${2:?fuzz/run.sh --until S}; shift ;;
    --rest) rest=1 ;;
    --built) build=0 ;;
    --unpack | --pack) seeds=${1#--} ;;
    [0-9]*) amount=$1 ;;
    *) names+=("$1") ;;
  esac
  shift
done

unpack() { # unpack NAME
  local archive=fuzz/corpus/$1.tar.gz folder=build/fuzz/seeds/$1
  [ ! "$folder" -nt "$archive" ] || return 0
  rm -rf "$folder" "$folder.part"
  mkdir -p "$folder.part"
  tar -xzf "$archive" -C "$folder.part"
  mv "$folder.part" "$folder"
  touch "$folder"
}

# pack NAME: the same seeds give the same bytes.
pack() {
  local archive=fuzz/corpus/$1.tar.gz folder=build/fuzz/seeds/$1
  [ -d "$folder" ] || { echo "fuzz/run.sh: no $folder: unpack it first (fuzz/run.sh --unpack $1)" >&2; return 1; }
  find "$folder" -type f -printf '%P\n' | LC_ALL=C sort |
    tar -cf - -C "$folder" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 \
      --no-recursion --verbatim-files-from -T - | gzip -9n >"$archive"
  touch "$folder"
}

if [ "$seeds" != use ]; then
  [ ${#names[@]} -gt 0 ] || { echo "usage: fuzz/run.sh --$seeds NAME..." >&2; exit 2; }
  for name in "${names[@]}"; do "$seeds" "$name"; done
  exit
fi
if [ ${#names[@]} -eq 0 ]; then
  for source in fuzz/*_fuzz.cc; do names+=("$(basename "$source" _fuzz.cc)"); done
fi

if [ $build -eq 1 ]; then
  cmake --preset fuzz >/dev/null
  cmake --build build/fuzz --target "${names[@]/%/_fuzz}" >/dev/null
fi
[ -d /dev/shm ] && export TMPDIR=/dev/shm  # kbit_weight writes files
commit=${FUZZ_COMMIT:-$(git describe --always --dirty=+)}
# What an execution frees is quarantined until it ends; more only leaves the caches. Leaks are looked for at the end of
# a run instead of after executions. Together a third of the time.
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=4:thread_local_quarantine_size_kb=128:malloc_context_size=1:max_malloc_fill_size=0:allocator_release_to_os_interval_ms=-1}
TIMEFORMAT='%U %S'

# run NAME LONGEST AMOUNT PIECE: inputs of at most LONGEST bytes.
run() {
  local log=build/fuzz/$1.$2.$4.log found=build/fuzz/corpus/$1 options=() cpu status=0
  mkdir -p "$found"
  [ -f "fuzz/$1.dict" ] && options+=("-dict=fuzz/$1.dict")
  [ "$until" -eq 0 ] || options+=("-max_total_time=$((until - SECONDS > 1 ? until - SECONDS : 1))")
  cpu=$({ time "build/fuzz/bin/$1_fuzz" "$limit=$3" -max_len="$2" -timeout=60 -rss_limit_mb=2048 -entropic=0 \
    -detect_leaks=0 -reload=0 -verbosity=1 -print_final_stats=1 -artifact_prefix=build/fuzz/ "${options[@]}" \
    "$found" "build/fuzz/seeds/$1" >"$log" 2>&1; } 2>&1) || status=$?
  local executions
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  printf '{"fuzzer": "%s", "longest": %d, "executions": %d, "cpu_s": [%s], "date": "%s", "commit": "%s", "status": %d}\n' "$1" "$2" \
    "${executions:-0}" "${cpu/ /, }" "$(date -I)" "$commit" "$status" | tee -a build/fuzz/runs.jsonl
  [ "$status" -eq 0 ] || { grep -E 'ERROR|SUMMARY|Test unit written' "$log" >&2; return 1; }
}

# done_before NAME LONGEST: executions that build/fuzz/runs.jsonl has.
done_before() {
  if [ $rest -eq 0 ] || [ ! -f build/fuzz/runs.jsonl ]; then
    echo 0
    return
  fi
  sed -n 's/.*"fuzzer": "'"$1"'", "longest": '"$2"', "executions": \([0-9]*\),.*/\1/p' build/fuzz/runs.jsonl |
    awk '{n += $1} END {print n + 0}'
}

# plan NAME: a line "LONGEST AMOUNT" for each process.
plan() {
  local lengths longest share left piece
  case $1 in
    answer_events) lengths=(16 32) ;;
    *_grammar) lengths=(64 128) ;;
    *) lengths=(256 4096) ;;
  esac
  share=$(((amount + 1) / 2))
  for longest in "${lengths[@]}"; do
    if [ "$limit" = -max_total_time ]; then
      for ((piece = 0; piece < jobs; ++piece)); do echo "$longest $share"; done
    else
      left=$((share - $(done_before "$1" "$longest")))
      while [ "$left" -gt 0 ]; do
        piece=$((jobs > 1 && left > 100000 ? 100000 : left))
        echo "$longest $piece"
        left=$((left - piece))
      done
    fi
  done
}

running=0 failed=0 piece=0
end_one() {
  wait -n || failed=1
  running=$((running - 1))
}
for name in "${names[@]}"; do
  unpack "$name"
  processes=$(plan "$name")
  [ -n "$processes" ] || continue
  while read -r longest share; do
    [ $running -lt "$jobs" ] || end_one
    [ "$until" -eq 0 ] || [ "$until" -gt "$SECONDS" ] || break 2
    run "$name" "$longest" "$share" "$piece" &
    piece=$((piece + 1))
    running=$((running + 1))
  done <<<"$processes"
done
while [ $running -gt 0 ]; do end_one; done
exit $failed
