"""Feeds check_text.py one bad file after another. Run: python3 FILE."""

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
        for folder in ("work", "tmp", "root", "home"):  # put together, so that this file passes
            text = "// x\nsee /" + folder + "/someone\n"
            self.assertEqual(self.problems("a.cc", text), ["2: names a path of one machine"])
            self.assertEqual(self.problems("tests/data/a.json", text), ["2: names a path of one machine"])

    def test_blanks_and_newlines(self):
        self.assertEqual(self.problems("a.md", "a \nb"), ["1: trailing blank", "2: no newline at the end"])
        self.assertEqual(self.problems("a.md", "a\n\n"), ["2: blank line at the end"])
        self.assertEqual(self.problems("a.py", "\tx\n"), ["1: tab"])
        self.assertEqual(self.problems("tests/golden/a.txt", "a \nb"), [])

    def test_length(self):
        self.assertEqual(self.problems("a.cc", "// x\n" * 500), [])
        self.assertEqual(self.problems("a.cc", "// x\n" * 501), ["501: longer than 500 lines"])
        self.assertEqual(self.problems("a.md", "x\n" * 501), [])

    def test_openings(self):
        self.assertEqual(self.problems("a.h", "// What.\n"), ["1: no #pragma once"])
        self.assertEqual(self.problems("a-inl.h", HEADER), ["1: no defined(HWY_TARGET_TOGGLE)"])
        self.assertEqual(self.problems("a.cuh", "\n#pragma once\n"), ["1: a header opens with a comment"])
        self.assertEqual(self.problems("a.cc", "int x;\n"), ["1: a source opens with a comment or an include"])


if __name__ == "__main__":
    unittest.main()
