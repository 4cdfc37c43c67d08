#!/bin/sh
# tools/load_sanitized.sh [SECONDS] [JOBS]: random load under AddressSanitizer with UBSan, and at the same time under
# ThreadSanitizer, with the bundled model: on the engine and its prefix cache (tests/engine/engine_load_test.cc), then on
# the whole server (tools/serve/soak.py). SECONDS for each of the two, an hour unless it says otherwise. Builds the presets
# asan and tsan. Exits with 1 when a sanitizer or a test reports something.
#
#   DSV4_SANITIZED="asan"            only that preset
#   DSV4_LOADS="server"              only that load
#   DSV4_BUILT=1                     with the programs that are in build/asan and build/tsan
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-3600} jobs=${2:-$(nproc)} presets=${DSV4_SANITIZED:-asan tsan} loads=${DSV4_LOADS:-engine server}
[ -n "${DSV4_BUILT:-}" ] || for preset in $presets; do
  cmake --preset "$preset" > /dev/null || exit 1
  for load in $loads; do
    target=engine_load_test
    [ "$load" = server ] && target=dsv4
    cmake --build --preset "$preset" -j "$jobs" --target $target > /dev/null || exit 1
  done
done
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive DSV4_LOAD_SECONDS="$seconds"
# As in ./check: libomp is not instrumented, libarcher reports its synchronization.
export OMP_TOOL_LIBRARIES=/usr/lib/llvm-14/lib/libarcher.so

# one PRESET LOAD: reports go to build/PRESET/LOAD_report.PID, what the load prints to build/PRESET/LOAD_load.log. Freed
# memory that AddressSanitizer keeps would look like a leak for the first minutes.
one() {
  rm -f build/"$1"/"$2"_report.*
  reports=log_path=$PWD/build/$1/$2_report
  export ASAN_OPTIONS="detect_leaks=1:quarantine_size_mb=16:$reports" UBSAN_OPTIONS="print_stacktrace=1:$reports"
  export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 suppressions=$PWD/cmake/tsan.supp $reports"
  if [ "$2" = server ]; then
    python3 tools/serve/soak.py "build/$1/bin/dsv4" --seconds "$seconds" --patience 20 --sanitized
  else
    "build/$1/bin/engine_load_test" --gtest_filter='*/demo'
  fi > "build/$1/$2_load.log" 2>&1
}

failed=0
for load in $loads; do
  pids=
  for preset in $presets; do
    one "$preset" "$load" &
    pids="$pids $!"
  done
  for pid in $pids; do wait "$pid" || failed=1; done
  for preset in $presets; do
    echo "$preset, $load, $seconds s: $(grep -E 'engines,|FAILED|PASSED|passed' "build/$preset/${load}_load.log" | tr '\n' ' ')"
    cat "build/$preset/${load}"_report.* 2> /dev/null && failed=1
  done
done
exit $failed
