"""The table of docs/speculation.md of rounds on a GPU, from bench/results (tools/gpu_check.sh, rounds_*)."""

from common import RESULTS, read, row, table, with_blocks

PAGE = "docs/speculation.md"
DRAFTS_FROM = {"mtp": "the block", "mtp_direct": "the block", "dspark": "DSpark", "dspark_direct": "DSpark", "lookup": "for nothing"}


def accepted(round_):
    return ", ".join(f"{share:g}" for share in dict.fromkeys(round_["accept"]))


def rows_of(report, source):
    """A row for each round; the plain step of its batch stands before it in the report."""
    plain = None
    for result in report["results"]:
        if "ms_per_step" in result:
            plain = result
            yield row(result["batch"], 0, "", "", f"{result['ms_per_step']:.2f}", "", "1", f"{result['tokens_per_second']:.0f}", "1.00")
            continue
        gain = result["tokens_per_second"] / plain["tokens_per_second"]
        source_text = DRAFTS_FROM[source] + (", head in 4 bits" if result.get("draft_head") == "k4" else "")
        yield row(result["batch"], result["draft_tokens"], source_text, accepted(result), f"{result['ms_per_round']:.2f}",
                  f"{result['draft_ms']:.2f}" if result.get("draft_ms") else "", f"{result['expected_tokens_per_round']:.2f}",
                  f"{result['tokens_per_second']:.0f}", f"{gain:.2f}")


def wanted():
    files = {source: RESULTS / f"gpu-h200/rounds_{source}.json" for source in DRAFTS_FROM}
    reports = {source: read(file) for source, file in files.items() if file.exists()}
    first = reports["mtp"]
    text = [f"{first['device']}, synthetic V4-Flash, experts {first['experts']}, {first['layers']} layers, a context of 4K "
            "(`dsv4 bench decode --draft-tokens --accept`):", "",
            *table("sequences | drafts | drafts from | held, of 1st, 2nd, .. | ms a round | of it drafts | tokens a round | tokens/s | gain",
                   *(line for source, report in reports.items() for line in rows_of(report, source)))]
    return {PAGE: with_blocks(PAGE, rounds="\n".join(text))}
