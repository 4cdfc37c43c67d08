#!/usr/bin/env python3
"""`dsv4 pull` against hostile servers and folders, its secrets and surroundings, and commands on ORG/NAME.

Usage: pull_safety_test.py BINARY [TEST ...]"""

import http.server
import json
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from local_hub import COMMIT, git_sha1, sha256, status, wrong_bytes
from pull_case import BINARY, DEMO, MIB, MODEL, WEIGHTS, PullTest, large_files, model_files


class Hostile(PullTest):
    def test_names_of_files(self):
        for name in ("../x", "../../../../../x", "a/../../x", str(self.folder / "x"), "a//x", "", ".", "a/.", "x\n",
                     "a/" * 600 + "x"):
            hub = self.hub({"config.json": b"{}"})
            hub.listed[name] = {"path": name}
            self.expect_error(self.pull(hub), "which is no path inside the model")
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_names_of_blobs(self):
        for oid in ("../../x", "/x", "", "A" * 40, "a" * 39):
            hub = self.hub({"config.json": b"{}"})
            hub.listed["config.json"] = {"oid": oid}
            self.expect_error(self.pull(hub), "the hash of config.json is '")
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_file_that_is_a_folder_too(self):
        hub = self.hub({"a": b"1", "a/b": b"2"})
        self.expect_error(self.pull(hub), "lists a both as a file and as a folder")

    def test_links_in_the_cache(self):
        hub = self.hub({"config.json": b"{}", "sub/x": b"x"})
        outside = self.folder / "home/outside"
        outside.mkdir(parents=True)
        self.snapshot.mkdir(parents=True)
        (self.snapshot / "sub").symlink_to(outside)
        self.expect_error(self.pull(hub), "/sub is a link, not a folder")
        self.assertEqual(list(outside.iterdir()), [])
        self.expect_nothing_outside()
        # A part that is a link is not written through.
        (self.snapshot / "sub").unlink()
        shutil.rmtree(self.repo / "blobs")
        (self.repo / "blobs").mkdir()
        (self.repo / "blobs" / (git_sha1(b"x") + ".dsv4-part")).symlink_to(outside / "new")
        self.expect_error(self.pull(hub), "cannot write ")
        self.assertEqual(list(outside.iterdir()), [])

    def test_redirects(self):
        for target, what in (("file:///etc/passwd", "is not an address of http or https"),
                             ("ftp://localhost/x", "is not an address of http or https"),
                             ("http://user:password@localhost/x", "want SCHEME://HOST[:PORT]")):
            hub = self.hub({WEIGHTS: b"w" * 100})
            hub.redirect = target
            self.expect_error(self.pull(hub), what)
            self.expect_nothing_in_place(sha256(hub.files[WEIGHTS]))
        hub = self.hub({WEIGHTS: b"w" * 100})
        hub.redirect = f"/some/Model/resolve/{COMMIT}/{WEIGHTS}"
        self.expect_error(self.pull(hub), "more than 10 redirects")

    def test_answers_that_are_no_lists(self):
        for text in (b"", b"{}", b"[", b"[[]]", b"null", b"[" * 100_000, b'[{"type": "file"}]'):
            hub = self.hub({"config.json": b"{}"})
            fault = status(0)
            fault.act = lambda handler, data, begin, end, text=text: handler.answer(200, text, {})
            hub.faults["tree"] = [fault]
            self.expect_error(self.pull(hub), "the list of files of some/Model")

    def test_control_characters_do_not_reach_the_terminal(self):
        hub = self.hub({"config.json": b"{}"})
        hub.faults["tree"] = [status(404, {"X-Error-Message": "\x1b]0;title\x07"})]
        result = self.pull(hub)
        self.expect_error(result, "404 (?]0;title?)")


