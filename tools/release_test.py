"""Parts of tools/release.sh that are cheap: the version in one place, man pages, SBOM, tarballs, image. Run:
python3 release_test.py PROGRAM, a built dsv4."""

import gzip
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/release"))
import oci_image  # noqa: E402
import project  # noqa: E402
import sbom  # noqa: E402
import wheels  # noqa: E402

PROGRAM = None
DATE = "1700000000"
os.environ["SOURCE_DATE_EPOCH"] = DATE


def output(*command):
    return subprocess.run([str(one) for one in command], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def wheel_command():
    """program() of the wheel's __main__.py, which imports the package that the wheel makes of the folder."""
    sys.modules["dsv4"] = types.ModuleType("dsv4")
    return runpy.run_path(str(ROOT / "packaging/wheel/__main__.py"), run_name="wheel")["program"]


class Scratch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.scratch = pathlib.Path(folder.name)

    def write(self, path, text="x"):
        file = self.scratch / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file


class Version(unittest.TestCase):
    def test_is_that_of_the_program_and_of_the_changes(self):
        self.assertEqual(output(PROGRAM, "--version").split()[1], project.version())
        first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M).group(1)
        self.assertEqual(first, project.version(), "the first section of CHANGELOG.md")

    def test_is_in_one_place(self):
        files = output("git", "ls-files", "CMakeLists.txt", "cmake", "packaging", "python", "tools/release*", "mkdocs.yml",
                       "apps", "docs/dsv4.service", "docs/Dockerfile", "README.md", "docs/releases.md").split()
        number = re.compile(rf"(?<![\d.]){re.escape(project.version())}(?![\d.])")
        # An example in a comment is none.
        found = [f"{file}: {line.strip()}" for file in files for line in (ROOT / file).read_text().splitlines()
                 if number.search(line) and not re.match(r"\s*(//|#)", line)]
        self.assertEqual(found, [f"CMakeLists.txt: project(dsv4 VERSION {project.version()} LANGUAGES CXX)"])


class WheelCommand(Scratch):
    def test_takes_the_cuda_program_where_there_are_one_and_a_driver(self):
        choose = wheel_command()
        plain, driver = self.write("bin/dsv4"), self.write("driver")
        self.assertEqual(choose(self.scratch, driver), plain)
        both = self.write("bin/dsv4-cuda")
        self.assertEqual(choose(self.scratch, driver), both)
        self.assertEqual(choose(self.scratch, self.scratch / "no driver"), plain)


class ManPages(Scratch):
    def commands(self, *above):
        text = output(PROGRAM, *above, "--help")
        yield above, text
        for name in re.findall(r"^  ([a-z]+) ", text.partition("\nSubcommands:\n")[2], re.M):
            yield from self.commands(*above, name)

    def test_every_command_has_a_page_with_its_options(self):
        if shutil.which("help2man") is None:
            self.skipTest("no help2man: tools/setup.sh check installs it")
        output("tools/release/man.sh", PROGRAM, self.scratch)
        names = set()
        for command, text in self.commands():
            name = "-".join(["dsv4", *command])
            page = gzip.decompress((self.scratch / f"{name}.1.gz").read_bytes()).decode()
            names.add(f"{name}.1.gz")
            self.assertIn(f'.TH {name.upper()} "1" "November 2023"', page)
            self.assertRegex(page, rf"(?m)^{re.escape(name)} \\- \S")
            plain = page.replace("\\-", "-")
            for option in re.findall(r"^  (?:-\w,)?(--[\w-]+)", text, re.M):
                self.assertIn(option, plain, name)
        self.assertEqual(names, {path.name for path in self.scratch.iterdir()})
        self.assertGreater(len(names), 15)


