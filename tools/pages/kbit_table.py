"""docs/kernels/kbit_table.md: k-bit products of every shape beside cuBLAS, and the picture of one shape against its floor.
From bench/results/gpu-h200/peer_kbit_table.json (bench/peer_kbit.py --all); until that is there, from peer_kbit.json."""

from common import RESULTS, load_svg, read, row, table

PAGE, FIGURE = "docs/kernels/kbit_table.md", "docs/kernels/figures/kbit_roofline.svg"
MOST_ROWS = 256  # up to which no product should be slower than cuBLAS
NEAR = 1.1       # a generic codebook should take no more of the time of e4m3
PICTURE = 8192, 8192  # K_in, N


def rows_of(report):
    """Its rows; those of older files had another name and fewer fields."""
    return [{"codebook": "e4m3", "layout": "rows", **r} for r in report.get("results") or report["rows"]]


class Times:
    """us of what a call takes, bf16, of one kind of weights: [shape, m, k]; shape: (K_in, N)."""

    def __init__(self, rows, codebook, layout, name="chosen"):
        self.us = {((r["k_in"], r["n"]), r["m"], r["k"]): r["us"][name] for r in rows if name in r["us"]
                   and r["dtype"] == "bfloat16" and (r["codebook"], r["layout"]) == (codebook, layout)}

    def bits(self, shape=None):
        return sorted({k for of, _, k in self.us if shape in (None, of)})

    def cell(self, shape, m, k):
        return number(self.us[shape, m, k]) if (shape, m, k) in self.us else ""


def number(us):
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def case(shape, k):
    return f"{shape[0]} -> {shape[1]}, K = {k}"


def against(ours, other, most=None):
    """Lines of a table by rows: how many cases are not slower than `most` times other, and the worst ratio."""
    by_rows = {}
    for (shape, m, k), us in ours.us.items():
        if other(shape, m, k):
            by_rows.setdefault(m, []).append((us / other(shape, m, k), case(shape, k)))
    return [row(m, len(found), sum(ratio <= (most or 1) for ratio, _ in found), f"{max(found)[0]:.2f} ({max(found)[1]})",
                f"{min(found)[0]:.2f} ({min(found)[1]})") for m, found in sorted(by_rows.items())]


def shape_table(shape, kinds, cublas, floors):
    rows = sorted({m for of, m, _ in kinds[0][1].us if of == shape})
    columns = [(f"{name}{k}", times, k) for name, times in kinds for k in times.bits(shape)]
    lines = [row(m, number(cublas[shape, m]), *(times.cell(shape, m, k) for _, times, k in columns)) for m in rows]
    floor = [number(floors[shape, rows[0], k]) if (shape, rows[0], k) in floors else "" for _, _, k in columns]
    return table(f"rows | cuBLAS bf16 | {' | '.join(name for name, _, _ in columns)}", row("floor", "", *floor), *lines)


def page(report):
    rows = [r for r in rows_of(report) if r["dtype"] == "bfloat16"]
    plain, generic, image = Times(rows, "e4m3", "rows"), Times(rows, "nf", "rows"), Times(rows, "e4m3", "image")
    humming = Times(rows, "e4m3", "rows", "humming")
    cublas = {((r["k_in"], r["n"]), r["m"]): r["cublas_us"] for r in rows}
    floors = {((r["k_in"], r["n"]), r["m"], r["k"]): r["floor_us"] for r in rows}
    kinds = [("K = ", plain), ("nf, K = ", generic), ("image, K = ", image), ("Humming, K = ", humming)]
    who = {(k_in, n): of for k_in, n, of in report.get("shapes", [])}
    lines = ["# K-bit products of every shape", "",
             f"{report['device']}, torch {report['torch']}, bf16 activations and outputs, us of a call with weights from memory, in one run "
             f"(`bench/peer_kbit.py {'--all' if who else '--quick'}`): what a call takes, which is not always the fastest of [the implementations](kbit.md). Weights "
             "are in rows with the codebook e4m3; `nf` is a generic codebook, `image` the [kernel image](kbit_image.md). The floor is "
             f"that of the smallest number of rows: the stored bytes at {report['bandwidth'] / 1e12:.1f} TB/s.", ""]
    if "humming" in report:
        lines += [f"Humming: {report['humming']}.", ""]
    lines += [f"Against cuBLAS in bf16, up to {MOST_ROWS} rows (a ratio below 1 is faster):", "",
              *table("rows | cases | not slower | worst | best",
                     *against(plain, lambda shape, m, k: cublas[shape, m] if m <= MOST_ROWS else None)), ""]
    if generic.us:
        lines += [f"Generic codebooks (nf) against e4m3, of which they should take at most {NEAR:.2f}:", "",
                  *table(f"rows | cases | at most {NEAR:.2f} | worst | best",
                         *against(generic, lambda *at: plain.us.get(at), NEAR)), ""]
    if image.us:
        lines += ["Images against rows:", "",
                  *table("rows | cases | not slower | worst | best", *against(image, lambda *at: plain.us.get(at))), ""]
    for shape in dict.fromkeys(of for of, _, _ in plain.us):
        lines += [f"## {shape[0]} -> {shape[1]}", "", *([f"{who[shape]}.", ""] if shape in who else []),
                  *shape_table(shape, kinds, cublas, floors), ""]
    return "\n".join(lines[:-1]) + "\n"


def picture(report):
    rows = [r for r in rows_of(report) if r["dtype"] == "bfloat16" and (r["k_in"], r["n"]) == PICTURE
            and (r["codebook"], r["layout"]) == ("e4m3", "rows")]
    line = lambda k, of: sorted((r["m"], of(r)) for r in rows if r["k"] == k)
    bits = sorted({r["k"] for r in rows})
    series = {f"K = {k}": line(k, lambda r: r["us"]["chosen"]) for k in bits}
    series["cuBLAS bf16"] = line(bits[0], lambda r: r["cublas_us"])
    return load_svg().line_plot_text(f"{PICTURE[0]} x {PICTURE[1]}, {report['device']}; dashed: floors", "rows", "us", series, points=True,
                                     log=True, dashed={f"K = {k}": line(k, lambda r: r["floor_us"]) for k in bits})


def wanted():
    path = RESULTS / "gpu-h200/peer_kbit_table.json"
    report = read(path if path.exists() else RESULTS / "gpu-h200/peer_kbit.json")
    return {PAGE: page(report), FIGURE: picture(report)}
