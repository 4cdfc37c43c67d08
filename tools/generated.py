"""What the page makers share: texts that are made from measurements are rewritten, or checked to be up to date."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def between_marks(path, mark, text):
    """The file with what stands between <!-- mark --> and <!-- /mark --> replaced."""
    block = f"<!-- {mark} -->\n{text}\n<!-- /{mark} -->"
    return re.sub(f"<!-- {mark} -->.*<!-- /{mark} -->", lambda _: block, (ROOT / path).read_text(), flags=re.S)


def settle(wanted, tool):
    """Writes {path: text}; with --check only says what is stale. Returns the exit status."""
    stale = [name for name, text in wanted.items() if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"{name} is not what {tool} makes of bench/results", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(wanted[name])
    return 0
