"""Runs one command line under limits of time and memory, and says how it ended."""

import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import Callable, Optional

ADDRESS_SPACE = 8 << 30
RESIDENT = 2 << 30
CPU_SECONDS = 60  # a program on a busy machine may wait for long before it has had as much
TIMEOUT = 300
LONGEST_LINE = 700
# Texts of libraries and of checks that are meant for programmers.
INTERNAL = (b"json.exception", b"std::", b"basic_string", b"vector::", b".cc:", b".h:", b"what():", b"libgomp")


@dataclass
class Done:
    """A program that ended: its exit code (negative: a signal), its output and its largest resident size."""
    code: int
    out: bytes
    err: bytes
    resident: int
    hung: bool


@dataclass
class Run:
    """A command line of dsv4 (its words as text or bytes). `judge` sees its end and returns a finding, or ''."""
    words: list
    stdin: bytes = b""
    judge: Optional[Callable[[Done], str]] = None
    shows_model_text: bool = False  # its output is the model's own, any bytes
    environment: dict = field(default_factory=dict)


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))


def execute(binary, run, scratch):
    """Runs it with files for its three streams, so that no reader can be the reason of a hang."""
    paths = {name: scratch / f"stream.{name}" for name in ("in", "out", "err")}
    paths["in"].write_bytes(run.stdin)
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | run.environment
    with open(paths["in"], "rb") as given, open(paths["out"], "wb") as out, open(paths["err"], "wb") as err:
        program = subprocess.Popen([binary, *run.words], stdin=given, stdout=out, stderr=err, preexec_fn=limit,
                                   env=environment, cwd=scratch)
    end, hung = time.monotonic() + TIMEOUT, False
    while True:
        pid, status, usage = os.wait4(program.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end and not hung:
            hung = True
            os.kill(program.pid, signal.SIGKILL)
        time.sleep(0.002)
    program.returncode = os.waitstatus_to_exitcode(status)
    hung |= program.returncode == -signal.SIGXCPU
    return Done(program.returncode, paths["out"].read_bytes(), paths["err"].read_bytes(), usage.ru_maxrss << 10, hung)


def has_control(text):
    return any((byte < 0x20 and byte not in b"\n\t") or byte == 0x7f for byte in text)


def classify(run, done):
    """'ok', 'error', or a finding."""
    if done.hung:
        return "hang"
    if done.code < 0:
        return f"signal {signal.Signals(-done.code).name}"
    if done.resident > RESIDENT:
        return f"memory {done.resident >> 20} MiB"
    if has_control(done.err if run.shows_model_text else done.out + done.err):
        return "control character"
    if done.code != 0:
        lines = [line for line in done.err.splitlines(keepends=True) if not line.startswith(b"dsv4: note: ")]
        if len(lines) != 1 or not lines[0].startswith(b"dsv4: ") or not lines[0].endswith(b"\n"):
            return "not one line"
        if len(done.err) > LONGEST_LINE:
            return "long line"
        if any(text in done.err for text in INTERNAL):
            return "internal text"
    finding = run.judge(done) if run.judge else ""
    return finding or ("ok" if done.code == 0 else "error")
