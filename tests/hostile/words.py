"""Command lines: options, values and commands that no user means.

The names of options are those of the completion script, so a new option takes part by itself. Large numbers are left out
where they are meant: a million prompts, steps of a million tokens.
"""

import os
import re

from outcome import Run

GOOD = {
    "run": ["run", "demo", "-p", "Once", "-n", "2", "--quiet"],
    "eval ppl": ["eval", "ppl", "demo", "--ids", "1,2,3,4,5"],
    "eval kld": ["eval", "kld", "demo", "--reference", "demo", "--ids", "1,2,3,4,5"],
    "eval logits": ["eval", "logits", "demo", "--ids", "1,2,3", "-o", "logits"],
    "eval needle": ["eval", "needle", "demo", "--distances", "64", "--prompts", "1"],
    "inspect": ["inspect", "demo"], "quantize": ["quantize", "demo", "-o", "out", "--experts", "k2"],
    "plan": ["plan", "--synthetic", "flash"], "bench decode": ["bench", "decode", "demo", "--steps", "1", "--context", "16"],
    "bench prefill": ["bench", "prefill", "demo", "--tokens", "20"], "tokenize": ["tokenize", "demo", "-p", "Once"],
    "detokenize": ["detokenize", "demo", "--ids", "1,2"], "completion": ["completion", "bash"], "chat": ["chat", "demo"],
    "serve": ["serve", "nowhere"], "bench serve": ["bench", "serve", "--seconds", "1"],
}
VALUES = ["", "-1", "0", "1", "2", "7", "64", "1e9", "-0", "nan", "inf", "-inf", "abc", "1.5", "0x10", "010", "1e-320", "\u0661",
          "2147483648", "4294967296", "9223372036854775808", "18446744073709551616", "-9223372036854775809", "1" * 400,
          "\x1b[2J\x1b]0;t\x07", b"\xff\xfe", "a\nb", "/dev/null", "/dev/zero", "/dev/full", "/", ".", "..", "/nowhere/x", "demo",
          "x" * 5000, "@", "@-", "@/dev/null", "@/dev/zero", "-", "--", "=", ":", ",", "1,2,,3", "1,2,3", "%s%n%d", "k2", "k3-@/dev/null",
          "cpu", "cuda", "cuda:99", "cuda:-1", "flash", "json", "true", "8xh100", "0xh100", "99999999xh200", "42:-5", "1:", "\u202e"]
MANY = {"--steps", "--prompts", "--chunk", "--batch", "--parallel", "--threads", "-t", "--max-tokens", "-n", "--tokens"}


def options_of(place):
    """{"eval ppl": ["--help", ...]} from the completion script."""
    found = re.findall(r"^    '([a-z ]*)'\) words='([^']*)'", place.completion.read_text(), re.MULTILINE)
    return {path: words.split() for path, words in found}


def case(rng, place):
    options = options_of(place)
    path = rng.choice(sorted(GOOD))
    words = list(GOOD[path])
    for _ in range(rng.choice([1, 1, 2, 4])):
        kind = rng.randrange(10)
        if kind == 0:
            words[rng.randrange(len(words))] = rng.choice(VALUES)
        elif kind == 1:
            words.insert(rng.randrange(len(words) + 1), rng.choice(VALUES))
        elif kind == 2 and len(words) > 1:
            del words[rng.randrange(len(words))]
        elif kind == 3:
            words.append(rng.choice(["--frob", "-Z", "--", "-", "--help", "--version", "frob"]))
        else:
            option = rng.choice(options.get(path, ["--help"]))
            value = rng.choice([v for v in VALUES if option not in MANY or not big(v)])
            words += [option] + ([value] if rng.random() < 0.85 else [])
    words = [word.encode("utf-8", "surrogatepass") if isinstance(word, str) else word for word in words]
    run = Run([os.fsdecode(word).replace("\0", "") for word in words], stdin=b"Once\n", shows_model_text=True)
    return path, [run]


def big(value):
    try:
        return float(value) > 100
    except ValueError:
        return False
