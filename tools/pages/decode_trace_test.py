"""decode_trace.py on a small trace and on the committed one. Run: python3 FILE."""

import unittest
import xml.etree.ElementTree as xml

import decode_step
import decode_trace as page
import performance
from common import RESULTS


def kernel(name, start, us, ctas=1):
    return {"kernel": name, "start_us": start, "us": us, "ctas": ctas}


def layer(start, with_select, us=2.0, experts=page.EXPERTS):
    """A layer whose kernels start 0.5 us before their predecessor ends."""
    names = [node[0] for node in (*page.ATTENTION, *experts) if with_select or node[0] != "select_kernel"]
    return [kernel(name, start + i * (us - 0.5), us) for i, name in enumerate(names)]


class Layers(unittest.TestCase):
    def test_exposed_times_add_up(self):
        found = list(page.exposed([kernel("a", 1, 5), kernel("b", 2, 3), kernel("c", 4, 6), kernel("d", 12, 1)]))
        self.assertEqual([k["exposed_us"] for k in found], [5, 0, 4, 3])
        self.assertEqual(sum(k["exposed_us"] for k in found), found[-1]["end"] - 1)

    def test_kinds_by_order_and_index_select(self):
        trace = [kernel("embed_kernel", 0, 1), *layer(1, False), *layer(40, True), *layer(80, False), kernel("gemv_kernel", 130, 9)]
        self.assertEqual([kind for kind, _ in page.layers(trace)], ["SWA", "CSA", "HCA"])

    def test_products_may_finish_the_boundary(self):
        nodes = page.without_finish([*page.ATTENTION, *page.EXPERTS])
        found = list(page.layers(list(page.exposed([kernel(node[0], i, 1) for i, node in enumerate(nodes)]))))
        self.assertEqual([kind for kind, _ in found], ["CSA"])
        labels = [row["label"] for row in page.rows("CSA", found[0][1], 4096, 4e12)]
        self.assertEqual(labels[:2], ["mHC mix", "products of x"])
        self.assertEqual(len(labels), len(page.ATTENTION) + len(page.EXPERTS) - 2)

    def test_experts_may_be_fused(self):
        trace = [*layer(0, True, experts=page.FUSED_EXPERTS), *layer(40, True)]
        labels = [its[-1]["node"][1] for _, its in page.layers(list(page.exposed(trace)))]
        self.assertEqual(labels, ["down, sums", "combine"])

    def test_other_kernels_are_no_layer(self):
        self.assertEqual(list(page.layers(layer(0, False)[:-1])), [])

    def test_typical_is_the_median(self):
        trace = [k for i, us in enumerate((2.0, 9.0, 3.0)) for k in layer(200 * i, True, us)]
        found = list(page.layers(list(page.exposed(trace))))
        self.assertAlmostEqual(page.typical("CSA", found)[0]["us"], 3.0)

    def test_gap_and_floor_of_a_row(self):
        trace = list(page.exposed([kernel("gemv_kernel", 0, 4), *layer(3.5, True)]))
        rows = list(page.rows("CSA", next(page.layers(trace))[1], 4096, 4e12))
        self.assertEqual(rows[0]["label"], "mHC mix")
        self.assertAlmostEqual(rows[0]["gap"], -0.5)
        self.assertAlmostEqual(rows[0]["exposed"], 1.5)
        wo_b = next(row for row in rows if row["label"] == "wo_b")
        self.assertAlmostEqual(wo_b["floor"], 4096 * 8192 * (1 + 1 / 128**2) / 4e6)
        self.assertEqual(page.rate_of(wo_b), f"{wo_b['bytes'] / 1.5e6:.2f}")


class Committed(unittest.TestCase):
    def setUp(self):
        self.gpu = performance.read_gpu(RESULTS / "gpu-h200")

    def test_all_layers_are_found(self):
        kinds = [kind for kind, _ in page.layers(list(page.exposed(self.gpu["decode_trace"]["kernels"])))]
        self.assertEqual({kind: kinds.count(kind) for kind in decode_step.KINDS}, decode_step.KINDS)

    def test_kernels_read_what_the_layer_reads(self):
        for kind, rows in page.of_kinds(self.gpu).items():
            self.assertAlmostEqual(sum(row["bytes"] for row in rows) / decode_step.layer_bytes(kind, 1, 4096), 1, places=9)

    def test_figures_stay_inside(self):
        for text in page.figures([self.gpu]).values():
            svg = xml.fromstring(text)
            width, height = float(svg.get("width")), float(svg.get("height"))
            for rect in svg.iter("{http://www.w3.org/2000/svg}rect"):
                x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
                self.assertTrue(0 <= x and x + float(rect.get("width")) <= width and 0 <= y and y + float(rect.get("height")) <= height)

    def test_no_trace_no_block(self):
        del self.gpu["decode_trace"]
        self.assertEqual((page.block([self.gpu]), page.figures([self.gpu])), ("", {}))


if __name__ == "__main__":
    unittest.main()
