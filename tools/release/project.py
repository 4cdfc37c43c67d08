"""Facts of the project that packages state, each from its one place."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUMMARY = "An inference engine for DeepSeek-V4: one program, with a bundled model"


def _stated(pattern, file):
    found = re.search(pattern, (ROOT / file).read_text(), re.M)
    if not found:
        raise SystemExit(f"release: {file} has no line {pattern}")
    return found.group(1)


def version():
    """The version of project() in CMakeLists.txt, as N.N.N."""
    return _stated(r"^project\(dsv4 VERSION (\d+\.\d+\.\d+) ", "CMakeLists.txt")


def maintainer():
    """Name and address of whom packages name: "dsv4 maintainers <...>"."""
    return _stated(r'^set\(DSV4_MAINTAINER "(.*)"\)', "cmake/packages.cmake")
