"""docs/performance.md, docs/performance/, and the tables of README.md and docs/decode-step.md from bench/results:
cpu-*.json (tools/measure_cpu.py) and gpu-*/ (tools/gpu_check.sh), each report where it was measured.
"""

import re

import decode_step
import decode_trace
from common import COMMAND, RESULTS, percent, read, row, table, thousands, with_blocks

MADE = f"Made by `{COMMAND}` from `bench/results`. Weights come from a pool larger than the caches."
LABELS = {"fp8_block": "FP8 128x128", "mxfp4": "MXFP4", "nvfp4": "NVFP4", "bf16": "BF16", "f16": "F16", "f32": "F32",
          "k2": "K=2", "k3": "K=3", "k4": "K=4", "k5": "K=5"}


def shape(name):
    return {key: int(value) for key, value in re.findall(r"([a-z]+):(\d+)", name)}


def label(name):
    op, fmt = name.split("/")[:2]
    s = shape(name)
    size = f", {s['n']} x {s['k']}" if "n" in s else ", Flash shapes"
    kind = "matrix-vector" if s["t"] == 1 else f"{s['t']} tokens"
    return f"{op} {LABELS[fmt]}, {kind}{size}"


def dated(report):
    return f", {report['date']}" if "date" in report else ""


# Processors.


def cpu_row(r, threads):
    """Weights per second and core for one token only: for many, a weight is decoded once."""
    weights = f"{r['gflop_per_s'] / 2 / threads:.1f}e9" if shape(r["name"])["t"] == 1 else ""
    return row(label(r["name"]), f"{r['us'] / 1000:.2f} ms", f"{r['gb_per_s']:.1f}", f"{r['percent_read']:.0f} %",
               f"{r['gflop_per_s']:.0f}", f"{r['percent_fma']:.0f} %", weights)


def cpu_page(result):
    roofs, demo = result["roofs"], result["demo"]
    return [f"# Performance: {result['machine']}", "", MADE, "",
            f"{result['cpu']}, {roofs['threads']} threads, {result['date']}, commit {result['commit']}. Peaks measured in the same run: "
            f"read {roofs['read_gb_per_s']:.1f} GB/s, f32 FMA {roofs['fma_gflop_per_s']:.0f} GFLOP/s.", "",
            "```", result["command"], "```", "",
            *table("op | time | GB/s | % of read peak | GFLOP/s | % of FMA peak | weights/s and core",
                   *(cpu_row(r, roofs["threads"]) for r in result["ops"])), "",
            *table("demo model, official numerics |",
                   f"| decode, one sequence | {demo['decode_tokens_per_s']:.0f} tokens/s |",
                   f"| prefill, {demo['prompt_tokens']} tokens | {demo['prefill_tokens_per_s']:.0f} tokens/s |",
                   f"| process start to end of the first token | {demo['process_to_first_token_s'] * 1000:.0f} ms |")]


def cpu_summary(result):
    demo, ops = result["demo"], {r["name"]: r for r in result["ops"]}
    one = [ops[f"linear/{fmt}/t:1/n:16384/k:16384"] for fmt in ("fp8_block", "mxfp4")]
    many = ops["linear/fp8_block/t:256/n:4096/k:4096"]
    return [f"{result['machine']} ({result['cpu']}), {result['date']}, `{result['command'].split()[0]}`:", "",
            *table("what | measured | share of the measured peak",
                   *(row(label(r["name"]), f"{r['gb_per_s']:.1f} GB/s", f"{r['percent_read']:.0f} % of read bandwidth") for r in one),
                   row(label(many["name"]), f"{many['gflop_per_s']:.0f} GFLOP/s", f"{many['percent_fma']:.0f} % of f32 FMA"),
                   f"| demo: decode / prefill of {demo['prompt_tokens']} tokens | {demo['decode_tokens_per_s']:.0f} / "
                   f"{demo['prefill_tokens_per_s']:.0f} tokens/s | |",
                   f"| demo: process start to first token | {demo['process_to_first_token_s'] * 1000:.0f} ms | |")]


# GPUs.


def read_gpu(folder):
    """{name: report} of a GPU's folder: decode_flash, ops, peer_sparse_mla and others, each where it was measured."""
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def device(gpu):
    return next(iter(gpu.values()))["device"]


def with_steps(gpus):
    return [gpu for gpu in gpus if "decode_flash" in gpu]


