"""Gives compile_times.py a ninja log and checks what it reports. Run: python3 FILE."""

import unittest

import compile_times

LOG = """\
# ninja log v5
0\t90000\t1\tCMakeFiles/dsv4_ops.dir/dsv4/ops/slow.cu.o\tabc
100\t31100\t2\ttests/CMakeFiles/x_test.dir/x_test.cc.o\tdef
100\t400000\t3\tbin/dsv4\tffe
0\t45500\t4\tCMakeFiles/dsv4_ops.dir/dsv4/ops/slow.cu.o\tabc
0\t1000\t4\tCMakeFiles/dsv4_ops.dir/dsv4/ops/fast.cc.o\tabd
"""


class CompileTimesTest(unittest.TestCase):
    def test_takes_the_last_compilation_and_no_links(self):
        self.assertEqual(compile_times.read_log(LOG), {
            "CMakeFiles/dsv4_ops.dir/dsv4/ops/slow.cu.o": 45.5,
            "tests/CMakeFiles/x_test.dir/x_test.cc.o": 31.0,
            "CMakeFiles/dsv4_ops.dir/dsv4/ops/fast.cc.o": 1.0})

    def test_names_units_over_the_budget_slowest_first(self):
        lines, over = compile_times.report("cuda", compile_times.read_log(LOG), 30, 0)
        self.assertEqual(over, 2)
        self.assertEqual(lines, ["cuda: 3 units, 78 s in all, 2 over 30 s",
                                 "    45.5 s  dsv4/ops/slow.cu", "    31.0 s  x_test.cc"])
        lines, over = compile_times.report("cuda", compile_times.read_log(LOG), 60, 1)
        self.assertEqual((over, len(lines)), (0, 2))


if __name__ == "__main__":
    unittest.main()
