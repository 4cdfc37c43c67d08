#!/usr/bin/env python3
"""--gpus processes: ranks that are processes, with the variables that launchers set. Answers and log-probabilities are
those of one process, to the byte; a rank that is killed, stopped or not like rank 0 ends all of them, with one line.

usage: rank_processes_test.py BINARY [TEST ...]

They compute on the CPU. With DSV4_RANKS_GPUS=0,1 rank r is on GPU r of the list, and begins with the first again after
its end: 0 alone runs two ranks on one GPU, which take turns of milliseconds. On GPUs all commands are --deterministic.
DSV4_RANKS_EXCHANGE=nccl exchanges values by NCCL, whose library DSV4_NCCL may name."""

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

BINARY = sys.argv.pop(1) if len(sys.argv) > 1 else "build/cpu/bin/dsv4"
ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ["run", "demo", "-p", "Once upon a time", "-n", "24", "--seed", "7", "--logprobs", "3", "--stats", "none"]
GPUS = os.environ.get("DSV4_RANKS_GPUS", "").split(",") if os.environ.get("DSV4_RANKS_GPUS") else []
EXCHANGE = os.environ.get("DSV4_RANKS_EXCHANGE", "peer")
ONE = ["--device", f"cuda:{GPUS[0]}", "--deterministic"] if GPUS else ["--device", "cpu"]
CPU = "processes:cpu"
LIMIT = 15  # seconds in which all ranks end, beside what a busy machine needs
AT_ONCE = 1  # seconds, beside what processes need to start
PATIENCE = 120


def ranks_on(world):  # arguments
    if not GPUS:
        return ["--gpus", CPU]
    places = "processes:" + ",".join(GPUS[rank % len(GPUS)] for rank in range(world))
    return ["--gpus", places, "--exchange", EXCHANGE, "--deterministic"]


def launcher(kind, rank, world, job):
    if kind == "torchrun":
        return {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world,
                "MASTER_ADDR": "localhost", "MASTER_PORT": job}
    if kind == "mpirun":
        return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": world, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
                "OMPI_COMM_WORLD_LOCAL_SIZE": world, "PMIX_NAMESPACE": f"prterun-{job}@1"}
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": world, "SLURM_LOCALID": rank, "SLURM_NNODES": 1,
            "SLURM_JOB_ID": job, "SLURM_STEP_ID": 0}


class Ranks:
    """Processes of one job. words: of the command line; words_of: more of some ranks; of_rank: more variables of some
    ranks; plain: the command has no --deterministic; places: for --gpus."""

    def __init__(self, world, *words, kind="torchrun", of_rank=None, words_of=None, ranks=None, program=None,
                 plain=False, places=None):
        job = random.randrange(1 << 40)
        self.processes, self.errors, self.said = [], [], {}
        for rank in range(world) if ranks is None else ranks:
            variables = {name: str(value) for name, value in launcher(kind, rank, world, job).items()}
            self.errors.append(tempfile.TemporaryFile("w+"))
            self.processes.append(subprocess.Popen(
                [(program or {}).get(rank, BINARY), *words, *(words_of or {}).get(rank, []),
                 *(["--gpus", places] if places else ranks_on(world)[:4 if plain else None])],
                cwd=ROOT, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "2"} | variables | (of_rank or {}).get(rank, {}),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors[-1]))

    def end(self, seconds=PATIENCE):
        """The exit status and standard output of each rank."""
        until, results = time.monotonic() + seconds, []
        try:
            for process in self.processes:
                out, _ = process.communicate(timeout=max(until - time.monotonic(), 0.1))
                results.append((process.returncode, out))
        finally:
            self.kill()
        return results

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()
        for index, file in enumerate(self.errors):
            if not file.closed:
                self.said[index] = self.error(index)
                file.close()

    def error(self, index):
        if index in self.said:
            return self.said[index]
        return os.pread(self.errors[index].fileno(), 1 << 24, 0).decode()  # the process writes at the offset of the file