def kernel_table(title, result, columns=14):
    """Where the time of a step goes, kernel by kernel. Events around each launch add some microseconds."""
    kernels = result["kernels"]
    total = sum(k["us"] for k in kernels)
    rest = sum(k["us"] for k in kernels[columns:])
    return [f"{title}: {sum(k['launches'] for k in kernels)} launches, {total / 1000:.1f} ms in sum", "",
            *table("kernel | launches | time | share",
                   *(row(k["kernel"], k["launches"], f"{k['us'] / 1000:.2f} ms", percent(k["us"] / total)) for k in kernels[:columns]),
                   f"| others | | {rest / 1000:.2f} ms | {percent(rest / total)} |"), ""]


def what_ran(report):
    experts = f", experts {report['experts']}" if report["experts"] else ""
    return f"{report['model'].split('/')[-1]}{experts}, {report['layers']} layers, {report['numerics']} numerics"


def decode_row(r):
    return row(r["batch"], thousands(r["context"]), f"{r['ms_per_step']:.2f} ms", f"{r['tokens_per_second']:.0f}", percent(r["share_of_memory_roof"]))


def prefill_row(r):
    return row(thousands(r["tokens"]), thousands(r["chunk"]), f"{r['seconds']:.2f} s", f"{r['tokens_per_second']:.0f}", percent(r["share_of_matrix_roof"]))


def memory_row(r):
    planned, measured = r["memory"]["planned_bytes"], r["memory"]["measured_bytes"]
    what = f"{r['batch']} x {thousands(r['context'])}" if "batch" in r else f"prompt of {thousands(r['tokens'])}"
    return row(what, f"{planned / 2**30:.2f} GiB", f"{measured / 2**30:.2f} GiB", f"{100 * (measured / planned - 1):+.2f} %")


def op_table(arguments, report, leave_out=()):
    measured = [r for r in report["results"] if "us" in r and r["op"] not in leave_out]
    return [f"One op at a time (`dsv4_bench_cuda{arguments}`){dated(report)}, peaks of that run: copy {report['copy_gb_per_s']:.0f} GB/s, bf16 "
            f"{report['matrix_tflop_per_s']:.0f} TFLOP/s. Kernels that multiply in FP8 can exceed the bf16 peak, theirs is twice as high. "
            f"{report.get('note', '')}".rstrip(), "",
            *table("op | shape | implementation | time | % of copy | % of bf16",
                   *(row(r["op"], r["shape"], r["impl"], f"{r['us']:.1f} us", f"{r['percent_copy']:.0f} %", f"{r.get('percent_matrix', 0):.0f} %")
                     for r in measured)), ""]


def op_tables(gpu):
    """ops.json, and ops_NAME.json for ops whose kernels were measured alone, with the filter that selected them."""
    alone = {name.removeprefix("ops_"): report for name, report in gpu.items() if name.startswith("ops_")}
    measured = {r["op"] for report in alone.values() for r in report["results"]}
    lines = op_table("", gpu["ops"], leave_out=measured) if "ops" in gpu else []
    for name, report in alone.items():
        lines += op_table(f" --filter '{report['filter']}'" if "filter" in report else f" --filter {name}", report)
    return lines


def in_unit(value, unit):
    if value is None:
        return ""
    return f"{value:.0f} TFLOPS" if unit == "TFLOPS" else f"{value:.1f} us"


def peer_row(r):
    theirs = "" if r["peer"] is None else f"{in_unit(r['theirs'], r['unit'])} ({r['peer']})"
    ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
    minimum = in_unit(r["minimum"], r["unit"]) or r["note"] or ""
    return row(r["case"], theirs, in_unit(r["ours"], r["unit"]), ratio, minimum, in_unit(r["aim"], r["unit"]))


def peer_section(report):
    """bench/peer_sparse_mla.py: the best public kernel in the same run, or a table of its times."""
    run = ("`flash_mla` ran in the same run, alternating with ours" if report["peer"] == "flash_mla" else
           "`flash_mla` was not installed: its times are those of `bench/peer/sparse_mla.json`")
    return ["## Sparse attention on Hopper against the best public kernel", "",
            f"`bench/peer_sparse_mla.py`{dated(report)}, graphs of {report['calls']} calls over random indices. {run} ({report['source']}). Ratio: peer over "
            "ours in time. Minimum and goal are those that an issue set for an H100 and are not enforced: `tools/check_speed.py` fails below 90 % of "
            "`bench/results/minimums.json`.", "",
            *table("case | peer | ours | ratio | minimum | goal", *map(peer_row, report["results"])), ""]


