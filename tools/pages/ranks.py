"""Tables of the page about several GPUs: steps over two of them, from bench/results/gpu-h200/ranks_*.json; what would be on
four and eight, from the plan and from ranks that run alone (tools/multi_gpu_check.sh, `bench` and `shards`)."""

import ranks_picture
from common import RESULTS, read, row, table, thousands, with_blocks

PAGE = "docs/several-" + "gpus.md"  # docs/spec has a file of the same name
H200 = RESULTS / "gpu-h200"
BATCHES = (1, 8, 32, 64)
# file, what it is
DECODE = (("ranks_fp4", "two GPUs, FP4"), ("ranks_fp4_whole", "two GPUs, FP4, whole experts"), ("ranks_fp4_det", "two GPUs, FP4, `--deterministic`"), ("ranks_k3", "two GPUs, 3 bits"),
          ("ranks_shard_fp4_2", "rank 0 of two alone, FP4 (`--shard 0/2`)"), ("decode_batches", "one GPU, 3 bits"))
# rank 0 alone, number of ranks; the measured step of all of them, if there is one; release, what it is
PREDICTED = (("ranks_shard_fp4_2", 2, "ranks_fp4", "flash", "Flash FP4"), ("ranks_shard_k3_2", 2, "ranks_k3", "flash", "Flash, 3 bits"),
             ("ranks_shard_fp4_4", 4, None, "flash", "Flash FP4"), ("ranks_shard_k3_4", 4, None, "flash", "Flash, 3 bits"),
             ("ranks_shard_fp4_8", 8, None, "flash", "Flash FP4"), ("ranks_shard_k3_8", 8, None, "flash", "Flash, 3 bits"),
             ("ranks_shard_pro_k2_4", 4, None, "pro", "Pro, 2 bits"), ("ranks_shard_pro_k2_8", 8, None, "pro", "Pro, 2 bits"))
# KiB of a token: u, y, h, sum of the experts, once for each layer; a row of the embedding once.
EXCHANGED = {"flash": ((16, 8, 28, 16), 8), "pro": ((32, 14, 42, 28), 14)}
PRODUCTS = ("linear", "attention_in", "attention_out", "moe", "experts")  # ops that read weights
LEAST = 0.8  # of the predicted speed, or the page says what it must not
WORDS = {2: "two", 4: "four", 8: "eight"}
GIB = 2**30


def report(name):
    path = H200 / f"{name}.json"
    return read(path) if path.exists() else None


def by_batch(found):
    """{batch: result} of a step without drafts."""
    return {result["batch"]: result for result in found["results"] if not result.get("draft_tokens")} if found else {}


def decode_row(name, title):
    of_batch = by_batch(report(name))
    cells = [f"{of_batch[b]['ms_per_step']:.2f} ({of_batch[b]['tokens_per_second']:,.0f})" if b in of_batch else "" for b in BATCHES]
    return row(title, *cells)


def exchanges_of(ranks):
    """(bytes, us), ascending, measured on so many GPUs, else on two."""
    found = report(f"ranks_exchange_{ranks}") or report("ranks_exchange")
    return [(one["bytes"], one["us"]) for one in found["results"]]


def exchange_us(measured, size):
    """Between two measured sizes by a straight line, which goes on beyond the last; below the first no less than that."""
    if size <= measured[0][0]:
        return measured[0][1]
    at = next((i for i, (size_i, _) in enumerate(measured) if size_i >= size), len(measured) - 1)
    (a, us_a), (b, us_b) = measured[at - 1], measured[at]
    return us_a + (us_b - us_a) * (size - a) / (b - a)


def exchanges_ms(ranks, release, batch, layers):
    measured, (sizes, once) = exchanges_of(ranks), EXCHANGED[release]
    of_layer = sum(exchange_us(measured, 1024 * size * batch) for size in sizes)
    return (of_layer * layers + exchange_us(measured, 1024 * once * batch)) / 1000


def of_one_gpu(result, bytes_of_rank):
    """ms of a rank by section 3.4 of the design: weight products shrink as the bytes of weights that a rank reads, the rest does not."""
    products = sum(op["us"] for op in result["ops"] if op["op"].split("/")[0] in PRODUCTS)
    share = products / sum(op["us"] for op in result["ops"])
    return result["ms_per_step"] * (1 - share + share * bytes_of_rank / result["weight_bytes"])


def rule_rows():
    """The step of two GPUs from that of one, which 3 bits have. Not a claim of broken(): the page says why it is less."""
    one = {r["batch"]: r for r in report("decode_flash")["results"] if r["context"] == 4096}
    two, ms = by_batch(report("ranks_k3")), {}
    for batch in (b for b in BATCHES if b in one and b in two):
        ms[batch] = of_one_gpu(one[batch], two[batch]["weight_bytes"]) + exchanges_ms(2, "flash", batch, report("ranks_k3")["layers"])
    yield row("Flash, 3 bits, two GPUs: by the rule of 3.4 from one GPU", *(speed(b, ms[b]) if b in ms else "" for b in BATCHES))
    yield row("measured speed / predicted", *(f"{ms[b] / two[b]['ms_per_step']:.2f}" if b in ms else "" for b in BATCHES))