def run_one(*words):
    run = subprocess.run([BINARY, *words, *ONE], cwd=ROOT, text=True, env=os.environ | {"OMP_NUM_THREADS": "2"},
                         capture_output=True)
    if run.returncode != 0:
        raise AssertionError(run.stderr)
    return run


def one(*words):
    return run_one(*words).stdout


def drafts_of(text):
    """What a run says of its drafts: "2.31 tokens a round of 19, drafts 0.84 / 0.68 / 0.58"."""
    return re.search(r"[0-9.]+ tokens a round of .*", text).group()


class Answers(unittest.TestCase):
    def test_one_two_three(self):
        want = one(*RUN)
        self.assertGreater(len(want), 500)
        for kind, world in ("torchrun", 1), ("torchrun", 2), ("mpirun", 3), ("srun", 2):
            if EXCHANGE == "nccl" and world > len(GPUS):
                continue  # it refuses ranks that share a GPU
            results = Ranks(world, *RUN, kind=kind).end()
            self.assertEqual([status for status, _ in results], [0] * world, kind)
            self.assertEqual(results[0][1], want, kind)
            self.assertEqual("".join(out for _, out in results[1:]), "", "rank 0 alone writes")

    def test_whole_experts(self):
        world = 2 if EXCHANGE == "nccl" else 3
        results = Ranks(world, *RUN, "--experts-placement", "whole").end()
        self.assertEqual(results[0], (0, one(*RUN)))

    def test_drafts_of_the_mtp_block(self):
        words = ["run", "demo", "-p", "Once", "-n", "40", "--seed", "7", "--logprobs", "3"]
        guess = ["--speculate", "mtp", "--draft-head", "same", "--draft-tokens"]
        want, held = one(*words, "--stats", "none"), drafts_of(run_one(*words, *guess, "3").stderr)
        self.assertRegex(held, r" 0\.[5-9]", "most first drafts hold")
        for world in (2,) if EXCHANGE == "nccl" else (2, 3):
            for drafts in "3", "auto":
                ranks = Ranks(world, *words, *guess, drafts)
                results = ranks.end()
                self.assertEqual([status for status, _ in results], [0] * world, ranks.error(world - 1))
                self.assertEqual(results[0][1], want, (world, drafts))
                if drafts == "3":
                    self.assertEqual(drafts_of(ranks.error(0)), held)

    def test_exact_numerics_and_chunks(self):
        words = ["eval", "ppl", "demo", "--json", "--numerics", "exact", "--context", "90",
                 "--ids", ",".join(str(5 + i) for i in range(200))]
        want = json.loads(one(*words))["nll"]
        status, out = Ranks(2, *words).end()[0]
        self.assertEqual(status, 0)
        self.assertEqual(json.loads(out)["nll"], want)

    def test_prefixes_of_another_number_of_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            for source in "off", "mtp":
                text = "Long ago there was a village by the sea. " * 12
                words = ["run", "demo", "-n", "8", "--seed", "3", "--stats", "none", "--speculate", source,
                         "--prompt-cache", f"{folder}/{source}"]
                one(*words, "-p", text)
                longer = [*words, "-p", text + "Then one day"]
                first = Path(folder, source).read_bytes()
                want = one(*longer)
                Path(folder, source).write_bytes(first)
                results = Ranks(2, *longer).end()
                self.assertEqual(results[0], (0, want), source)


