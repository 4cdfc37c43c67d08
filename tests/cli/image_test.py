#!/usr/bin/env python3
"""docs/Dockerfile and docs/dsv4.service with packaging/dsv4.default against what they install and start, without Docker. Usage: image_test.py BINARY

Build stage: the packages are tools/setup.sh's own list, and the options of its cmake line exist. Run stage: every shared
library of the program comes from a listed package or what that depends on, and every listed package is needed. Both:
the options of the command line exist. The unit passes systemd-analyze verify, where that is installed."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOT_LINKED = {"ca-certificates", "libcurl4", "libzmq5"}  # for https, `dsv4 pull`, `dsv4 serve --kv-events`
failures = 0


def check(name, holds, detail=""):
    global failures
    print("ok    " if holds else "FAILED", name, "" if holds else detail, flush=True)
    failures += not holds


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def package_of(library):
    """The Debian package that has the file; None: none, or no dpkg."""
    for path in (library, str(pathlib.Path(library).resolve()), re.sub("^/usr", "", library), "/usr" + library):
        found = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.split(":")[0].split(",")[0]
    return None


def with_dependencies(packages):
    found, left = set(), list(packages)
    while left:
        one = left.pop()
        if one in found:
            continue
        found.add(one)
        shown = subprocess.run(["dpkg-query", "-W", "-f=${Depends}, ${Pre-Depends}", one], capture_output=True, text=True)
        if shown.returncode == 0:
            left += re.findall(r"(?:^|[,|]) *([a-z0-9.+-]+)", shown.stdout)
    return found


def check_image(binary):
    stages = (ROOT / "docs/Dockerfile").read_text().split("FROM ")[1:]
    check("two stages of one release", len(stages) == 2 and len({stage.split()[0] for stage in stages}) == 1)
    build, run = stages
    check("the build stage installs tools/setup.sh's packages", "tools/setup.sh build" in build and "apt-get" not in build)
    sources = "".join(path.read_text() for path in [ROOT / "CMakeLists.txt", *(ROOT / "cmake").glob("*.cmake")])
    for option in re.findall(r"-D(\w+)=", build):
        check(f"option {option}", re.search(rf"option\({option} ", sources), "is not declared")
    start = (ROOT / "start").read_text()
    configure = re.search(r"cmake --preset cpu ([^\n]*?) -B build/run", build).group(1)
    check("./start configures alike", all(word in start for word in configure.split()), configure)
    packages = re.search(r"--no-install-recommends ([a-z0-9.+ -]+?) >", run).group(1).split()
    if shutil.which("dpkg") is None:
        print("skipped: the packages of libraries (no dpkg)")
        return
    have, needed = with_dependencies(packages), set()
    for library in re.findall(r"=> (/\S+)", output("ldd", binary)):
        package = package_of(library)
        needed.add(package)
        check(f"{pathlib.Path(library).name} is of {package}", package in have | {"libc6"}, "which is not installed")
    spare = {one for one in packages if not needed & with_dependencies([one])} - NOT_LINKED
    check("no package without use", not spare, spare)


def check_command(name, words, help_text):
    options = {word.split("=")[0] for word in words if word.startswith("--")}
    unknown = {one for one in options if not re.search(rf"{one}\b", help_text)}
    check(f"the options of {name}", not unknown, unknown)


def check_unit(binary, help_text):
    unit, defaults = (ROOT / "docs/dsv4.service").read_text(), (ROOT / "packaging/dsv4.default").read_text()
    command = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1)
    options = re.findall(r"^(?:#   )?DSV4_OPTIONS=(.*)$", defaults, re.M)
    check("the unit runs what its defaults name", command.split()[-3:] == ["serve", "$DSV4_MODEL", "$DSV4_OPTIONS"] and
          len(options) == 2 and re.search(r"^DSV4_MODEL=demo$", defaults, re.M), command)
    check_command("the unit's defaults", " ".join(options).split(), help_text)
    drain = int(re.search(r"--drain-s \((\d+)\)", unit).group(1))
    check("systemd waits longer than the server drains", int(re.search(r"TimeoutStopSec=(\d+)", unit).group(1)) > drain)
    if shutil.which("systemd-analyze") is None:
        print("skipped: systemd-analyze verify (not installed)")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "dsv4.service"
        path.write_text(unit.replace("/usr/local/bin/dsv4", str(binary)))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
        ours = [line for line in (done.stdout + done.stderr).splitlines() if "dsv4.service" in line]
        check("systemd-analyze verify", done.returncode == 0 and not ours, f"{done.returncode}: {ours or done.stderr}")


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    help_text = output(binary, "serve", "--help")
    check_image(binary)
    words = re.search(r"^CMD \[(.*)\]$", (ROOT / "docs/Dockerfile").read_text(), re.M).group(1).replace('"', "").split(", ")
    check_command("the image", words, help_text)
    check_unit(binary, help_text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
