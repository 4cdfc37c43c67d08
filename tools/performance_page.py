#!/usr/bin/env python3
"""docs/performance.md, docs/performance/, and the tables of README.md and docs/decode-step.md from bench/results:
cpu-*.json (tools/measure_cpu.py) and gpu-*/ (tools/gpu_check.sh). Numbers are never typed by hand.

    tools/performance_page.py            rewrites them
    tools/performance_page.py --check    exit 1 when they are not up to date
"""

import json
import re
import sys

import decode_step_page
import decode_trace_page
from generated import ROOT, between_marks, settle, with_block

MADE = "Made by `tools/performance_page.py` from `bench/results`. Weights come from a pool larger than the caches."
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


def weight_rate(row, threads):
    """Weights multiplied per second and core; for many tokens a weight is decoded once, so the number is meaningless."""
    if shape(row["name"])["t"] != 1:
        return ""
    return f"{row['gflop_per_s'] / 2 / threads:.1f}e9"


def machine_section(result):
    roofs, demo = result["roofs"], result["demo"]
    lines = [f"# Performance: {result['machine']}", "", MADE, "",
             f"{result['cpu']}, {roofs['threads']} threads, {result['date']}, commit {result['commit']}. Peaks measured in the same run: "
             f"read {roofs['read_gb_per_s']:.1f} GB/s, f32 FMA {roofs['fma_gflop_per_s']:.0f} GFLOP/s.", "",
             "```", result["command"], "```", "",
             "| op | time | GB/s | % of read peak | GFLOP/s | % of FMA peak | weights/s and core |", "|---|---|---|---|---|---|---|"]
    for row in result["ops"]:
        lines.append(f"| {label(row['name'])} | {row['us'] / 1000:.2f} ms | {row['gb_per_s']:.1f} | {row['percent_read']:.0f} % "
                     f"| {row['gflop_per_s']:.0f} | {row['percent_fma']:.0f} % | {weight_rate(row, roofs['threads'])} |")
    lines += ["", "| demo model, official numerics | |", "|---|---|",
              f"| decode, one sequence | {demo['decode_tokens_per_s']:.0f} tokens/s |",
              f"| prefill, {demo['prompt_tokens']} tokens | {demo['prefill_tokens_per_s']:.0f} tokens/s |",
              f"| process start to end of the first token | {demo['process_to_first_token_s'] * 1000:.0f} ms |", ""]
    return lines


