"""check_doc_commands.py: what it reads from pages, and that it finds commands that fail. Run: python3 FILE."""

import contextlib
import io
import pathlib
import tempfile
import unittest

import check_doc_commands as commands

PAGE = """# A page

```bash
dsv4 run demo
```

<!-- not run: a GPU -->
```bash
dsv4 run demo --device cuda
```

```
a figure of dsv4 run
```

```console
$ dsv4 echo a \\
    b
a b
$ dsv4 echo c
c
```
"""
PROGRAM = """#!/bin/bash
case "$1" in
  echo) shift; echo "$@" ;;
  fail) echo "dsv4: no"; exit 1 ;;
  silent) ;;
esac
"""


class Marks(unittest.TestCase):
    def blocks(self, text=PAGE):
        return commands.blocks_of("docs/a.md", text)

    def test_blocks(self):
        found = [(one.line, one.language, one.reason) for one in self.blocks()]
        self.assertEqual(found, [(3, "bash", ""), (8, "bash", "a GPU"), (12, "", ""), (16, "console", "")])

    def test_console(self):
        script, shown = commands.commands_and_output(self.blocks()[3])
        self.assertEqual(script, "dsv4 echo a \\\n    b\ndsv4 echo c\n")
        self.assertEqual(shown, "a b\nc")

    def test_counts_may_only_shrink(self):
        self.assertEqual(commands.mistakes(self.blocks(), {"docs/a.md": 1}), [])
        self.assertIn("1 blocks are not run", commands.mistakes(self.blocks(), {})[0])
        self.assertIn("lower the number", commands.mistakes(self.blocks(), {"docs/a.md": 2})[0])
        self.assertIn("docs/gone.md", commands.mistakes(self.blocks(), {"docs/a.md": 1, "docs/gone.md": 1})[0])

    def test_none_escapes(self):
        for line in ("dsv4 run demo", "$ ls", "curl localhost:8000", "tools/release.sh OUT", "pip install dsv4"):
            self.assertIn("want bash or console", commands.mistakes(self.blocks(f"```\n{line}\n```\n"), {})[0], line)
        wrong = self.blocks("<!-- not run: no time -->\n```bash\nls\n```\n")
        self.assertIn("no time", commands.mistakes(wrong, {"docs/a.md": 1})[0])


class Runs(unittest.TestCase):
    def failures(self, block, page="docs/a.md"):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            program = pathlib.Path(folder) / "program"
            program.write_text(PROGRAM)
            program.chmod(0o755)
            failed = commands.run_page(program, page, commands.blocks_of(page, block))
        return failed, printed.getvalue()

    def test_good(self):
        for block in ("```bash\ndsv4 echo a | grep a\n```\n", "```console\n$ dsv4 echo a  b\na\nb\n```\n",
                      "```bash\nbuild/run/bin/dsv4 echo \"$(ls README.md story.txt)\"\n```\n"):
            self.assertEqual(self.failures(block)[0], 0, self.failures(block)[1])

    def test_faults_are_found(self):
        for block, word in (("```bash\ndsv4 fail\ndsv4 echo a\n```\n", "exit status 1: dsv4: no"),
                            ("```bash\ndsv4 fail | cat\n```\n", "exit status 1"),
                            ("```bash\ndsv4 silent\n```\n", "prints nothing"),
                            ("```console\n$ dsv4 echo a\nb\n```\n", "prints 'a'"),
                            ("```bash\nno-such-program\n```\n", "exit status 127")):
            failed, printed = self.failures(block)
            self.assertEqual(failed, 1, block)
            self.assertIn(word, printed)

    def test_exports_reach_later_blocks(self):
        block = "```bash\nexport PLACE=here\n```\n\n```bash\ndsv4 echo \"$PLACE\" | grep here\n```\n"
        self.assertEqual(self.failures(block)[0], 0, self.failures(block)[1])


if __name__ == "__main__":
    unittest.main()
