"""The table of docs/experts-in-host-memory.md of what was measured, from bench/results/gpu-h200/store_*.json."""

from common import RESULTS, percent, read, row, table, thousands, with_blocks

PAGE = "docs/experts-in-host-memory.md"
GIB = 2**30
BUDGETS = (("fp4_all", "FP4, all of the GPU"), ("k3_80g", "3 bits, 78 GiB"), ("fp4_80g", "FP4, 78 GiB"), ("k3_24g", "3 bits, 24 GiB"))


def line_of(name, result):
    store = result["experts_in_host_memory"]
    first = [name, percent(store["resident"] / store["experts"])]
    if "batch" not in result:
        return row(*first, f"prompt of {thousands(result['tokens'])}", f"{result['tokens_per_second']:.0f}", "", "", "")
    return row(*first, f"{result['batch']} sequence{'s' if result['batch'] > 1 else ''}", f"{result['tokens_per_second']:.0f}",
               percent(store["hit_rate"]), f"{store['link_bytes_per_step'] / GIB:.2f}", f"{store['link_bytes_per_s'] / 1e9:.1f}")


def wanted():
    reports = [(title, read(path)) for budget, title in BUDGETS for path in sorted(RESULTS.glob(f"gpu-h200/store_{budget}*.json"))]
    first = reports[0][1]
    text = [f"{first['device']}, synthetic V4-Flash, {first['layers']} layers, uniform random routing, a context of 4K. *Found*: chosen experts "
            "that were in GPU memory; the link's bytes and rate are those of decode steps.", "",
            *table("experts, limit | resident | step | tokens/s | found | GiB a step over the link | GB/s", *(
                line_of(title, result) for title, report in reports for result in report["results"]))]
    return {PAGE: with_blocks(PAGE, store="\n".join(text))}
