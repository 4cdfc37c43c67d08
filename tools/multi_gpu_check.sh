#!/usr/bin/env bash
# The check of several GPUs in one call. One GPU is enough for all but the link: its ranks then share it.
#
#   tools/multi_gpu_check.sh [OUT] [STEP ...]
#
# OUT: folder for logs and JSON (default multi-gpu-check).
#
#   exchange   what each rank ends with, faults; under memcheck
#   bits       --deterministic: the bundled model and six layers of V4-Flash, logits and caches of ranks equal one rank's
#   whole      the same with whole experts (--experts-placement whole)
#   soak       DSV4_RANKS_STEPS captured steps with random batches (20,000), equal to one rank's
#   processes  ranks that are processes: answers, prefixes, servers, ranks that are killed or stopped; logits of six layers of V4-Flash;
#              the time of an exchange. Their logits and caches by memcmp are in `bits`
#   nccl       the same with exchanges by NCCL (DSV4_NCCL: its library), on two GPUs
#   engine     answers, drafts of the MTP block, prefixes from the cache, host memory and the disk, a rank that throws or stalls
#   serve      a server on ranks: 2,000 requests of 32 clients, of which some leave, get the answers of a server on one GPU
#   faults     what a GPU that is not there says
#   bench      an exchange beside NCCL's all-gather; decode and prefill of six layers of V4-Flash in FP4 on one GPU and on two; the whole model on two H200
#
# The exit status is the number of failures; the last line says "N passed, N failed".

set -uo pipefail
cd "$(dirname "$0")/.."
bin=${DSV4_BIN:-build/cuda/bin}
out=multi-gpu-check steps=()
[[ $# -eq 0 ]] || { out=$1; shift; }
[ $# -gt 0 ] && steps=("$@") || steps=(exchange bits whole soak engine processes nccl serve faults bench)
mkdir -p "$out"
passed=0 failed=0
gpus=$(nvidia-smi -L | wc -l)
[ "$gpus" -gt 1 ] && two=0,1 || two=0,0
export DSV4_RANKS_GPUS=$([ "$gpus" -gt 1 ] && echo 2 || echo 1)
nvidia-smi topo -p2p w > "$out/topology.log" 2>&1

check() { # check NAME SECONDS COMMAND ...
  local name=$1 seconds=$2 begin=$SECONDS status
  shift 2
  if [ "$(type -t "$1")" = function ]; then "$@"; else timeout "$seconds" "$@"; fi > "$out/$name.log" 2>&1
  status=$?
  if [ $status -eq 0 ]; then
    passed=$((passed + 1))
    echo "$name: $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    echo "FAILED: $name (status $status, $((SECONDS - begin)) s), see $out/$name.log"
    grep -E 'Failure|error|ERROR|FAILED|=====.*(Invalid|Race|hazard)' -A6 "$out/$name.log" | head -n 20
  fi
  free_again "$name"
}

# JSON as bench/results has it.
report() { # report NAME ARGUMENTS ... of dsv4 bench
  local name=$1
  shift
  check "$name" 240 "$bin/dsv4" bench "$@"
  grep '^{' "$out/$name.log" > "$out/$name.json" || true
}

# No process of ours may keep memory of a GPU.
free_again() { # free_again NAME
  local used
  used=$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null | wc -l)
  [ "$used" -eq 0 ] || echo "note: after $1 $used processes hold memory of a GPU"
}

refused() { # refused TEXT ARGUMENTS ...: one line that begins so, within 15 s
  local text=$1 said
  shift
  said=$(timeout 15 "$bin/dsv4" "$@" 2>&1) && return 1
  echo "$said"
  [ "$(wc -l <<< "$said")" -eq 1 ] && grep -qF "$text" <<< "$said"
}

for step in "${steps[@]}"; do
  case "$step" in
    exchange)
      check exchange 60 "$bin/device_ranks_test"
      check exchange-memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/device_ranks_test" ;;
    bits) check bits 240 "$bin/ranks_gpu_test" '--gtest_filter=-*ManyCapturedSteps*:*whole*' ;;
    whole) check whole 240 "$bin/ranks_gpu_test" '--gtest_filter=*whole*' ;;
    soak)
      DSV4_RANKS_STEPS=${DSV4_RANKS_STEPS:-20000} \
        check soak 240 "$bin/ranks_gpu_test" '--gtest_filter=*ManyCapturedSteps*/demo_2_sliced' ;;
    engine) check engine 300 "$bin/engine_ranks_gpu_test" ;;
    processes)
      DSV4_RANKS_GPUS=$([ "$gpus" -gt 1 ] && echo 0,1 || echo 0) \
        check processes 240 python3 tests/cli/rank_processes_test.py "$bin/dsv4" -v
      grep '^KiB' "$out/processes.log" ;;
    nccl)
      if [ "$gpus" -gt 1 ]; then
        export DSV4_RANKS_EXCHANGE=nccl
        check nccl-bits 240 "$bin/ranks_gpu_test" '--gtest_filter=*Processes*_2_*'
        DSV4_RANKS_GPUS=0,1 check nccl-processes 240 python3 tests/cli/rank_processes_test.py "$bin/dsv4" -v
        grep '^KiB' "$out/nccl-processes.log"
        unset DSV4_RANKS_EXCHANGE
      fi ;;
    serve) check serve 400 python3 tools/serve/soak.py "$bin/dsv4" --seconds 300 --requests 2000 --clients 32 --gpus "$two" ;;
    faults)
      check gpu-missing 15 refused "no GPU cuda:$gpus" run demo -p a -n 1 --gpus "0,$gpus"
      check gpus-mixed 15 refused "want GPUs alone" run demo -p a -n 1 --gpus cpu,0 ;;
    bench)
      # 77: no torch, or one GPU.
      if [ "$gpus" -gt 1 ] && python3 -c 'import torch' 2>/dev/null; then
        check exchange-peer 120 python3 bench/peer_exchange.py --binary "$bin/dsv4" --out "$out/peer_exchange.json"
      fi
      for where in 0 $two; do
        on=(--gpus $where)
        [ $where != 0 ] || on=(--device cuda:0)
        check "decode-6-$where" 120 "$bin/dsv4" bench decode --synthetic flash --experts mxfp4 --layers 6 \
          --batch 1,8,32 "${on[@]}" --json
        check "prefill-6-$where" 120 "$bin/dsv4" bench prefill --synthetic flash --experts mxfp4 --layers 6 \
          --tokens 8192 "${on[@]}" --json
      done
      # 73.3 GiB of weights on each GPU.
      if [ "$gpus" -gt 1 ] && [ "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | sort -n | head -1)" -gt 90000 ]; then
        flash=(--synthetic flash --gpus 2 --json) fp4=(--experts mxfp4)
        report ranks_fp4 decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32,64
        report ranks_fp4_det decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32 --deterministic
        report ranks_k3 decode "${flash[@]}" --experts k3-e4m3 --batch 1,8,32
        report ranks_prefill prefill "${flash[@]}" "${fp4[@]}" --tokens 8192
        report ranks_mtp_fp4 decode "${flash[@]}" "${fp4[@]}" --batch 1,8 --speculate mtp --draft-tokens 0,1,2,3 --accept 0.79,0.61,0.46
        report ranks_fp4_whole decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32,64 --experts-placement whole
        report ranks_shard_fp4 decode --synthetic flash "${fp4[@]}" --batch 1,8,32 --shard 0/2 --device cuda --ops --json
      fi ;;
    *) echo "no step $step"; failed=$((failed + 1)) ;;
  esac
done
echo "$passed passed, $failed failed"
exit $failed
