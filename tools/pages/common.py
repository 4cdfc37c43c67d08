"""What the pages share: results, tables, and texts that are rewritten or compared with what is there."""

import importlib.util
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench/results"
COMMAND = "tools/pages"


def read(path):
    return json.loads(path.read_text())


def load_svg():
    """The plots of the Python package, which needs no built library for them."""
    spec = importlib.util.spec_from_file_location("svg", ROOT / "python/dsv4_kernels/_svg.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(head, *rows):
    """Lines of a Markdown table. The head has its columns between bars, without the first and the last bar."""
    return [f"| {head} |", "|---" * (head.count("|") + 1) + "|", *rows]


def row(*cells):
    return f"| {' | '.join(map(str, cells))} |"


def percent(value):
    return f"{100 * value:.0f} %"


def thousands(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


def with_block(page, mark, text):
    """The page with the text between <!-- mark --> and <!-- /mark --> replaced."""
    block = f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->"
    return re.sub(f"<!-- {mark} -->.*<!-- /{mark} -->", lambda _: block, page, flags=re.S)


def with_blocks(path, **blocks):
    """The text of a page in the repository with some of its blocks replaced."""
    page = (ROOT / path).read_text()
    for mark, text in blocks.items():
        page = with_block(page, mark, text)
    return page


def settle(wanted, check):
    """Writes {path: text}, or only reports what is not up to date. Returns whether all was."""
    stale = [name for name, text in wanted.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    for name in stale:
        if check:
            print(f"{name} is stale: run python3 {COMMAND}", file=sys.stderr)
            continue
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(wanted[name])
    return not stale
