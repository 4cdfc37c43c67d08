"""The figures and tables of docs/decode-step.md from a trace of one captured step of V4-Flash at one token:
bench/results/gpu-*/decode_trace.json (`dsv4 bench decode --trace FILE`). performance.py calls block() and figures().

A kernel that starts early waits for its predecessor, so its own time says little. What it costs the step is the time
from the end of all earlier kernels to its own end, here "exposed".
"""

import statistics
from xml.sax.saxutils import escape

from common import percent, row, table
from decode_step import CHOSEN, EXPERT, K3, KEY, READ_RATE, ROW, TOPK, WEIGHTS, WINDOW

# The kernels of a layer in order: name in the trace, what it does, weights of decode_step.WEIGHTS that it reads.
# forms() has the layers without some of them.
MIX = ("mix_kernel", "mHC mix", {"mHC fn, both sub-layers": 0.5})
FINISH = ("finish_kernel", "mHC finish, norm", {})
ATTENTION = (
    MIX, FINISH,
    ("two_formats_kernel", "products of x", {name: 1 for name in ("wq_a", "wkv", "compressor wkv + wgate", "indexer compressor",
                                                                    "indexer weights_proj")}),
    ("query_kernel", "queries, rows", {"wq_b": 1, "indexer wq_b": 1}),
    ("select_kernel", "index_select", {"keys": 1}),
    ("sparse_mla_fp8_kernel", "sparse_mla", {"rows": 1}),
    ("small_m_kernel", "wo_a", {"wo_a": 1}),
    ("small_m_kernel", "wo_b", {"wo_b": 1}),
    MIX, FINISH,
    ("two_formats_kernel", "gate, shared w1, w3", {"router gate": 1, "shared expert w1, w3, w2": 2 / 3}),
)
EXPERTS = (
    ("down_kernel", "shared w2, router", {"shared expert w1, w3, w2": 1 / 3}),
    ("few_kernel", "experts gate, up", {"experts": 2 / 3}),
    ("few_kernel", "experts down", {"experts": 1 / 3}),
    ("combine_kernel", "combine", {}),
)
FUSED_EXPERTS = (
    ("gate_up_kernel", "router, shared w2, gate, up", {"shared expert w1, w3, w2": 1 / 3, "experts": 2 / 3}),
    ("down_kernel", "down, sums", {"experts": 1 / 3}),
)
# Kernels by the names that they have in traces of earlier builds.
RENAMED = {"few_gemm_kernel": "small_m_kernel", "few_gemm_pair_kernel": "two_formats_kernel",
           "boundary_pair_kernel": "boundary_kernel"}
KINDS = ("CSA", "HCA")

WIDTH, LEFT, RIGHT, TOP, BOTTOM, LINE = 860, 132, 186, 58, 38, 20
EARLY, BUSY, FLOOR = "#c9d8ea", "#1f5fa8", "#c8501e"


def without_finish(nodes):
    """The same layer where the products finish the boundary."""
    named = {"two_formats_kernel": "boundary_kernel"}
    return [(named.get(name, name), label, reads) for name, label, reads in nodes if name != FINISH[0]]


def forms():
    """All forms of a layer: with and without index_select, the boundary inside the products, the experts fused."""
    for experts in (EXPERTS, FUSED_EXPERTS):
        whole = [*ATTENTION, *experts]
        for nodes in (whole, [node for node in whole if node[0] != "select_kernel"]):
            yield nodes
            yield without_finish(nodes)


def exposed(kernels):
    """Kernels with "from" (the end of all earlier ones) and "end", and the time between."""
    latest = kernels[0]["start_us"]
    for kernel in kernels:
        end = kernel["start_us"] + kernel["us"]
        yield {**kernel, "from": latest, "end": end, "exposed_us": max(end - latest, 0)}
        latest = max(latest, end)


