"""Checks the output of check_layers.py for violations in a small tree. Run: python3 FILE."""

import pathlib
import tempfile
import unittest

import check_layers

LAYERS = "# order\nbase:\ncpu: base\nops: base cpu\napps: base ops\n"


class CheckLayersTest(unittest.TestCase):
    def problems(self, files, layers=LAYERS):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for top in ("dsv4/base", "apps"):
                (root / top).mkdir(parents=True)
            (root / "layers.txt").write_text(layers)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return check_layers.check(root)

    def test_allowed_includes(self):
        self.assertEqual(self.problems({
            "dsv4/ops/x/x.h": '#include "dsv4/base/a.h"\n#include "dsv4/ops/op.h"\n#include <vector>\n',
            "apps/main.cc": '#include "dsv4/ops/x/x.h"\n#include "apps/args.h"\n',
            "dsv4/ops/x/x_oracle.cc": '#include "dsv4/ops/oracle.h"\n#include "dsv4/ops/x/x_case.h"\n',
            "dsv4/ops/x/x_case.h": '#include "tests/harness/fill.h"\n',
            "dsv4/ops/x/x_test.cc": '#include "dsv4/ops/x/x_oracle.h"\n#include "tests/harness/a.h"\n',
            "dsv4/cpu/vec_test.cc": '#include "dsv4/ops/op.h"\n',
            "dsv4/ops/x/x_bench.cc": '#include "bench/op_bench.h"\n',
        }), [])

    def test_cases(self):
        self.assertEqual(self.problems({"dsv4/ops/x/x.cc": '#include "dsv4/ops/x/x_case.h"\n'}),
                         ["dsv4/ops/x/x.cc:1: dsv4/ops/x/x_case.h: only oracles, tests and benchmarks include it"])

    def test_upward_include(self):
        self.assertEqual(self.problems({"dsv4/cpu/vec.cc": '\n#include "dsv4/ops/op.h"\n'}),
                         ["dsv4/cpu/vec.cc:2: cpu may not include ops (dsv4/ops/op.h)"])

    def test_floors_of_ops(self):
        layers = LAYERS.replace("apps:", "ops/gemm: ops\nops/parts: ops ops/gemm\nops/model: ops ops/parts\napps:")
        allowed = {
            "dsv4/ops/parts/x/x.cc": '#include "dsv4/ops/gemm/sm90/ring.cuh"\n#include "dsv4/base/a.h"\n',
            "dsv4/ops/parts/x/cuda/a.cu": '#include "dsv4/ops/parts/y/y.h"\n#include "dsv4/ops/parts/x/cuda/b.cuh"\n',
            "apps/main.cc": '#include "dsv4/ops/parts/x/x.h"\n',
        }
        self.assertEqual(self.problems(allowed, layers), [])
        self.assertEqual(self.problems({"dsv4/ops/gemm/a.cu": '#include "dsv4/ops/parts/x/x.h"\n'}, layers),
                         ["dsv4/ops/gemm/a.cu:1: ops/gemm may not include ops/parts (dsv4/ops/parts/x/x.h)"])
        self.assertEqual(self.problems({"dsv4/ops/model/x/x.cc": '#include "dsv4/ops/parts/y/cuda/b.cuh"\n'}, layers), [
            "dsv4/ops/model/x/x.cc:1: dsv4/ops/parts/y/cuda/b.cuh is an implementation of parts/y: no other op includes it"])

    def test_include_spelled_differently(self):
        for line in ("#include <dsv4/ops/op.h>", '  #  include "dsv4/ops/op.h"  // why'):
            self.assertEqual(len(self.problems({"dsv4/base/a.h": line + "\n"})), 1, line)

    def test_cuda_files_are_checked(self):
        self.assertEqual(len(self.problems({"dsv4/base/a.cuh": '#include "dsv4/cpu/vec.h"\n'})), 1)

    def chain(self, length):
        """A .cu file and `length` headers, each of which includes the next."""
        files = {"dsv4/base/a.cu": '#include "dsv4/base/h0.h"\n', f"dsv4/base/h{length - 1}.h": ""}
        files.update({f"dsv4/base/h{i}.h": f'#include "dsv4/base/h{i + 1}.h"\n' for i in range(length - 1)})
        return files

    def test_depth_of_includes(self):
        self.assertEqual(self.problems(self.chain(10)), [])
        self.assertEqual(self.problems(self.chain(11)), ["dsv4/base/a.cu:1: has includes 12 deep, more than 11"])

    def test_number_of_files(self):
        def wide(headers):
            names = [f"dsv4/base/w{i}.h" for i in range(headers)]
            includes = "".join(f'#include "{name}"\n' for name in names)
            return {"dsv4/base/a.cu": includes, **{name: '#include "dsv4/base/w0.h"\n#pragma once\n' if name[-4:] != "w0.h" else ""
                                                   for name in names}}
        self.assertEqual(self.problems(wide(59)), [])
        self.assertEqual(self.problems(wide(60)), ["dsv4/base/a.cu:1: reaches 61 files of the project, more than 60"])

    def test_app_includes_hidden_layer(self):
        self.assertEqual(self.problems({"apps/main.cc": '#include "dsv4/cpu/vec.h"\n'}),
                         ["apps/main.cc:1: apps may not include cpu (dsv4/cpu/vec.h)"])

    def test_oracles_are_for_tests(self):
        for header in ("dsv4/ops/oracle.h", "dsv4/ops/x/x_oracle.h"):
            self.assertEqual(self.problems({"dsv4/ops/x/x_cpu.cc": f'#include "{header}"\n'}), [
                f"dsv4/ops/x/x_cpu.cc:1: {header} is an oracle: only oracles, tests and benchmarks include it"])

    def test_library_that_includes_the_harness(self):
        self.assertEqual(self.problems({"dsv4/ops/x/x.cc": '#include "tests/harness/arena.h"\n'}), [
            "dsv4/ops/x/x.cc:1: tests/harness/arena.h: only tests and benchmarks include it"])

    def test_unknown_folder(self):
        self.assertIn("dsv4/extra: not in layers.txt", self.problems({"dsv4/extra/a.h": ""}))

    def test_layer_below_itself(self):
        with self.assertRaises(SystemExit) as error:
            self.problems({}, "base: cpu\ncpu:\n")
        self.assertEqual(str(error.exception),
                         "layers.txt:1: base names cpu, which is not above it")


if __name__ == "__main__":
    unittest.main()
