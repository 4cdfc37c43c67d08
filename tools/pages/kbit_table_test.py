"""What kbit_table.py makes of a small result. Run: python3 FILE."""

import unittest
import xml.etree.ElementTree as xml

import kbit
import kbit_table as page


def measured(m, k, us, codebook="e4m3", layout="rows", dtype="bfloat16", **more):
    return {"op": "kbit_linear", "k": k, "k_in": 8192, "n": 8192, "m": m, "dtype": dtype, "codebook": codebook, "layout": layout,
            "cublas_us": 10.0 * m, "floor_us": 4.0, "us": {"chosen": us, **more}}


ROWS = [measured(1, 3, 8, humming=9), measured(1, 4, 12), measured(2, 3, 15), measured(2, 4, 16), measured(512, 3, 9000), measured(1, 3, 8.7, "nf"),
        measured(2, 3, 20, "nf"), measured(1, 3, 7, layout="image"), measured(1, 3, 99, dtype="float16")]
REPORT = {"device": "GPU", "torch": "2", "bandwidth": 4e12, "results": ROWS, "shapes": [[8192, 8192, "Model: q"]], "humming": "h 1"}


class KbitTable(unittest.TestCase):
    def setUp(self):
        self.lines = page.page(REPORT).splitlines()

    def test_cases_slower_than_cublas_are_counted(self):
        self.assertIn("| 1 | 2 | 1 | 1.20 (8192 -> 8192, K = 4) | 0.80 (8192 -> 8192, K = 3) |", self.lines)
        self.assertIn("| 2 | 2 | 2 | 0.80 (8192 -> 8192, K = 4) | 0.75 (8192 -> 8192, K = 3) |", self.lines)
        self.assertFalse([line for line in self.lines if line.startswith("| 512 | 1 |")])  # more rows than are compared

    def test_generic_codebooks_and_images_are_compared_with_rows(self):
        self.assertIn("| 1 | 1 | 1 | 1.09 (8192 -> 8192, K = 3) | 1.09 (8192 -> 8192, K = 3) |", self.lines)
        self.assertIn("| 2 | 1 | 0 | 1.33 (8192 -> 8192, K = 3) | 1.33 (8192 -> 8192, K = 3) |", self.lines)
        self.assertIn("| 1 | 1 | 1 | 0.88 (8192 -> 8192, K = 3) | 0.88 (8192 -> 8192, K = 3) |", self.lines)

    def test_a_table_for_each_shape(self):
        at = self.lines.index("## 8192 -> 8192")
        self.assertEqual(self.lines[at + 2:at + 10], [
            "Model: q.", "", "| rows | cuBLAS bf16 | K = 3 | K = 4 | nf, K = 3 | image, K = 3 | Humming, K = 3 |", "|---" * 7 + "|",
            "| floor |  | 4.0 | 4.0 | 4.0 | 4.0 | 4.0 |", "| 1 | 10.0 | 8.0 | 12.0 | 8.7 | 7.0 | 9.0 |", "| 2 | 20.0 | 15.0 | 16.0 | 20.0 |  |  |",
            "| 512 | 5,120 | 9,000 |  |  |  |  |"])

    def test_older_files_have_fewer_fields(self):
        old = {"device": "GPU", "torch": "2", "bandwidth": 4e12, "rows": [{k: v for k, v in r.items() if k not in ("codebook", "layout")}
                                                                        for r in ROWS[:4]]}
        self.assertIn("| 1 | 10.0 | 8.0 | 12.0 | 9.0 |", page.page(old).splitlines())
        self.assertIn("--quick", page.page(old))

    def test_the_picture_stays_inside(self):
        svg = xml.fromstring(page.picture(REPORT))
        width, height = float(svg.get("width")), float(svg.get("height"))
        lines = list(svg.iter("{http://www.w3.org/2000/svg}polyline"))
        self.assertEqual(len(lines), 5)  # two K, two floors, cuBLAS
        for line in lines:
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                self.assertTrue(0 <= x <= width and 0 <= y <= height)

    def test_the_committed_page_has_its_blocks(self):
        self.assertEqual(set(kbit.wanted()), {kbit.PAGE, page.PAGE, page.FIGURE})


if __name__ == "__main__":
    unittest.main()