def layers(kernels):
    """(kind, kernels with their nodes) of each layer, in order. The first layers without index_select are SWA, later ones
    HCA."""
    names = [RENAMED.get(kernel["kernel"], kernel["kernel"]) for kernel in kernels]
    at, seen = 0, False
    while at < len(names):
        for nodes in forms():
            its_names = [node[0] for node in nodes]
            if names[at:at + len(nodes)] == its_names:
                csa = "select_kernel" in its_names
                seen = seen or csa
                its_kernels = [{**kernel, "node": node} for kernel, node in zip(kernels[at:], nodes)]
                yield "CSA" if csa else "HCA" if seen else "SWA", its_kernels
                at += len(nodes)
                break
        else:
            at += 1


def typical(kind, found):
    """The layer whose time is the median of its kind."""
    times = [(layer[-1]["end"] - layer[0]["from"], layer) for its_kind, layer in found if its_kind == kind]
    middle = statistics.median_low(time for time, _ in times)
    return next(layer for time, layer in times if time == middle)


def node_bytes(reads, kind, context):
    """Bytes that a kernel has to read for one token."""
    entries = {"HCA": context // 128, "CSA": min(context // 4, TOPK)}[kind]
    sizes = {name: size * count for name, _, kinds, size, count, _ in WEIGHTS if kind in kinds}
    sizes |= {"experts": CHOSEN * EXPERT * K3, "rows": (WINDOW + entries) * ROW, "keys": context // 4 * KEY}
    return sum(share * sizes.get(name, 0) for name, share in reads.items())


def rows(kind, layer, context, rate):
    """What the figure and the table show of each kernel; times from the layer's begin."""
    begin = layer[0]["from"]
    total = layer[-1]["end"] - begin
    for kernel in layer:
        _, label, reads = kernel["node"]
        size = node_bytes(reads, kind, context)
        yield {"label": label, "ctas": kernel["ctas"], "start": kernel["start_us"] - begin, "from": kernel["from"] - begin,
               "end": kernel["end"] - begin, "gap": kernel["start_us"] - kernel["from"], "exposed": kernel["exposed_us"],
               "share": kernel["exposed_us"] / total, "bytes": size, "floor": size / rate * 1e6}


def rate_of(found):
    """TB/s while the kernel was exposed; empty where it reads next to nothing."""
    return f"{found['bytes'] / found['exposed'] / 1e6:.2f}" if found["bytes"] > 1e6 and found["exposed"] > 0 else ""


def kernel_row(found):
    return row(found["label"], found["ctas"], f"{found['gap']:+.1f} us", f"{found['exposed']:.1f} us", percent(found["share"]),
               f"{found['bytes'] / 1e6:.1f}", f"{found['floor']:.1f} us", rate_of(found))


def layer_table(kernels):
    time, floor, size = kernels[-1]["end"], sum(k["floor"] for k in kernels), sum(k["bytes"] for k in kernels)
    return table("kernel | CTAs | gap | exposed | share | MB | floor | TB/s", *map(kernel_row, kernels),
                 f"| layer | | | {time:.1f} us | 100 % | {size / 1e6:.1f} | {floor:.1f} us | |")


def box(x, y, width, height, color):
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color}"/>'


def bar(x, kernel, y):
    """Waiting or filling its ring, then alone; a mark where it would end at the speed of memory."""
    start, begin, end = (x(kernel[name]) for name in ("start", "from", "end"))
    alone, mark = max(start, begin), x(kernel["from"] + kernel["floor"])
    lines = [box(f"{start:.1f}", y + 4, f"{begin - start:.1f}", LINE - 8, EARLY)] if kernel["start"] < kernel["from"] else []
    lines.append(box(f"{alone:.1f}", y + 3, f"{max(end - alone, 0.5):.1f}", LINE - 6, BUSY))
    if kernel["floor"] > 0.05:
        lines.append(f'<line x1="{mark:.1f}" y1="{y + 1}" x2="{mark:.1f}" y2="{y + LINE - 1}" stroke="{FLOOR}" stroke-width="2.5"/>')
    return lines


def figure(title, kernels):
    """One bar per kernel over the layer's time."""
    height = TOP + LINE * len(kernels) + BOTTOM
    first, last = min(k["start"] for k in kernels), kernels[-1]["end"]
    x = lambda us: LEFT + (us - first) / (last - first) * (WIDTH - LEFT - RIGHT)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
             'font-family="sans-serif" font-size="11">', f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="10" y="18" font-size="14">{escape(title)}</text>',
             *legend(10, 36), f'<text x="{WIDTH - RIGHT + 8}" y="{TOP - 6}" fill="#555555">exposed, share, gap</text>']
    for tick in range(-100, 1000, 10):
        if first <= tick <= last:
            lines += [f'<line x1="{x(tick):.1f}" y1="{TOP}" x2="{x(tick):.1f}" y2="{height - BOTTOM}" stroke="#e4e4e4"/>',
                      f'<text x="{x(tick):.1f}" y="{height - BOTTOM + 15}" text-anchor="middle">{tick}</text>']
    for i, k in enumerate(kernels):
        y = TOP + LINE * i
        lines += [f'<text x="{LEFT - 6}" y="{y + 14}" text-anchor="end">{escape(k["label"])}</text>', *bar(x, k, y),
                  f'<text x="{WIDTH - RIGHT + 8}" y="{y + 14}">{k["exposed"]:.1f} us, {percent(k["share"])}, {k["gap"]:+.1f}</text>']
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 8}" text-anchor="middle">us from the end of the previous layer</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def legend(x, y):
    lines = []
    for color, width, text in ((EARLY, 14, "started early: waits, or fills its ring"), (BUSY, 14, "after all earlier kernels have ended"),
                               (FLOOR, 3, "end at the read rate of memory")):
        lines += [box(x, y - 9, width, 10, color), f'<text x="{x + width + 5}" y="{y}">{text}</text>']
        x += width + 20 + 6 * len(text)
    return lines


