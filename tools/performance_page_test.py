"""What performance_page.py makes of a small report of bench/peer_sparse_mla.py. Run: python3 FILE."""

import unittest

import performance_page


def result(**changes):
    return {"case": "Flash b1", "unit": "us", "ours": 8.04, "peer": "table", "theirs": 12.3, "ratio": 12.3 / 8.04,
            "minimum": 8, "aim": 6.5, "note": None, **changes}


class PeerSection(unittest.TestCase):
    def lines(self, peer, *results):
        return performance_page.peer_section({"peer": peer, "source": "a table", "targets": "issue 5", "calls": 20,
                                              "results": list(results)})

    def test_table_stands_in(self):
        lines = self.lines("table", result())
        self.assertIn("| Flash b1 | 12.3 us (table) | 8.0 us | 1.53 | 8.0 us | 6.5 us |", lines)
        self.assertIn("`flash_mla` was not there", lines[2])

    def test_peer_in_the_same_run(self):
        measured = result(unit="TFLOPS", peer="measured", theirs=225.4, ours=300.2, ratio=1.33, minimum=340, aim=390)
        lines = self.lines("flash_mla", measured)
        self.assertIn("| Flash b1 | 225 TFLOPS (measured) | 300 TFLOPS | 1.33 | 340 TFLOPS | 390 TFLOPS |", lines)
        self.assertIn("`flash_mla` ran in the same run", lines[2])

    def test_what_is_not_known_stays_empty(self):
        unknown = result(peer=None, theirs=None, ratio=None, minimum=None, aim=None)
        self.assertIn("| Flash b1 |  | 8.0 us |  |  |  |", self.lines("table", unknown))
        self.assertIn("| Flash b1 |  | 8.0 us |  | as h64 |  |", self.lines("table", {**unknown, "note": "as h64"}))


if __name__ == "__main__":
    unittest.main()