class Sbom(Scratch):
    def document(self):
        self.write("out/dsv4.whl", "a wheel")
        libraries = [line.split()[-1] for line in output("/sbin/ldconfig", "-p").splitlines() if "x86-64" in line]
        real = next(pathlib.Path(one).resolve() for one in libraries if pathlib.Path(one).name == "libssl.so.3")
        self.write(f"tree/lib/dsv4/{real.name.replace('.so', '-1a2b3c4d.so', 1)}")
        return sbom.document(self.scratch / "out", "0123abcd", self.scratch / "tree")

    @unittest.skipIf(shutil.which("dpkg-query") is None, "no dpkg")
    def test_has_no_faults_and_names_what_is_there(self):
        document = json.loads(json.dumps(self.document()))
        self.assertEqual(sbom.faults(document), [])
        self.assertIn("libssl3", [one["name"] for one in document["packages"]])
        sums = {one["algorithm"]: one["checksumValue"] for one in document["files"][0]["checksums"]}
        self.assertEqual(sums["SHA256"], hashlib.sha256(b"a wheel").hexdigest())

    @unittest.skipIf(shutil.which("dpkg-query") is None, "no dpkg")
    def test_faults_are_found(self):
        for spoil, word in ((lambda one: one.pop("dataLicense"), "dataLicense"),
                            (lambda one: one["packages"].append(one["packages"][0]), "twice"),
                            (lambda one: one["packages"].pop(), "which is not there"),
                            (lambda one: one["relationships"].pop(), "no relationship"),
                            (lambda one: one["packages"][0].pop("versionInfo"), "has no versionInfo"),
                            (lambda one: one["files"][0]["checksums"].pop(), "SHA256"),
                            (lambda one: one["packages"][0].update(SPDXID="dsv4"), "no identifier"),
                            (lambda one: one["creationInfo"].update(created="today"), "created")):
            document = self.document()
            spoil(document)
            self.assertTrue(any(word in line for line in sbom.faults(document)), (word, sbom.faults(document)))

    def test_what_is_compiled_in_is_what_setup_installs(self):
        setup = (ROOT / "tools/setup.sh").read_text()
        # g++ and libjs-katex bring these two.
        missing = [name for name in sbom.COMPILED_IN if name not in setup and name not in ("libgcc-12-dev", "fonts-katex")]
        self.assertEqual(missing, [])