def of_kinds(gpu):
    """{kind: rows} of the typical layers of a GPU's trace."""
    report, rate = gpu["decode_trace"], READ_RATE[gpu["decode_trace"]["device"]]
    found = list(layers(list(exposed(report["kernels"]))))
    return {kind: list(rows(kind, typical(kind, found), report["context"], rate)) for kind in KINDS}


def traced(gpus):
    return [gpu for gpu in gpus if "decode_trace" in gpu]


def file_name(kind):
    return f"figures/decode_{kind.lower()}_layer.svg"


def figures(gpus):
    """{path: text} below docs, of the first GPU that has a trace."""
    found = {}
    for gpu in traced(gpus)[:1]:
        for kind, its_rows in of_kinds(gpu).items():
            title = f"One {kind} layer of V4-Flash, one token, {gpu['decode_trace']['device']}: {its_rows[-1]['end']:.1f} us"
            found[f"docs/{file_name(kind)}"] = figure(title, its_rows)
    return found


def block(gpus):
    lines = []
    for gpu in traced(gpus)[:1]:
        report = gpu["decode_trace"]
        lines += [f"{report['device']}, batch {report['batch']}, context {report['context']}: {report['wall_us'] / 1000:.2f} ms, of which "
                  f"{report['idle_us']:.0f} us without a kernel. The layers with the median time of their kind; starts are in steps of 0.25 us. "
                  "Gap: from the end of all earlier kernels to the start, negative where a kernel starts early. Exposed: from there to its own "
                  f"end. Floor and TB/s: bytes that it has to read, at {READ_RATE[report['device']] / 1e12:.2f} TB/s and in the exposed time.", ""]
        for kind, its_rows in of_kinds(gpu).items():
            lines += [f"![one {kind} layer]({file_name(kind)})", "", *layer_table(its_rows), ""]
    return "\n".join(lines).rstrip("\n")