class Launchers(unittest.TestCase):
    def check(self, *command):
        run = subprocess.run([*command, BINARY, *RUN, *ranks_on(2)], cwd=ROOT, text=True, capture_output=True,
                             timeout=PATIENCE, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.assertEqual((run.returncode, run.stdout), (0, one(*RUN)), run.stderr)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
    def test_mpirun(self):
        self.check("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2")

    @unittest.skipUnless(shutil.which("torchrun"), "no torchrun")
    def test_torchrun(self):
        self.check("torchrun", "--no-python", "--nproc-per-node=2")


@unittest.skipUnless(GPUS, "no DSV4_RANKS_GPUS")
class Flash(unittest.TestCase):
    """Six layers of V4-Flash with random weights, and the demo, in `bench`."""

    FLASH = ["bench", "decode", "--synthetic", "flash", "--layers", "6", "--context", "1024", "--batch", "1,3", "--steps",
             "8", "--json"]

    def test_logits_of_one_rank(self):
        demo = ["bench", "decode", "demo", "--context", "256", "--batch", "1,3", "--steps", "4", "--json"]
        for words in [*self.FLASH, "--experts", "mxfp4"], [*self.FLASH, "--experts", "k3-e4m3"], demo:
            want = [row["logits_sha256"] for row in json.loads(one(*words))["results"]]
            for placement in "sliced", "whole":
                ranks = Ranks(2, *words, "--experts-placement", placement)
                (status, out), (other, nothing) = ranks.end()
                self.assertEqual((status, other, nothing), (0, 0, ""), ranks.error(0) + ranks.error(1))
                report = json.loads(out)
                self.assertEqual(report["experts_placement"], placement)
                self.assertEqual([row["logits_sha256"] for row in report["results"]], want, (words, placement))

    def test_time_of_an_exchange(self):
        ranks = Ranks(2, "bench", "exchange", "--json", plain=True)
        (status, out), (other, _) = ranks.end()
        self.assertEqual((status, other), (0, 0), ranks.error(0) + ranks.error(1))
        report = json.loads(out)
        self.assertEqual((report["ranks"], report["processes"]), (2, True))
        print("\nKiB, us:", [(row["bytes"] >> 10, round(row["us"], 2)) for row in report["results"]])


class Refused(unittest.TestCase):
    def assert_at_once(self, spent, processes, wait=0, said=None):
        """What is beyond the start of the processes and this wait is less than a second. Their start is timed when it counts,
        on a machine that may have become busy: a process does all that they do before they meet, and more."""
        start = 0
        if spent > wait + AT_ONCE:
            begin = time.monotonic()
            subprocess.run([BINARY, *RUN, "--device", "cpu"], cwd=ROOT, check=True, capture_output=True)
            start = time.monotonic() - begin
        self.assertLess(spent, processes * start + wait + AT_ONCE, said)

    def ended(self, ranks, status=1, wait=0):
        """What each rank says, when all of them have ended with this status, at once after this wait."""
        begin = time.monotonic()
        results, spent = ranks.end(), time.monotonic() - begin
        said = [ranks.error(index) for index in range(len(results))]
        self.assertEqual([code for code, _ in results], [status] * len(results), said)
        self.assert_at_once(spent, len(results), wait, said)
        return said

    def expect(self, ranks, line, wait=0):
        for said in self.ended(ranks, wait=wait):
            self.assertEqual(said, f"dsv4: {line}\n")

    def test_a_rank_that_does_not_come(self):
        wait = {rank: {"DSV4_RANKS_WAIT_S": "2"} for rank in range(3)}
        begin = time.monotonic()
        self.expect(Ranks(3, *RUN, ranks=[0, 2], of_rank=wait, places=CPU), "2 of 3 ranks came within 2 s; missing: 1",
                    wait=2)
        self.assertGreater(time.monotonic() - begin, 2)

    def test_another_world(self):
        self.expect(Ranks(2, *RUN, of_rank={1: {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3"}}, places=CPU),
                    "rank 1 is one of 3 ranks, rank 0 of 2")

    @unittest.skipUnless(GPUS, "no DSV4_RANKS_GPUS")
    def test_one_gpu_for_two(self):
        ranks = Ranks(2, *RUN, places="processes",
                      of_rank={rank: {"CUDA_VISIBLE_DEVICES": GPUS[0]} for rank in range(2)})
        for said in self.ended(ranks):
            self.assertRegex(said, r"^dsv4: ranks 0 and 1 are on the GPU [0-9A-F:.]+: show .*\n$")

    def test_another_drafter(self):
        ranks = Ranks(2, *RUN, words_of={0: ["--speculate", "mtp"]}, places=CPU)
        for said in self.ended(ranks):
            self.assertRegex(said, r"^dsv4: rank 1 has the model (\w+), rank 0 \1 and mtp\n$")

    def test_another_model(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "models")
            subprocess.run(["cp", "-r", "models", copy], cwd=ROOT, check=True)
            for file in (copy / "demo").glob("*.safetensors"):
                os.utime(file, (10 ** 9 + 7, 10 ** 9 + 7))
            ranks = Ranks(2, *RUN, of_rank={1: {"DSV4_MODELS": str(copy)}}, places=CPU)
            for said in self.ended(ranks):
                self.assertRegex(said, r"^dsv4: rank 1 has the model \w{16}, rank 0 \w{16}\n$")

    def test_another_program(self):
        with tempfile.TemporaryDirectory() as folder:
            other, code, version = Path(folder, "dsv4"), Path(BINARY).read_bytes(), b"\nCPU: {}\n"
            self.assertEqual(code.count(version), 1, "the text of --version")
            other.write_bytes(code.replace(version, b"\nCPX: {}\n"))
            other.chmod(0o755)
            models = {1: {"DSV4_MODELS": str(ROOT / "models")}}
            said = set(self.ended(Ranks(2, *RUN, program={1: str(other)}, of_rank=models, places=CPU)))
            self.assertEqual(len(said), 1, said)
            self.assertRegex(said.pop(), r"^dsv4: a rank runs dsv4 .*CPX: .*, rank 0 dsv4 .*CPU: .*\n$")

    def test_rank_0_fails_after_the_meeting(self):
        """While it makes its runner, and before: the others wait for it in different calls."""
        for words, line in ((["--exchange", "nccl"], "--exchange nccl is for ranks that are processes on GPUs"),
                            (["--context", "4"], "leave no room for an answer in a context of 4")):
            said = self.ended(Ranks(2, *RUN, words_of={0: words}, places=CPU))
            self.assertIn(line, said[0])
            self.assertEqual(said[0].count("\n"), 1, said[0])
            self.assertEqual(said[1].replace("dsv4: rank 0: ", "dsv4: "), said[0].replace("dsv4: rank 0: ", "dsv4: "))
            self.assertTrue(said[1].startswith("dsv4: rank 0: "), said[1])

    def test_a_server_that_cannot_load(self):
        with tempfile.NamedTemporaryFile() as file:
            ranks = Ranks(2, "serve", "demo", "--port", "0", words_of={0: ["--disk-cache", f"{file.name}/x"]}, places=CPU)
            (status, _), (other, _) = ranks.end()
            self.assertNotEqual(status, 0)
            self.assertEqual(other, 1, ranks.error(1))
            self.assertRegex(ranks.error(1), r"^dsv4: rank 0: .*" + re.escape(file.name) + ".*\n$")

    def test_more_processes_than_gpus_of_a_model(self):
        for places in "processes", "processes:" + ",".join("0" * 9):
            begin = time.monotonic()
            run = subprocess.run([BINARY, *RUN, "--gpus", places], cwd=ROOT, text=True, capture_output=True,
                                 env=os.environ | {"RANK": "3", "WORLD_SIZE": "9", "MASTER_PORT": "1"})
            self.assertEqual((run.returncode, run.stderr), (1, f"dsv4: --gpus {places}: 9 processes, at most 8 share a model\n"))
            self.assert_at_once(time.monotonic() - begin, 1)

    def test_another_placement_of_the_experts(self):
        ranks = Ranks(2, *RUN, words_of={1: ["--experts-placement", "whole"]}, places=CPU)
        for said in self.ended(ranks):
            self.assertRegex(said, r"^dsv4: rank 1 has the model \w{16} with whole experts, rank 0 \w{16}\n$")

    def test_no_launcher_and_what_does_not_run(self):
        def refusal(*words, **variables):
            plain = {name: value for name, value in os.environ.items()
                     if not name.startswith(("SLURM_", "OMPI_")) and name not in ("RANK", "WORLD_SIZE")}
            run = subprocess.run([BINARY, *words], cwd=ROOT, text=True,
                                 env=plain | variables, capture_output=True)
            self.assertNotEqual(run.returncode, 0)
            self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
            return run.stderr
        processes = ranks_on(2)
        self.assertIn("start the program with torchrun, mpirun or srun", refusal(*RUN, *processes))
        two = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
        self.assertIn("chat does not run over processes", refusal("chat", "demo", *processes, **two))
        for world in "0", "65", "two":
            self.assertIn(f"WORLD_SIZE is '{world}': want a number from 1 to 64",
                          refusal(*RUN, "--gpus", CPU, **(two | {"WORLD_SIZE": world})))
        self.assertIn("RANK is '2': want a number from 0 to 1", refusal(*RUN, "--gpus", CPU, **(two | {"RANK": "2"})))
        self.assertIn("3 GPUs for 2 processes", refusal(*RUN, "--gpus", "processes:0,1,2", **two))
        for bad in "processes:", "processes:a", "processes:0,", "processes:0,cpu", "processes2":
            self.assertIn(f"--gpus '{bad}': want", refusal(*RUN, "--gpus", bad, **two))


class Server:
    """`dsv4 serve` on two ranks, with these words more."""

    def __init__(self, *words):
        self.ranks = Ranks(2, "serve", "demo", "--port", "0", "--context", "2048", *words)
        until = time.monotonic() + PATIENCE
        self.port = None
        while '"ready"' not in (log := self.ranks.error(0)):
            if time.monotonic() > until or self.ranks.processes[0].poll() is not None:
                self.ranks.kill()
                raise AssertionError(log + self.ranks.error(1))
            time.sleep(0.05)
        for line in log.splitlines():
            self.port = json.loads(line).get("port", self.port)

    def ask(self, tokens, stream=False, path="/v1/completions", prompt="Once upon a time"):
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logprobs": 2, "stream": stream,
                "ignore_eos": True}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def metrics(self):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE).read().decode()


    def said(self, ask):
        """(status, what the server calls its state) of an answer; (0, "") where it closes or refuses the connection."""
        try:
            return ask().status, ""
        except urllib.error.HTTPError as error:
            body = json.load(error)
            return error.code, body["error"]["code"] if "error" in body else body["status"]
        except (OSError, http.client.HTTPException):
            return 0, ""

    def watch(self):
        """What /ready says until rank 0 has gone, new requests from the first time on at which that is not 200, and /ready
        right after the log has the fault."""
        ready, requests, logged = [], [], None
        while self.ranks.processes[0].poll() is None:
            known = '"broken"' in self.ranks.error(0)
            ready.append(self.said(lambda: urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=PATIENCE)))
            if known and logged is None:
                logged = ready[-1]
            if ready[-1][0] != 200:
                requests.append(self.said(lambda: self.ask(1)))
            time.sleep(0.02)
        return ready, requests, logged


class Serve(unittest.TestCase):
    def test_answers_metrics_and_the_end(self):
        server = Server()
        try:
            got = json.load(server.ask(30))["choices"][0]
            plain = subprocess.Popen([BINARY, "serve", "demo", "--port", "0", "--context", "2048", *ONE],
                                     cwd=ROOT, text=True, stderr=subprocess.PIPE)
            for line in plain.stderr:
                entry = json.loads(line)
                server.other = entry.get("port", getattr(server, "other", None))
                if entry["event"] == "ready":
                    break
            ranks_port, server.port = server.port, server.other
            want = json.load(server.ask(30))["choices"][0]
            server.port = ranks_port
            plain.kill()
            plain.wait()
            plain.stderr.close()
            self.assertEqual(got, want)
            until = time.monotonic() + PATIENCE
            while (text := server.metrics()).count("dsv4_rank_steps_total{") < 2 and time.monotonic() < until:
                time.sleep(0.1)
            for rank in 0, 1:
                self.assertIn(f'dsv4_rank_received_bytes_total{{rank="{rank}"}}', text)
            # A launcher sends its signal to all ranks; what runs gets its answer.
            answer = server.ask(300, stream=True)
            self.assertTrue(answer.readline().startswith(b"data:"))
            for process in reversed(server.ranks.processes):
                process.send_signal(signal.SIGTERM)
            self.assertIn("[DONE]", answer.read().decode())
            self.assertEqual([status for status, _ in server.ranks.end()], [0, 0])
        finally:
            server.ranks.kill()

    def end_of_a_rank(self, busy):
        server = Server()
        try:
            answer = server.ask(1500, stream=True) if busy else None
            if busy:
                self.assertTrue(answer.readline().startswith(b"data:"))
            begin = time.monotonic()
            server.ranks.processes[1].kill()
            ready, requests, logged = server.watch()
            text = answer.read().decode() if busy else ""
            status, _ = server.ranks.end()[0]
            self.assertLess(time.monotonic() - begin, LIMIT)
            # 200 until the end is noticed; then 503, and no connection at last.
            first = next(at for at, (code, _) in enumerate(ready) if code != 200)
            self.assertEqual(ready[first], (503, "broken"), ready)
            self.assertEqual(logged, (503, "broken"))
            for said in ready[first:], requests:
                self.assertIn((503, "broken"), said)
                self.assertLessEqual(set(said), {(503, "broken"), (0, "")})
            self.assertEqual(status, 70)
            if busy:
                self.assertIn('"error"', text)
            broken = [json.loads(line) for line in server.ranks.error(0).splitlines() if '"broken"' in line]
            self.assertEqual([entry["error"] for entry in broken], ["rank 1 has ended"])
        finally:
            server.ranks.kill()

    def test_a_rank_is_killed_in_an_answer(self):
        self.end_of_a_rank(busy=True)

    def test_a_rank_is_killed_at_rest(self):
        self.end_of_a_rank(busy=False)

    def test_a_restart_serves_what_the_disk_has(self):
        prompt = "Long ago there was a village by the sea. " * 40
        with tempfile.TemporaryDirectory() as folder:
            answers = []
            for _ in range(2):
                server = Server("--disk-cache", folder)
                try:
                    answers.append(json.load(server.ask(8, prompt=prompt)))
                    until = time.monotonic() + PATIENCE
                    while not re.search(r'dsv4_cache_entries{tier="disk"} ([1-9]\d*)', server.metrics()):
                        self.assertLess(time.monotonic(), until, "nothing is written")
                        time.sleep(0.05)
                    server.ranks.processes[1].kill()
                    self.assertEqual(server.ranks.end()[0][0], 70)
                finally:
                    server.ranks.kill()
            cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
            self.assertEqual(cached[0], 0)
            self.assertGreater(cached[1], 0)
            self.assertEqual(*(answer["choices"] for answer in answers))

    def test_rank_0_is_killed(self):
        server = Server()
        begin = time.monotonic()
        server.ranks.processes[0].kill()
        status, _ = server.ranks.end()[1]
        self.assertLess(time.monotonic() - begin, LIMIT)
        self.assertEqual(status, 1)
        self.assertEqual(server.ranks.error(1), "dsv4: rank 0 has ended\n")

    def test_a_rank_is_stopped_in_an_answer(self):
        server = Server()
        try:
            answer = server.ask(1500, stream=True)
            self.assertTrue(answer.readline().startswith(b"data:"))
            server.ranks.processes[1].send_signal(signal.SIGSTOP)
            self.assertIn('"error"', answer.read().decode())
            self.assertEqual(server.ranks.processes[0].wait(PATIENCE), 70)
            self.assertRegex(server.ranks.error(0),
                             r'"error":"no answer from (rank 1|another rank) for 10 s \([A-Za-z ]+(, layer \d+)?\)"')
        finally:
            server.ranks.kill()


if __name__ == "__main__":
    unittest.main()
