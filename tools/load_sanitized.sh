#!/bin/sh
# tools/load_sanitized.sh [SECONDS] [JOBS]: random load on the engine and its prefix cache (tests/engine/engine_load_test.cc)
# with the bundled model, under AddressSanitizer with UBSan, and at the same time under ThreadSanitizer. An hour each unless
# SECONDS says otherwise. Builds the presets asan and tsan. Exits with 1 when a sanitizer or a test reports something.
set -u
cd "$(dirname "$0")/.." || exit 1
seconds=${1:-3600} jobs=${2:-$(nproc)}
for preset in asan tsan; do
  cmake --preset $preset > /dev/null && cmake --build --preset $preset -j "$jobs" --target engine_load_test > /dev/null || exit 1
done
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive DSV4_LOAD_SECONDS="$seconds"
# Freed memory that AddressSanitizer keeps would look like a leak for the first minutes.
export ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16
# As in ./check: libomp is not instrumented, libarcher reports its synchronization.
export OMP_TOOL_LIBRARIES=/usr/lib/llvm-14/lib/libarcher.so
export TSAN_OPTIONS="halt_on_error=1 ignore_noninstrumented_modules=1 suppressions=$PWD/cmake/tsan.supp"
pids=
for preset in asan tsan; do
  build/$preset/bin/engine_load_test --gtest_filter='*/demo' > build/$preset/engine_load.log 2>&1 &
  pids="$pids $!"
done
failed=0
for pid in $pids; do wait "$pid" || failed=1; done
for preset in asan tsan; do
  echo "$preset, $seconds s: $(grep -E 'engines,|WARNING|ERROR|FAILED|PASSED' build/$preset/engine_load.log | tr '\n' ' ')"
done
exit $failed
