"""Headless Chromium (Debian's package) through the DevTools protocol, for check_page.py. The protocol runs over a pipe
(--remote-debugging-pipe: the browser reads file descriptor 3 and writes 4, every message ends with a zero byte), so
neither a port nor a package is needed. Clicks and keys are events of the mouse and the keyboard at the element's place:
an element that is hidden or covered cannot be used."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

FLAGS = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--no-default-browser-check",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
         "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb"]


def chromium():
    """The program's path, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """A browser with a profile of its own, and one tab."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.out = os.pipe()
        self.incoming, from_browser = os.pipe()
        # The sandbox needs user namespaces that root does not get; the pages are our own.
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []

        def descriptors():
            # Copied above 10 first: one of the two may be 3 or 4 itself.
            os.dup2(os.dup2(to_browser, 10), 3)
            os.dup2(os.dup2(from_browser, 11), 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, *sandbox, f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.next_id, self.session = b"", 0, None
        self.requests, self.problems = [], []  # URLs that were asked for; exceptions and console errors
        self.dialog_answer = True
        self.open_tab()

    def open_tab(self):
        """A tab of its own: its sessionStorage is empty, the localStorage is that of the browser."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def close(self):
        self.session = None
        try:
            self.call("Browser.close")
        except (OSError, TimeoutError):
            self.process.kill()
        self.process.wait(20)
        self.profile.cleanup()

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        wanted = self.next_id
        while True:
            answer = self.receive(deadline - time.monotonic())
            if answer is None:
                raise TimeoutError(method)
            if answer.get("id") != wanted:
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']}")
            return answer["result"]

    def receive(self, seconds):
        """The next message, after events have been noted; None when none came in time."""
        while b"\0" not in self.buffer:
            if not select.select([self.incoming], [], [], max(seconds, 0))[0]:
                return None
            piece = os.read(self.incoming, 1 << 16)
            if not piece:
                raise OSError("the browser ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        self.note(message.get("method"), message.get("params", {}))
        return message

    def note(self, event, params):
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif event == "Page.javascriptDialogOpening":
            self.next_id += 1
            answer = {"id": self.next_id, "method": "Page.handleJavaScriptDialog", "sessionId": self.session,
                      "params": {"accept": self.dialog_answer}}
            os.write(self.out, json.dumps(answer).encode() + b"\0")

    def goto(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        """What the JavaScript expression is; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']['exception'].get('description')}")
        return result["result"].get("value")

    def wait(self, expression, seconds=20):
        """Until the expression is true; its value."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.02)
        raise AssertionError(f"never true: {expression}; the page says: {self.value('document.body.innerText')[:600]!r}")

    def click(self, selector):
        place = self.wait(f"""(() => {{
            const e = document.querySelector({json.dumps(selector)});
            if (!e) return null;
            e.scrollIntoView({{block: "nearest"}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const top = document.elementFromPoint(x, y);
            return r.width && top && (top === e || e.contains(top)) ? [x, y] : null; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, selector, text):
        """Into the element, after what it holds was selected."""
        self.click(selector)
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def key(self, key, code=0, **more):
        text = {"text": "\r"} if key == "Enter" else {}
        codes = {"Enter": 13, "Escape": 27, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode=codes.get(key, code), **(text if kind == "keyDown" else {}), **more)

    def choose(self, selector, value):
        """An entry of a select element."""
        self.value(f"""(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};
            e.dispatchEvent(new Event("change", {{bubbles: true}})); }})()""")

    def size(self, width, height, phone=False, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))
