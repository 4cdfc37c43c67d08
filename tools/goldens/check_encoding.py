#!/usr/bin/env python3
"""Checks the encoder level of `dsv4 inspect prompt` against the golden files of the released checkpoints.

Usage: check_encoding.py DSV4 MODEL FOLDER
  DSV4    the program
  MODEL   a folder with the released tokenizer.json, or one that has all markers
  FOLDER  encoding/tests of a checkpoint: test_input_N.json, test_output_N.txt. They are not kept here.
"""

import hashlib
import json
import pathlib
import subprocess
import sys

# (golden, mode, SHA-256 of the prompt)
CASES = [
    (1, "thinking", "9b366d9d2eac842a6e890594aac0b58648e5623717202b33497afadf03e26540"),
    (2, "thinking", "ca66b01a1ac3a204bb032c928fb607d4877171e998a50f7f89f39fa821b75665"),
    (3, "thinking", "b3b1cd8748b7b90d3c6be6da3f786f12e4d70be073bd445ea162dfad4dc01a64"),
    (4, "chat", "60e1643840ba9e4aeede450feb7b0498fa66ee24e4a939d48855ce04ec6fc375"),
]


def body(folder, number, mode):
    messages = json.loads((folder / f"test_input_{number}.json").read_text())
    if isinstance(messages, dict):  # {messages, tools}: the tools belong to the first message
        messages["messages"][0]["tools"] = messages["tools"]
        messages = messages["messages"]
    return json.dumps({"level": "encoder", "thinking_mode": mode, "messages": messages})


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    program, model, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    lines = "\n".join(body(folder, number, mode) for number, mode, _ in CASES)
    run = subprocess.run([program, "inspect", "prompt", model], input=lines + "\n", capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)
    failed = 0
    for (number, _, want), line in zip(CASES, run.stdout.splitlines(), strict=True):
        answer = json.loads(line)
        got = hashlib.sha256(answer.get("prompt", "").encode()).hexdigest()
        print(f"test_output_{number}: {'ok' if got == want else answer.get('error', 'differs')}")
        failed += got != want
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
