"""What the scripts of this folder that judge a server share: the count of checks, and a free port."""

import socket

failures, passed = [], []


def check(name, holds, detail=""):
    """Prints a line; it has the whole detail where the check fails."""
    (passed if holds else failures).append(name)
    text = str(detail)[:200] if holds else str(detail)
    print(f"{'ok    ' if holds else 'FAILED'} {name}{': ' + text if text else ''}", flush=True)


def finish():
    """The last line, and the exit status."""
    print(f"{len(passed)} passed, {len(failures)} failed")
    return 1 if failures else 0


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
