#!/usr/bin/env python3
"""Checks the text of every tracked file for problems that a formatter does not find.

  every file     no absolute path of a build machine, no mark of an unfinished merge
  not data       no trailing blanks, one newline at the end (data: .json; data/, golden/, corpus/)
  code           no tabs; at most 500 lines (see LONG)
  C++            comments of at most 100 columns, which clang-format does not wrap (it breaks tables and
                 formulas); a header has #pragma once (X-inl.h: Highway's toggle guard) and opens with a comment
                 that says what it is; a source opens with a comment or, beside its header, an include;
                 no comment opens with a phrase without a subject (OPENING: "Of ...", "The same ..."); no
                 file of 25 lines or less but public headers and instances, which the build repeats
  prose, names   none of the words in WORDS, which the field does not use, and American spelling. They are
                 looked for in comments, messages, documents, and in identifiers word by word (TestNames, snake_case)

Usage: check_text.py [--only PATH...] [ROOT]. Prints "file:line: message" per violation and exits 1 if there are any.
With --only, only these files and folders below ROOT.

tools/check_text_pending.txt lists, as "opening PATH" and "short PATH", the files that do not fulfill the last two rules
yet. It may only shrink: an entry that is not needed any more is a problem, and --prune removes all of these.
"""

import argparse
import pathlib
import re
import subprocess
import sys

HEADERS, SOURCES = {".h", ".cuh"}, {".cc", ".cu"}
CODE = HEADERS | SOURCES | {".py", ".cmake"}
MACHINE_PATH = re.compile(r'(?<![\w.$}/<-])/(?:work|tmp|root|home|mnt)/[\w.]')
MERGE_MARK = re.compile(r"(<<<<<<<|>>>>>>>) ")
MAX_LINES, MAX_COMMENT = 500, 100
LONG = {}  # path: why it is longer
SHORT_LINES = 25
MAY_BE_SHORT = re.compile(r"^include/|(^|/)instance\.(cu|cc)$")
OPENING = re.compile(r"\s*// (Of|The same|Over|Those)\b")
PENDING = "tools/check_text_pending.txt"
DATA = re.compile(r"\.json$|(^|/)(data|golden|corpus)/(?!(.*/)?README\.md$)")

# Files that hold such words as data: the lists themselves, the demo model's vocabulary.
WORDS_AS_DATA = re.compile(r"^(LICENSE|tools/check_text(_test)?\.py|models/demo/(train/\w+\.py|needle\.json|README\.md))$")
BRITISH = ("amort author canonical categor character custom equal factor final general initial linear local material "
           "maxim memor minim normal optim organ parallel penal prior quant random real recogn serial special stabil "
           "standard summar synchron token util vector visual").split()
ENDING = r"is(?:e|ed|es|er|ers|ing|able|ation|ations)(?![a-z])"
WORDS = (  # what must not appear, and what to write instead
    (r"\bnobody\b", "no thread, no caller, nothing"),
    (r"\b(?:told|tells)\b", "publishes, reports, says, shows"),
    (r"\bweigh(?:s|ed|ing)?\b", "scale, weight"),
    (r"\basks for\b", "requests, reads, needs"),
    (r"\bin front of\b", "before"),
    (r"\bwho (?:asks|needs|waits|stores|reads|has|sees)\b", "name the thread, warp, caller or user"),
    (r"\blooks at\b", "reads, checks, examines"),
    (r"\b(?:is|are|was|stands?) behind\b", "after, later than"),
    (r"\bmeets? in\b", "conflict in, arrive at"),
    (rf"(?:{'|'.join(BRITISH)}){ENDING}", "American spelling: -ize"),
    (r"analyse(?:d|r)?(?![a-z])", "American spelling: analyze"),
    (r"(?:behavi|col|fav|hon|neighb)our", "American spelling: -or"),
    (r"(?<![a-z])centred?(?![a-z])", "American spelling: center"),
    (r"\b(?:licence|defence|judgement|artefact)s?\b", "American spelling: license, defense, judgment, artifact"),
    (r"\b(?:labelled|modelled|signalled|travell(?:ed|ing))\b", "American spelling: one l"),
)
GAP = r"(?:[ \t]+|[ \t]*\n[ \t]*(?:/{2,3}|\#|\*)?[ \t]*)"  # between two words, also across the end of a comment line
PATTERNS = tuple((re.compile(pattern.replace(" ", GAP), re.IGNORECASE), instead) for pattern, instead in WORDS)


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout
    return sorted(name for name in listed.split("\0") if name and (root / name).is_file())


