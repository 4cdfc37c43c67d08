#!/usr/bin/env python3
"""Checks that every citation in a tracked file has a target in the repository.

  specifications   "docs/spec/dsv4.md 4.4, 4.5" or "dsv4.md 4.4" inside docs/: the file, and a heading for each section
  decisions        "docs/adr/0010": a file whose name begins with that number
                   "section 4.4" in a specification: the heading in that file
  files            `model/step.h` in a document that is not a specification: a suffix of a tracked path. Names with an
                   upper-case placeholder or foo are examples
  links            [text](path) in Markdown, relative to the file; an #anchor is not checked

A citation without a file ("spec 13.4") or without its folder ("spec dsv4.md 4.4" in code) is an error as well.

Usage: check_citations.py [ROOT]. Prints "file:line: message" per violation and exits 1 if there are any.
"""

import pathlib
import re
import sys

from check_text import DATA, tracked

SPEC = "docs/spec"
GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:/{2,3}|#|\*)?[ \t]*)"
SECTION = r"(?:appendix[ ])?(?:[0-9]+[a-z]?(?:\.[0-9]+)*|[A-D](?:\.[0-9]+)?)(?![\w%])(?:[ ]step[ ][0-9]+)?"
CITATION = re.compile(rf"(?<![\w/.-])(?P<folder>(?:\.\./|[\w-]+/)*)(?P<name>[\w-]+\.md)\)?"
                      rf"(?:{GAP}(?:section[ ])?(?P<sections>{SECTION}(?:(?:,{GAP}|[ ]-[ ]|{GAP}and[ ]){SECTION})*))?")
BARE = re.compile(r"(?<![\w/.-])[Ss]pec[ ](?:section[ ])?(?:[0-9]+\.[0-9]+|[A-D]\.[0-9]+|[\w-]+\.md)"
                  r"|architecture\.md[ ]decision")
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:h|cc|cuh?|py|sh|json|txt|cmake|md))`")
EXAMPLE = re.compile(r"(^|/)(foo|[A-Z]+)(/|_|\.|$)|^build/")
DECISION = re.compile(r"docs/adr/(\d{4})")
OWN_SECTION = re.compile(r"\b[Ss]ections?[ ]([0-9]+[a-z]?(?:\.[0-9]+)*)\b")
LISTS = ("mkdocs.yml", "tools/doc_commands_not_run.txt")  # names of pages, no citations
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
HEADING = re.compile(r"^#+[ ](?:Appendix[ ])?([0-9]+[a-z]?(?:\.[0-9]+)*|[A-D](?:\.[0-9]+)?)\.?[ ]", re.M)


def sections_of(text):
    """Numbers of all headings outside fenced code."""
    return set(HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)))


def numbers(text):
    """'4.1 step 7, 5.4 - 5.6' -> 4.1, 5.4, 5.6"""
    return re.findall(r"(?<![\w.])(?:[0-9]+[a-z]?(?:\.[0-9]+)*|[A-D](?:\.[0-9]+)?)(?![\w.])", re.sub(r"step[ ][0-9]+", "", text))


def line_of(text, position):
    return text.count("\n", 0, position) + 1


def ends_of(paths):
    """Every suffix of a tracked path, split at folders."""
    return {path.split("/", skipped)[-1] for path in paths for skipped in range(path.count("/") + 1)}


def check_file(root, path, text, specs, ends):
    """Problems of one file as (line, message). specs: {file name: set of section numbers}; ends: see ends_of()"""
    inside = path.startswith("docs/")
    for found in BARE.finditer(text):
        yield line_of(text, found.start()), f'"{found[0]}": cite the file, as in {SPEC}/dsv4.md 4.4'
    for found in CITATION.finditer(text):
        folder, name, line = found["folder"], found["name"], line_of(text, found.start())
        if folder.endswith("spec/") and name not in specs and name != "README.md":
            yield line, f"there is no {SPEC}/{name}"
        if name not in specs:
            continue
        if not inside and folder != SPEC + "/" and not path.endswith(".md"):
            yield line, f"cite {SPEC}/{name}"
        for number in numbers(found["sections"] or ""):
            if number not in specs[name]:
                yield line, f"{SPEC}/{name} has no section {number}"
    for found in OWN_SECTION.finditer(text) if path.startswith(SPEC) else ():
        if found[1] not in specs.get(pathlib.PurePath(path).name, {found[1]}):
            yield line_of(text, found.start()), f"there is no section {found[1]} here"
    for found in DECISION.finditer(text):
        if not list(root.glob(f"docs/adr/{found[1]}-*.md")):
            yield line_of(text, found.start()), f"there is no decision {found[1]}"
    if path.endswith(".md") and not path.startswith(SPEC):
        for found in FILE.finditer(text):
            if found[1] not in ends and not EXAMPLE.search(found[1]):
                yield line_of(text, found.start()), f"names {found[1]}, which does not exist"
    if path.endswith(".md"):
        for found in LINK.finditer(re.sub(r"`[^`\n]*`", lambda code: " " * len(code[0]), text)):
            if "://" not in found[1] and not (root / path).parent.joinpath(found[1]).exists():
                yield line_of(text, found.start()), f"links to {found[1]}, which does not exist"


def check(root):
    specs = {file.name: sections_of(file.read_text()) for file in (root / SPEC).glob("*.md") if file.name != "README.md"}
    problems, paths = [], tracked(root)
    ends = ends_of(paths)
    for path in paths:
        if DATA.search(path) or path.startswith("tools/check_citations") or path in LISTS:
            continue
        try:
            text = (root / path).read_text()
        except UnicodeDecodeError:
            continue
        problems += [f"{path}:{line}: {message}" for line, message in sorted(check_file(root, path, text, specs, ends))]
    return problems


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
