#!/usr/bin/env python3
"""Compares the emulated PTX headers with those of the device: both must declare the same functions.

  dsv4/device/ptx/X.cuh                         what nvcc compiles
  tests/emulator/include/dsv4/device/ptx/X.cuh  what emulated kernels are compiled with, if it exists

An error is: a function, member or constant that one side lacks or declares with other parameters,
result or template parameters (names of parameters do not matter); a header that includes less than
its device counterpart; asm in a header that has no emulated counterpart. Where the device specializes
a class template and the emulator does not, the members of each specialization are compiled against
the emulator's template.

Usage: check_ptx_headers.py [--root ROOT] [--compiler CXX] [--include FOLDER ...]. Prints one line per
error and exits 1 if there are any.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = "dsv4/device/ptx"
EMULATED = "tests/emulator/include"
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|\w+|::|->|\.\.\.|&&|==|<=|>=|!=|\S')
OPEN, CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
SPECIFIERS = {"__device__", "__host__", "__forceinline__", "inline", "__inline__", "constexpr", "extern", "volatile"}
BUILTIN = {"void", "bool", "char", "short", "int", "long", "float", "double", "unsigned", "signed", "auto", "const"}


class Unreadable(Exception):
    pass


def skip_group(tokens, i):
    """The index after the group that opens at tokens[i]."""
    depth = 0
    while i < len(tokens):
        depth += (tokens[i] in OPEN) - (tokens[i] in CLOSE)
        i += 1
        if depth == 0:
            return i
    raise Unreadable("a bracket that does not close")


def skip_angles(tokens, i):
    """The index after the template argument list that opens at tokens[i]."""
    depth = 0
    while i < len(tokens):
        depth += (tokens[i] == "<") - (tokens[i] == ">")
        i += 1
        if depth == 0:
            return i
    raise Unreadable("a template list that does not close")


def split(tokens):
    """Splits at the commas outside of brackets."""
    parts, depth, part = [], 0, []
    for token in tokens:
        depth += (token in OPEN or token == "<") - (token in CLOSE or token == ">")
        if token == "," and depth == 0:
            parts.append(part)
            part = []
        else:
            part.append(token)
    return parts + [part] if part else parts


def is_name(token):
    return re.fullmatch(r"[A-Za-z_]\w*", token) is not None


def without_name(parameter):
    """uint32_t rank -> uint32_t; float (&d)[4] -> float (&)[4]; a default value stays."""
    default = []
    if "=" in parameter:
        at = parameter.index("=")
        parameter, default = parameter[:at], parameter[at:]
    for i, token in enumerate(parameter):
        if token == "(" and parameter[i + 1] in ("&", "*"):
            end = skip_group(parameter, i) - 1
            return parameter[:i + 2] + parameter[end:] + default
    names = [t for t in parameter if is_name(t) and t != "const"]
    last = parameter[-1] if parameter else ""
    if len(names) > 1 and is_name(last) and last not in BUILTIN and parameter[-2] != "::":
        parameter = parameter[:-1]
    return parameter + default


class Template:
    """A template header: its parameters without names, and the names, which become $0, $1, ..."""

    def __init__(self, tokens=()):
        self.kinds, self.names = [], []
        for parameter in split(list(tokens)):
            kind, _, default = " ".join(parameter).partition(" = ")
            words = kind.split()
            self.names.append(words[-1])
            self.kinds.append(" ".join("class" if w == "typename" else w for w in words[:-1])
                              + (f" = {default}" if default else ""))

    def __bool__(self):
        return bool(self.kinds)

    def rename(self, tokens):
        return [f"${self.names.index(t)}" if t in self.names else t for t in tokens]

    def text(self):
        return f"template <{', '.join(self.kinds)}> " if self else ""


class Declarations:
    """What one file declares. plain: signatures; specialized: (class, arguments, free parameters,
    member name, result, parameters); primaries: classes that are defined as templates."""

    def __init__(self):
        self.plain, self.specialized, self.primaries = set(), [], {}

    def read(self, tokens, owner="", owner_template=None, arguments=None):
        i, template = 0, Template()
        while i < len(tokens):
            token = tokens[i]
            if token in (";", "public", "private", "protected", ":"):
                i += 1
            elif token == "namespace":
                i = tokens.index("{", i)
                end = skip_group(tokens, i)
                self.read(tokens[i + 1:end - 1])
                i = end
            elif token == "template":
                end = skip_angles(tokens, i + 1)
                template = Template(tokens[i + 2:end - 1])
                i = end
            elif token in ("struct", "class") and not owner:
                i = self.read_class(tokens, i + 1, template)
                template = Template()
            elif token in ("using", "static_assert", "friend", "typedef", "enum"):
                i = tokens.index(";", i) + 1
                template = Template()
            else:
                i = self.read_declaration(tokens, i, template, owner, owner_template, arguments)
                template = Template()

    def read_class(self, tokens, i, template):
        if tokens[i] == "alignas":
            i = skip_group(tokens, i + 1)
        name, arguments = tokens[i], None
        i += 1
        if tokens[i] == "<":
            end = skip_angles(tokens, i)
            arguments, i = tokens[i + 1:end - 1], end
        if tokens[i] == ";":
            return i + 1
        i = tokens.index("{", i)
        end = skip_group(tokens, i)
        if arguments is None:
            if template:
                self.primaries.setdefault(name, set())
            else:
                self.plain.add(f"struct {name}")
        self.read(tokens[i + 1:end - 1], name, template, arguments)
        return end

    def read_declaration(self, tokens, i, template, owner, owner_template, arguments):
        start = i
        while tokens[i] not in (";", "{"):
            if tokens[i] == "=":
                break
            i = skip_group(tokens, i) if tokens[i] in OPEN else i + 1
        head = tokens[start:i]
        while tokens[i] != ";":  # an initializer, or the body
            if tokens[i] == "{" and "(" in head:
                i = skip_group(tokens, i) - 1
                break
            i = skip_group(tokens, i) if tokens[i] in OPEN else i + 1
        is_constant = "constexpr" in head and "(" not in head
        head = [t for t in head if t not in SPECIFIERS and not (t == "static" and not owner)]
        if not (is_constant and owner):
            self.add(head, template, owner, owner_template, arguments)
        return i + 1

    def add(self, head, template, owner, owner_template, arguments):
        if "(" not in head:
            self.plain.add(f"{owner + '::' if owner else ''}{' '.join(head)}")
            return
        at = head.index("(")
        end = skip_group(head, at)
        name, result = head[at - 1], head[:at - 1]
        parameters = [without_name(p) for p in split(head[at + 1:end - 1])]
        if owner and arguments is not None:
            self.specialized.append((owner, arguments, owner_template, name, result, parameters))
            return
        if owner and owner_template:
            self.primaries[owner].add(name)
            return
        text = ", ".join(" ".join(template.rename(p)) for p in parameters)
        scope = owner + "::" if owner else ""
        self.plain.add(f"{template.text()}{' '.join(template.rename(result))} {scope}{name}({text})")


class Side:
    """The headers as one compiler sees them: declarations by header, and what includes what."""

    def __init__(self, root, compiler, includes, headers, path_of):
        self.declarations, self.includes, self.has_asm = {}, {}, set()
        source = "".join(f'#include "{FOLDER}/{header}"\n' for header in headers)
        command = [compiler, "-E", "-x", "c++", "-std=c++20", "-D__CUDA_ARCH_FEAT_SM90_ALL=1"]
        with tempfile.TemporaryDirectory() as empty:  # quoted includes are looked for there first
            done = subprocess.run(command + includes + ["-"], input=source, capture_output=True, text=True, cwd=empty)
        if done.returncode != 0:
            raise Unreadable(done.stderr)
        for header, text in self.split_files(done.stdout, headers, path_of).items():
            tokens = TOKEN.findall(text)
            if "asm" in tokens:
                self.has_asm.add(header)
            self.declarations[header] = Declarations()
            try:
                self.declarations[header].read(tokens)
            except (Unreadable, IndexError, ValueError) as error:
                raise Unreadable(f"{path_of(header)}: {error}") from error
        for header in headers:
            text = path_of(header).read_text()
            self.includes[header] = set(re.findall(rf'#include "{FOLDER}/([^"]+)"', text))

    @staticmethod
    def split_files(text, headers, path_of):
        files = {str(path_of(header).resolve()): header for header in headers}
        parts, current = {header: [] for header in headers}, None
        for line in text.splitlines():
            marker = re.match(r'# \d+ "([^"]*)"', line)
            if marker:
                current = files.get(str(pathlib.Path(marker.group(1)).resolve()))
            elif current is not None and not line.startswith("#"):
                parts[current].append(line)
        return {header: "\n".join(lines) for header, lines in parts.items()}

    def closure(self, header):
        seen, todo = set(), [header]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += self.includes.get(at, ())
        return seen

    def plain(self, headers=None):
        return {text for header in headers or self.declarations for text in self.declarations[header].plain}


def specialization_checks(device, emulator):
    """C++ lines that take each member of each specialization from the emulator's template."""
    generic = {name for d in emulator.declarations.values() for name in d.primaries}
    same = {(c, str(a)) for d in emulator.declarations.values() for c, a, *_ in d.specialized}
    for header, declarations in sorted(device.declarations.items()):
        for owner, arguments, template, name, result, parameters in declarations.specialized:
            if (owner, str(arguments)) in same:
                raise Unreadable(f"{header}: both sides specialize {owner}; compare them as templates")
            if owner not in generic:
                yield None, f"{header}: the emulator has no {owner}<{' '.join(arguments)}>"
                continue
            if any(kind.startswith("class") for kind in template.kinds):
                raise Unreadable(f"{header}: {owner} is specialized for a type parameter")
            filled = " ".join("0" if t in template.names else t for t in arguments)
            types = ", ".join(" ".join(p) for p in parameters)
            pointer = "(*)" if "static" in result else f"({owner}<{filled}>::*)"
            result = " ".join(t for t in result if t != "static")
            label = f"{header}: {owner}<{filled}>::{name}({types})"
            yield label, f"static_cast<{result} {pointer}({types})>(&{owner}<{filled}>::{name});"