class Secrets(PullTest):
    def sent(self, hub):
        """Ports that got the token."""
        return {each.port for each in hub.requests if "Authorization" in each.headers}

    def test_the_token_goes_to_the_hub_only(self):
        token_file = self.folder / "home/.cache/huggingface/token"
        token_file.parent.mkdir(parents=True)
        for variables in ({"HF_TOKEN": "hf_secret"}, {}, {"HF_TOKEN_PATH": str(self.folder / "token")}):
            if not variables:
                token_file.write_text("hf_secret\n")
            if "HF_TOKEN_PATH" in variables:
                token_file.write_text("hf_other")
                (self.folder / "token").write_text(" hf_secret \n")
            hub = self.hub(large_files())
            hub.token = "hf_secret"
            self.expect_pulled(hub, **variables)
            self.assertEqual(self.sent(hub), {hub.hub.server_address[1]})
            self.assertTrue(hub.downloads(WEIGHTS))
            shutil.rmtree(self.repo)

    def test_reports_do_not_show_it(self):
        shown = self.run_dsv4("inspect", "env", HF_TOKEN="hf_secret", DSV4_API_KEY="sk-secret",
                              OTEL_EXPORTER_OTLP_HEADERS="authorization=secret", HTTPS_PROXY="http://me:secret@proxy")
        self.assertIn("HF_TOKEN=(set)", shown.stdout)
        self.assertNotIn("secret", shown.stdout)

    def test_a_next_page_elsewhere_gets_no_token(self):
        hub = self.hub({"config.json": b"{}"})
        hub.token = "hf_secret"
        other = self.hub({"config.json": b"{}"})
        fault = status(0)
        link = f'<{other.endpoint}/api/models/some/Model/tree/{COMMIT}?recursive=true>; rel="next"'
        fault.act = lambda handler, data, begin, end: handler.answer(200, b"[]", {"Link": link})
        hub.faults["tree"] = [fault]
        self.expect_pulled(hub, HF_TOKEN="hf_secret")
        self.assertEqual(self.sent(other), set())
        self.assertTrue(other.requests)

    def test_https(self):
        if shutil.which("openssl") is None:
            self.skipTest("no openssl to make a certificate with")
        certificate = self.folder / "home/certificate.pem"
        certificate.parent.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                        "-keyout", certificate, "-out", str(certificate) + ".crt"], check=True, capture_output=True)
        with open(certificate, "a") as both:
            both.write(pathlib.Path(str(certificate) + ".crt").read_text())
        hub = self.hub(large_files(), certificate=certificate)
        self.expect_error(self.pull(hub), "cannot fetch some/Model: ", "certificate")
        self.expect_pulled(hub, SSL_CERT_FILE=str(certificate))
        plain = self.hub(hub.files)
        shutil.rmtree(self.repo)
        hub.redirect = f"{plain.storage_url}/storage/{WEIGHTS}?signature=abc"
        self.expect_error(self.pull(hub, SSL_CERT_FILE=str(certificate)), "redirects from https to http")
        self.assertEqual(plain.requests, [])


