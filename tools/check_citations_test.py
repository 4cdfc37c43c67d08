"""Runs check_citations.py on a small repository with one citation at a time. Run: python3 FILE."""

import pathlib
import subprocess
import tempfile
import unittest

import check_citations

SPEC = "# Model\n\n## 4. Attention\n\n### 4.4 Sink\n\n## 9b. Measured\n\n```\n## 7. in code\n```\n\n## Appendix B. Vectors\n\n### B.1 RoPE\n"


class CheckCitationsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        self.write("docs/spec/dsv4.md", SPEC)
        self.write("docs/adr/0010-two-modes.md", "# 10. Two modes\n")

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def problems(self, text, path="a.cc"):
        self.write(path, text)
        found = [problem.removeprefix(path + ":") for problem in check_citations.check(self.root)]
        (self.root / path).unlink()
        return found

    def test_existing_targets(self):
        for text in ("docs/spec/dsv4.md 4.4", "docs/spec/dsv4.md 4.4, 9b, B.1 and 4", "docs/spec/dsv4.md 4 - 4.4; 5.5",
                     "(docs/spec/dsv4.md 4.4 step 17).", "docs/spec/dsv4.md\n// 4.4", "docs/spec/dsv4.md appendix B",
                     "docs/spec/dsv4.md 4.4: 128 x 2", "docs/adr/0010", "other.md 7.7", "specification 1.0; spec version 5"):
            self.assertEqual(self.problems("// " + text + "\n"), [], text)

    def test_missing_sections(self):
        self.assertEqual(self.problems("// docs/spec/dsv4.md 4.5\n"), ["1: docs/spec/dsv4.md has no section 4.5"])
        self.assertEqual(self.problems("// docs/spec/dsv4.md 4.4,\n// B.2\n"), ["1: docs/spec/dsv4.md has no section B.2"])
        self.assertEqual(self.problems("\n// docs/spec/dsv4.md 7\n"), ["2: docs/spec/dsv4.md has no section 7"])
        self.assertEqual(self.problems("See section 4.4.\n\n## 1. A\n\nSection 1.2\n", "docs/spec/b.md"),
                         ["1: there is no section 4.4 here", "5: there is no section 1.2 here"])
        self.assertEqual(self.problems("[dsv4.md](docs/spec/dsv4.md) 4.6\n", "a.md"), ["1: docs/spec/dsv4.md has no section 4.6"])

    def test_missing_files(self):
        self.assertEqual(self.problems("// docs/spec/dsv5.md 4.4\n"), ["1: there is no docs/spec/dsv5.md"])
        self.assertEqual(self.problems("// docs/adr/0011\n"), ["1: there is no decision 0011"])
        self.assertEqual(self.problems("[a](docs/b.md)\n", "a.md"), ["1: links to docs/b.md, which does not exist"])
        self.assertEqual(self.problems("[a](spec/dsv4.md#x) [b](https://x.org/y)\n", "docs/a.md"), [])

    def test_files_named_in_documents(self):
        self.write("dsv4/model/step.h", "// x\n")
        for text in ("`model/step.h`", "`dsv4/model/step.h`", "`ops/X/X.h`", "`dsv4/ops/foo/foo.h`", "`foo_cuda.cu`", "`a/b`"):
            self.assertEqual(self.problems(text + "\n", "README.md"), [], text)
        self.assertEqual(self.problems("`model/stop.h`\n", "README.md"), ["1: names model/stop.h, which does not exist"])
        self.assertEqual(self.problems("`odel/step.h`\n", "README.md"), ["1: names odel/step.h, which does not exist"])
        self.assertEqual(self.problems("`inference/model.py`\n", "docs/spec/b.md"), [])

    def test_old_forms(self):
        self.assertEqual(len(self.problems("// spec 4.4\n")), 1)
        self.assertEqual(len(self.problems("// Spec B.1\n")), 1)
        self.assertEqual(len(self.problems("// spec dsv4.md 4.4\n")), 2)  # no folder, and a bare "spec"
        self.assertEqual(len(self.problems("// dsv4.md 4.4\n")), 1)
        self.assertEqual(len(self.problems("// architecture.md decision 10\n")), 1)


if __name__ == "__main__":
    unittest.main()
