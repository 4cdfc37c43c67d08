"""Runs check_text.py on one bad file after another. Run: python3 FILE."""

import pathlib
import subprocess
import tempfile
import unittest

import check_text

HEADER = "// What it is.\n\n#pragma once\n"


class CheckTextTest(unittest.TestCase):
    def problems(self, path, text):
        return [f"{line}: {message}" for line, message in check_text.check_file(path, text.encode())]

    def test_good_files(self):
        self.assertEqual(self.problems("a.h", HEADER), [])
        self.assertEqual(self.problems("a.cc", '#include "a.h"\n'), [])
        self.assertEqual(self.problems("a.json", "{} "), [])
        toggle = "// What.\n#if defined(A) == defined(HWY_TARGET_TOGGLE)\n"
        self.assertEqual(self.problems("a-inl.h", toggle), [])
        self.assertEqual(self.problems("a.md", "see https://example.org/home/x and ./tmp/y\n"), [])
        self.assertEqual(self.problems("empty", ""), [])
        self.assertEqual(list(check_text.check_file("model.bin", b"\xff\xfe \n")), [])

    def test_paths_of_a_machine(self):
        for folder in ("work", "tmp", "root", "home"):  # concatenated, so that this file passes
            text = "// x\nsee /" + folder + "/someone\n"
            self.assertEqual(self.problems("a.cc", text), ["2: names a path of one machine"])
            self.assertEqual(self.problems("tests/data/a.json", text), ["2: names a path of one machine"])

    def test_blanks_and_newlines(self):
        self.assertEqual(self.problems("a.md", "a \nb"), ["1: trailing blank", "2: no newline at the end"])
        self.assertEqual(self.problems("a.md", "a\n\n"), ["2: blank line at the end"])
        self.assertEqual(self.problems("a.py", "\tx\n"), ["1: tab"])
        self.assertEqual(self.problems("tests/golden/a.txt", "a \nb"), [])

    def test_unfinished_merges(self):
        for mark in ("<<<<<<<", ">>>>>>>"):  # concatenated, so that this file passes
            self.assertEqual(self.problems("a.md", "a\n" + mark + " HEAD\n"), ["2: an unfinished merge"])

    def test_long_comments(self):
        wide = "// " + "x" * 97 + "\n"
        self.assertEqual(self.problems("a.cc", wide), [])
        self.assertEqual(self.problems("a.cc", "// x\n  " + wide), ["2: a comment of more than 100 columns"])

    def test_length(self):
        self.assertEqual(self.problems("a.cc", "// x\n" * 500), [])
        self.assertEqual(self.problems("a.cc", "// x\n" * 501), ["501: longer than 500 lines"])
        self.assertEqual(self.problems("a.md", "x\n" * 501), [])

    def test_openings(self):
        self.assertEqual(self.problems("a.h", "// What.\n"), ["1: no #pragma once"])
        self.assertEqual(self.problems("a-inl.h", HEADER), ["1: no defined(HWY_TARGET_TOGGLE)"])
        self.assertEqual(self.problems("a.cuh", "\n#pragma once\n"), ["1: a header opens with a comment"])
        self.assertEqual(self.problems("a.cc", "int x;\n"), ["1: a source opens with a comment or an include"])

    def words(self, text, path="a.md"):
        return [f"{line}: {message.split(':')[0]}" for line, message in check_text.check_words(path, text.encode())]

    def test_words_outside_the_field(self):
        self.assertEqual(self.words("A CTA waits.\nNobody waits.\n"), ['2: "Nobody"'])
        self.assertEqual(self.words("Sums are told and weighed.\n"), ['1: "told"', '1: "weighed"'])
        self.assertEqual(self.words("weights, a weighted sum, tell them apart, behind a proxy, the heights\n"), [])
        self.assertEqual(self.words("who stores it; who stored it\n"), ['1: "who stores"'])
        self.assertEqual(self.words("the store is behind the load\n"), ['1: "is behind"'])

    def test_words_across_the_end_of_a_line(self):
        self.assertEqual(self.words("// The barrier in front\n// of the load.\n", "a.cc"), ['1: "in front of"'])
        self.assertEqual(self.words("# what it looks\n# at\n", "a.py"), ['1: "looks at"'])

    def test_words_in_identifiers(self):
        self.assertEqual(self.words("TEST(SparseMla, NobodyWaits) {\n", "a_test.cc"), ['1: "Nobody"'])
        self.assertEqual(self.words("int told_scales;\n", "a.h"), ['1: "told"'])

    def test_spelling(self):
        for word in ("quantise", "Dequantised", "experts_quantise", "summarise()", "normalisation", "synchroniser"):
            self.assertEqual(len(self.words(word + "\n")), 1, word)
        for word in ("neighbour", "Behaviour", "colours", "kCentre", "licence", "labelled", "analysed"):
            self.assertEqual(len(self.words(word + "\n")), 1, word)
        american = "quantize summarize center license labeled analyze analyses analysis specialist realistic optimistic "
        self.assertEqual(self.words(american + "precise otherwise noise promise raise"), [])

    def test_words_as_data(self):
        self.assertEqual(self.words("nobody", "tests/golden/a.txt"), [])
        self.assertEqual(self.words("nobody", "models/demo/train/lexicon.py"), [])
        self.assertEqual(len(self.words("nobody", "tests/golden/a/README.md")), 1)


    def house(self, path, text):
        return [f"{kind} {line}" for kind, line, _ in check_text.check_house(path, text.encode())]

    def test_comments_without_a_subject(self):
        long = "int x;\n" * 30
        for words in ("Of the group.", "The same for few.", "Over 16.", "Those of a rank."):
            self.assertEqual(self.house("a.cuh", f"int x;\n  // {words}\n{long}"), ["opening 2"], words)
        self.assertEqual(self.house("a.cc", "// The sum is\n// over 16 rows,\n// Of which 2.\n" + long), [])
        self.assertEqual(self.house("a.cc", "// Offsets. Overlap. Thosebury.\n" + long), [])
        self.assertEqual(self.house("a.py", "# Of it.\n// Of it.\n"), [])

    def test_short_files(self):
        self.assertEqual(self.house("dsv4/a.h", "// x\n" * 25), ["short 1"])
        self.assertEqual(self.house("dsv4/a.h", "// x\n" * 26), [])
        for path in ("include/dsv4.h", "dsv4/ops/x/instance.cu", "a.md", "tools/a.py"):
            self.assertEqual(self.house(path, "// x\n"), [], path)


