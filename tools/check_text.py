#!/usr/bin/env python3
"""Checks the text of every tracked file: what a formatter does not see.

  every file     no absolute path of a build machine
  but data       no trailing blanks, one newline at the end (data: .json; data/, golden/, corpus/)
  code           no tabs; at most 500 lines (see LONG)
  C++            a header has #pragma once (X-inl.h: Highway's toggle guard) and opens with a comment
                 that says what it is; a source opens with a comment or, beside its header, an include

Usage: check_text.py [ROOT]. Prints "file:line: message" per violation and exits 1 if there are any.
"""

import pathlib
import re
import subprocess
import sys

HEADERS, SOURCES = {".h", ".cuh"}, {".cc", ".cu"}
CODE = HEADERS | SOURCES | {".py", ".cmake"}
MACHINE_PATH = re.compile(r'(?<![\w.$}/<-])/(?:work|tmp|root|home|mnt)/[\w.]')
MAX_LINES = 500
LONG = {}  # path: why it is longer
DATA = re.compile(r"\.json$|(^|/)(data|golden|corpus)/")


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def check_file(path, data):
    """Problems of one file as (line, message)."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return  # not text
    if "\0" in text or not text:
        return
    suffix, lines = pathlib.PurePath(path).suffix, text.split("\n")
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield number, "names a path of one machine"
    if DATA.search(path):
        return
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "trailing blank"
        if suffix in CODE and "\t" in line:
            yield number, "tab"
    if not text.endswith("\n"):
        yield len(lines), "no newline at the end"
    elif text.endswith("\n\n"):
        yield len(lines) - 1, "blank line at the end"
    if suffix in CODE and len(lines) - 1 > MAX_LINES and path not in LONG:
        yield len(lines) - 1, f"longer than {MAX_LINES} lines"
    guard = "defined(HWY_TARGET_TOGGLE)" if path.endswith("-inl.h") else "\n#pragma once\n"
    if suffix in HEADERS and guard not in text:
        yield 1, f"no {guard.strip()}"
    if suffix in HEADERS and not text.startswith("//"):
        yield 1, "a header opens with a comment"
    if suffix in SOURCES and not text.startswith(("//", "#include")):
        yield 1, "a source opens with a comment or an include"


def check(root):
    return [f"{path}:{line}: {message}" for path in tracked(root)
            for line, message in check_file(path, (root / path).read_bytes())]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
