#!/usr/bin/env python3
"""Trains the test tokenizer and writes the output of the `tokenizers` package for thousands of strings.

    python3 tools/goldens/make_tokenizer_goldens.py                       # tests/tokenizer/*.json
    python3 tools/goldens/make_tokenizer_goldens.py --seed 7 --count 200000 --keep tests/tokenizer/tokenizer.json --out DIR

The corpus is generated from word lists and code point ranges, so nothing is downloaded and only the
version of the package affects the result. tests/tokenizer/README.md describes the files.
"""

import argparse
import json
import pathlib
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 1500

# docs/spec/dsv4.md 11.1, as the official tokenizer.json writes them.
V4_PATTERNS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*"
    "|\\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+",
]

# In the vocabulary, like ids 0, 1, 2 of the official file.
SPECIAL_IN_VOCAB = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
SPECIAL = ["<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "｜DSML｜"]
# Not special; prefixes of each other, one ordinary word, one of spaces only.
PLAIN = ["<think>", "</think>", "<th", "<think>>", "<｜", "｜>", "<dsml:", "</dsml:", "Größe漢", "    ", "终止", "<a><b>"]
# Matched only in a second pass, so any overlapping token from above takes precedence.
NORMALIZED = ["k><", "late", "ate", "r｜><"]

ENGLISH = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out so up said what its
about than into them can only other time new some could these two may first then do any like my now over such our man
me even most made after also did many off before must well back through years where much your way down should because
long each just state people those too mr how little good world make very year still see own work men day get here old
life both between being under three never know same last another while us might great go come since against right came
take used himself few house american use place during high without again home around small however found thought went
token attention model layer cache kernel weight memory router expert""".split()
GERMAN = """der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es an werden aus er hat
dass sie nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis mehr durch
man sein wurde können größer Straße Übung Äpfel schön weiß groß heißt müssen Maßstab""".split()
CODE = """def return self import for in if else while class struct const auto int float void static std::vector size_t
template typename nullptr i++ x[i] a->b == != <= >= && || << >> += -= {} () [] "str" 'c' // /* */ #include <stdio.h>
lambda x: None True False 0x1f 1e-5 3.14 f(x) print("hi") foo_bar fooBar FOO_BAR __init__ $var @decorator""".split()
FAMILY = "👨‍👩‍👧‍👦"
EMOJI = ["😀", "🚀", "👍🏽", FAMILY, "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "🫨", "🫩", "🧑🏿‍💻"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e", "\u200b",
          "\ufeff", "\v", "\f", "\u1680", "\u202f", "\u205f"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + list("，。！？「」『』…—–“”«»¿¡€£±×÷°§¶•™©")
# Ranges of interesting letters, marks, digits and symbols; 1F000.. and 20000.. include code points newer than
# Unicode 14.
RANGES = [(0x20, 0x7E), (0x00, 0x1F), (0x7F, 0xFF), (0x100, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF),
          (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x2000, 0x206F),
          (0x2070, 0x218F), (0x2190, 0x2BFF), (0x3000, 0x303F), (0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
          (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFE00, 0xFE0F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF), (0x1F000, 0x1FBFF),
          (0x20000, 0x2A6DF), (0x31350, 0x323AF), (0xE0100, 0xE01EF), (0x10FF00, 0x10FFFF), (0x11F00, 0x11F5F)]


def char(rng):
    low, high = rng.choice(RANGES)
    return chr(rng.randint(low, high))


def han(rng):
    # A small range, so that training finds pairs.
    return chr(0x4E00 + int(rng.paretovariate(0.6)) % 0x1800)


def kana(rng):
    return chr(rng.randint(0x3041, 0x3096) if rng.random() < 0.6 else rng.randint(0x30A1, 0x30FA))


def corpus_line(rng):
    kind = rng.randrange(7)
    n = rng.randint(4, 30)
    if kind < 2:
        words = [rng.choice(ENGLISH) for _ in range(n)]
        return " ".join(words).capitalize() + rng.choice([".", "!", "?", ",\n", ".\n\n"])
    if kind == 2:
        return " ".join(rng.choice(GERMAN) for _ in range(n)) + "."
    if kind == 3:
        return rng.choice(["", "    ", "\t", "        "]) + " ".join(rng.choice(CODE) for _ in range(n)) + ";\n"
    if kind == 4:
        return "".join(han(rng) for _ in range(n)) + rng.choice("，。！？")
    if kind == 5:
        return "".join(kana(rng) if rng.random() < 0.7 else han(rng) for _ in range(n)) + "。"
    numbers = " ".join(str(rng.randrange(10 ** rng.randint(1, 8))) for _ in range(n))
    return numbers + rng.choice(EMOJI) + rng.choice(PUNCTUATION)


def train():
    rng = random.Random(1)
    tokenizer = Tokenizer(models.BPE())
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in V4_PATTERNS]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits + [byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL_IN_VOCAB, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([corpus_line(rng) for _ in range(6000)], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in PLAIN])
    tokenizer.add_tokens([AddedToken(text, normalized=True) for text in NORMALIZED])
    return tokenizer


def hand_made():
    added = SPECIAL_IN_VOCAB + SPECIAL + PLAIN + NORMALIZED
    texts = ["", " ", "a", "Hello, world!", "<｜User｜>你好<｜Assistant｜><think>推理</think>答案<｜end▁of▁sentence｜>"]
    for text in added:
        texts += [text, text + text, f"x{text}y", f" {text} ", text[:-1], text[1:], f"{text}\n", f"12{text}34",
                  text.upper(), f"漢{text}字"]
    texts += [a + b for a in added for b in added]
    texts += [a[:-1] + b for a in added for b in added if rng_keeps(a, b)]
    for space in SPACES:
        texts += [space, space * 3, f"a{space}b", f"a {space}b", f"a{space} b", f"1{space}2", f"!{space}!", f"漢{space}字",
                  f"{space}\n{space}x", f"{space}x{space}", f"x{space}\r\n", f"\n{space}", f"{space}.{space}"]
    texts += [f"{p}{x}" for p in PUNCTUATION for x in ("abc", " abc", "1", "é", "漢", "\n\n", "\r\nx", "\u0301", p)]
    texts += [f"{e}{x}{e}" for e in EMOJI for x in ("", " ", "a", "\n", "1")]
    texts += ["1" * n for n in range(1, 12)] + ["٣٤٥٦٧", "१२३४", "①②③④", "½¾", "ⅣⅧ", "1٣2", "𝟙𝟚𝟛𝟜", "1,234,567.89", "3e10"]
    texts += ["e\u0301", "\u0301e", "a\u0301\u0302\u0303b", " \u0301", "\u0301", "नमस्ते", "สวัสดี", "한국어 텍스트", "שלום עולם",
              "مرحبا بالعالم", "\u202eabc\u202c", "a\u200db", "a\u200bb", "\ufeffabc", "\u0000", "\u0000\u0001\u0002", "a\u0000b",
              "\u007f", "\u0085", "\u061c", "I'm you're HE'LL don't", "’s it’s", "ｆｕｌｌ　ｗｉｄｔｈ", "ﬁ ﬂ", "ǅ", "ß ẞ"]
    texts += ["\n" * 5, "\r\n\r\n", "\r\r\n\n", " \n \n ", "\t\n\t", "a\n", "a\n ", "a\n b", "a \n b", "a  \n  b", "a   b", "a  ",
              ".\n\n.", "...\r\n\r\nx", "!\r", " \r", "\n\t x", "  1", "   漢", "\u3000\u3000漢", "x\u00a0\u00a0y"]
    texts += ["a" * 1000, " " * 1000, "ab" * 300, "漢" * 300, "!" * 500, "1" * 500, "\n" * 300, "the " * 100, "あア" * 100]
    texts += [" ".join(CODE), " ".join(GERMAN), " ".join(ENGLISH)]
    return texts


def rng_keeps(a, b):
    """True for a fixed sixth of the pairs."""
    return (len(a) * 7 + sum(map(ord, b))) % 6 == 0


def random_text(rng):
    makers = [
        lambda: rng.choice(ENGLISH + GERMAN + CODE),
        lambda: " " + rng.choice(ENGLISH),
        lambda: rng.choice(SPACES) * rng.randint(1, 3),
        lambda: rng.choice(PUNCTUATION),
        lambda: str(rng.randrange(10 ** rng.randint(1, 9))),
        lambda: han(rng) + kana(rng),
        lambda: rng.choice(EMOJI),
        lambda: char(rng),
        lambda: char(rng) + char(rng),
        lambda: rng.choice(SPECIAL_IN_VOCAB + SPECIAL + PLAIN + NORMALIZED)[: rng.randint(1, 8)],
        lambda: rng.choice(SPECIAL_IN_VOCAB + SPECIAL + PLAIN + NORMALIZED),
    ]
    if rng.random() < 0.2:
        makers = [rng.choice(makers)]
    return "".join(rng.choice(makers)() for _ in range(rng.randint(1, 14)))


def fnv1a(numbers):
    """64-bit FNV-1a over the numbers as little-endian 32-bit words."""
    value = 0xCBF29CE484222325
    for byte in b"".join(i.to_bytes(4, "little") for i in numbers):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


BLOCK = 0x400


def block_text(block):
    """Every code point of the block in six contexts; the C++ test builds the same text."""
    scalars = (c for c in range(block * BLOCK, (block + 1) * BLOCK) if not 0xD800 <= c < 0xE000)
    return "".join(f"a{c}b {c}{c}1{c}!{c}\n" for c in map(chr, scalars))


def ids_of(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def piece_sizes(tokenizer, text):
    """Size in bytes of each piece of the pre-tokenizer, which writes one character per byte. Ids alone do not show where text
    is split: for most characters no merge could cross the split."""
    return [len(piece) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def random_merge_case(rng):
    """A tokenizer with arbitrary merges over a, b, c, and strings for it: tests the merge order and whole pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = ["a", "b", "c"], []
    for _ in range(rng.randint(1, 14)):
        left, right = rng.choice(tokens), rng.choice(tokens)
        if [left, right] not in merges:
            merges.append([left, right])
            if left + right not in tokens:
                tokens.append(left + right)
    rng.shuffle(merges)
    vocab = {text: i for i, text in enumerate(alphabet + tokens[3:])}
    whole = rng.random() < 0.5
    model = models.BPE(vocab=vocab, merges=[tuple(m) for m in merges], ignore_merges=whole)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\s+"), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    texts = ["".join(rng.choices("abc ", [5, 4, 4, 1], k=rng.randint(1, 30))) for _ in range(12)]
    return {"ignore_merges": whole, "tokens": tokens[3:], "merges": merges,
            "cases": [[text, ids_of(tokenizer, text)] for text in texts]}


def golden_case(tokenizer, text):
    ids = ids_of(tokenizer, text)
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    return [text, ids, piece_sizes(tokenizer, text)] + ([decoded] if decoded != text else [])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--count", type=int, default=2000, help="random strings")
    parser.add_argument("--merge-cases", type=int, default=40)
    parser.add_argument("--keep", help="use this tokenizer.json instead of training one")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/tokenizer"))
    args = parser.parse_args()

    if args.keep:
        tokenizer = Tokenizer.from_file(args.keep)
    else:
        tokenizer = train()
        args.out.joinpath("tokenizer.json").write_text(
            json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")))
    rng = random.Random(args.seed)
    texts = hand_made() + [random_text(rng) for _ in range(args.count)]
    goldens = {
        "package": "tokenizers " + tokenizers.__version__,
        "cases": [golden_case(tokenizer, text) for text in texts],
        "block_hashes": [f"{fnv1a(piece_sizes(tokenizer, block_text(b))):016x}" for b in range(0x110000 // BLOCK)],
        "merge_cases": [random_merge_case(rng) for _ in range(args.merge_cases)],
    }
    args.out.joinpath("goldens.json").write_text(
        json.dumps(goldens, ensure_ascii=False, separators=(",", ":")).replace("]],", "]],\n"))


if __name__ == "__main__":
    main()
