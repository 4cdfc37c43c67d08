#!/usr/bin/env python3
"""`dsv4 serve` behind real proxies: nginx and Caddy from Debian, with the blocks of the page on serving and, of nginx, with
its defaults. The page, the API, streams, large bodies, preflights and clients that leave have to work as without a
proxy. Prints "skipped: NAME" for a proxy that is not installed (tools/setup.sh serve), and ends with "N passed, N
failed". Usage: check_proxies.py BINARY

TLS is left out: the blocks listen on a free port of loopback instead, and requests say which site they are for."""

import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

from server import Server, give_up_after, write_script
from tally import check, finish, free_port

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SITE, KEY = "chat.example.com", "a-secret-key"
PAGE = {"Origin": f"https://{SITE}"}
APP = {"Origin": "https://app.example"}
SCRIPT = [{"match": "slow", "output": "tick ", "repeat": 2000, "step_ms": 20}, {"output": "Hello."}]
NGINX_DEFAULTS = """server {
  listen 443 ssl;
  location / { proxy_pass http://127.0.0.1:8000; }
}
"""


def documented(language):
    """The block of this language in the documentation."""
    found = [block for page in DOCS.glob("*.md") for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)]
    if len(found) != 1:
        sys.exit(f"{len(found)} blocks of {language} in {DOCS}: want one")
    return found[0]


def nginx_command(folder, block, port, upstream):
    block = re.sub(r"^ *ssl_.*\n", "", block, flags=re.M)
    block = block.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8000", f"127.0.0.1:{upstream}")
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = folder / "nginx.conf"
    config.write_text(f"daemon off;\npid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{}}\n"
                      f"http {{\naccess_log off;\n{paths}{block}}}\n")
    return ["nginx", "-p", folder, "-e", folder / "error.log", "-c", config]


def caddy_command(folder, block, port, upstream):
    block = block.replace(f"{SITE} {{", f"http://{SITE}:{port} {{\n  bind 127.0.0.1")
    config = folder / "Caddyfile"
    config.write_text("{\n  admin off\n}\n" + block.replace("127.0.0.1:8000", f"127.0.0.1:{upstream}"))
    return ["caddy", "run", "--config", config, "--adapter", "caddyfile"]


class Proxy:
    def __init__(self, program, block, upstream):
        self.folder, self.port = pathlib.Path(tempfile.mkdtemp()), free_port()
        self.folder.chmod(0o755)  # nginx's workers are another user's where root starts it
        make = nginx_command if program == "nginx" else caddy_command
        self.log = open(self.folder / "output.log", "wb")
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        self.process = subprocess.Popen(make(self.folder, block, self.port, upstream), stdout=self.log, stderr=self.log,
                                        env=os.environ | home)
        for _ in range(500):
            with socket.socket() as one:
                if one.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        sys.exit(f"{program} did not start: {(self.folder / 'output.log').read_text()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(10)
        self.log.close()
        shutil.rmtree(self.folder)


def connect(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Host": SITE} | (headers or {}) | ({"Content-Type": "application/json"} if body else {})
    connection.request(method, path, json.dumps(body) if body else None, headers)
    return connection, connection.getresponse()


def ask(*arguments, **more):
    connection, answer = connect(*arguments, **more)
    answer.text = answer.read().decode()
    connection.close()
    return answer


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}]} | more


def running(server, headers):
    text = ask(server.port, "GET", "/metrics", headers=headers).text
    return int(re.search(r"^dsv4_requests_running (\d+)", text, re.M).group(1))


