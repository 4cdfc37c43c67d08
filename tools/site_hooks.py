"""mkdocs.yml's hooks: the decisions of docs/adr in the navigation, and pages that lie outside of docs/.

A link from docs/ to a page outside, or back, is written as it works in the repository; here it becomes the one that works
in the site. `adr/` as a link is the first decision."""

import os
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTSIDE = {"models/demo/README.md": "demo.md", "CHANGELOG.md": "changes.md", "CONTRIBUTING.md": "contributing.md"}
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?\)")


def decisions():
    return sorted(f"adr/{path.name}" for path in (ROOT / "docs/adr").glob("*.md"))


def on_config(config):
    for section in config["nav"]:
        for entry in section.get("How it works", []):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] = decisions()
    return config


def on_files(files, config):
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def place_in_site(target):
    """The page that a path in the repository has in the site; None: none."""
    if target == "docs/adr":
        return decisions()[0]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return OUTSIDE.get(target)


def on_page_markdown(markdown, page, **_):
    sources = {page: source for source, page in OUTSIDE.items()}
    path = page.file.src_uri
    folder = os.path.dirname(sources.get(path, f"docs/{path}"))

    def rewritten(found):
        place = place_in_site(os.path.normpath(os.path.join(folder, found[2])))
        if place is None:
            return found[0]
        return f"{found[1]}{os.path.relpath(place, os.path.dirname(path) or '.')}{found[3] or ''})"

    return LINK.sub(rewritten, markdown)
