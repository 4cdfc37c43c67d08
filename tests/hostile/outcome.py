"""Runs one command line under limits of time and memory, and says how it ended."""

import ctypes
import fcntl
import os
import pty
import resource
import signal
import subprocess
import termios
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Optional

ADDRESS_SPACE = 8 << 30
RESIDENT = 2 << 30
CPU_SECONDS = 60  # a program on a busy machine may wait for long before it has had as much
TIMEOUT = 300
LONGEST_LINE = 700
# Texts of libraries and of checks that are meant for programmers.
INTERNAL = (b"json.exception", b"filesystem error", b"std::", b"basic_string", b"vector::", b".cc:", b".h:", b"what():",
            b"libgomp", b"terminate called")


@dataclass
class Done:
    """A program that ended: its exit code (negative: a signal), its output and its largest resident size."""
    code: int
    out: bytes
    err: bytes
    resident: int
    hung: bool
    played: str = ""  # what a player found


@dataclass
class Program:
    """A program that runs: its id, the file of its errors, and the terminal that it runs in."""
    pid: int
    errors: Path
    terminal: Optional[int] = None

    def has_ended(self):
        """It can still be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@dataclass
class Run:
    """A command line of dsv4 (its words as text or bytes). `judge` sees its end and returns a finding, or ''."""
    words: list
    stdin: bytes = b""
    judge: Optional[Callable[[Done], str]] = None
    shows_model_text: bool = False  # its output is the model's own, any bytes
    environment: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)  # of resources, beside time and memory
    closed: tuple = ()  # streams that it starts without
    play: Optional[Callable[[Program], str]] = None  # a client or a user; returns a finding, or ''
    in_terminal: bool = False  # for `play`; standard error is a file nevertheless


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def limit(run, terminal):
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a server must not outlive a campaign that is cut short
    limits = {resource.RLIMIT_AS: ADDRESS_SPACE, resource.RLIMIT_CORE: 0} | run.limits
    for what, value in limits.items():
        resource.setrlimit(what, (value, value))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as a full disk: a write fails
    if terminal is not None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in run.closed:
        os.close(stream)


def execute(binary, run, scratch):
    """Runs it with files for its three streams, so that no reader can be the reason of a hang."""
    paths = {name: scratch / f"stream.{name}" for name in ("in", "out", "err")}
    paths["in"].write_bytes(run.stdin)
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | run.environment
    user, terminal = pty.openpty() if run.in_terminal else (None, None)
    with open(paths["in"], "rb") as given, open(paths["out"], "wb") as out, open(paths["err"], "wb") as err:
        program = subprocess.Popen([binary, *run.words], stdin=terminal or given, stdout=terminal or out, stderr=err,
                                   preexec_fn=lambda: limit(run, terminal), env=environment, cwd=scratch)
    if terminal is not None:
        os.close(terminal)
    played = run.play(Program(program.pid, paths["err"], user)) if run.play else ""
    hung = threading.Event()

    def give_up():
        hung.set()
        os.kill(program.pid, signal.SIGKILL)
    timer = threading.Timer(TIMEOUT, give_up)
    timer.start()
    _, status, usage = os.wait4(program.pid, 0)
    timer.cancel()
    program.returncode = os.waitstatus_to_exitcode(status)
    if user is not None:
        os.close(user)
    return Done(program.returncode, paths["out"].read_bytes(), paths["err"].read_bytes(), usage.ru_maxrss << 10,
                hung.is_set() or program.returncode == -signal.SIGXCPU, played)


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
    if done.code != 0 and 2 not in run.closed:
        lines = [line for line in done.err.splitlines(keepends=True) if not line.startswith((b"dsv4: note: ", b'{"time":'))]
        if len(lines) != 1 or not lines[0].startswith(b"dsv4: ") or not lines[0].endswith(b"\n"):
            return "not one line"
        if len(done.err) > LONGEST_LINE:
            return "long line"
        if any(text in done.err for text in INTERNAL):
            return "internal text"
    finding = done.played or (run.judge(done) if run.judge else "")
    return finding or ("ok" if done.code == 0 else "error")