def compile_checks(compiler, includes, headers, lines):
    source = "".join(f'#include "{FOLDER}/{header}"\n' for header in headers)
    source += "namespace dsv4::ptx { void check_specializations() {\n"
    for label, line in lines:
        source += f'#line 1 "{label}"\n(void){line}\n'
    source += "}}\n"
    with tempfile.NamedTemporaryFile("w", suffix=".cc") as file:
        file.write(source)
        file.flush()
        command = [compiler, "-std=c++20", "-fsyntax-only", *includes, file.name]
        done = subprocess.run(command, capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if "error:" in line] if done.returncode else []


def check(root, compiler="g++", includes=()):
    """The errors, as lines."""
    root = root.resolve()
    device_folder, emulated_folder = root / FOLDER, root / EMULATED / FOLDER
    device_headers = sorted(p.name for p in device_folder.glob("*.cuh"))
    emulated_headers = sorted(p.name for p in emulated_folder.glob("*.cuh"))
    errors = [f"{h}: the emulator has it, {FOLDER} does not" for h in set(emulated_headers) - set(device_headers)]
    if errors:
        return sorted(errors)
    more = [f"-I{root}"] + [f"-isystem{i}" for i in includes]
    builtins = root / "tests/emulator/builtins.h"
    emulator_flags = [f"-I{root / EMULATED}", *more]
    if builtins.exists():
        emulator_flags += ["-include", str(builtins)]

    def emulated_path(header):
        return (emulated_folder if header in emulated_headers else device_folder) / header
    device = Side(root, compiler, more, device_headers, lambda h: device_folder / h)
    emulator = Side(root, compiler, emulator_flags, device_headers, emulated_path)
    for header in device_headers:
        if header in device.has_asm and header not in emulated_headers:
            errors.append(f"{header}: contains asm, but has no emulated header")
        missing = device.plain(device.closure(header)) - emulator.plain(emulator.closure(header))
        own = device.declarations[header].plain
        errors += [f"{header}: the emulator lacks {text}" for text in missing & own]
        elsewhere = (missing - own) & emulator.plain()
        errors += [f"{header}: the emulated header includes less, it lacks {text}" for text in elsewhere]
        extra = emulator.declarations[header].plain - device.plain()
        errors += [f"{header}: only the emulator has {text}" for text in extra]
    lines = []
    for label, line in specialization_checks(device, emulator):
        lines.append((label, line)) if label else errors.append(line)
    names = {(s[0], s[3]) for d in device.declarations.values() for s in d.specialized}
    names |= {(c, n) for d in device.declarations.values() for c, members in d.primaries.items() for n in members}
    for header, declarations in emulator.declarations.items():
        errors += [f"{header}: only the emulator has {owner}::{name}"
                   for owner, members in declarations.primaries.items() for name in members
                   if (owner, name) not in names]
    if lines:
        errors += compile_checks(compiler, emulator_flags, device_headers, lines)
    return sorted(set(errors))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", action="append", default=[])
    options = parser.parse_args()
    try:
        errors = check(options.root, options.compiler, options.include)
    except Unreadable as error:
        errors = [str(error)]
    for error in errors:
        print(error)
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
