"""Tables of the page about several GPUs: steps over two of them, from bench/results/gpu-h200/ranks_*.json."""

from common import RESULTS, read, row, table, thousands, with_blocks

PAGE = "docs/several-" + "gpus.md"  # docs/spec has a file of the same name
# file, what it is
DECODE = (("ranks_fp4", "two GPUs, FP4"), ("ranks_fp4_whole", "two GPUs, FP4, whole experts"), ("ranks_fp4_det", "two GPUs, FP4, `--deterministic`"), ("ranks_k3", "two GPUs, 3 bits"),
          ("ranks_shard_fp4", "rank 0 of two alone, FP4 (`--shard 0/2`)"), ("decode_batches", "one GPU, 3 bits"))
BATCHES = (1, 8, 32, 64)


def report(name):
    return read(RESULTS / f"gpu-h200/{name}.json")


def decode_row(name, title):
    of_batch = {result["batch"]: result for result in report(name)["results"]}
    cells = [f"{of_batch[b]['ms_per_step']:.2f} ({of_batch[b]['tokens_per_second']:,.0f})" if b in of_batch else "" for b in BATCHES]
    return row(title, *cells)


def wanted():
    prompts = report("ranks_prefill")["results"]
    rounds = [one for one in report("ranks_mtp_fp4")["results"] if one.get("draft_tokens") == 2]
    first = report("ranks_fp4")
    steps = [f"Two {first['device']}, synthetic V4-Flash, {first['layers']} layers, a context of 4K: ms a step (tokens/s) by batch.", "",
             *table("| ".join(["", *(f"{b} " for b in BATCHES)]).strip(), *(decode_row(*one) for one in DECODE)), "",
             *(f"* A prompt of {thousands(one['tokens'])} in steps of {thousands(one['chunk'])}, FP4: {one['tokens_per_second']:,.0f} tokens/s." for one in prompts),
             *(f"* Two drafts of MTP, of which {one['tokens_per_round'] - 1:.2f} hold, batch {one['batch']}: {one['tokens_per_second']:,.0f} tokens/s."
               for one in rounds)]
    exchanges = report("ranks_exchange")["results"]
    sizes = table(" | ".join(["KiB of a tensor", *(str(one["bytes"] // 1024) for one in exchanges)]),
                  row("us", *(f"{one['us']:.1f}" for one in exchanges)),
                  *([row("all-gather of NCCL, us", *(f"{one['nccl_us']:.1f}" for one in exchanges))] if "nccl_us" in exchanges[0] else []))
    return {PAGE: with_blocks(PAGE, ranks="\n".join(steps), exchange="\n".join(sizes))}
