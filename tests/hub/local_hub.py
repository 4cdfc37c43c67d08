"""A server that plays Hugging Face's hub on two ports of this machine: the hub itself and the one that it redirects
downloads to. Files are made by the test; faults are given per path and happen once each, in order:

  hub.faults["model.safetensors"] = [cut(1000), status(503), status(429, {"Retry-After": "1"}), ...]

Every request is recorded in hub.requests."""

import collections
import hashlib
import http.server
import json
import ssl
import threading
import time
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Fault:
    """What happens to one request of a file: `act(handler, data, begin, end)`."""

    def __init__(self, act):
        self.act = act


def status(code, headers=None):
    return Fault(lambda handler, data, begin, end: handler.answer(code, b"no", headers or {}))


def no_fault():
    def act(handler, data, begin, end):
        handler.start_range(data, begin, end)
        handler.wfile.write(data[begin:end])
    return Fault(act)


def cut(after):
    """The connection ends after so many bytes."""
    def act(handler, data, begin, end):
        handler.start_range(data, begin, end)
        handler.wfile.write(data[begin:min(end, begin + after)])
        handler.drop()
    return Fault(act)


def drip(seconds):
    """A byte every tenth of a second."""
    def act(handler, data, begin, end):
        handler.start_range(data, begin, end)
        for at in range(begin, min(end, begin + int(10 * seconds))):
            handler.wfile.write(data[at:at + 1])
            time.sleep(0.1)
        handler.drop()
    return Fault(act)


def other_size(size):
    """The server has another version of the file."""
    def act(handler, data, begin, end):
        handler.start_range(data, begin, end, size)
        handler.wfile.write(data[begin:end] + b"." if size > len(data) else data[begin:end][:size - begin])
        handler.drop()
    return Fault(act)


def other_range():
    def act(handler, data, begin, end):
        handler.answer(206, data[:end - begin], {"Content-Range": f"bytes 0-{end - begin - 1}/{len(data)}"})
    return Fault(act)


def whole_file():
    """Ranges are ignored."""
    return Fault(lambda handler, data, begin, end: handler.answer(200, data, {}))


def wrong_bytes():
    def act(handler, data, begin, end):
        handler.start_range(data, begin, end)
        handler.wfile.write(bytes(byte ^ 1 for byte in data[begin:end]))
    return Fault(act)


