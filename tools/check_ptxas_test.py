"""Gives check_ptxas.py reports with and without faults and checks what it says. Run: python3 FILE."""

import pathlib
import subprocess
import tempfile
import unittest

import check_ptxas

LAUNCHER = pathlib.Path(__file__).resolve().parents[1] / "cmake/ptxas_log.sh"

REPORT = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN4dsv44goodEv' for 'sm_90a'
ptxas info    : Function properties for _ZN4dsv44goodEv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 9 barriers
ptxas info    : Compiling entry function '_ZN4dsv43badILi4EEEvPKf' for 'sm_80'
ptxas info    : Function properties for _ZN4dsv43badILi4EEEvPKf
    48 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 255 registers, 368 bytes cmem[0]
"""
BAD = "sm_80 void dsv4::bad<4>(float const*)"


class CheckPtxasTest(unittest.TestCase):
    def said(self, allowed):
        kernels = check_ptxas.read_report(REPORT)
        check_ptxas.demangle(kernels)
        return check_ptxas.complaints(kernels, check_ptxas.read_allowances(allowed))

    def test_reads_every_number(self):
        good, bad = check_ptxas.read_report(REPORT)
        self.assertEqual((good.arch, good.registers, good.stack), ("sm_90a", 168, 0))
        self.assertEqual((bad.arch, bad.registers, bad.stack, bad.spill_stores, bad.spill_loads),
                         ("sm_80", 255, 48, 16, 24))

    def test_complains_without_allowance(self):
        self.assertEqual(self.said("# nothing is allowed\n"),
                         [f"{BAD}: 48 bytes of stack, spills of 16 bytes stored and 24 loaded; "
                          "allowed: 0 of stack, 0 of spills"])

    def test_an_allowance_holds_up_to_its_bytes(self):
        self.assertEqual(self.said(r"sm_80 .*dsv4::bad< | 48 | 24 | an index at run time"), [])
        self.assertEqual(len(self.said(r"sm_80 .*dsv4::bad< | 47 | 24 | an index at run time")), 1)
        self.assertEqual(len(self.said(r"sm_80 .*dsv4::bad< | 48 | 23 | an index at run time")), 1)
        self.assertEqual(len(self.said(r"sm_90a .*dsv4::bad< | 48 | 24 | another architecture")), 1)

    def test_a_needless_allowance_is_to_be_removed(self):
        bad = "dsv4::bad< | 48 | 24 | an index at run time\n"
        self.assertEqual(self.said(bad + "dsv4::good | 8 | 0 | it was so once"),
                         ["line 2 of the list allows 'dsv4::good', which needs no stack any more: remove the line"])
        self.assertEqual(self.said(bad + "dsv4::elsewhere | 8 | 0 | an object of a fuller build"), [])

    def test_serialized_products_are_a_complaint(self):
        report = ("ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
                  "insufficient register resources for the function '_ZN4dsv44goodEv'\n" + REPORT)
        good, bad = check_ptxas.read_report(report)
        self.assertEqual((good.serialized, bad.serialized), ("insufficient register resources (C7512)", ""))
        self.assertEqual(check_ptxas.complaints([good], []),
                         ["sm_90a _ZN4dsv44goodEv: ptxas waits for each wgmma: insufficient register resources (C7512)"])
        good.name = "dsv4::micro::good()"
        self.assertEqual(check_ptxas.complaints([good], []), [])

    def test_an_allowance_needs_a_reason(self):
        for line in ("dsv4::bad | 48 | 24", "dsv4::bad | 48 | 24 | "):
            with self.assertRaisesRegex(ValueError, "line 1: want 'EXPRESSION"):
                check_ptxas.read_allowances(line)


class LauncherTest(unittest.TestCase):
    """cmake/ptxas_log.sh with a compiler that says what it was asked."""

    def run_launcher(self, *options):
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder) / "compiler"
            compiler.write_text("#!/bin/sh\necho \"$@\"\necho 'ptxas info    : a report' >&2\necho a warning >&2\nexit 3\n")
            compiler.chmod(0o755)
            done = subprocess.run([LAUNCHER, *options, compiler, "-c", "x.cu", "-o", f"{folder}/x.o"], capture_output=True, text=True)
            report = pathlib.Path(f"{folder}/x.o.ptxas").read_text()
            return done.returncode, done.stdout.replace(folder, "F"), done.stderr, report

    def test_keeps_reports_apart(self):
        self.assertEqual(self.run_launcher(), (3, "-c x.cu -o F/x.o\n", "a warning\n", "ptxas info    : a report\n"))

    def test_gives_a_seed_to_names_of_nvcc(self):
        self.assertEqual(self.run_launcher("--seed")[:2], (3, "-c x.cu -o F/x.o -frandom-seed=F/x.o\n"))


if __name__ == "__main__":
    unittest.main()
