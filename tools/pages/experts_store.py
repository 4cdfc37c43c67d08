"""The table of docs/experts-in-host-memory.md of what was measured, from bench/results/gpu-h200/store_*.json.

What the plan predicts of a decode step, if all experts are equally likely: the step of a GPU with all experts, and the
bytes of those that it does not keep, at the link's rate (dsv4/plan/expert_plan.h). From four sequences on the experts that it
keeps are read from its memory meanwhile (engine/expert_waves.h)."""

from common import RESULTS, percent, read, row, table, thousands, with_blocks

PAGE = "docs/experts-in-host-memory.md"
GIB = 2**30
LINK, MEMORY = 49e9, 4.2e12  # bytes a second
BESIDE = 4  # sequences from which on copies and products overlap
# budget, title, its step with all experts on the GPU, experts of a layer, experts of a token
BUDGETS = (("fp4_all", "FP4, all of the GPU", "decode_mxfp4", 256, 6),
           ("k3_80g", "3 bits, 78 GiB", "decode_batches", 256, 6),
           ("fp4_80g", "FP4, 78 GiB", "decode_mxfp4", 256, 6),
           ("k3_24g", "3 bits, 24 GiB", "decode_batches", 256, 6),
           ("pro_k2", "V4-Pro, 2 bits, all of the GPU", "decode_pro", 384, 6))


def step_with_all(name, layers, batch):
    """Milliseconds, scaled from as many layers as fit; None where that batch did not run."""
    report = read(RESULTS / f"gpu-h200/{name}.json")
    of_batch = {result["batch"]: result["ms_per_step"] for result in report["results"]}
    return of_batch[batch] * layers / report["layers"] if batch in of_batch else None


def predicted(report, result, budget):
    store, layers, batch = result["experts_in_host_memory"], report["layers"], result["batch"]
    _, _, whole, experts, chosen = budget
    distinct = experts * (1 - (1 - chosen / experts) ** batch)
    outside = 1 - store["resident"] / store["experts"]
    expert_bytes = store["link_bytes"] / store["fetched"]
    resident = step_with_all(whole, layers, batch)
    if resident is None:
        return None
    link = outside / LINK
    hidden = min(link, (1 - outside) / MEMORY) if batch >= BESIDE else 0
    return resident + 1e3 * layers * distinct * expert_bytes * (link - hidden)


def with_popular_experts(budget, batch):
    """Tokens a second where few experts are popular, if that ran."""
    path = RESULTS / f"gpu-h200/store_{budget[0]}_zipf.json"
    results = read(path)["results"] if path.exists() else []
    return next((rate(result["tokens_per_second"]) for result in results if result["batch"] == batch), "")


def rate(tokens):
    return f"{tokens:,.{1 if tokens < 100 else 0}f}"


def line_of(report, result, budget):
    store = result["experts_in_host_memory"]
    first = [budget[1], percent(store["resident"] / store["experts"])]
    if "batch" not in result:
        link = f"{store['link_bytes_per_s'] / 1e9:.1f}"
        return row(*first, f"prompt of {thousands(result['tokens'])}, steps of {thousands(result['chunk'])}",
                   f"{result['tokens_per_second']:,.0f}", "", "", "", "", f"{store['link_bytes_per_step'] / GIB:.1f}", link)
    planned = predicted(report, result, budget)
    return row(*first, f"{result['batch']} sequence{'s' if result['batch'] > 1 else ''}",
               rate(result["tokens_per_second"]), with_popular_experts(budget, result["batch"]),
               f"{result['ms_per_step']:.1f}", f"{planned:.1f}" if planned else "",
               percent(store["hit_rate"]), f"{store['link_bytes_per_step'] / GIB:.2f}", f"{store['link_bytes_per_s'] / 1e9:.1f}")


def beside_the_plan(reports):
    """How far decode steps are from the plan."""
    steps = [(result, predicted(report, result, budget)) for budget, report in reports for result in report["results"] if "batch" in result]
    steps = [(result, planned) for result, planned in steps if planned]
    off = [result["ms_per_step"] / planned - 1 for result, planned in steps]
    stores = [result["experts_in_host_memory"] for result, _ in steps]
    more = [store["hit_rate"] - store["resident"] / store["experts"] for store in stores]
    return (f"Decode steps take from {-100 * min(off):.0f} % less to {100 * max(off):.0f} % more than the plan says. If all experts were equally "
            f"likely in every step, those found would be those resident; they are {100 * min(more):.1f} to {100 * max(more):.1f} points more. That is not "
            "the transient places, which are empty when a step looks its experts up. Probably it is the synthetic models, whose routing is nearly uniform "
            "but not quite: random gate biases make the popularities of experts differ by a tenth, worth 0.8 points in a replay of 3,000 steps "
            "with 122 of 256 slots, and tokens with a context in common choose alike.")


def wanted():
    reports = [(budget, read(path)) for budget in BUDGETS
               for path in sorted(RESULTS.glob(f"gpu-h200/store_{budget[0]}.json")) + sorted(RESULTS.glob(f"gpu-h200/store_{budget[0]}_prompt.json"))]
    first = reports[0][1]
    text = [f"{first['device']}, synthetic models with all layers, uniform random routing, a context of 4K. *Found*: chosen experts "
            "that were in GPU memory; the link's bytes and rate are those of a step. *Plan*: what `dsv4 plan` says of the link, at "
            f"{LINK / 1e9:.0f} GB/s, and the step of a GPU with all experts, less what is read from GPU memory meanwhile. 78 and 24 GiB are emulated on the H200 by `--gpu-memory`: such cards have "
            "less bandwidth and other links, and none has run this. *Zipf*: tokens/s where the expert of rank r is chosen by 1/r^0.88 "
            "(`--routing zipf:0.88`), the popularity that was published; the other columns are of uniform routing.", "",
            *table("experts, limit | resident | step | tokens/s | zipf | ms | plan | found | GiB a step over the link | GB/s", *(
                line_of(report, result, budget) for budget, report in reports for result in report["results"])), "", beside_the_plan(reports)]
    return {PAGE: with_blocks(PAGE, store="\n".join(text))}
