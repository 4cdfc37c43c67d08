#!/usr/bin/env bash
# The whole GPU check in one call, on a machine with a GPU that needs nothing of this project except
# the programs of the cuda preset: op tests, model tests, compute-sanitizer, benchmarks.
#
#   tools/gpu_check.sh [OUT] [STEP ...] [--only OP] [--kernels TEXT]
#
# OUT: folder for logs and JSON (default gpu-check).
#
# Steps, in this order unless named: ops model python memcheck racecheck bench peer speed. The exit status is the number
# of failures; the last line says "N passed, N failed". python and peer need torch in python3; without a network also
# nanobind, numpy and pytest. Without flash_mla sparse_mla's peer counts as skipped: it is compared with a table. speed
# compares what bench and peer left in OUT with bench/results/minimums.json and fails below 90 % (tools/check_speed.py).
#
#   --only OP        ops, memcheck and racecheck run only the programs of this op, the sanitizers each of its tests in
#                    a separate process
#   --kernels TEXT   the sanitizers check only kernels with TEXT in their mangled names. The others run at full
#                    speed, so racecheck skips no test
#
# Hopper's attention in both sanitizers, 7 to 10 minutes on an H100:
#   tools/gpu_check.sh OUT memcheck racecheck --only sparse_mla --kernels sm90_

set -uo pipefail
cd "$(dirname "$0")/.."
bin=${DSV4_BIN:-build/cuda/bin}
out=gpu-check only="" kernels="" steps=()
[[ $# -eq 0 || $1 == --* ]] || { out=$1; shift; }
while [ $# -gt 0 ]; do
  case "$1" in
    --only) only=${2:?--only OP}; shift 2 ;;
    --kernels) kernels=${2:?--kernels TEXT}; shift 2 ;;
    *) steps+=("$1"); shift ;;
  esac
