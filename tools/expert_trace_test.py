"""Replays small traces by hand and by exhaustive search. Run: python3 FILE."""

import collections
import contextlib
import io
import itertools
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import expert_trace as tool


def run(*arguments):
    return subprocess.run([sys.executable, tool.__file__, *arguments], capture_output=True, text=True)


def random_sets(rng, experts, steps, most):
    return [sorted(rng.sample(range(experts), rng.randint(0, most))) for _ in range(steps)]


def most_hits(sets, slots):
    """Whatever is kept after each step: exhaustive."""
    best = {(): 0}
    for chosen in sets:
        following = {}
        for held, hits in best.items():
            hits += sum(e in held for e in chosen)
            candidates = sorted(set(held) | set(chosen))
            for n in range(min(slots, len(candidates)) + 1):
                for kept in itertools.combinations(candidates, n):
                    following[kept] = max(following.get(kept, 0), hits)
        best = following
    return max(best.values())


def stream(experts, steps):
    """As HasTheHitsOfTheTool in decide_test.cc."""
    state, sets = 1, []
    for _ in range(steps):
        chosen = set()
        for _ in range(4):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            value = state >> 40
            chosen.add(value % experts if value % 3 == 0 else value % 7)
        sets.append(sorted(chosen))
    return sets


class PolicyTest(unittest.TestCase):
    def test_belady_is_the_best_there_is(self):
        rng = random.Random(3)
        for _ in range(40):
            sets, slots = random_sets(rng, 5, 8, 3), rng.randint(1, 4)
            self.assertEqual(tool.belady(sets, 0, 5, slots), most_hits(sets, slots), (sets, slots))

    def test_no_policy_beats_belady(self):
        rng = random.Random(4)
        for _ in range(20):
            sets, slots = random_sets(rng, 12, 200, 4), rng.randint(4, 11)
            best = tool.belady(sets, 20, 12, slots)
            for name in ("lru", "score", "static"):
                self.assertLessEqual(tool.POLICIES[name](sets, 20, 12, slots), best)

    def test_lru_one_at_a_time(self):
        rng = random.Random(5)
        sets = random_sets(rng, 9, 300, 1)
        held, hits = collections.OrderedDict(), 0
        for e in itertools.chain(*sets):
            hits += e in held
            held[e] = None
            held.move_to_end(e)
            if len(held) > 4:
                held.popitem(last=False)
        self.assertEqual(tool.lru(sets, 0, 9, 4), hits)

    def test_static_counts_the_most_used(self):
        sets = [[0, 1], [0, 2], [0, 1], [3]]
        self.assertEqual([tool.static(sets, 0, 4, n) for n in (1, 2, 4)], [3, 5, 7])

    def test_everything_hits_once_it_is_there(self):
        sets = [list(range(6))] * 5
        for name in ("lru", "score", "belady"):
            self.assertEqual(tool.POLICIES[name](sets, 1, 6, 6), 24, name)

    def test_score_has_the_hits_of_decide(self):
        # decide_test.cc, HasTheHitsOfTheTool
        self.assertEqual([tool.score(stream(40, 3000), 0, 40, slots) for slots in (3, 8, 20)], HITS_OF_DECIDE)


HITS_OF_DECIDE = [3211, 7504, 8717]


class FileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "trace"

    def test_reads_what_it_wrote(self):
        trace = tool.synthetic_trace(2, 9, 3, 0.5, 0.3, 10, 4, 7)
        tool.write_trace(self.path, trace)
        got = tool.read_trace(self.path)
        self.assertEqual(got[:3], trace[:3])
        self.assertEqual([list(s) for s, _ in got.steps], [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]])
        self.assertEqual([[[list(row) for row in layer] for layer in layers] for _, layers in got.steps],
                         [layers for _, layers in trace.steps])

    def test_leaves_out_a_step_that_is_cut(self):
        tool.write_trace(self.path, tool.synthetic_trace(2, 9, 3, 0, 0, 4, 1, 7))
        whole = self.path.read_bytes()
        for cut in (1, 5, 20):
            self.path.write_bytes(whole[:-cut])
            err = io.StringIO()
            with contextlib.redirect_stderr(err):
                self.assertEqual(len(tool.read_trace(self.path).steps), 3)
            self.assertIn("ends inside step 3", err.getvalue())

    def test_refuses_other_files(self):
        tool.write_trace(self.path, tool.synthetic_trace(1, 9, 3, 0, 0, 2, 1, 7))
        whole = self.path.read_bytes()
        for bytes_, what in ((b"", "no trace"), (b"{}" * 40, "no trace"), (whole[:8] + b"\2" + whole[9:], "version 2"),
                             (whole[:-2] + b"\xff\0", "has expert 255 of 9"),
                             (whole[:16] + bytes(4) + whole[20:], "0 experts"), (whole[:24], "holds no step")):
            self.path.write_bytes(bytes_)
            result = run("replay", str(self.path))
            self.assertEqual((result.returncode, result.stdout), (1, ""))
            self.assertIn(what, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("No such file", run("replay", str(self.path) + "x").stderr)

    def test_synthetic_choices_have_their_popularity(self):
        tool.write_trace(self.path, tool.synthetic_trace(1, 16, 1, 1.0, 0, 20000, 1, 7))
        uses = collections.Counter(e for _, layers in tool.read_trace(self.path).steps for e in layers[0][0])
        total = sum(1 / rank for rank in range(1, 17))
        for rank, (_, count) in enumerate(uses.most_common()[:6], 1):
            self.assertAlmostEqual(count / 20000, 1 / rank / total, delta=0.012)

    def test_batches_put_sequences_together(self):
        # Sequence 5: tokens a b c; sequence 6: d e
        steps = [([5], [[(0,)]]), ([5, 6], [[(1,), (3,)]]), ([6], [[(4,)]]), ([5], [[(2,)]])]
        got = tool.batched(tool.Trace(1, 5, 1, steps), 2).steps
        self.assertEqual(got, [([5, 6], [[(0,), (3,)]]), ([5, 6], [[(1,), (4,)]]), ([5], [[(2,)]])])

    def test_replay_reports_and_counts(self):
        tool.write_trace(self.path, tool.synthetic_trace(3, 20, 4, 0.9, 0.3, 300, 1, 7))
        counts = str(self.path) + ".json"
        result = run("replay", str(self.path), "--budgets", "5,10,20", "--warm", "50", "--counts", counts, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual((report["steps"], report["distinct"], report["budgets"]), (300, 4, [5, 10, 20]))
        for name in tool.POLICIES:
            self.assertLess(report[name][0], report[name][1])
            self.assertLessEqual(report[name][1], report["belady"][1])
        self.assertEqual(report["static"][2], 1)
        uses = json.loads(pathlib.Path(counts).read_text())
        self.assertEqual((uses["experts"], len(uses["layers"]), sum(uses["layers"][1])), (20, 3, 1200))
        self.assertIn("exists", run("replay", str(self.path), "--counts", counts).stderr)
        table = run("replay", str(self.path), "--batch", "3", "--budgets", "20")
        self.assertIn("300 steps", table.stdout)  # one sequence
        self.assertIn("a layer has 20", run("replay", str(self.path), "--budgets", "21").stderr)

    def test_refuses_bad_arguments(self):
        self.assertIn("want uniform, or zipf:S", run("synthetic", str(self.path), "--routing", "zipf").stderr)
        self.assertIn("a layer has 3 experts",
                      run("synthetic", str(self.path), "--routing", "uniform", "--experts", "3").stderr)
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    unittest.main()
