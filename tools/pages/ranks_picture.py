"""The picture of the page about several GPUs: what each of two ranks holds of V4-Flash, and what a layer exchanges."""

from html import escape

FILE = "docs/figures/ranks.svg"
WIDTH, COLUMN, GAP = 940, 340, 200  # a column for each rank, and the exchanges between them
LEFT = (WIDTH - 2 * COLUMN - GAP) // 2
BOX, SPACE = 38, 10
OWN, COPY, INK = ("#cfe0f5", "#d9ecd0"), "#ececec", "#222222"
RANKS = 2
# Units of Flash that are dealt out: groups of heads, blocks of 128 rows of the hidden size, of the experts' width, of the vocabulary.
GROUPS, HIDDEN, EXPERT, VOCABULARY = 8, 32, 16, 1010
KIB = {"u": 16, "y": 8, "h": 28, "sum": 16}  # of a token, as tools/pages/ranks.py has them


def share(units, rank):
    """'4 to 7' of eight units for rank 1 of two."""
    first, end = units * rank // RANKS, units * (rank + 1) // RANKS
    return f"{first} to {end - 1}"


def kib(size):
    return f"{size} KiB a token"


# (two lines for rank r, or one for both), what is exchanged after it
def steps():
    yield "own", lambda r: ("embedding: rows of own tokens of the vocabulary", f"embed: blocks {share(VOCABULARY, r)} of {VOCABULARY}"), "rows, once a step"
    yield "title", "each layer", None
    yield "copy", ("boundary, latent, keys, entries, index", "wq_a, wkv, compressors, indexer, norms: whole"), None
    yield "own", lambda r: ("q and attention of own heads", f"wq_b, attn_sink: groups {share(GROUPS, r)} of {GROUPS}"), None
    yield "own", lambda r: ("u = o wo_aᵀ", f"wo_a: groups {share(GROUPS, r)} of {GROUPS}"), f"(1) u, {kib(KIB['u'])}"
    yield "own", lambda r: ("y = u wo_bᵀ", f"wo_b: blocks {share(HIDDEN, r)} of {HIDDEN}"), f"(2) y, {kib(KIB['y'])}"
    yield "copy", ("boundary, router", "hyper-connections, gate: whole"), None
    yield "own", lambda r: ("h = silu(w1 x) ∘ w3 x", f"w1, w3 of all experts: blocks {share(EXPERT, r)} of {EXPERT}"), f"(3) h, {kib(KIB['h'])}"
    yield "own", lambda r: ("y = sum of w2 h", f"w2 of all experts: blocks {share(HIDDEN, r)} of {HIDDEN}"), f"(4) y in F32, {kib(KIB['sum'])}"
    yield "title", "after the last layer", None
    yield "own", lambda r: ("logits of own tokens of the vocabulary", f"head: blocks {share(VOCABULARY, r)} of {VOCABULARY}"), "logits, to rank 0"


def box(rank, y, color, lines):
    x = LEFT + rank * (COLUMN + GAP)
    yield f'<rect x="{x}" y="{y}" width="{COLUMN}" height="{BOX}" rx="4" fill="{color}" stroke="#999999"/>'
    for i, (line, weight) in enumerate(zip(lines, ("bold", "normal"))):
        yield f'<text x="{x + 10}" y="{y + 16 + 15 * i}" font-weight="{weight}">{escape(line)}</text>'


def arrow(y, text):
    """Between the columns: to both ranks, or to rank 0 alone."""
    left, right, middle = LEFT + COLUMN + 6, LEFT + COLUMN + GAP - 6, LEFT + COLUMN + GAP // 2
    both = "" if text.endswith("rank 0") else ' marker-end="url(#end)"'
    yield f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#b03030" stroke-width="2" marker-start="url(#begin)"{both}/>'
    yield f'<text x="{middle}" y="{y - 6}" text-anchor="middle" fill="#b03030">{escape(text)}</text>'


def marker(name, path):
    return (f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto">'
            f'<path d="{path}" fill="#b03030"/></marker>')


def picture():
    y, body = 56, []
    for kind, what, exchanged in steps():
        if kind == "title":
            body.append(f'<text x="{LEFT}" y="{y + 12}" fill="#555555">{escape(what)}</text>')
            y += 20
            continue
        for rank in range(RANKS):
            body += box(rank, y, COPY if kind == "copy" else OWN[rank], what if kind == "copy" else what(rank))
        if kind == "copy":
            body.append(f'<text x="{LEFT + COLUMN + GAP // 2}" y="{y + 23}" text-anchor="middle" fill="#555555">equal on both</text>')
        if exchanged:
            body += arrow(y + BOX // 2 + 4, exchanged)
        y += BOX + SPACE
    body += [f'<text x="{LEFT}" y="{y + 14}" fill="#555555">Both have the whole cache (window, entries, index keys, states), and after an exchange all columns.</text>']
    height = y + 30
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>', f'<g fill="{INK}">',
            "<defs>" + marker("end", "M0,0 L8,4 L0,8 z") + marker("begin", "M8,0 L0,4 L8,8 z") + "</defs>",
            *(f'<text x="{LEFT + r * (COLUMN + GAP)}" y="34" font-size="15">rank {r} of {RANKS}</text>' for r in range(RANKS)),
            f'<text x="{LEFT + COLUMN + GAP // 2}" y="34" text-anchor="middle" font-size="13" fill="#b03030">exchanged</text>']
    return "\n".join([*head, *body, "</g>", "</svg>"]) + "\n"
