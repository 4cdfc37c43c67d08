#!/usr/bin/env python3
"""cmake --install BUILD: the program runs from any folder, through a link, and finds its model; license, pages and
completion lie where a system looks for them.

    tests/cli/install_test.py BUILD
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = ["bin/dsv4", "share/dsv4/models/demo/model.safetensors", "share/doc/dsv4/LICENSE", "share/doc/dsv4/README.md",
         "share/doc/dsv4/docs/run.md", "share/bash-completion/completions/dsv4", "share/zsh/site-functions/_dsv4",
         "share/fish/vendor_completions.d/dsv4.fish"]


def main():
    with tempfile.TemporaryDirectory() as scratch:
        prefix, link = Path(scratch) / "prefix", Path(scratch) / "link"
        subprocess.run(["cmake", "--install", sys.argv[1], "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
        missing = [name for name in FILES if not (prefix / name).is_file() or (prefix / name).stat().st_size == 0]
        training = prefix / "share/dsv4/models/demo/train"  # belongs to the sources only
        link.symlink_to(prefix / "bin/dsv4")
        environment = {name: value for name, value in os.environ.items() if name != "DSV4_MODELS"}
        done = subprocess.run([link, "run", "demo", "-p", "Once", "-n", "2", "--quiet"], cwd="/", env=environment,
                              capture_output=True, text=True)
        if missing or training.exists() or done.returncode != 0 or not done.stdout.strip():
            sys.exit(f"missing: {missing}; training scripts installed: {training.exists()}; the installed program: {done}")


if __name__ == "__main__":
    main()
