"""Plants differences between two small sets of headers and looks for what check_ptx_headers.py says. Run: python3 FILE."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import check_ptx_headers

HEAD = "#pragma once\n#define __device__\ntypedef unsigned uint32_t;\nnamespace dsv4::ptx {\n"
DEVICE = {
    "bar.cuh": '__device__ inline void arrive(uint32_t id, int threads = 32) { asm volatile("a;" ::"r"(id)); }\n'
               "struct alignas(8) Bar {\n  uint32_t state;\n  __device__ void wait(uint32_t parity) { asm(\"w;\"); }\n};\n"
               "template <int kBytes>\n__device__ inline void copy(void* to, const void* from) { asm(\"c;\"); }\n",
    "mul.cuh": "template <class T, int kN, int kT = 0>\nstruct Mul;\n"
               "#define MUL(T, N) template <int kT> struct Mul<T, N, kT> { __device__ static void "
               "run(float (&d)[N], uint32_t a) { asm(\"m;\"); } };\nMUL(float, 8)\nMUL(int, 16)\n",
    "pure.cuh": "__device__ constexpr uint32_t twice(uint32_t x) { return 2 * x; }\n",
}
EMULATED = {
    "bar.cuh": "inline void arrive(uint32_t, int = 32) {}\n"
               "struct alignas(8) Bar {\n  uint32_t state;\n  void wait(uint32_t p) { state = p; }\n};\n"
               "template <int kSize>\nvoid copy(void*, const void*) {}\n",
    "mul.cuh": "template <class T, int kN, int kT = 0>\nstruct Mul {\n  static constexpr bool kOwn = true;\n"
               "  static void run(float (&d)[kN], uint32_t a) { d[0] = a; }\n};\n",
}


class CheckPtxHeadersTest(unittest.TestCase):
    def errors(self, header="", old="", new="", side=EMULATED):
        changed = dict(side)
        if header:
            self.assertIn(old, changed.get(header, ""))
            changed[header] = changed.get(header, "").replace(old, new) if old else new
        device, emulated = (DEVICE, changed) if side is EMULATED else (changed, EMULATED)
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for top, files in ((root, device), (root / check_ptx_headers.EMULATED, emulated)):
                (top / check_ptx_headers.FOLDER).mkdir(parents=True)
                for name, text in files.items():
                    includes = "".join(line + "\n" for line in text.splitlines() if line.startswith("#include"))
                    body = "".join(line + "\n" for line in text.splitlines() if not line.startswith("#include"))
                    (top / check_ptx_headers.FOLDER / name).write_text(includes + HEAD + body + "}\n")
            return check_ptx_headers.check(root)

    def expect(self, text, *change, side=EMULATED):
        errors = self.errors(*change, side=side)
        self.assertTrue(any(text in e for e in errors), errors)

    def test_equal_headers(self):
        self.assertEqual(self.errors(), [])

    def test_a_missing_function(self):
        self.expect("bar.cuh: the emulator lacks void arrive(uint32_t, int = 32)", "bar.cuh",
                    "inline void arrive(uint32_t, int = 32) {}\n", "")

    def test_another_parameter(self):
        self.expect("lacks void arrive(uint32_t, int = 32)", "bar.cuh", "arrive(uint32_t", "arrive(int")
        self.expect("only the emulator has void arrive(int, int = 32)", "bar.cuh", "arrive(uint32_t", "arrive(int")

    def test_another_default(self):
        self.expect("lacks void arrive", "bar.cuh", "int = 32", "int = 64")

    def test_another_result(self):
        self.expect("lacks void arrive", "bar.cuh", "inline void arrive(uint32_t, int = 32) {}",
                    "inline bool arrive(uint32_t, int = 32) { return true; }")

    def test_a_member(self):
        self.expect("bar.cuh: the emulator lacks void Bar::wait(uint32_t)", "bar.cuh", "void wait(uint32_t p)",
                    "void wait(int p)")
        self.expect("lacks Bar::uint32_t state", "bar.cuh", "uint32_t state", "unsigned long state")

    def test_template_parameters(self):
        self.expect("lacks template <int> void copy", "bar.cuh", "template <int kSize>", "template <unsigned kSize>")

    def test_a_function_of_the_device_that_is_new(self):
        self.expect("bar.cuh: the emulator lacks int added()", "bar.cuh", "struct alignas", "__device__ int added();\n"
                    "struct alignas", side=DEVICE)

    def test_a_specialization(self):
        self.expect("Mul<int , 16 , 0>::run", "mul.cuh", "float (&d)[kN]", "float (&d)[8]")
        self.expect("Mul<float , 8 , 0>::run", "mul.cuh", "uint32_t a", "int a")
        self.expect("only the emulator has Mul::walk", "mul.cuh", "static void run",
                    "static void walk() {}\n  static void run")

    def test_headers(self):
        self.expect("other.cuh: the emulator has it", "other.cuh", "", "inline void other() {}\n")
        self.expect("pure.cuh: contains asm, but has no emulated header", "pure.cuh", "{ return 2 * x; }",
                    '{ asm("x;"); return x; }', side=DEVICE)
        self.expect("mul.cuh: the emulated header includes less, it lacks void arrive", "mul.cuh", "template <class T",
                    '#include "dsv4/device/ptx/bar.cuh"\ntemplate <class T', side=DEVICE)


if __name__ == "__main__":
    unittest.main()