def decode_report(gpu):
    """decode_batches.json (`bench decode --batch 1,2,4,8,16,32,64`) where it was recorded, else the run with all kernels."""
    return gpu.get("decode_batches", gpu["decode_flash"])


def step_section(gpu):
    """Whole steps: speeds, kernels, start and memory."""
    decode, prefill, kernels = decode_report(gpu), gpu["prefill_flash"], gpu["decode_flash"]["results"]
    lines = [f"`tools/gpu_check.sh`, driver for {decode['driver']}. Peaks measured in the same run: copy {decode['copy_bytes_per_s'] / 1e9:.0f} GB/s, bf16 "
             f"{decode['matrix_flops_per_s'] / 1e12:.0f} TFLOP/s. Shares are of the bytes that a step must read and the flops that it must do "
             "(`plan/step_cost.h`).", "", f"Decode, {what_ran(decode)}:", "",
             *table("batch | context | step | tokens/s | % of copy bandwidth", *map(decode_row, decode["results"])), "",
             f"Prefill, {what_ran(prefill)}:", "",
             *table("prompt | chunk | time | tokens/s | % of bf16 peak", *map(prefill_row, prefill["results"])), ""]
    if decode is not gpu["decode_flash"]:
        lines += ["The kernels below, and prefill, are those of an earlier run (`decode_flash.json`, `prefill_flash.json`).", ""]
    for name, result in (("Decode, batch 1", kernels[0]), ("Decode, batch 32", kernels[2])):
        lines += kernel_table(f"{name}, context {thousands(result['context'])}", result)
    lines += kernel_table(f"Prefill, first chunk of {thousands(prefill['results'][0]['chunk'])}", prefill["results"][0])
    phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in decode["seconds"].items())
    demo = ", ".join(f"{r['tokens_per_second']:.0f} tokens/s at batch {r['batch']}" for r in gpu["decode_demo"]["results"])
    return lines + [f"Start, by phase: {phases}; first four steps {decode['results'][0]['warm_up_seconds']:.2f} s.", "",
                    "Memory beyond the CUDA context, planned before loading and measured:", "",
                    *table("sequences | planned | measured | difference", *map(memory_row, decode["results"] + prefill["results"])), "",
                    f"Demo model: {demo} (decode), {gpu['prefill_demo']['results'][0]['tokens_per_second']:.0f} tokens/s (prefill).", ""]


def gpu_page(gpu):
    """Whole steps where they were measured, then kernels alone."""
    lines = [f"# Performance: {device(gpu)}", "", MADE, "", *(step_section(gpu) if "decode_flash" in gpu else [])]
    if "peer_sparse_mla" in gpu:
        lines += peer_section(gpu["peer_sparse_mla"])
    return lines + op_tables(gpu)


def gpu_summary(gpus):
    rows = []
    for gpu in with_steps(gpus):
        decode, prefill = decode_report(gpu), gpu["prefill_flash"]
        shorter = decode["results"][0]["context"]  # the GPU's page has all
        rows += [row(decode["device"], decode["layers"], f"decode, batch {r['batch']}, context {thousands(r['context'])}",
                     f"{r['tokens_per_second']:.0f}", f"{percent(r['share_of_memory_roof'])} of copy bandwidth")
                 for r in decode["results"] if r["batch"] in (1, 8, 32) and r["context"] == shorter]
        rows += [row(prefill["device"], prefill["layers"], f"prefill of {thousands(r['tokens'])}",
                     f"{r['tokens_per_second']:.0f}", f"{percent(r['share_of_matrix_roof'])} of bf16") for r in prefill["results"][:1]]
    if not rows:
        return []
    return ["V4-Flash with random weights, 3-bit experts with the e4m3 codebook (`--experts k3`, which means `k3-e4m3`), FP8 dense, "
            "`tools/gpu_check.sh`:", "",
            *table("GPU | layers | what | tokens/s | share of the measured peak", *rows)]