class CheckTree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)
        for name in ("dsv4/a.cc", "docs/a.md"):
            (self.root / name).parent.mkdir()
            (self.root / name).write_text("// nobody\n" + "// x\n" * 30)

    def test_every_tracked_file(self):
        self.assertEqual([problem.split(":")[0] for problem in check_text.check(self.root)], ["docs/a.md", "dsv4/a.cc"])

    def test_pending_files(self):
        for name in ("dsv4/a.cc", "docs/a.md"):
            (self.root / name).write_text("// Of it.\n")
        pending = self.root / check_text.PENDING
        pending.parent.mkdir()
        pending.write_text("# what\nopening dsv4/a.cc\nshort dsv4/a.cc\nshort dsv4/b.cc\n")
        self.assertEqual(check_text.check(self.root),
                         [f'{check_text.PENDING}: "short dsv4/b.cc" is not needed any more (--prune)'])
        check_text.prune(self.root)
        self.assertEqual(pending.read_text(), "# what\nopening dsv4/a.cc\nshort dsv4/a.cc\n")
        self.assertEqual(check_text.check(self.root), [])
        (self.root / "dsv4/c.h").write_text("// What.\n\n#pragma once\n")
        self.assertEqual([problem.split(" ")[0] for problem in check_text.check(self.root)], ["dsv4/c.h:1:"])

    def test_only(self):
        for only in (["dsv4"], ["dsv4/"], ["dsv4/a.cc"]):
            problems = check_text.check(self.root, only)
            self.assertEqual([problem.split(":")[0] for problem in problems], ["dsv4/a.cc"])
        self.assertEqual(check_text.check(self.root, ["dsv"]), [])


if __name__ == "__main__":
    unittest.main()
