#!/usr/bin/env bash
# The whole GPU check in one call, on a machine with a GPU and nothing of this project but the
# programs of the cuda preset: op tests, model tests, compute-sanitizer, benchmarks.
#
#   tools/gpu_check.sh [OUT] [STEP ...]     OUT: folder for logs and JSON (default gpu-check)
#
# Steps, in this order unless named: ops model python memcheck racecheck bench. The exit status counts
# what failed; the last line says "N passed, N failed". python wants torch in python3; without a network
# nanobind, numpy and pytest too.

set -uo pipefail
cd "$(dirname "$0")/.."
bin=${DSV4_BIN:-build/cuda/bin}
out=${1:-gpu-check}
shift $(($# > 0 ? 1 : 0))
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(ops model python memcheck racecheck bench)
mkdir -p "$out"
passed=0 failed=0
trap 'kill $(jobs -p) 2>/dev/null' EXIT  # a stopped check leaves nothing running on the GPU

count() { # count NAME STATUS LOG
  if [ "$2" -eq 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1, see $3"
    grep -E 'Failure|error|ERROR|FAILED|=====.*(Invalid|Race|hazard)' -A6 "$3" | head -n 40
  fi
}

# Several programs at a time: each leaves most of the GPU idle.
run_all() { # run_all LOG-SUFFIX COMMAND PROGRAM ...
  local suffix=$1 command=$2 program
  shift 2
  local jobs=()
  for program in "$@"; do
    local name
    name=$(basename "$program")
    # shellcheck disable=SC2086
    (timeout 540 $command "$program" >"$out/$name.$suffix.log" 2>&1; echo $? >"$out/$name.$suffix.status") &
    jobs+=("$name")
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
  done
  wait
  for name in "${jobs[@]}"; do
    count "$name ($suffix)" "$(cat "$out/$name.$suffix.status")" "$out/$name.$suffix.log"
    rm -f "$out/$name.$suffix.status"
  done
}

bench() { # bench NAME ARGUMENTS ...
  local name=$1
  shift
  "$bin/dsv4" bench "$@" --device cuda --json >"$out/$name.json" 2>"$out/$name.log"
  count "bench $name" $? "$out/$name.log"
}

for step in "${steps[@]}"; do
  case "$step" in
    ops) run_all ops "" "$bin"/op_*_test ;;
    model) run_all model "" "$bin"/{graph,tma_map,device,sticky_error,capi_device}_test ;;
    python)
      tools/check_python.sh "$bin/../lib/libdsv4_kernels.so" "$out/python" >"$out/python.log" 2>&1
      status=$?
      if [ $status -eq 77 ]; then echo "skipped: python ($(tail -n 1 "$out/python.log"))"
      else count python $status "$out/python.log"; fi
      ;;
    memcheck)
      # The peer's grid runs 1,800 large cases of shapes that op_sparse_mla_test also has: hours in a sanitizer.
      programs=("$bin/capi_device_test")
      for program in "$bin"/op_*_test; do
        case "$program" in *peer_grid*) ;; *) programs+=("$program") ;; esac
      done
      run_all memcheck "compute-sanitizer --tool memcheck --error-exitcode 9" "${programs[@]}"
      ;;
    racecheck)
      # Left out: what takes many minutes there and reaches no other kernel (long lists, whole vocabularies, the
      # largest products), and the cuBLASLt rows: racecheck reports hazards inside the library's own FP8 kernel.
      export GTEST_FILTER='-*ManyQueriesAndLongLists*:*NothingBehindALength*:*PartsThatSomebody*:Sample.AgreesWithOracle:Sample.Counts*:Experts.AlignedShapes*'
      programs=()
      for program in "$bin"/op_*_test; do
        case "$program" in *cublaslt* | *peer_grid*) ;; *) programs+=("$program") ;; esac
      done
      run_all racecheck "compute-sanitizer --tool racecheck --error-exitcode 9" "${programs[@]}"
      unset GTEST_FILTER
      ;;
    bench)
      bench decode_demo decode demo --context 1024 --batch 1,8
      bench prefill_demo prefill demo --tokens 3000
      # All 43 layers with 3-bit experts take 113 GiB; 24 of them fit an 80 GB card.
      memory=$("$bin/dsv4" inspect device --json | grep -o '"memory_bytes":[0-9]*' | head -n 1 | cut -d: -f2)
      layers=()
      [ "${memory:-0}" -gt 130000000000 ] || layers=(--layers 24)
      flash=(--synthetic flash --experts k3 "${layers[@]}")
      bench decode_flash decode "${flash[@]}" --batch 1,8,32 --context 4096,65536 --ops
      bench prefill_flash prefill "${flash[@]}" --tokens 8192,65536 --ops
      "$bin/dsv4_bench_cuda" -o "$out/ops.json" >"$out/ops.log" 2>&1
      count "bench ops" $? "$out/ops.log"
      ;;
    *) echo "gpu_check: no step $step" >&2; exit 2 ;;
  esac
done
echo "$passed passed, $failed failed"
exit $((failed > 0))