class Proxy(http.server.BaseHTTPRequestHandler):
    """Forwards GET of absolute addresses."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.requests.append((self.path, self.headers.get("Proxy-Authorization")))
        headers = {name: value for name, value in self.headers.items() if name in ("Range", "Authorization")}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), NoRedirect)
        try:
            answer = opener.open(urllib.request.Request(self.path, headers=headers))
        except urllib.error.HTTPError as error:
            answer = error
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Surroundings(PullTest):
    def test_proxies(self):
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        proxy.requests = []
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        self.addCleanup(proxy.server_close)
        self.addCleanup(proxy.shutdown)
        address = f"http://me:word@127.0.0.1:{proxy.server_address[1]}"
        for name in ("http_proxy", "ALL_PROXY"):
            hub = self.hub(large_files(5000))
            self.expect_pulled(hub, **{name: address})
            seen = {urllib.parse.urlsplit(path).port for path, _ in proxy.requests}
            self.assertEqual(seen, {hub.hub.server_address[1], hub.storage.server_address[1]})
            self.assertEqual({word for _, word in proxy.requests}, {"Basic bWU6d29yZA=="})
            proxy.requests.clear()
            shutil.rmtree(self.repo)
            self.expect_pulled(hub, NO_PROXY="localhost", **{name: address})
            self.assertEqual(proxy.requests, [])
            shutil.rmtree(self.repo)

    def test_offline(self):
        files = model_files()
        hub = self.hub(files)
        for options, variables in ((["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})):
            self.expect_error(self.pull(hub, *options, **variables), "nothing is fetched offline")
        self.assertEqual(hub.requests, [])
        self.expect_pulled(hub)
        hub.requests.clear()
        self.expect_pulled(hub, "--offline")
        self.expect_pulled(hub, HF_HUB_OFFLINE="yes")
        (self.snapshot / "config.json").unlink()
        self.expect_error(self.pull(hub, "--offline"), "lacks config.json, and nothing is fetched offline")
        self.assertEqual(hub.requests, [])

    def test_without_libcurl(self):
        libraries = self.folder / "libraries"
        libraries.mkdir()
        for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
            (libraries / name).write_bytes(b"")
        failed = self.run_dsv4("pull", "some/Model", LD_LIBRARY_PATH=str(libraries))
        self.expect_error(failed, "libcurl.so.4", "install the package libcurl4")
        self.assertEqual(self.run_dsv4("--version", LD_LIBRARY_PATH=str(libraries)).returncode, 0)
        linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True).stdout
        self.assertNotIn("libcurl", linked)

    def test_progress_in_a_log(self):
        hub = self.hub({WEIGHTS: random.randbytes(20 * MIB)})
        hub.delay = 0.005
        result = self.expect_pulled(hub, "--connections", 4, DSV4_PROGRESS_S="0")
        lines = [line for line in result.stderr.splitlines() if line.startswith("dsv4: fetching ")]
        self.assertGreater(len(lines), 3)
        self.assertNotIn("\r", result.stderr)
        self.assertRegex(lines[1], r"\d+%  [0-9.]+ .iB/s  \d+ s left")


class Using(PullTest):
    def plan(self, model, **variables):
        result = self.run_dsv4("plan", model, "--json", "--numerics", "exact", **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout) | {"model": ""}

    def test_commands_find_the_snapshot(self):
        hub = self.hub(model_files(DEMO))
        for command in (["run", "-p", "a"], ["chat"], ["serve"], ["inspect"], ["tokenize"], ["quantize", "-o", "out"]):
            self.expect_error(self.run_dsv4(command[0], "some/Model", *command[1:], hub=hub),
                              "no model folder some/Model", "`dsv4 pull some/Model` fetches it")
        self.assertEqual(hub.requests, [], "only plan reads from the hub")
        self.expect_pulled(hub)
        hub.requests.clear()
        run = ("-p", "Hello", "-n", 8, "--temp", 0)
        want = self.run_dsv4("run", DEMO, *run).stdout
        for model in ("some/Model", "some/Model@main", f"some/Model@{COMMIT}"):
            self.assertEqual(self.run_dsv4("run", model, *run).stdout, want)
        self.expect_error(self.run_dsv4("run", "some/Model@v1", "-p", "a"), "`dsv4 pull some/Model@v1` fetches it")
        self.assertEqual(self.run_dsv4("inspect", "some/Model").returncode, 0)
        self.assertEqual(self.run_dsv4("quantize", "some/Model", "-o", "out", "--experts", "k3-e4m3").returncode, 0)
        self.assertEqual(hub.requests, [])

    def test_an_incomplete_snapshot(self):
        hub = self.hub(model_files())
        self.expect_pulled(hub)
        (self.snapshot / WEIGHTS).unlink()
        self.expect_error(self.run_dsv4("inspect", "some/Model"), "is not complete", "lacks safetensors files",
                          "`dsv4 pull some/Model` fetches the rest")
        self.expect_pulled(hub)
        shutil.rmtree(self.repo)
        index = {"weight_map": {"a": WEIGHTS, "b": "second.safetensors"}}
        hub = self.hub(model_files() | {"model.safetensors.index.json": json.dumps(index).encode(),
                                        "second.safetensors": b""})
        self.expect_pulled(hub)
        (self.snapshot / "second.safetensors").unlink()
        self.expect_error(self.run_dsv4("inspect", "some/Model"), "lacks 1 of 2 shards", "`dsv4 pull some/Model`")

    def test_local_paths_win(self):
        hub = self.hub(model_files())
        self.expect_pulled(hub)
        for name in ("some/Model", "some/Model@v1"):
            (self.folder / name).mkdir(parents=True)
            for path, data in model_files().items():
                (self.folder / name / path).write_bytes(data)
            self.expect_error(self.run_dsv4("run", name, "-p", "a"), f"{name}/tokenizer.json is missing")
            self.plan(name)

    def test_plan_reads_headers_only(self):
        weights = 30 * MIB
        header = json.dumps({"x": {"dtype": "U8", "shape": [weights], "data_offsets": [0, weights]}}).encode()
        files = model_files()
        hub = self.hub(files)
        want = self.plan(MODEL)
        self.assertEqual(self.plan("some/Model", hub=hub), want)
        self.assertFalse(self.repo.exists())
        # Sharded, with a large tensor that the model does not use.
        index = {"weight_map": {name: WEIGHTS for name in self.names(files[WEIGHTS])} | {"x": "large.safetensors"}}
        files |= {"model.safetensors.index.json": json.dumps(index).encode(),
                  "large.safetensors": len(header).to_bytes(8, "little") + header + bytes(weights)}
        sharded = self.hub(files)
        local = self.folder / "local"
        local.mkdir()
        for name, data in files.items():
            (local / name).write_bytes(data)
        self.assertEqual(self.plan("some/Model", hub=sharded), self.plan(local))
        ranges = [each.headers["Range"] for each in sharded.downloads("large.safetensors")]
        self.assertEqual(ranges, [f"bytes=0-{256 * 1024 - 1}"])
        # Once it is in the cache, the hub is not asked.
        self.expect_pulled(hub)
        hub.requests.clear()
        self.assertEqual(self.plan("some/Model", hub=hub), want)
        self.assertEqual(hub.requests, [])

    @staticmethod
    def names(safetensors):
        size = int.from_bytes(safetensors[:8], "little")
        return [name for name in json.loads(safetensors[8:8 + size]) if name != "__metadata__"]

    def test_plan_of_a_large_header(self):
        files = model_files()
        size = int.from_bytes(files[WEIGHTS][:8], "little")
        padded = files[WEIGHTS][8:8 + size] + b" " * (700_000 - size)
        files[WEIGHTS] = len(padded).to_bytes(8, "little") + padded + files[WEIGHTS][8 + size:]
        self.assertEqual(self.plan("some/Model", hub=self.hub(files)), self.plan(MODEL))

    def test_plan_of_what_cannot_be_planned(self):
        cases = ((lambda files: files.pop("config.json"), "some/Model has no config.json"),
                 (lambda files: files.pop(WEIGHTS), "some/Model has 0 .safetensors files"),
                 (lambda files: files.update({WEIGHTS: b"version https://git-lfs"}), "is a Git LFS pointer"),
                 (lambda files: files.update({WEIGHTS: b"\xff" * 100}), "exceeds the limit"),
                 (lambda files: files.update({WEIGHTS: files[WEIGHTS][:-1]}), "incomplete download?"),
                 (lambda files: files.update({"config.json": b"{"}), "config.json"))
        for change, what in cases:
            files = model_files()
            change(files)
            self.expect_error(self.run_dsv4("plan", "some/Model", hub=self.hub(files)), what)
        hub = self.hub(model_files())
        hub.faults["config.json"] = [wrong_bytes()]
        self.expect_error(self.run_dsv4("plan", "some/Model", hub=hub),
                          "config.json: what was received is not what the hub lists")
        self.expect_error(self.run_dsv4("plan", "some/Model", hub=hub, HF_HUB_OFFLINE="1"),
                          "`dsv4 pull some/Model` fetches it")


if __name__ == "__main__":
    unittest.main()
