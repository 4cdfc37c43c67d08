#!/usr/bin/env bash
# The check of several GPUs in one call. One GPU is enough for all but the link: its ranks then share it.
#
#   tools/multi_gpu_check.sh [OUT] [STEP ...]
#
# OUT: folder for logs and JSON (default multi-gpu-check).
#
#   exchange   what each rank ends with, faults; chains of DSV4_RANKS_EXCHANGES exchanges (100,000); under memcheck
#   bits       --deterministic: the bundled model and six layers of V4-Flash, logits and caches of ranks equal one rank's; of two GPUs also with
#              the kernels that ranks which share a GPU do not take
#   whole      the same with whole experts (--experts-placement whole)
#   soak       DSV4_RANKS_STEPS captured steps with random batches (20,000) of the bundled model, and of six layers of V4-Flash as many of them
#              as one rank makes in DSV4_RANKS_SECONDS (30): logits and caches of all ranks equal one rank's at every hundredth; on two GPUs also
#              with ranks that share none
#   processes  ranks that are processes: answers, prefixes, servers, ranks that are killed or stopped; logits of six layers of V4-Flash;
#              the time of an exchange. Their logits and caches by memcmp are in `bits`
#   nccl       the same with exchanges by NCCL (DSV4_NCCL: its library), on two GPUs
#   engine     answers, drafts of the MTP block, prefixes from the cache, host memory and the disk, a rank that throws or stalls
#   serve      a server on ranks: 2,000 requests of 32 clients, of which some leave, get the answers of a server on one GPU
#   faults     what a GPU that is not there says
#   bench      an exchange beside NCCL's all-gather; decode and prefill of six layers of V4-Flash in FP4 on one GPU and on two; the whole model on
#              two H200; fails where a speed is below 90 % of bench/results/minimums.json
#   shards     the step of one rank of 2, 4 and 8 alone, of V4-Flash in FP4 and 3 bits; of 4 and 8, of V4-Pro in 2 bits. One H200
#
# After each check all memory of all GPUs must be free again within DSV4_FREE_S seconds (10), or the check fails: nothing else
# may take memory of them meanwhile. The exit status is the number of failures; the last line says "N passed, N failed".

