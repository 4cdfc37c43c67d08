"""Runs check_links.py on a small repository with one link at a time. Run: python3 FILE."""

import pathlib
import subprocess
import tempfile
import unittest

import check_links

PAGE = "# A page\n\n## Two `code` words, (and) more\n\n## Twice\n\n## Twice\n\n```\n## in code\n```\n"


class CheckLinksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write("docs/page.md", PAGE)
        self.write("docs/figures/a.svg", "")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def problems(self, text):
        self.write("docs/b.md", text)
        return check_links.check(self.root)

    def test_good_links(self):
        for link in ("page.md", "page.md#a-page", "page.md#two-code-words-and-more", "page.md#twice-1", "#here",
                     "../docs/page.md#twice", "figures/", "figures/a.svg", "https://no.such.host/x#y", "mailto:a@b"):
            self.assertEqual(self.problems(f"# Here\n\n[a]({link}) ![b]({link})\n"), [], link)

    def test_broken_links(self):
        for link, problem in {"paeg.md": "links to paeg.md, which does not exist",
                              "figures/b.svg": "links to figures/b.svg, which does not exist",
                              "page.md#twice-2": "links to page.md#twice-2, but no heading there has this anchor",
                              "page.md#in-code": "links to page.md#in-code, but no heading there has this anchor",
                              "#there": "links to #there, but no heading there has this anchor",
                              "../../x.md": "links to ../../x.md, which leaves the repository"}.items():
            self.assertEqual(self.problems(f"# Here\n\n[a]({link})\n"), [f"docs/b.md:3: {problem}"])

    def test_code_has_no_links(self):
        self.assertEqual(self.problems("`[a](x.md)`\n\n```\n[a](x.md)\n```\n"), [])

    def test_navigation(self):
        self.write("mkdocs.yml", "site_name: x\nnav:\n  - Use it: [page.md, demo.md]  # no.md\n  - b.md\n")
        self.assertEqual(self.problems("text\n"), [])
        self.write("docs/adr/0001-a.md", "# 1. A\n")
        self.assertEqual(self.problems("text\n"), [])
        self.write("docs/c/d.md", "# D\n")
        self.assertEqual(self.problems("text\n"), ["mkdocs.yml:1: the navigation lacks c/d.md"])
        (self.root / "docs/page.md").unlink()
        self.assertEqual(self.problems("text\n")[1:], ["mkdocs.yml:1: the navigation has page.md, which does not exist"])


class Anchors(unittest.TestCase):
    def test_anchors_with_marks(self):
        self.assertEqual(check_links.anchors("# The [sampler](a.md)\n## `k3-e4m3`: 3 bits, e4m3\n"),
                         {"the-sampler", "k3-e4m3-3-bits-e4m3"})


if __name__ == "__main__":
    unittest.main()
