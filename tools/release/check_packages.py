#!/usr/bin/env python3
"""Installs, runs and removes the packages of a release on a clean root: check_packages.py OUT NAME=ROOT.tar ...

On each root, which has no compiler: the Debian package, the tarball and the wheel; once, each image. "Runs" means: within
60 seconds `dsv4 run demo` writes a text, `dsv4 serve demo` is ready and answers curl, and SIGTERM ends it. "Removes" means
that the files of the root are those from before, but for configuration and cache. bwrap is the container.
Prints a line for each check; ends with "N passed, N failed"."""

import json
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SECONDS = 60
UNPRIVILEGED = 65534
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
# What apt and dpkg keep for themselves, and what the container adds.
NOT_OURS = ("./var/lib/apt", "./var/lib/dpkg", "./var/cache/apt", "./var/cache/ldconfig", "./var/log", "./proc", "./dev",
            "./tmp", "./run", "./etc/ld.so.cache", "./root/.cache", "./etc/resolv.conf", "./var/lib/systemd")
BACKUPS = {f"./etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")}
KEPT = {"./etc/default/dsv4", "./var/cache/dsv4", "./var/cache/dsv4/model"}
results = {True: 0, False: 0}


def check(name, holds, detail=""):
    results[bool(holds)] += 1
    print("ok    " if holds else "FAILED", name, f"({detail})" if detail else "", flush=True)
    return holds