def predictions():
    """(title, ranks, {batch: predicted ms}, {batch: measured ms})"""
    for name, ranks, whole, release, title in PREDICTED:
        alone = report(name)
        if alone is None:
            continue
        predicted = {b: one["ms_per_step"] + exchanges_ms(ranks, release, b, alone["layers"]) for b, one in by_batch(alone).items()}
        yield title, ranks, predicted, {b: one["ms_per_step"] for b, one in by_batch(report(whole) if whole else None).items()}


def speed(batch, ms):
    return f"{ms:.2f} ({1000 * batch / ms:,.0f})"


def prediction_rows():
    for title, ranks, predicted, measured in predictions():
        cells = [speed(b, predicted[b]) if b in predicted else "" for b in BATCHES]
        yield row(f"{title}, {WORDS[ranks]} GPUs: predicted", *cells)
        if measured:
            yield row("measured", *(speed(b, measured[b]) if b in measured else "" for b in BATCHES))
            yield row("measured speed / predicted", *(f"{predicted[b] / measured[b]:.2f}" if b in predicted and b in measured else "" for b in BATCHES))


def alone_memory():
    """Lines about the bytes of ranks of Pro."""
    for name, ranks, _, release, title in PREDICTED:
        alone = report(name) if release == "pro" else None
        memory = max((one["memory"] for one in alone["results"]), key=lambda one: one["measured_bytes"]) if alone else None
        if memory:
            excess = 100 * (memory["measured_bytes"] / memory["planned_bytes"] - 1)
            yield (f"* Rank 0 of {WORDS[ranks]} of {title}, alone: {memory['weights_bytes'] / GIB:.1f} GiB of weights; "
                   f"{memory['planned_bytes'] / GIB:.2f} GiB planned, {memory['measured_bytes'] / GIB:.2f} taken ({excess:+.2f} %).")


def broken():
    """Steps below 0.8 of what is predicted of them."""
    for title, ranks, predicted, measured in predictions():
        for batch in predicted.keys() & measured.keys():
            if predicted[batch] / measured[batch] < LEAST:
                yield f"{title}, {ranks} GPUs, batch {batch}: {predicted[batch] / measured[batch]:.2f} of the predicted speed, less than {LEAST}"


def plan_row(one):
    weights = one["weights_bytes"]
    left = one["room_bytes"] - one["need_bytes"]
    return row(one["model"], one["machine"], f"{weights['most'] / GIB:.1f}", f"{one['copies_bytes'] / GIB:.1f}",
               f"{left / GIB:.1f}" if one["fits"] else "-", one["max_sequences"], f"{one['received_bytes_per_token'] / 1e6:.1f}")


def plan_table():
    rows = read(RESULTS / "ranks_plan.json")["rows"]
    head = (f"model | machine | GiB of weights of the fullest rank | of them on every rank | GiB left beside one sequence of {thousands(rows[0]['context'])} | "
            "such sequences | MB received for a token")
    return table(head, *map(plan_row, rows))


def memory_row(name, title):
    """Bytes of one GPU, and how many more than planned."""
    def cell(memory):
        excess = memory["measured_bytes"] / memory["planned_bytes"] - 1
        return f"{memory['planned_bytes'] / GIB:.2f}, {memory['measured_bytes'] / GIB:.2f} ({100 * excess:+.2f} %)"
    of_batch = by_batch(report(name))
    return row(f"{title}: GiB of a GPU planned, taken", *(cell(of_batch[b]["memory"]) if b in of_batch else "" for b in BATCHES))


def exchange_table():
    """With NCCL's times where both were measured in one run."""
    found = report("peer_exchange") or report("ranks_exchange")
    exchanges = found["results"]
    nccl = [row(f"all-gather of NCCL {found.get('nccl', '')}, us", *(f"{one['nccl_us']:.1f}" for one in exchanges))] if "nccl_us" in exchanges[0] else []
    return table(" | ".join(["KiB of a tensor", *(str(one["bytes"] // 1024) for one in exchanges)]),
                 row("us", *(f"{one['us']:.1f}" for one in exchanges)), *nccl)


def steps():
    first = report("ranks_fp4")
    rounds = [one for one in report("ranks_mtp_fp4")["results"] if one.get("draft_tokens") == 2]
    return [f"Two {first['device']}, synthetic V4-Flash, {first['layers']} layers, a context of 4K: ms a step (tokens/s) by batch.", "",
            *table(batch_head(), *(decode_row(*one) for one in DECODE), *(memory_row(*one) for one in (DECODE[0], DECODE[4]))), "",
            *(f"* A prompt of {thousands(one['tokens'])} in steps of {thousands(one['chunk'])}, FP4: {one['tokens_per_second']:,.0f} tokens/s."
              for one in report("ranks_prefill")["results"]),
            *(f"* Two drafts of MTP, of which {one['tokens_per_round'] - 1:.2f} hold, batch {one['batch']}: {one['tokens_per_second']:,.0f} tokens/s."
              for one in rounds)]


def batch_head():
    return "| ".join(["", *(f"{b} " for b in BATCHES)]).strip()


def wanted():
    memory = list(alone_memory())
    predicted = table(batch_head(), *prediction_rows(), *rule_rows()) + ([""] if memory else []) + memory
    return {PAGE: with_blocks(PAGE, ranks="\n".join(steps()), exchange="\n".join(exchange_table()), predicted="\n".join(predicted),
                              plan="\n".join(plan_table())),
            ranks_picture.FILE: ranks_picture.picture()}
