"""Code that the page generators share: rewrites texts made from measurements, or checks that they are up to date."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_block(page, mark, text):
    """The page with the text between <!-- mark --> and <!-- /mark --> replaced."""
    block = f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->"
    return re.sub(f"<!-- {mark} -->.*<!-- /{mark} -->", lambda _: block, page, flags=re.S)


def between_marks(path, mark, text):
    """The same for a file."""
    return with_block((ROOT / path).read_text(), mark, text)


def settle(wanted, tool):
    """Writes {path: text}; with --check only reports what is stale. Returns the exit status."""
    stale = [name for name, text in wanted.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is stale: run {tool}", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(wanted[name])
    return 0