def works(name, server, port, headers):
    """What has to work through a proxy; `headers`: of every request."""
    check(f"{name}: the page", ask(port, "GET", "/").status == 200)
    models = ask(port, "GET", "/v1/models", headers=headers)
    check(f"{name}: GET /v1/models", models.status == 200, models.text)
    answer = ask(port, "POST", "/v1/chat/completions", chat("Hi"), headers | PAGE)
    check(f"{name}: the page's POST", answer.status == 200, answer.text)
    connection, stream = connect(port, "POST", "/v1/chat/completions", chat("slow", stream=True), headers | PAGE)
    first = stream.read1(65536)
    while b"ick" not in first and stream.status == 200:
        first += stream.read1(65536)
    check(f"{name}: a stream comes as it is written", stream.status == 200 and b"[DONE]" not in first, first)
    stream.close()
    connection.close()
    for _ in range(500):
        if left := running(server, headers) == 0:
            break
        time.sleep(0.02)
    check(f"{name}: a client that leaves ends its request", left)


def works_as_documented(name, server, port, headers):
    works(name, server, port, headers)
    large = ask(port, "POST", "/v1/chat/completions", chat("Hi", metadata={"a": "x" * (8 << 20)}), headers)
    check(f"{name}: a body of 8 MiB", large.status == 200, large.text[:300])
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-lang"}
    preflight = ask(port, "OPTIONS", "/v1/chat/completions", headers=APP | asked)
    check(f"{name}: a preflight", preflight.status == 204 and
          preflight.getheader("Access-Control-Allow-Headers") == asked["Access-Control-Request-Headers"], preflight.headers)
    answer = ask(port, "POST", "/v1/chat/completions", chat("Hi"), headers | APP)
    check(f"{name}: a page of --cors-origin", answer.getheader("Access-Control-Allow-Origin") == APP["Origin"] and
          "x-request-id" in answer.getheader("Access-Control-Expose-Headers", ""), answer.headers)
    other = ask(port, "OPTIONS", "/v1/chat/completions", headers={"Origin": "https://evil.example"} | asked)
    check(f"{name}: a page of another site", other.status == 403 and not other.getheader("Access-Control-Allow-Origin"),
          other.headers)


def main():
    give_up_after(300)
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    proxies = [("nginx", "as documented", documented("nginx")), ("nginx", "with its defaults", NGINX_DEFAULTS),
               ("caddy", "as documented", documented("caddy"))]
    installed = {program for program, _, _ in proxies if shutil.which(program)}
    for program in sorted({program for program, _, _ in proxies} - installed):
        print(f"skipped: {program} (not installed)")
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        keys = pathlib.Path(folder) / "keys"
        keys.write_text(f"user:{KEY}\n")
        keys.chmod(0o600)
        options = ["--engine", f"script:{script}", "--cors-origin", APP["Origin"]]
        trust = ["--trusted-proxy", "127.0.0.1"]
        keyed = Server(sys.argv[1], *options, *trust, "--api-key-file", str(keys))
        plain_keyed = Server(sys.argv[1], *options, "--api-key-file", str(keys))
        named = Server(sys.argv[1], *options, *trust, "--allowed-host", SITE)
        unnamed = Server(sys.argv[1], *options, *trust)
        key = {"Authorization": f"Bearer {KEY}"}
        for program, how, block in proxies:
            if program not in installed:
                continue
            name, test = f"{program} {how}", works if how == "with its defaults" else works_as_documented
            for server, what, headers in ((keyed, "keys", key), (plain_keyed, "keys, no --trusted-proxy", key),
                                          (named, "--allowed-host", {})):
                with Proxy(program, block, server.port) as proxy:
                    test(f"{name}, {what}", server, proxy.port, headers)
            with Proxy(program, block, keyed.port) as proxy:
                check(f"{name}: no key", ask(proxy.port, "GET", "/v1/models").status == 401)
            if how == "as documented":
                with Proxy(program, block, unnamed.port) as proxy:
                    check(f"{name}: a name that is not allowed", ask(proxy.port, "GET", "/v1/models").status == 403)
        for server in (keyed, plain_keyed, named, unnamed):
            check("SIGTERM", server.stop() == 0)
    return finish()


if __name__ == "__main__":
    sys.exit(main())