def ratio_rows(gpu):
    """Ratios to the peer on one GPU: the smallest, the median and the largest, with their cases."""
    report = gpu["peer_sparse_mla"]
    found = sorted((r for r in report["results"] if r["ratio"] is not None), key=lambda r: r["ratio"])
    for name, r in (("smallest", found[0]), ("median", found[len(found) // 2]), ("largest", found[-1])):
        yield row(report["device"] + dated(report), f"{name} of {len(found)}", r["case"], in_unit(r["theirs"], r["unit"]),
                  in_unit(r["ours"], r["unit"]), f"{r['ratio']:.2f}")


# A server under the load of stock clients.

# Total tokens/s of one GPU that others published for the same load, 8192 / 1024: clients, what ran, tokens/s, where.
SGLANG = ("SGLang 0.5.16 on 4x H200, FP4, DSpark", "sglang #33109, 2026-07-31")
PUBLISHED = ((1, SGLANG, 606), (16, SGLANG, 2538), (64, SGLANG, 2994), (256, SGLANG, 4872),
             (32, ("vLLM on 8x H100 (11,361 of all eight)", "lambda.ai, its page of the model"), 1420))


def serving_row(r):
    return row(f"{thousands(r['prompt'])} / {thousands(r['answer'])}", r["clients"], f"{r['total_tokens_per_second']:,.0f}",
               f"{r['tokens_per_second']:,.0f}", f"{r['ttft_seconds']['p50']:.2f} s", f"{r['ttft_seconds']['p99']:.2f} s",
               f"{1000 * r['tpot_seconds']['p50']:.1f} ms", r["watts"])


def serving_section(gpu):
    """serving.json of tools/measure_serving.py."""
    report = gpu["serving"]
    return ["", f"`dsv4 serve` on one {report['device']} with random weights of V4-Flash, experts {report['experts']}, under the load that stock clients make "
            "(`tools/measure_serving.py`: definitions and options). Prompts are random ids, so no prefix is found; total tokens are those of prompts and answers. "
            "Every client sends its first request at once, so times to the first token hold a queue of prompts:", "",
            *table("prompt / answer | clients | total tokens/s | output tokens/s | first token, median | 99 % | time per output token | watts",
                   *map(serving_row, report["results"])), "", *([report["note"], ""] if "note" in report else []),
            "What others published for prompts of 8,192 and answers of 1,024 tokens, per GPU. They ran the released weights, with experts in FP4 and, "
            "at SGLang, speculation; ours are random weights with 3-bit experts and no speculation. So this compares engines, not answers:", "",
            *table("clients | what ran | total tokens/s and GPU | published in", *(row(clients, what, f"{rate:,}", where) for clients, (what, where), rate in PUBLISHED))]


# Pages.


def summary_page(cpus, gpus, pages):
    """One screen: ratios and shares. The underlying numbers are in the page of each machine."""
    lines = ["# Performance", "", MADE + " A share is of a peak measured in the same run; a ratio compares two programs in one run, or with a "
             "table of published times where the peer was not installed. All tables:", "",
             *(f"* [{title}](performance/{name})" for name, title in pages), "", *gpu_summary(gpus)]
    with_peer = [gpu for gpu in gpus if "peer_sparse_mla" in gpu]
    if with_peer:
        lines += ["", "Sparse attention against FlashMLA, graphs of 20 calls over random indices (`bench/peer_sparse_mla.py`; ratio: peer over "
                  "ours in time):", "",
                  *table("GPU | | case | FlashMLA | ours | ratio", *(line for gpu in with_peer for line in ratio_rows(gpu)))]
    lines += [line for gpu in gpus if "serving" in gpu for line in serving_section(gpu)]
    return [*lines, "", *(line for cpu in cpus for line in cpu_summary(cpu)), "",
            "Where the time of a decode step goes: [decode-step.md](decode-step.md). What low-bit weights lose: [quality.md](quality.md)."]


def wanted():
    folders, cpu_files = sorted(RESULTS.glob("gpu-*"), reverse=True), sorted(RESULTS.glob("cpu-*.json"))
    gpus, cpus = [read_gpu(folder) for folder in folders], [read(path) for path in cpu_files]
    pages = {folder.name.removeprefix("gpu-") + ".md": (device(gpu), gpu_page(gpu)) for folder, gpu in zip(folders, gpus)}
    pages |= {path.stem + ".md": (cpu["machine"], cpu_page(cpu)) for path, cpu in zip(cpu_files, cpus)}
    texts = {f"docs/performance/{name}": lines for name, (_, lines) in pages.items()}
    texts["docs/performance.md"] = summary_page(cpus, gpus, [(name, title) for name, (title, _) in pages.items()])
    on_front = "\n".join([*(line for cpu in cpus for line in cpu_summary(cpu)), "", *gpu_summary(gpus)])
    return {**{path: "\n".join(lines).rstrip("\n") + "\n" for path, lines in texts.items()},
            "docs/decode-step.md": with_blocks("docs/decode-step.md", measured=decode_step.block(gpus), trace=decode_trace.block(gpus)),
            "README.md": with_blocks("README.md", measured=on_front.rstrip("\n")),
            **decode_trace.figures(gpus)}