def read_gpu(folder):
    """{name: report} of a GPU's folder: decode_flash, ops, peer_sparse_mla and others, each where it was measured."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def percent(value):
    return f"{100 * value:.0f} %"


def thousands(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def kernel_table(title, row, columns=14):
    """Where the time of a step goes, kernel by kernel. Events around each launch add some microseconds."""
    kernels = row["kernels"]
    total = sum(kernel["us"] for kernel in kernels)
    lines = [f"{title}: {sum(k['launches'] for k in kernels)} launches, {total / 1000:.1f} ms in sum", "",
             "| kernel | launches | time | share |", "|---|---|---|---|"]
    for kernel in kernels[:columns]:
        lines.append(f"| {kernel['kernel']} | {kernel['launches']} | {kernel['us'] / 1000:.2f} ms | {percent(kernel['us'] / total)} |")
    rest = sum(kernel["us"] for kernel in kernels[columns:])
    return lines + [f"| others | | {rest / 1000:.2f} ms | {percent(rest / total)} |", ""]


def what_ran(report):
    experts = f", experts {report['experts'].upper()}" if report["experts"] else ""
    return f"{report['model'].split('/')[-1]}{experts}, {report['layers']} layers, {report['numerics']} numerics"


def decode_rows(report):
    return [f"| {r['batch']} | {thousands(r['context'])} | {r['ms_per_step']:.2f} ms | {r['tokens_per_second']:.0f} | "
            f"{percent(r['share_of_memory_roof'])} |" for r in report["results"]]


def prefill_rows(report):
    return [f"| {thousands(r['tokens'])} | {thousands(r['chunk'])} | {r['seconds']:.2f} s | {r['tokens_per_second']:.0f} | "
            f"{percent(r['share_of_matrix_roof'])} |" for r in report["results"]]


def memory_rows(report):
    lines = []
    for r in report["results"]:
        m = r["memory"]
        what = f"{r['batch']} x {thousands(r['context'])}" if "batch" in r else f"prompt of {thousands(r['tokens'])}"
        off = m["measured_bytes"] / m["planned_bytes"] - 1
        lines.append(f"| {what} | {m['planned_bytes'] / 2**30:.2f} GiB | {m['measured_bytes'] / 2**30:.2f} GiB | {100 * off:+.2f} % |")
    return lines


def gpu_ops(gpu):
    """ops.json, and ops_NAME.json for ops whose kernels were measured alone, with the filter that selected them."""
    alone = {name.removeprefix("ops_"): report for name, report in gpu.items() if name.startswith("ops_")}
    measured = {r["op"] for report in alone.values() for r in report["results"]}
    lines = op_table("", gpu["ops"], leave_out=measured) if "ops" in gpu else []
    for name, report in alone.items():
        lines += op_table(f" --filter '{report['filter']}'" if "filter" in report else f" --filter {name}", report)
    return lines


def dated(report):
    return f", {report['date']}" if "date" in report else ""


def op_table(arguments, report, leave_out=()):
    lines = [f"One op at a time (`dsv4_bench_cuda{arguments}`){dated(report)}, peaks of that run: copy {report['copy_gb_per_s']:.0f} GB/s, bf16 "
             f"{report['matrix_tflop_per_s']:.0f} TFLOP/s:", "",
             "| op | shape | implementation | time | % of copy | % of matrix |", "|---|---|---|---|---|---|"]
    for r in report["results"]:
        if "us" in r and r["op"] not in leave_out:
            lines.append(f"| {r['op']} | {r['shape']} | {r['impl']} | {r['us']:.1f} us | {r['percent_copy']:.0f} % | "
                         f"{r.get('percent_matrix', 0):.0f} % |")
    return lines + [""]


def in_unit(value, unit):
    if value is None:
        return ""
    return f"{value:.0f} TFLOPS" if unit == "TFLOPS" else f"{value:.1f} us"


def peer_rows(report):
    rows = []
    for r in report["results"]:
        theirs = "" if r["peer"] is None else f"{in_unit(r['theirs'], r['unit'])} ({r['peer']})"
        ratio = "" if r["ratio"] is None else f"{r['ratio']:.2f}"
        minimum = in_unit(r["minimum"], r["unit"]) or r["note"] or ""
        rows.append(f"| {r['case']} | {theirs} | {in_unit(r['ours'], r['unit'])} | {ratio} | {minimum} | "
                    f"{in_unit(r['aim'], r['unit'])} |")
    return rows


def peer_section(report):
    """bench/peer_sparse_mla.py: the best public kernel in the same run, or a table of its times."""
    run = ("`flash_mla` ran in the same run, alternating with ours" if report["peer"] == "flash_mla" else
           "`flash_mla` was not installed: its times are those of `bench/peer/sparse_mla.json`")
    return ["## Sparse attention on Hopper against the best public kernel", "",
            f"`bench/peer_sparse_mla.py`{dated(report)}, graphs of {report['calls']} calls over random indices. {run} ({report['source']}). Ratio: peer over "
            "ours in time. Minimum and goal are those set for an H100.", "",
            "| case | peer | ours | ratio | minimum | goal |", "|---|---|---|---|---|---|", *peer_rows(report), ""]


def decode_report(gpu):
    """decode_batches.json (`bench decode --batch 1,2,4,8,16,32,64`) where it was recorded, else the run with all kernels."""
    return gpu.get("decode_batches", gpu["decode_flash"])


def gpu_section(gpu):
    """The page of a GPU: whole steps where they were measured, then kernels alone."""
    lines = [f"# Performance: {device(gpu)}", "", MADE, "", *(step_section(gpu) if "decode_flash" in gpu else [])]
    if "peer_sparse_mla" in gpu:
        lines += peer_section(gpu["peer_sparse_mla"])
    return lines + gpu_ops(gpu)


def device(gpu):
    return next(iter(gpu.values()))["device"]


def step_section(gpu):
    decode, prefill = decode_report(gpu), gpu["prefill_flash"]
    lines = [f"`tools/gpu_check.sh`, driver for {decode['driver']}. Peaks measured in the same run: copy {decode['copy_bytes_per_s'] / 1e9:.0f} GB/s, bf16 "
             f"{decode['matrix_flops_per_s'] / 1e12:.0f} TFLOP/s. Shares are of the bytes that a step must read and the flops that it must do "
             "(`plan/step_cost.h`).", "", f"Decode, {what_ran(decode)}:", "",
             "| batch | context | step | tokens/s | % of copy bandwidth |", "|---|---|---|---|---|", *decode_rows(decode), "",
             f"Prefill, {what_ran(prefill)}:", "",
             "| prompt | chunk | time | tokens/s | % of bf16 peak |", "|---|---|---|---|---|", *prefill_rows(prefill), ""]
    if decode is not gpu["decode_flash"]:
        lines += ["The kernels below, and prefill, are those of an earlier run (`decode_flash.json`, `prefill_flash.json`).", ""]
    for index, name in ((0, "Decode, batch 1"), (2, "Decode, batch 32")):
        row = gpu["decode_flash"]["results"][index]
        lines += kernel_table(f"{name}, context {thousands(row['context'])}", row)
    lines += kernel_table(f"Prefill, first chunk of {thousands(prefill['results'][0]['chunk'])}", prefill["results"][0])
    phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.2f} s" for name, seconds in decode["seconds"].items())
    lines += [f"Start, by phase: {phases}; first four steps {decode['results'][0]['warm_up_seconds']:.2f} s.", "",
              "Memory beyond the CUDA context, planned before loading and measured:", "",
              "| sequences | planned | measured | difference |", "|---|---|---|---|", *memory_rows(decode), *memory_rows(prefill), ""]
    demo = gpu["decode_demo"]["results"]
    return lines + [f"Demo model: {', '.join('%.0f tokens/s at batch %d' % (r['tokens_per_second'], r['batch']) for r in demo)} (decode), "
              f"{gpu['prefill_demo']['results'][0]['tokens_per_second']:.0f} tokens/s (prefill).", ""]


def with_steps(gpus):
    return [gpu for gpu in gpus if "decode_flash" in gpu]


def gpu_readme(gpus):
    lines = ["", "V4-Flash with random weights, 3-bit experts, FP8 dense, `tools/gpu_check.sh`:", "",
             "| GPU | layers | what | tokens/s | share of the measured peak |", "|---|---|---|---|---|"]
    for gpu in with_steps(gpus):
        decode, prefill = decode_report(gpu), gpu["prefill_flash"]
        shorter = decode["results"][0]["context"]  # docs/performance.md has all
        for r in decode["results"]:
            if r["batch"] not in (1, 8, 32) or r["context"] != shorter:
                continue
            lines.append(f"| {decode['device']} | {decode['layers']} | decode, batch {r['batch']}, context {thousands(r['context'])} | "
                         f"{r['tokens_per_second']:.0f} | {percent(r['share_of_memory_roof'])} of copy bandwidth |")
        for r in prefill["results"][:1]:
            lines.append(f"| {prefill['device']} | {prefill['layers']} | prefill of {thousands(r['tokens'])} | "
                         f"{r['tokens_per_second']:.0f} | {percent(r['share_of_matrix_roof'])} of bf16 |")
    return lines


def ratio_rows(gpu):
    """Ratios to the peer on one GPU: the smallest, the median and the largest, with their cases."""
    report = gpu["peer_sparse_mla"]
    rows = sorted((r for r in report["results"] if r["ratio"] is not None), key=lambda r: r["ratio"])
    for name, r in (("smallest", rows[0]), ("median", rows[len(rows) // 2]), ("largest", rows[-1])):
        yield (f"| {report['device']}{dated(report)} | {name} of {len(rows)} | {r['case']} | {in_unit(r['theirs'], r['unit'])} | "
               f"{in_unit(r['ours'], r['unit'])} | {r['ratio']:.2f} |")


def page(results, gpus, pages):
    """One screen: ratios and shares. The underlying numbers are in the page of each machine."""
    lines = ["# Performance", "", MADE + " A share is of a peak measured in the same run; a ratio compares two programs in one run, or with a "
             "table of published times where the peer was not installed. All tables:", "",
             *(f"* [{title}](performance/{name})" for name, title in pages), ""]
    lines += gpu_readme(gpus)[1:] if with_steps(gpus) else []
    with_peer = [gpu for gpu in gpus if "peer_sparse_mla" in gpu]
    if with_peer:
        lines += ["", "Sparse attention against FlashMLA, graphs of 20 calls over random indices (`bench/peer_sparse_mla.py`; ratio: peer over "
                  "ours in time):", "",
                  "| GPU | | case | FlashMLA | ours | ratio |", "|---|---|---|---|---|---|",
                  *(line for gpu in with_peer for line in ratio_rows(gpu))]
    lines += ["", *readme_cpu(results), "", "Where the time of a decode step goes: [decode-step.md](decode-step.md). What low-bit weights lose: "
              "[quality.md](quality.md).", ""]
    return "\n".join(lines)


def readme_cpu(results):
    lines = []
    for result in results:
        demo, ops = result["demo"], {row["name"]: row for row in result["ops"]}
        lines += [f"{result['machine']} ({result['cpu']}), {result['date']}, `{result['command'].split()[0]}`:", "",
                  "| what | measured | share of the measured peak |", "|---|---|---|"]
        for fmt in ("fp8_block", "mxfp4"):
            row = ops[f"linear/{fmt}/t:1/n:16384/k:16384"]
            lines.append(f"| {label(row['name'])} | {row['gb_per_s']:.1f} GB/s | {row['percent_read']:.0f} % of read bandwidth |")
        row = ops["linear/fp8_block/t:256/n:4096/k:4096"]
        lines.append(f"| {label(row['name'])} | {row['gflop_per_s']:.0f} GFLOP/s | {row['percent_fma']:.0f} % of f32 FMA |")
        lines += [f"| demo: decode / prefill of {demo['prompt_tokens']} tokens | {demo['decode_tokens_per_s']:.0f} / "
                  f"{demo['prefill_tokens_per_s']:.0f} tokens/s | |",
                  f"| demo: process start to first token | {demo['process_to_first_token_s'] * 1000:.0f} ms | |"]
    return lines


def readme_table(results, gpus):
    return "\n".join(readme_cpu(results) + (gpu_readme(gpus) if with_steps(gpus) else []))


def decode_step(gpus):
    page = between_marks("docs/decode-step.md", "measured", decode_step_page.block(gpus))
    return with_block(page, "trace", decode_trace_page.block(gpus))


def main():
    cpu_files = sorted((ROOT / "bench/results").glob("cpu-*.json"))
    results = [json.loads(path.read_text()) for path in cpu_files]
    folders = sorted((ROOT / "bench/results").glob("gpu-*"), reverse=True)
    gpus = [read_gpu(folder) for folder in folders]
    pages = {folder.name.removeprefix("gpu-") + ".md": (device(gpu), gpu_section(gpu)) for folder, gpu in zip(folders, gpus)}
    pages |= {path.stem + ".md": (result["machine"], machine_section(result)) for path, result in zip(cpu_files, results)}
    wanted = {f"docs/performance/{name}": "\n".join(lines).rstrip("\n") + "\n" for name, (_, lines) in pages.items()}
    wanted |= {"docs/performance.md": page(results, gpus, [(name, title) for name, (title, _) in pages.items()]),
               "docs/decode-step.md": decode_step(gpus),
               "README.md": between_marks("README.md", "measured", readme_table(results, gpus))}
    wanted |= decode_trace_page.figures(gpus)
    sys.exit(settle(wanted, "tools/performance_page.py"))


if __name__ == "__main__":
    main()