Request = collections.namedtuple("Request", "port method path headers")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def drop(self):
        self.close_connection = True
        self.wfile.flush()

    def answer(self, code, body, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def start_range(self, data, begin, end, size=None):
        whole = "Range" not in self.headers
        self.send_response(200 if whole else 206)
        if not whole:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data) if size is None else size}")
        self.send_header("Content-Length", size if whole and size is not None else end - begin)
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def send_file(self, path, data):
        begin, end = 0, len(data)
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last) + 1, len(data)) if last else len(data)
        fault = self.hub.take_fault(path)
        if fault is not None:
            return fault.act(self, data, begin, end)
        if begin >= end and data:
            return self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        self.start_range(data, begin, end)
        if self.command != "HEAD":
            for at in range(begin, end, 1 << 16):
                self.wfile.write(data[at:min(end, at + (1 << 16))])
                if self.hub.delay:
                    time.sleep(self.hub.delay)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        self.hub.requests.append(Request(self.server.server_address[1], self.command, self.path, dict(self.headers)))
        try:
            (self.serve_storage if self.server is self.hub.storage else self.serve_hub)(url)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True

    def serve_storage(self, url):
        path = urllib.parse.unquote(url.path).removeprefix("/storage/")
        if urllib.parse.parse_qs(url.query).get("signature") != [self.hub.signature]:
            return self.answer(403, b"expired", {})
        self.send_file(path, self.hub.files[path])

    def serve_hub(self, url):
        hub, parts = self.hub, [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            code = 401 if "Authorization" not in self.headers else 403
            return self.answer(code, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"})
        if parts[:2] == ["api", "models"]:
            if "/".join(parts[2:4]) != hub.repo:
                return self.answer(404, b"", {"X-Error-Code": "RepoNotFound",
                                              "X-Error-Message": "Repository not found"})
            fault = hub.take_fault(parts[4] if len(parts) > 4 else "revision")
            if fault is not None:
                return fault.act(self, b"", 0, 0)
            return self.serve_api(parts[4:], urllib.parse.parse_qs(url.query))
        if "/".join(parts[:2]) == hub.repo and parts[2] == "resolve" and parts[3] in (*hub.revisions, hub.commit):
            return self.serve_resolve("/".join(parts[4:]))
        self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})

    def serve_api(self, parts, query):
        hub = self.hub
        kind, revision = parts[0] if parts else "revision", parts[1] if len(parts) > 1 else "main"
        if revision not in (*hub.revisions, hub.commit):
            return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound",
                                          "X-Error-Message": f"Invalid rev id: {revision}"})
        if kind == "revision":
            model = {"id": hub.repo, "modelId": hub.repo, "sha": hub.commit, "private": False, "tags": [],
                     "downloads": 0, "likes": 0, "siblings": [{"rfilename": path} for path in hub.files]}
            return self.answer(200, json.dumps(model).encode(), {"Content-Type": "application/json"})
        entries = hub.tree()
        at = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if at + hub.page < len(entries):
            next_page = f'{hub.endpoint}{self.path.split("?")[0]}?recursive=true&cursor={at + hub.page}'
            headers["Link"] = f'<{next_page}>; rel="next"'
        self.answer(200, json.dumps(entries[at:at + hub.page]).encode(), headers)

    def serve_resolve(self, path):
        hub = self.hub
        if path not in hub.files:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        fault = hub.take_fault("resolve:" + path)
        if fault is not None:
            return fault.act(self, b"", 0, 0)
        data = hub.files[path]
        if path in hub.large:
            storage = f"{hub.storage_url}/storage/{urllib.parse.quote(path)}?signature={hub.signature}"
            return self.answer(302, b"", {
                "Location": hub.redirect or storage,
                "X-Linked-Etag": f'"{hub.linked_etags.get(path, sha256(data))}"',
                "X-Linked-Size": str(len(data)), "X-Repo-Commit": hub.commit, "ETag": f'"{git_sha1(data)}"'})
        if self.command == "HEAD":
            return self.answer(200, data, {"ETag": f'"{git_sha1(data)}"', "X-Repo-Commit": hub.commit})
        self.send_file(path, data)


class LocalHub:
    """with LocalHub({"config.json": b"...", "model.safetensors": b"..."}) as hub: ..."""

    def __init__(self, files, repo="some/Model", large=(".safetensors",), certificate=None):
        self.files, self.repo, self.commit, self.revisions = dict(files), repo, COMMIT, ["main", "v1", "refs/pr/1"]
        self.large = {path for path in files if path.endswith(large)}
        self.faults, self.requests, self.listed, self.linked_etags = collections.defaultdict(list), [], {}, {}
        self.token, self.redirect, self.page, self.delay, self.signature = None, None, 1000, 0, "abc"
        self.lock = threading.Lock()
        self.hub, self.storage = self.make_server(), self.make_server()
        scheme = "http"
        if certificate is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            for server in (self.hub, self.storage):
                server.socket = context.wrap_socket(server.socket, server_side=True)
        self.endpoint = f"{scheme}://localhost:{self.hub.server_address[1]}"
        self.storage_url = f"{scheme}://localhost:{self.storage.server_address[1]}"

    def make_server(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": self}))
        server.daemon_threads = True
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.hub, self.storage):
            server.shutdown()
            server.server_close()

    def take_fault(self, path):
        with self.lock:
            left = self.faults.get(path)
            return left.pop(0) if left else None

    def tree(self):
        """What the hub lists: `listed` replaces fields of an entry, or adds entries."""
        entries = []
        for path, data in self.files.items():
            entry = {"type": "file", "path": path, "size": len(data), "oid": git_sha1(data)}
            if path in self.large:
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 135}
            entries.append(entry)
        by_path = {entry["path"]: entry for entry in entries}
        for path, fields in self.listed.items():
            if path not in by_path:
                entries.append({"type": "file", "path": path, "size": 1, "oid": git_sha1(b"x")})
                by_path[path] = entries[-1]
            by_path[path].update(fields)
        return [{"type": "directory", "path": "folder", "size": 0, "oid": "f" * 40}] + entries

    def downloads(self, path):
        """Requests for the bytes of a file."""
        return [each for each in list(self.requests) if each.path.startswith(f"/storage/{path}?")
                or each.path.endswith(f"/{path}") and path not in self.large]