done
[ ${#steps[@]} -gt 0 ] || steps=(ops model python memcheck racecheck bench peer speed)
mkdir -p "$out"
passed=0 failed=0
trap 'kill $(jobs -p) 2>/dev/null' EXIT  # when stopped, leave nothing running on the GPU

count() { # count NAME STATUS LOG
  if [ "$2" -eq 0 ]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $1, see $3"
    grep -E 'Failure|error|ERROR|FAILED|^slow|=====.*(Invalid|Race|hazard)' -A6 "$3" | head -n 40
  fi
}

count_or_skip() { # count_or_skip NAME STATUS LOG: 77: the machine lacks a requirement
  if [ "$2" -eq 77 ]; then echo "skipped: $1 ($(tail -n 1 "$3"))"; else count "$@"; fi
}

# Runs several programs at a time, because each leaves most of the GPU idle. PROGRAM or PROGRAM=TEST.
run_all() { # run_all LOG-SUFFIX COMMAND PROGRAM ...
  local suffix=$1 command=$2 each program test name
  shift 2
  local jobs=()
  for each in "$@"; do
    program=${each%%=*} test=${each#"$program"}
    name=$(basename "$program")${test//[=\/]/.}
    # shellcheck disable=SC2086
    (timeout 540 $command "$program" ${test:+--gtest_filter$test} >"$out/$name.$suffix.log" 2>&1
     echo $? >"$out/$name.$suffix.status") &
    jobs+=("$name")
    while [ "$(jobs -rp | wc -l)" -ge 8 ]; do wait -n; done
  done
  wait
  for name in "${jobs[@]}"; do
    count "$name ($suffix)" "$(cat "$out/$name.$suffix.status")" "$out/$name.$suffix.log"
    rm -f "$out/$name.$suffix.status"
  done
}

op_programs() { # op_programs [EXCEPT]: one per line
  local program
  for program in "$bin"/op_*"$only"*_test; do
    [[ $program =~ ${1:-^$} ]] || echo "$program"
  done
}

sanitize() { # sanitize TOOL PROGRAM ...
  local tool=$1 program chosen=() programs=()
  shift
  for program in "$@"; do
    # A filter that matches no kernel would always pass.
    [ -z "$kernels" ] || grep -qa -- "$kernels" "$program" && chosen+=("$program")
  done
  if [ ${#chosen[@]} -eq 0 ]; then
    echo "gpu_check: no program of ${only:-all ops} has a kernel with ${kernels:-any name}" >&2
    exit 2
  fi
  for program in "${chosen[@]}"; do
    if [ -z "$only" ]; then
      programs+=("$program")
    else
      mapfile -O ${#programs[@]} -t programs < <("$program" --gtest_list_tests |
        awk -v program="$program" '/^[^ ]/ {suite = $1; next} {print program "=" suite $1}')
    fi
  done
  run_all "$tool" "compute-sanitizer --tool $tool --error-exitcode 9 ${kernels:+--kernel-name kernel_substring=$kernels}" \
    "${programs[@]}"
}

bench() { # bench NAME ARGUMENTS ...
  local name=$1
  shift
  "$bin/dsv4" bench "$@" --device cuda --json >"$out/$name.json" 2>"$out/$name.log"
  count "bench $name" $? "$out/$name.log"
}

for step in "${steps[@]}"; do
  case "$step" in
    ops) mapfile -t programs < <(op_programs); run_all ops "" "${programs[@]}" ;;
    model) run_all model "" "$bin"/{harness_op_check,graph,tma_map,device,sticky_error,capi_device,one_layer,engine_prefix_gpu,speculation_gpu,quantize_gpu,repeated_steps,expert_store_gpu,pack_image}_test ;;
    python)
      tools/check_python.sh "$bin/../lib/libdsv4_kernels.so" "$out/python" >"$out/python.log" 2>&1
      count_or_skip python $? "$out/python.log"
      ;;
    memcheck)
      # The peer's grid has 1,800 large cases of shapes that op_sparse_mla_test also covers: hours in a sanitizer.
      mapfile -t programs < <(op_programs peer_grid)
      [[ sparse_mla =~ $only ]] && programs+=("$bin/capi_device_test")
      sanitize memcheck "${programs[@]}"
      ;;
    racecheck)
      # Excluded: tests that take many minutes there and reach no other kernel (long lists, whole vocabularies, the
      # largest products), and the cuBLASLt implementations: racecheck reports hazards inside the library's own FP8 kernel.
      [ -n "$kernels" ] ||
        export GTEST_FILTER='-*ManyQueriesAndLongLists*:*IgnoresIndicesPastTopkLength*:Sample.AgreesWithOracle:Sample.Counts*:Experts.AlignedShapes*'
      mapfile -t programs < <(op_programs 'cublaslt|peer_grid')
      sanitize racecheck "${programs[@]}"
      unset GTEST_FILTER
      ;;
    bench)
      bench decode_demo decode demo --context 1024 --batch 1,8
      bench prefill_demo prefill demo --tokens 3000
      bench link link
      # Experts in host memory need all 43 layers of it: 147 GB in FP4, less what the GPU holds.
      # Each budget with uniform routing, with the popularity of experts that was published, and with a prompt.
      while read -r name budget; do
        # shellcheck disable=SC2086
        store=(--synthetic flash --experts-memory auto $budget)
        bench "store_$name" decode "${store[@]}" --batch 1,8 --steps 64
        bench "store_${name}_zipf" decode "${store[@]}" --batch 1,8 --steps 64 --routing zipf:0.88
        bench "store_${name}_prompt" prefill "${store[@]}" --chunk 8192 --tokens 16384
      done <<'BUDGETS'
