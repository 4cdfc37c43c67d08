#!/usr/bin/env python3
"""./start with a build and a program that are stand-ins: what it shows while it builds, where files are looked for, and
how a build or an option that fails is reported."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# As ninja prints it, START_PACE seconds apart; the program says what it was called with, and where.
CMAKE = """#!/bin/bash
[ "$1" = --build ] || exit 0
for share in 1 25 50 75 100; do echo "[$share/100] Building CXX object"; sleep "${START_PACE:-0}"; done
[ -e "$START_FAILS" ] && { echo "a.cc:1: error: no such thing"; exit 1; }
mkdir -p "$2/bin"
printf '#!/bin/bash\\necho "$PWD: $*"\\n' >"$2/bin/dsv4"
chmod +x "$2/bin/dsv4"
"""


class Start(unittest.TestCase):
    def setUp(self):
        self.scratch = Path(tempfile.mkdtemp())
        self.clone, self.elsewhere = self.scratch / "clone", self.scratch / "elsewhere"
        (self.clone / "tools").mkdir(parents=True)
        self.elsewhere.mkdir()
        shutil.copy(ROOT / "start", self.clone)
        for name, text in {"clone/tools/setup.sh": "#!/bin/bash\n", "cmake": CMAKE}.items():
            (self.scratch / name).write_text(text)
            (self.scratch / name).chmod(0o755)

    def tearDown(self):
        shutil.rmtree(self.scratch)

    def start(self, *words, pace=0):
        environment = os.environ | {"PATH": f"{self.scratch}:{os.environ['PATH']}",
                                    "START_FAILS": str(self.scratch / "fails"), "START_PACE": str(pace)}
        return subprocess.run([self.clone / "start", *words], cwd=self.elsewhere, env=environment, text=True,
                              capture_output=True)

    def test_files_are_those_of_the_callers_folder(self):
        self.assertEqual(self.start("-f", "ids.txt").stdout, f"{self.elsewhere}: run demo -f ids.txt\n")

    def test_one_story_without_a_prompt(self):
        out = self.start("--seed", "7").stdout
        self.assertIn("run demo -p Long ago, in a village by the sea, --echo --stop", out)
        self.assertTrue(out.endswith("--seed 7\n"), "what the user gives comes last, so it wins")

    def test_shows_how_far_it_is(self):
        lines = self.start("-p", "x", pace=1).stderr.splitlines()
        self.assertIn("start: building (3 to 6 minutes on 2 cores)", lines)
        self.assertTrue(any(line.startswith("start: building, 100 %") for line in lines), lines)

    def test_a_build_that_fails_is_quoted(self):
        (self.scratch / "fails").touch()
        done = self.start("-p", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: no such thing", done.stderr)
        self.assertIn("start: the build failed, see ", done.stderr)
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
