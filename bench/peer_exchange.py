#!/usr/bin/env python3
"""An exchange between GPUs beside NCCL's all-gather, in one run.

    python3 bench/peer_exchange.py [--binary build/cuda/bin/dsv4] [--gpus N] [--out FILE]

`dsv4 bench exchange` measures ours. NCCL gathers the same bytes by torch.distributed, a process for each GPU: 200 calls in
a CUDA graph, the median of 21 replays over their number. In both, every GPU has an equal part before and all bytes
after. Prints a JSON object. Exit status 1 where an exchange of up to 16 KiB takes more than 6 us, one of up to 128 KiB more than 8, or one
of up to 128 KiB more than NCCL's; 77 without torch or without two GPUs."""

import argparse
import json
import os
import socket
import subprocess
import sys
import time

CALLS, REPLAYS = 200, 21
LIMITS = ((16 << 10, 6.0), (128 << 10, 8.0))  # bytes, us


def of_nccl(rank, world, port, sizes, results):
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    for size in sizes:
        part = torch.empty(size // 2 // world, dtype=torch.bfloat16, device="cuda")
        whole = torch.empty(part.numel() * world, dtype=torch.bfloat16, device="cuda")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):  # NCCL connects at the first calls
                dist.all_gather_into_tensor(whole, part)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(CALLS):
                dist.all_gather_into_tensor(whole, part)
        times = []
        for _ in range(REPLAYS):
            dist.barrier(device_ids=[rank])
            torch.cuda.synchronize()
            begin = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        if rank == 0:
            results[size] = 1e6 * sorted(times)[len(times) // 2] / CALLS
        del graph  # NCCL waits for graphs that hold its calls
    dist.destroy_process_group()


def peers(world, sizes):
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(of_nccl, (world, port, sizes, results), nprocs=world)
        return dict(results)


def complaints(rows):
    for row in rows:
        for size, limit in LIMITS:
            if row["bytes"] <= size and row["us"] > limit:
                yield f"{row['bytes']} bytes take {row['us']:.2f} us, more than {limit}"
                break
        if row["bytes"] <= LIMITS[-1][0] and row["us"] > row["nccl_us"]:
            yield f"{row['bytes']} bytes take {row['us']:.2f} us, NCCL {row['nccl_us']:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", default="build/cuda/bin/dsv4")
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--out")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("peer_exchange: needs torch")
        return 77
    if torch.cuda.device_count() < options.gpus:
        print(f"peer_exchange: {torch.cuda.device_count()} GPUs, want {options.gpus}")
        return 77
    report = json.loads(subprocess.run([options.binary, "bench", "exchange", "--gpus", str(options.gpus), "--json"],
                                       check=True, capture_output=True, text=True).stdout)
    nccl = peers(options.gpus, [row["bytes"] for row in report["results"]])
    report["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    for row in report["results"]:
        row["nccl_us"] = nccl[row["bytes"]]
    text = json.dumps(report)
    if options.out:
        with open(options.out, "w") as file:
            file.write(text + "\n")
    else:
        print(text)
    wrong = list(complaints(report["results"]))
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