set -uo pipefail
cd "$(dirname "$0")/.."
bin=${DSV4_BIN:-build/cuda/bin}
out=multi-gpu-check steps=()
[[ $# -eq 0 ]] || { out=$1; shift; }
[ $# -gt 0 ] && steps=("$@") || steps=(exchange bits whole soak engine processes nccl serve faults bench shards)
mkdir -p "$out"
passed=0 failed=0
gpus=$(nvidia-smi -L | wc -l)
[ "$gpus" -gt 1 ] && two=0,1 || two=0,0
export DSV4_RANKS_GPUS=$([ "$gpus" -gt 1 ] && echo 2 || echo 1)
nvidia-smi topo -p2p w > "$out/topology.log" 2>&1

# MiB that each GPU has in use.
used_memory() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; }
mapfile -t used_before < <(used_memory)

# Whether no GPU has more memory in use than at the start, but for 64 MiB of the driver's own, within some seconds.
free_again() {
  local until=$((SECONDS + ${DSV4_FREE_S:-10})) gpu kept used
  while :; do
    kept="" gpu=0
    while read -r used; do
      [ "$used" -le $((used_before[gpu] + 64)) ] || kept+=" GPU $gpu: $used MiB, ${used_before[gpu]} at the start."
      gpu=$((gpu + 1))
    done < <(used_memory)
    [ -n "$kept" ] || return 0
    [ $SECONDS -lt $until ] || { echo "memory is not free again:$kept"; return 1; }
    sleep 0.5
  done
}

check() { # check NAME SECONDS COMMAND ...; status 77 skips it
  local name=$1 seconds=$2 begin=$SECONDS status
  shift 2
  if [ "$(type -t "$1")" = function ]; then "$@"; else timeout "$seconds" "$@"; fi > "$out/$name.log" 2>&1
  status=$?
  if [ $status -eq 77 ]; then
    echo "skipped: $name ($(tail -n 1 "$out/$name.log"))"
    return
  fi
  free_again >> "$out/$name.log" || [ $status -ne 0 ] || status="0, but memory"
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    echo "$name: $((SECONDS - begin)) s"
  else
    failed=$((failed + 1))
    echo "FAILED: $name (status $status, $((SECONDS - begin)) s), see $out/$name.log"
    grep -E 'Failure|error|ERROR|FAILED|^slow|not free again|=====.*(Invalid|Race|hazard)' -A6 "$out/$name.log" | head -n 20
  fi
}

# JSON as bench/results has it.
report() { # report NAME ARGUMENTS ... of dsv4 bench
  local name=$1
  shift
  check "$name" 240 "$bin/dsv4" bench "$@" --json
  grep '^{' "$out/$name.log" > "$out/$name.json" || true
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
      DSV4_RANKS_EXCHANGES=${DSV4_RANKS_EXCHANGES:-100000} check exchange 90 "$bin/device_ranks_test"
      check exchange-memcheck 120 compute-sanitizer --tool memcheck --error-exitcode 9 "$bin/device_ranks_test" ;;
    bits)
      check bits 240 "$bin/ranks_gpu_test" '--gtest_filter=-*ManyCapturedSteps*:*whole*'
      if [ "$gpus" -gt 1 ]; then
        DSV4_RANKS_APART=1 check bits-apart 240 "$bin/ranks_gpu_test" \
          '--gtest_filter=*RanksOnGpu.*_2_*:RanksOnGpuFault.*:-*ManyCapturedSteps*'
      fi ;;
    whole) check whole 240 "$bin/ranks_gpu_test" '--gtest_filter=*whole*' ;;
    soak)
      DSV4_RANKS_STEPS=${DSV4_RANKS_STEPS:-20000} \
        check soak 240 "$bin/ranks_gpu_test" '--gtest_filter=*ManyCapturedSteps*/demo_2_sliced:*ManyCapturedSteps*/demo_4_sliced'
      DSV4_RANKS_STEPS=${DSV4_RANKS_STEPS:-20000} DSV4_RANKS_SECONDS=${DSV4_RANKS_SECONDS:-30} \
        check soak-flash 240 "$bin/ranks_gpu_test" \
        '--gtest_filter=*ManyCapturedSteps*/mxfp4_*_sliced:*ManyCapturedSteps*/k3_*_sliced'
      if [ "$gpus" -gt 1 ]; then
        DSV4_RANKS_APART=1 DSV4_RANKS_STEPS=${DSV4_RANKS_STEPS:-20000} DSV4_RANKS_SECONDS=${DSV4_RANKS_SECONDS:-30} \
          check soak-apart 240 "$bin/ranks_gpu_test" \
          '--gtest_filter=*ManyCapturedSteps*/demo_2_sliced:*ManyCapturedSteps*/mxfp4_2_sliced'
      fi
      grep -h '^[0-9]* steps$' "$out"/soak*.log ;;
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
      if [ "$gpus" -lt 2 ]; then
        echo "skipped: exchange-peer (one GPU)"
      elif ! python3 -c 'import torch' 2>/dev/null; then
        echo "skipped: exchange-peer (no torch)"
      else
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
        flash=(--synthetic flash --gpus 2) fp4=(--experts mxfp4)
        report ranks_fp4 decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32,64
        report ranks_fp4_det decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32 --deterministic
        report ranks_k3 decode "${flash[@]}" --experts k3-e4m3 --batch 1,8,32
        report ranks_prefill prefill "${flash[@]}" "${fp4[@]}" --tokens 8192,65536
        report ranks_prefill_one prefill --synthetic flash --experts k3-e4m3 --device cuda:0 --tokens 8192
        report ranks_mtp_fp4 decode "${flash[@]}" "${fp4[@]}" --batch 1,8 --speculate mtp --draft-tokens 0,1,2,3 --accept 0.79,0.61,0.46
        report ranks_fp4_whole decode "${flash[@]}" "${fp4[@]}" --batch 1,8,32,64 --experts-placement whole
        report ranks_exchange exchange --gpus 2
        check speed 20 python3 tools/check_speed.py "$out"
      fi ;;
    shards)
      alone() { # alone NAME RELEASE EXPERTS RANKS BATCHES
        report "$1" decode --synthetic "$2" --experts "$3" --shard "0/$4" --batch "$5" --device cuda:0 --ops
      }
      if [ "$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1)" -gt 130000 ]; then
        for n in 2 4 8; do
          alone "ranks_shard_fp4_$n" flash mxfp4 $n 1,8,32,64
          alone "ranks_shard_k3_$n" flash k3-e4m3 $n 1,8,32,64
        done
        alone ranks_shard_pro_k2_4 pro k2-e4m3 4 1,8,32
        alone ranks_shard_pro_k2_8 pro k2-e4m3 8 1,8,32
        check speed 20 python3 tools/check_speed.py "$out"
      fi ;;
    *) echo "no step $step"; failed=$((failed + 1)) ;;
  esac
done
echo "$passed passed, $failed failed"
exit $failed