class Root:
    """A root file system in a folder, and commands in it. The network is that of this machine."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def command(self, words, user=None, environment=()):
        settings = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                    "DEBIAN_FRONTEND": "noninteractive"} | dict(environment)
        container = ["bwrap", "--bind", self.folder, "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run",
                     "--unshare-pid", "--die-with-parent", "--cap-add", "ALL", "--clearenv"]
        if pathlib.Path("/etc/resolv.conf").exists():
            container += ["--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf"]
        for name, value in settings.items():
            container += ["--setenv", name, value]
        own = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return [str(one) for one in (*container, "--", *own, *words)]

    def run(self, *words, **options):
        return subprocess.run(self.command(words, **options), capture_output=True, text=True, timeout=1800)

    def must(self, *words):
        done = self.run(*words)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)} in {self.folder}: {done.stdout[-2000:]}{done.stderr[-2000:]}")

    def files(self):
        found = subprocess.run(["find", ".", "-xdev", "-not", "-name", "__pycache__", "-not", "-name", "*.pyc"],
                               cwd=self.folder, capture_output=True, text=True, check=True).stdout.splitlines()
        ours = [path for path in found if not any(path == one or path.startswith(one + "/") for one in NOT_OURS)]
        return {path for path in ours if path not in BACKUPS}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def curl(url, *words):
    done = subprocess.run(["curl", "--fail", "--silent", "--noproxy", "*", "--max-time", "30", *words, url],
                          capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def serves(root, program, end_by, extra=(), key=None, **options):
    """Starts the server, sends a chat, ends the server. None: all was well."""
    port = free_port()
    words = [*program, "serve", "demo", "--port", str(port), *extra]
    server = subprocess.Popen(root.command(words, **options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        while curl(f"http://127.0.0.1:{port}/ready") is None:
            if server.poll() is not None or time.monotonic() > end_by:
                return f"not ready: {server.stdout.read()[-500:] if server.poll() is not None else 'in time'}"
            time.sleep(0.2)
        words = ["-H", "Content-Type: application/json", "-d", json.dumps(CHAT)]
        words += ["-H", f"Authorization: Bearer {key}"] if key else []
        answer = curl(f"http://127.0.0.1:{port}/v1/chat/completions", *words)
        if answer is None or not json.loads(answer)["choices"][0]["message"]["content"].strip():
            return f"the chat was answered by {answer!r}"
        found = subprocess.run(["pgrep", "-f", f"serve demo --port {port}"], capture_output=True, text=True).stdout.split()
        own = {int(one) for one in found} - {server.pid}
        subprocess.run(["kill", "-TERM", str(max(own))], check=True)
        status = server.wait(timeout=30)
        return None if status in (0, 128 + signal.SIGTERM) else f"SIGTERM ended it with {status}"
    finally:
        server.kill()
        server.wait()


def check_runs(name, root, program, **options):
    begin = time.monotonic()
    story = root.run(*program, "run", "demo", "-p", "Long ago,", "-n", "20", "--seed", "1", "-q",
                     user=options.get("user"), environment=options.get("environment", ()))
    check(f"{name}: dsv4 run demo", story.returncode == 0 and len(story.stdout.split()) > 3, story.stderr[-500:])
    fault = serves(root, program, begin + SECONDS, **options)
    took = time.monotonic() - begin
    check(f"{name}: dsv4 serve demo, curl, within {SECONDS} s", fault is None and took < SECONDS,
          f"{fault or 'with the story'}, {took:.1f} s")


def check_rest(name, left, allowed=frozenset()):
    check(f"{name}: nothing else is left", left <= set(allowed), sorted(left - set(allowed))[:10])


def check_debian(name, root, out):
    shutil.copy(next(out.glob("dsv4_*_amd64.deb")), root.folder / "opt/dsv4.deb")
    # What the package needs first, so that what is left is the package's own.
    needs = subprocess.run(["dpkg-deb", "-f", root.folder / "opt/dsv4.deb", "Depends"], capture_output=True, text=True)
    needs = [one.split("(")[0].strip() for one in needs.stdout.split(",")]
    root.must("apt-get", "install", "-y", "--no-install-recommends", *needs)
    before = root.files()
    root.must("apt-get", "install", "-y", "--no-install-recommends", "/opt/dsv4.deb")
    root.must("install", "-d", "-o", "dsv4", "-g", "dsv4", "/var/cache/dsv4")
    (root.folder / "var/cache/dsv4/model").write_text("what was loaded")
    check_runs(f"{name}, deb", root, ["dsv4"], user="dsv4")
    pages = [path.name for path in (root.folder / "usr/share/man/man1").glob("dsv4*.1.gz")]
    check(f"{name}, deb: man pages", {"dsv4.1.gz", "dsv4-serve.1.gz", "dsv4-bench-decode.1.gz"} <= set(pages), len(pages))
    root.must("apt-get", "remove", "-y", "dsv4")
    check_rest(f"{name}, deb removed", root.files() - before, KEPT)
    root.must("apt-get", "purge", "-y", "dsv4")
    check_rest(f"{name}, deb purged", root.files() - before)


def check_tarball(name, root, out):
    before = root.files()
    packed = next(out.glob("dsv4-*-linux-x86_64.tar.gz"))
    subprocess.run(["tar", "-xzf", packed, "-C", root.folder / "opt"], check=True)
    folder = next((root.folder / "opt").iterdir())
    check_runs(f"{name}, tarball", root, [f"/opt/{folder.name}/bin/dsv4"], user=UNPRIVILEGED)
    shutil.rmtree(folder)
    check_rest(f"{name}, tarball removed", root.files() - before)


def check_wheel(name, root, out):
    root.must("apt-get", "install", "-y", "--no-install-recommends", "python3", "python3-venv")
    root.must("python3", "-m", "venv", "/opt/venv")
    wheel = next(out.glob("dsv4-*.whl"))
    shutil.copy(wheel, root.folder / "opt")
    before = root.files()
    root.must("/opt/venv/bin/pip", "install", "--no-index", f"/opt/{wheel.name}")
    check_runs(f"{name}, wheel", root, ["/opt/venv/bin/dsv4"], user=UNPRIVILEGED)
    root.must("/opt/venv/bin/pip", "uninstall", "--yes", "dsv4")
    check_rest(f"{name}, wheel removed", root.files() - before)


# Megabytes that the files of an image may have.
IMAGES = {"dsv4": 300, "dsv4-cuda": 1000}


def check_image(name, packed, scratch):
    """The image as umoci reads it, which verifies the digests."""
    layout, bundle = scratch / "layout", scratch / "bundle"
    layout.mkdir()
    subprocess.run(["tar", "-xf", packed, "-C", layout], check=True)
    tag = json.loads((layout / "index.json").read_text())["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"]
    done = subprocess.run(["umoci", "unpack", "--image", f"{layout}:{tag}", bundle], capture_output=True, text=True)
    if not check(f"image {name}: umoci unpacks it", done.returncode == 0, done.stderr[-500:]):
        return
    size = int(subprocess.run(["du", "-sb", bundle / "rootfs"], capture_output=True, text=True).stdout.split()[0]) / 1e6
    check(f"image {name}: under {IMAGES[name]} MB", size < IMAGES[name],
          f"{size:.0f} MB, {packed.stat().st_size / 1e6:.0f} MB packed")
    process = json.loads((bundle / "config.json").read_text())["process"]
    user, root = process["user"]["uid"], Root(bundle / "rootfs")
    check(f"image {name}: is not root", user != 0, f"user {user}")
    environment = dict(one.split("=", 1) for one in process["env"]) | {"DSV4_API_KEY": "a-long-secret-of-a-test"}
    check_device(name, root, user)
    check_runs(f"image {name}", root, process["args"][:1], user=user, environment=environment.items(),
               extra=process["args"][3:], key="a-long-secret-of-a-test")
    check_health(name, root, layout, user, environment)


def check_device(name, root, user):
    """Only the second program has kernels for GPUs; a container of this test has no GPU."""
    version, seen = root.run("dsv4", "--version", user=user), root.run("dsv4", "inspect", "device", user=user)
    check(f"image {name}: dsv4 --version", ("sm_90a" in version.stdout) == (name == "dsv4-cuda"), version.stdout.replace("\n", "; "))
    check(f"image {name}: dsv4 inspect device", seen.returncode == 0 and "no GPU: cpu only" in seen.stdout,
          seen.stdout.replace("\n", "; ") + seen.stderr[-300:])


def check_health(name, root, layout, user, environment):
    index = json.loads((layout / "index.json").read_text())
    blob = lambda digest: json.loads((layout / "blobs" / digest.replace(":", "/")).read_text())
    test = blob(blob(index["manifests"][0]["digest"])["config"]["digest"])["config"]["Healthcheck"]["Test"][1:]
    check(f"image {name}: the health check fails without a server", root.run(*test, user=user).returncode != 0)
    words = ["bash", "-c", 'dsv4 serve demo --host 0.0.0.0 & for i in $(seq 100); do "$@" && exit 0; sleep 0.3; done; exit 1',
             "-", *test]
    done = root.run(*words, user=user, environment=environment.items())
    check(f"image {name}: the health check succeeds with one", done.returncode == 0, done.stderr[-300:] if done.returncode else "")


def main():
    out = pathlib.Path(sys.argv[1]).resolve()
    for pair in sys.argv[2:]:
        name, tar = pair.split("=")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["tar", "-xf", tar, "-C", folder], check=True)
            root = Root(folder)
            compilers = root.run("sh", "-c", "command -v cc gcc c++ clang nvcc")
            check(f"{name}: no compiler", compilers.returncode != 0 and not compilers.stdout, compilers.stdout)
            for part in (check_tarball, check_debian, check_wheel):
                part(name, root, out)
    for name in IMAGES:
        packed = list(out.glob(f"{name}-[0-9]*-oci.tar"))
        if not packed:
            print(f"skipped: the image {name} (tools/release.sh --no-image, or without --cuda)")
            continue
        with tempfile.TemporaryDirectory() as folder:
            check_image(name, packed[0], pathlib.Path(folder))
    print(f"{results[True]} passed, {results[False]} failed")
    return 1 if results[False] else 0


if __name__ == "__main__":
    sys.exit(main())