class SameBytes(Scratch):
    def test_source_tarball(self):
        commit = output("git", "rev-parse", "HEAD").strip()
        for name in ("a/dsv4.tar.gz", "b/dsv4.tar.gz"):
            self.write(name)
            output("tools/release/source_tarball.sh", commit, self.scratch / name)
        self.assertEqual((self.scratch / "a/dsv4.tar.gz").read_bytes(), (self.scratch / "b/dsv4.tar.gz").read_bytes())
        with tarfile.open(self.scratch / "a/dsv4.tar.gz") as tar:
            self.assertIn("dsv4/CMakeLists.txt", tar.getnames())

    def test_program_tarball(self):
        bytes_of = []
        for name, mode, order in (("a", 0o755, ("bin/dsv4", "share/x")), ("b", 0o700, ("share/x", "bin/dsv4"))):
            for path in order + ("lib/z", "lib/y", "lib/x", "lib/w"):
                self.write(f"{name}/{path}", "text").chmod(mode if path.startswith("bin") else mode & 0o666)
            self.write(f"{name}/__init__.py")
            (self.scratch / f"out-{name}").mkdir()
            wheels.write_tarball(self.scratch / name, self.scratch / f"out-{name}")
            packed = next((self.scratch / f"out-{name}").iterdir())
            bytes_of.append(packed.read_bytes())
        self.assertEqual(bytes_of[0], bytes_of[1])
        with tarfile.open(packed) as tar:
            entries = {entry.name.partition("/")[2]: entry for entry in tar}
        names = ["bin", "bin/dsv4", "lib", "lib/w", "lib/x", "lib/y", "lib/z", "share", "share/x"]
        self.assertEqual(list(entries), names, "in this order")
        self.assertEqual((entries["bin/dsv4"].mode, entries["share/x"].mode, entries["bin"].mtime), (0o755, 0o644, int(DATE)))

    def debian_package(self, folder, mask):
        """A package of one program and some files, by the project's configuration of CPack, from a tree of its own."""
        names = ["z", "a/y", "a/x", "b/w"] if mask == 0o022 else ["b/w", "a/x", "a/y", "z"]
        before = os.umask(mask)
        self.addCleanup(os.umask, before)
        files = [self.write(f"{folder}/source/{name}", name) for name in names]
        for age, file in enumerate(files):
            os.utime(file, (1.6e9 + 1000 * age + mask, 1.6e9 + 1000 * age + mask))
        rules = "".join(f"install(FILES {name} DESTINATION share/{pathlib.Path(name).parent} COMPONENT program)\n" for name in names)
        self.write(f"{folder}/source/CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(small NONE)\n"
                   f"install(PROGRAMS {shutil.which('true')} DESTINATION bin COMPONENT program)\n{rules}")
        build = self.scratch / folder / "build"
        output("cmake", "-S", self.scratch / folder / "source", "-B", build)
        text = (ROOT / "packaging/debian/cpack.cmake.in").read_text()
        for name, value in {"quads": f"{build};small;program;/", "name": "dsv4", "PROJECT_VERSION": project.version(),
                            "CMAKE_SOURCE_DIR": ROOT, "DSV4_MAINTAINER": project.maintainer(), "description": "a test",
                            "recommends": "libzmq5"}.items():
            text = text.replace(f"@{name}@", str(value))
        config = self.write(f"{folder}/CPack.cmake", text)
        output("cpack", "--config", config, "-B", self.scratch / folder / "packed")
        os.umask(before)
        return next((self.scratch / folder / "packed").glob("*.deb"))

    @unittest.skipIf(shutil.which("dpkg-shlibdeps") is None, "no dpkg-shlibdeps")
    def test_debian_package(self):
        packed = [self.debian_package("one", 0o022), self.debian_package("another/below", 0o022)]
        self.assertEqual(packed[0].read_bytes(), packed[1].read_bytes())
        listed = output("dpkg-deb", "--contents", packed[0])
        self.assertIn("./usr/share/a/y", listed)
        self.assertEqual({line.split()[3] for line in listed.splitlines()}, {"2023-11-14"})

    @unittest.skipIf(importlib.util.find_spec("wheel") is None, "no package wheel")
    def test_wheel(self):
        bytes_of = []
        for name, order in (("a", ("bin/dsv4", "share/x")), ("b", ("share/x", "bin/dsv4"))):
            for path in order:
                self.write(f"{name}/stage/{path}", "text").chmod(0o755 if path.startswith("bin") else 0o644)
            os.utime(self.scratch / name / "stage/share/x", (1.6e9 + len(bytes_of), 1.6e9))
            bytes_of.append(wheels.write_program_wheel(self.scratch / name / "stage", self.scratch / name).read_bytes())
        self.assertEqual(bytes_of[0], bytes_of[1])

    def image(self, name, package="dsv4"):
        root = self.scratch / f"{name}-root.tar"
        with tarfile.open(root, "w") as tar:
            data = b"root:x:0:0::/root:/bin/sh\ndsv4:x:998:997::/var/cache/dsv4:/bin/false\n"
            entry = tarfile.TarInfo("./etc/passwd")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        output(sys.executable, ROOT / "tools/release/oci_image.py", package, root, self.scratch / name)
        return root, self.scratch / name

    def test_image(self):
        root, first = self.image("a.tar")
        self.assertEqual(first.read_bytes(), self.image("b.tar")[1].read_bytes())
        with tarfile.open(first) as tar:
            files = {entry.name: tar.extractfile(entry).read() for entry in tar}
        for name, data in files.items():
            if name.startswith("blobs/"):
                self.assertEqual(name, f"blobs/sha256/{hashlib.sha256(data).hexdigest()}")

        def blob(descriptor):
            data = files["blobs/" + descriptor["digest"].replace(":", "/")]
            self.assertEqual(len(data), descriptor["size"])
            return data

        manifest = json.loads(blob(json.loads(files["index.json"])["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        layer = gzip.decompress(blob(manifest["layers"][0]))
        self.assertEqual(layer, root.read_bytes())
        self.assertEqual(config["rootfs"]["diff_ids"], [f"sha256:{hashlib.sha256(layer).hexdigest()}"])
        self.assertEqual(config["config"]["User"], "998:997")
        self.assertEqual(config["config"]["Healthcheck"]["Test"][:2], ["CMD", "bash"])
        self.assertEqual(oci_image.user_of(root, "root"), "0:0")
        self.assertFalse([one for one in config["config"]["Env"] if "NVIDIA" in one])

    def test_image_with_cuda_wants_the_driver(self):
        _, packed = self.image("a.tar", "dsv4-cuda")
        with tarfile.open(packed) as tar:
            configs = [json.loads(data) for entry in tar if (data := tar.extractfile(entry).read()).startswith(b'{"architecture"')]
        self.assertEqual(len(configs), 1)
        self.assertIn("NVIDIA_DRIVER_CAPABILITIES=compute,utility", configs[0]["config"]["Env"])
        self.assertEqual(configs[0]["config"]["User"], "998:997")


class WheelSize(Scratch):
    def test_a_wheel_that_pypi_refuses_is_an_error(self):
        for size, fits in ((wheels.LARGEST, True), (wheels.LARGEST + 1, False)):
            wheel = self.write(f"dsv4-{size}.whl")
            os.truncate(wheel, size)
            if fits:
                wheels.check_size(wheel)
            else:
                with self.assertRaisesRegex(SystemExit, "more than 100"):
                    wheels.check_size(wheel)


if __name__ == "__main__":
    PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
