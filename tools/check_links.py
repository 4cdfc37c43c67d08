#!/usr/bin/env python3
"""Checks the links of every tracked Markdown file, without a network.

  files      [text](path), ![picture](path): the file or folder exists, below the repository
  anchors    [text](path#anchor), [text](#anchor): a heading with this anchor, as GitHub and the site (mkdocs.yml) name it
  places     every page of docs/ but the decisions is in the navigation of mkdocs.yml, and nothing else is

Links in code are no links. Usage: check_links.py [ROOT]. Prints "file:line: message" per violation and exits 1 if there
are any."""

import pathlib
import re
import sys
import urllib.parse

from check_text import tracked

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*$", re.M)
OUTSIDE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)
PAGE = re.compile(r"(?<![\w./-])[\w./-]+\.md\b")
GENERATED = {"demo.md", "changes.md", "contributing.md"}  # tools/site_hooks.py


def without_code(text):
    """The text with code blanked, so that lines keep their numbers."""
    return CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def anchors(text):
    """'## A `b` (c)' has the anchor a-b-c; the second of a name gets -1."""
    fences = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)
    found = set()
    for heading in HEADING.findall(fences.sub("", text)):
        name = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", name.strip().lower()).replace(" ", "-")
        number, unique = 0, name
        while unique in found:
            number += 1
            unique = f"{name}-{number}"
        found.add(unique)
    return found


def link_problem(root, path, target):
    """What is wrong with one link of a page; None: nothing."""
    place, _, anchor = target.partition("#")
    file = root / path if not place else (root / path).parent / urllib.parse.unquote(place)
    if not file.resolve().is_relative_to(root.resolve()):
        return f"links to {target}, which leaves the repository"
    if not file.exists():
        return f"links to {place}, which does not exist"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
        return f"links to {target}, but no heading there has this anchor"
    return None


def check_navigation(root, pages):
    listed = re.sub(r"#.*", "", (root / "mkdocs.yml").read_text()).partition("\nnav:")[2]
    listed = set(PAGE.findall(listed))
    there = {page.removeprefix("docs/") for page in pages if page.startswith("docs/") and not page.startswith("docs/adr/")}
    return ([f"mkdocs.yml:1: the navigation lacks {page}" for page in sorted(there - listed)] +
            [f"mkdocs.yml:1: the navigation has {page}, which does not exist" for page in sorted(listed - there - GENERATED)])


def check(root):
    root = pathlib.Path(root)
    pages = [path for path in tracked(root) if path.endswith(".md") and (root / path).is_file()]
    problems = []
    for path in pages:
        text = without_code((root / path).read_text())
        for found in LINK.finditer(text):
            problem = None if OUTSIDE.match(found[1]) else link_problem(root, path, found[1])
            if problem:
                problems.append(f"{path}:{text.count(chr(10), 0, found.start()) + 1}: {problem}")
    return problems + (check_navigation(root, pages) if (root / "mkdocs.yml").exists() else [])


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parents[1]
    problems = check(root)
    print("\n".join(problems) or "check_links: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
