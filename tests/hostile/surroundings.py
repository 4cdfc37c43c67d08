"""Commands where the system gives little: full disks, little memory, few files, closed streams, places that cannot be
written, and environment variables of any value. Each command ends in its usual output or in one clear line."""

import os
import resource
import signal

from outcome import Run
from serving import port_of
from words import GOOD, VALUES

VARIABLES = ["TMPDIR", "HOME", "LANG", "LC_ALL", "TERM", "COLUMNS", "DSV4_MODELS", "DSV4_API_KEY", "OMP_NUM_THREADS", "TZ"]
PLACES = ["/proc/x", "/dev/full", "/dev/null", "/dev/zero", "/sys/x", ".", "..", "", "x/y/z", "file/x", "loop", "n" * 300,
          "x" * 5000, "/proc/self/mem", "dangling", "\xff\x1b[2J", "-"]
WRITERS = [["eval", "logits", "demo", "--ids", "1,2,3", "-o"],
           ["eval", "kld", "demo", "--ids", "1,2,3", "--save-reference"],
           ["quantize", "demo", "--experts", "k2", "-o"],
           ["run", "demo", "-p", "Once", "-n", "2", "--quiet", "--prompt-cache"],
           ["serve", "demo", "--port", "0", "--ram-cache", "0.02", "--disk-cache"],
           ["bench", "cache", "demo", "--scenario", "arrival", "--clients", "1", "--long-prompt", "20", "--disk-cache"],
           ["inspect", "demo", "--json"]]
THREADS = [["bench", "serve", "http://127.0.0.1:9", "--requests", "3000", "--clients", "3000"],
           ["serve", "demo", "--port", "0", "--ram-cache", "0.02", "--disk-cache", "disk"]]
LIMITS = [(resource.RLIMIT_FSIZE, [4096, 300_000, 3_000_000]), (resource.RLIMIT_NOFILE, [3, 4, 5, 6, 8, 10, 16]),
          (resource.RLIMIT_AS, [m << 20 for m in (80, 120, 200, 400)]), (resource.RLIMIT_STACK, [64 << 10, 256 << 10])]


def case(rng, place):
    (place.folder / "file").touch()
    (place.folder / "loop").symlink_to("loop")
    (place.folder / "dangling").symlink_to("nowhere/x")
    environment, limits, closed = {}, {}, ()
    if rng.random() < 0.5:
        words = [*rng.choice(WRITERS), rng.choice(PLACES)]
    else:
        words = list(GOOD[rng.choice(sorted(GOOD))])
    kind = rng.randrange(5)
    if kind == 0:
        values = [value for value in VALUES if isinstance(value, str)]
        environment = {rng.choice(VARIABLES): rng.choice(values) for _ in range(rng.choice([1, 1, 3]))}
    elif kind == 1:
        what, values = rng.choice(LIMITS)
        limits = {what: rng.choice(values)}
    elif kind == 2:
        closed = tuple(rng.sample([0, 1, 2], rng.choice([1, 1, 2])))
    elif kind == 3:
        words, limits = rng.choice(THREADS), {resource.RLIMIT_AS: rng.randrange(100, 1000) << 20}

    def stop(program):
        if port_of(program) is not None:
            os.kill(program.pid, signal.SIGTERM)
        return ""
    return f"{environment} {limits} closed {closed}", [
        Run(words, stdin=b"Once\n", environment=environment, limits=limits, closed=closed, shows_model_text=True,
            play=stop if words[0] == "serve" else None)]
