#!/usr/bin/env python3
"""The web page in headless Chromium, against `dsv4 serve` with a scripted engine. Ends with "N passed, N failed".

    tools/serve/check_page.py BINARY [--screenshots FOLDER] [--only TEST]

The tests are in page_answers.py, page_rendering.py and page_history.py, those that need a server of their own are here.
Exit status 77: there is no Chromium (tools/setup.sh serve installs Debian's)."""

import argparse
import sys
import tempfile
import traceback

import browser
import page_answers  # noqa: F401  lists its tests
import page_history  # noqa: F401
import page_rendering  # noqa: F401
from page_driver import SCRIPT, Page, tests
from server import Server, write_script

KEY = "a-key-of-the-test"
PAINT_MS = 200


def key_needed(program, binary, script):
    server = Server(binary, "--engine", f"script:{script}", environment={"DSV4_API_KEY": KEY})
    with Page(program, server, None) as page:
        page.tab.wait("document.querySelector('#state').textContent.includes('API key')")
        page.open_settings()
        page.tab.type("#key", KEY)
        page.tab.key("Tab")
        page.tab.wait("document.querySelector('#state').textContent === 'demo'")
        page.send("Hello")
        assert page.last() == "Hello there."
        page.tab.goto(server.url + "/")  # kept for this tab only, and never with the history
        page.tab.wait("document.querySelector('#state').textContent === 'demo'")
        assert KEY not in page.tab.value("JSON.stringify(localStorage)") + str(page.stored())
        page.tab.open_tab()
        page.tab.goto(server.url + "/")
        page.tab.wait("document.querySelector('#state').textContent.includes('API key')")
        page.tab.problems.clear()  # the browser notes each 401
    server.stop()


def server_that_breaks(program, binary, script):
    """An error inside the stream is shown after what came before it, and the page finds the next server."""
    server = Server(binary, "--engine", f"script:{script}")
    with Page(program, server, None) as page:
        page.send("fault")
        assert "some" in page.last() and page.last(".error"), page.texts()
        page.tab.problems.clear()
    server.process.wait(30)


def first_paint(program, binary, script):
    """The page is painted within 200 ms of its request on loopback. The best of up to twenty loads counts: the machine may be busy."""
    server = Server(binary, "--engine", f"script:{script}")
    with Page(program, server, None) as page:
        times = [PAINT_MS]
        while len(times) <= 20 and min(times) >= PAINT_MS:
            page.load()
            times.append(page.tab.wait("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        print(f"       first paint after {min(times):.0f} ms", flush=True)
        assert min(times) < PAINT_MS, times
    server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--screenshots")
    parser.add_argument("--only")
    options = parser.parse_args()
    program = browser.chromium()
    if not program:
        print("there is no Chromium")
        return 77
    failed = passed = 0
    with tempfile.TemporaryDirectory() as folder:
        script = write_script(folder, SCRIPT)
        server = Server(options.binary, "--engine", f"script:{script}", "--max-batch", "8")

        def on_shared_server(function):
            def run():
                with Page(program, server, options.screenshots) as page:
                    function(page)
            return function.__name__, run
        runs = [on_shared_server(function) for function in tests]
        runs += [(f.__name__, lambda f=f: f(program, options.binary, script)) for f in (key_needed, server_that_breaks, first_paint)]
        for name, run in runs:
            if options.only and name != options.only:
                continue
            try:
                run()
                passed += 1
                print(f"ok     {name}", flush=True)
            except Exception as problem:  # whatever goes wrong in the browser is a finding
                failed += 1
                place = traceback.extract_tb(problem.__traceback__)
                line = next((one.lineno for one in place if one.name == name), 0)
                print(f"FAILED {name}, line {line}: {type(problem).__name__}: {str(problem)[:600]}", flush=True)
        server.stop()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