fp4_all --experts mxfp4
fp4_80g --experts mxfp4 --gpu-memory 78G
k3_80g --experts k3-e4m3 --gpu-memory 78G
k3_24g --experts k3-e4m3 --gpu-memory 24G
BUDGETS
      # All 61 layers, whose copies share 90 GiB of host memory.
      bench store_pro_k2 decode --synthetic pro --experts k2-e4m3 --experts-memory auto --share-copies --host-memory 90G \
        --batch 1,8 --steps 64
      bench store_pro_k2_prompt prefill --synthetic pro --experts k2-e4m3 --experts-memory auto --share-copies --host-memory 60G \
        --chunk 8192 --tokens 16384
      # All 43 layers with 3-bit experts take 113 GiB; 24 of them fit in an 80 GB GPU.
      memory=$("$bin/dsv4" inspect device --json | grep -o '"memory_bytes":[0-9]*' | head -n 1 | cut -d: -f2)
      layers=()
      [ "${memory:-0}" -gt 130000000000 ] || layers=(--layers 24)
      flash=(--synthetic flash --experts k3-e4m3 "${layers[@]}")
      bench decode_flash decode "${flash[@]}" --batch 1,8,32 --context 4096,65536 --ops
      bench decode_batches decode "${flash[@]}" --batch 1,2,4,8,16,32,64 --context 4096
      bench decode_traced decode "${flash[@]}" --batch 1 --context 4096 --trace "$out/decode_trace.json"
      bench decode_deterministic decode "${flash[@]}" --deterministic --batch 1,8,32 --context 4096
      bench rounds_lookup decode "${flash[@]}" --draft-tokens 0,1,2,3,7 --accept 0.9 --steps 128
      # Acceptance as published for answers that think, and for those that do not.
      rounds=(decode "${flash[@]}" --steps 128)
      bench rounds_mtp "${rounds[@]}" --speculate mtp --draft-tokens 0,1,2,3 --accept 0.79,0.61,0.46 --batch 1,8
      bench rounds_mtp_direct "${rounds[@]}" --speculate mtp --draft-tokens 0,1,2,3 --accept 0.92,0.75,0.52
      bench rounds_dspark "${rounds[@]}" --speculate dspark --draft-tokens 0,1,3,5 --accept 0.86,0.8,0.77,0.66,0.89 --batch 1,8
      bench rounds_dspark_direct "${rounds[@]}" --speculate dspark --draft-tokens 0,5 --accept 0.93,0.89,0.86,0.89,0.67
      bench decode_dense_k5 decode "${flash[@]}" --dense k5-e4m3 --batch 1,8 --context 4096
      bench prefill_flash prefill "${flash[@]}" --tokens 8192,65536 --ops
      bench prefill_8192 prefill "${flash[@]}" --tokens 8192,65536 --chunk 8192
      bench decode_mxfp4 decode --synthetic flash --experts mxfp4 --layers 24 --batch 1,8,32,64 --context 4096
      bench prefill_mxfp4 prefill --synthetic flash --experts mxfp4 --layers 24 --tokens 8192 --ops
      bench cache_flash cache "${flash[@]}"
      bench decode_pro decode --synthetic pro --experts k2-e4m3 --layers 6 --batch 1,8,32 --context 4096
      "$bin/dsv4_bench_cuda" -o "$out/ops.json" >"$out/ops.log" 2>&1
      count "bench ops" $? "$out/ops.log"
      ;;
    peer)
      # Uses the package built by step python.
      PYTHONPATH="$out/python${PYTHONPATH:+:$PYTHONPATH}" python3 bench/peer_sparse_mla.py \
        --out "$out/peer_sparse_mla.json" >"$out/peer.log" 2>&1
      count_or_skip peer $? "$out/peer.log"
      PYTHONPATH="$out/python${PYTHONPATH:+:$PYTHONPATH}" python3 bench/peer_xattn.py \
        --out "$out/peer_xattn.json" >"$out/peer_xattn.log" 2>&1
      count_or_skip "peer of xattn" $? "$out/peer_xattn.log"
      for table in "peer_kbit --quick" "peer_kbit_moe --moe"; do
        name=${table% *}
        PYTHONPATH="$out/python${PYTHONPATH:+:$PYTHONPATH}" python3 bench/peer_kbit.py "${table#* }" \
          --out "$out/$name.json" >"$out/$name.log" 2>&1
        count_or_skip "$name" $? "$out/$name.log"
      done
      ;;
    speed)
      tools/check_speed.py "$out" >"$out/speed.log" 2>&1
      count_or_skip speed $? "$out/speed.log"
      ;;
    *) echo "gpu_check: unknown step $step" >&2; exit 2 ;;
  esac
done
echo "$passed passed, $failed failed"
exit $((failed > 0))