def check_file(path, data):
    """Problems of one file as (line, message)."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return  # not text
    if "\0" in text or not text:
        return
    suffix, lines = pathlib.PurePath(path).suffix, text.split("\n")
    for number, line in enumerate(lines, 1):
        if MACHINE_PATH.search(line):
            yield number, "names a path of one machine"
        if MERGE_MARK.match(line):
            yield number, "an unfinished merge"
    if DATA.search(path):
        return
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "trailing blank"
        if suffix in CODE and "\t" in line:
            yield number, "tab"
        if suffix in HEADERS | SOURCES and line.lstrip().startswith("//") and len(line) > MAX_COMMENT:
            yield number, f"a comment of more than {MAX_COMMENT} columns"
    if not text.endswith("\n"):
        yield len(lines), "no newline at the end"
    elif text.endswith("\n\n"):
        yield len(lines) - 1, "blank line at the end"
    if suffix in CODE and len(lines) - 1 > MAX_LINES and path not in LONG:
        yield len(lines) - 1, f"longer than {MAX_LINES} lines"
    guard = "defined(HWY_TARGET_TOGGLE)" if path.endswith("-inl.h") else "\n#pragma once\n"
    if suffix in HEADERS and guard not in text:
        yield 1, f"no {guard.strip()}"
    if suffix in HEADERS and not text.startswith("//"):
        yield 1, "a header opens with a comment"
    if suffix in SOURCES and not text.startswith(("//", "#include")):
        yield 1, "a source opens with a comment or an include"


def check_house(path, data):
    """(kind, line, message) of each place that the list of pending files may excuse."""
    if pathlib.PurePath(path).suffix not in HEADERS | SOURCES or DATA.search(path):
        return
    lines = data.decode().split("\n")
    for number, line in enumerate(lines, 1):
        if OPENING.match(line) and not (number > 1 and lines[number - 2].lstrip().startswith("//")):
            yield "opening", number, "a comment without a subject: write a sentence, not \"Of ...\" or \"The same ...\""
    if len(lines) - 1 <= SHORT_LINES and not MAY_BE_SHORT.search(path):
        yield "short", 1, f"{len(lines) - 1} lines: what has {SHORT_LINES} or less belongs into another file"


def read_pending(root):
    file = root / PENDING
    return set(file.read_text().splitlines()[1:]) if file.exists() else set()


def check_words(path, data):
    """Words of one file that WORDS lists, as (line, message)."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    if DATA.search(path) or WORDS_AS_DATA.match(path):
        return
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text.replace("_", " "))  # identifiers word by word; lines stay
    for pattern, instead in PATTERNS:
        for found in pattern.finditer(text):
            words = " ".join(found[0].replace("//", " ").replace("#", " ").split())
            yield text.count("\n", 0, found.start()) + 1, f'"{words}": write {instead}'


def below(path, folders):
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def check(root, only=(), unneeded=None):
    """Problems as text. `unneeded`, a set, receives the entries of the list of pending files that excuse nothing."""
    problems, pending, needed = [], read_pending(root), set()
    for path in tracked(root):
        if only and not below(path, only):
            continue
        data = (root / path).read_bytes()
        found = [*check_file(path, data), *check_words(path, data)]
        for kind, line, message in check_house(path, data):
            needed.add(f"{kind} {path}")
            if f"{kind} {path}" not in pending:
                found.append((line, message))
        problems += [f"{path}:{line}: {message}" for line, message in sorted(found)]
    if not only:
        problems += [f'{PENDING}: "{entry}" is not needed any more (--prune)' for entry in sorted(pending - needed)]
        if unneeded is not None:
            unneeded |= pending - needed
    return problems


def prune(root):
    unneeded = set()
    check(root, unneeded=unneeded)
    lines = (root / PENDING).read_text().splitlines(keepends=True)
    (root / PENDING).write_text("".join(line for line in lines if line.rstrip("\n") not in unneeded))


def main():
    parser = argparse.ArgumentParser(description="Checks the text of every tracked file.")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATH", help="files and folders below the root")
    parser.add_argument("--prune", action="store_true", help=f"remove entries of {PENDING} that are not needed")
    arguments = parser.parse_args()
    if arguments.prune:
        prune(arguments.root)
    problems = check(arguments.root, arguments.only)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
