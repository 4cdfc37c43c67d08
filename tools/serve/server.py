"""`dsv4 serve` as a child process, for the scripts in this folder."""

import atexit
import collections
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading


def give_up_after(seconds):
    """Ends a script that hangs, and with it the servers that it started: a signal's default action would leave them,
    with the pipes of whoever waits for the script."""
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"no end after {seconds} s"))
    signal.alarm(seconds)


class Server:
    """A server on a free port of loopback, ready to answer. `model`: None where the options have it; `environment`: more variables;
    `how`: of the child process."""

    def __init__(self, binary, *options, model="demo", environment=None, **how):
        self.process = subprocess.Popen([binary, "serve", *([model] if model else []), "--port", "0", *options], stderr=subprocess.PIPE,
                                        text=True, env=os.environ | (environment or {}), **how)
        atexit.register(self.process.kill)  # where the script fails
        self.port, lines, self.log = None, [], []  # log: its entries until it was ready
        self.last_lines = collections.deque(maxlen=20)
        for line in self.process.stderr:
            lines.append(line)
            entry = json.loads(line) if line.startswith("{") else {"event": ""}
            self.log.append(entry)
            self.port = entry.get("port", self.port)
            if entry["event"] == "ready":
                break
        else:
            sys.exit("the server did not start: " + "".join(lines))
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.drain_log, daemon=True).start()  # or a full pipe stops the server

    def drain_log(self):
        for line in self.process.stderr:
            self.last_lines.append(line)

    def end(self):
        """How the server ended, or None while it runs: its exit status (negative: a signal) and its last lines."""
        status = self.process.poll()
        return None if status is None else f"status {status}, {''.join(self.last_lines)[-2000:]!r}"

    def resident(self):
        """Bytes of physical memory."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        return 0

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        """Asks the server to end; its exit status."""
        self.process.terminate()
        return self.process.wait(60)


def write_script(folder, lines):
    """A file for `--engine script:FILE`; its path."""
    path = pathlib.Path(folder) / "script.jsonl"
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return path
