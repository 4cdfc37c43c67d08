#!/usr/bin/env python3
"""The web page in headless Chromium, against `dsv4 serve` with a scripted engine. Ends with "N passed, N failed".

    tools/serve/check_page.py BINARY [--screenshots FOLDER]

Exit status 77: there is no Chromium (tools/setup.sh serve installs Debian's)."""

import argparse
import json
import pathlib
import sys
import tempfile
import traceback

import browser
from server import Server, write_script

CALL = ('<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo'
        '</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n</｜DSML｜tool_calls>')
TABLE = """## Two ways to store a cache

| entry | bytes | exact |
|:------|------:|-------|
| packed E4M3 | 584 | yes |
| `bf16` | 1024 | yes |

1. Count the **pages**, not the tokens.
2. A page holds *64* entries:

```python
pages = -(-tokens // 64)
print(pages * 64 * 584)
```

> Compressed layers hold fewer: see [the specification](https://example.org/spec).
"""
HOSTILE = ('<img src=x onerror="document.title=1"> <script>document.title=2</script> [a](javascript:document.title=3) '
           '[b](https://example.org/"onmouseover="document.title=4) `<b>` ![c](https://example.org/c.png)')
# The first line whose "match" is in the prompt answers, and the prompt has the whole conversation.
SCRIPT = [
    {"match": "second", "output": "The second answer."},
    {"match": "rain tomorrow</tool_result>", "output": "That is clear.</think>\n\nOslo will have sun today and rain tomorrow."},
    {"match": "tool_result", "output": "Sun in both."},
    {"match": "weather in Oslo", "output": "The user wants a forecast: two days in Oslo.</think>\n\nI look it up.\n\n" + CALL,
     "step_ms": 5},
    {"match": "two calls", "output": "\n\n" + CALL.replace("\n</｜DSML｜tool_calls>", "\n" + CALL.split("\n", 1)[1])},
    {"match": "cut inside", "output": "\n\n" + CALL[:CALL.index("slo")], "finish": "length"},
    {"match": "ponder", "output": "Hm, that is hard.</think>\n\nForty-two.", "step_ms": 5},
    {"match": "forever", "output": "tick ", "repeat": 5000, "step_ms": 20},
    {"match": "fault", "output": "some words before the end", "fault_after": 3},
    {"match": "hostile", "output": HOSTILE},
    {"match": "store a cache", "output": TABLE, "step_ms": 5},
    {"output": "Hello there."},
]
KEY = "a-key-of-the-test"
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}])
IDLE = "!document.querySelector('#stop').offsetParent"
LAST = "[...document.querySelectorAll('article')].at(-1)"

tests = []


def test(function):
    tests.append(function)
    return function


class Page:
    """The page of one server in a browser of its own: no history, no settings."""

    def __init__(self, program, server, screenshots):
        self.tab, self.server, self.screenshots = browser.Browser(program), server, screenshots
        self.tab.size(1100, 760)
        self.load()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.expect_quiet()
        finally:
            self.tab.close()

    def load(self):
        self.tab.goto(self.server.url + "/")
        self.tab.wait("document.querySelector('#state').textContent !== 'connecting'")

    def expect_quiet(self):
        """No exception, no refusal by the page's policy, no request to another place."""
        assert not self.tab.problems, self.tab.problems
        outside = [url for url in self.tab.requests if not url.startswith((self.server.url, "blob:" + self.server.url))]
        assert not outside, outside

    def send(self, text, wait=True):
        self.tab.type("#input", text)
        self.tab.key("Enter")
        if wait:
            self.tab.wait(f"{IDLE} && {LAST}?.className === 'assistant'")

    def open_settings(self):
        if not self.tab.value("document.querySelector('aside details').open"):
            self.tab.click("aside summary")

    def set(self, **values):
        for key, value in values.items():
            self.tab.value(f"(() => {{ const e = document.getElementById({json.dumps(key)}); e.value = {json.dumps(value)};"
                           " e.dispatchEvent(new Event('change', {bubbles: true})); })()")

    def last(self, selector=".text"):
        return self.tab.value(f"{LAST}?.querySelector({json.dumps(selector)})?.innerText ?? null")

    def texts(self):
        return self.tab.value("[...document.querySelectorAll('article .text')].map(e => e.innerText)")

    def press(self, label, within="document"):
        """The button with this text, the last where there are several."""
        self.tab.wait(f"""(() => {{ const all = [...{within}.querySelectorAll('button')].filter(
            b => (b.textContent.trim() === {json.dumps(label)} || b.ariaLabel === {json.dumps(label)}) && b.offsetParent);
            document.querySelectorAll('[data-press]').forEach(e => delete e.dataset.press);
            if (!all.length) return false; all.at(-1).dataset.press = 1; return true; }})()""")
        self.tab.click("[data-press]")

    def shot(self, name):
        if self.screenshots:
            self.tab.screenshot(pathlib.Path(self.screenshots) / f"{name}.png")


@test
def send(page):
    page.send("Hello")
    assert page.texts() == ["Hello", "Hello there."], page.texts()
    stats = page.last(".meta")
    assert stats.startswith("6 tokens, ") and "cached" in stats, stats
    assert page.tab.value("document.querySelector('#title').textContent") == "Hello"
    assert page.tab.value("document.activeElement.id") == "input"
    page.shot("send")


@test
def stream_and_stop(page):
    page.send("count forever", wait=False)
    page.tab.wait(f"{LAST}?.querySelector('.text').innerText.length > 20")
    first = len(page.last())
    page.tab.wait(f"{LAST}.querySelector('.text').innerText.length > {first}")  # it grows
    page.shot("stream")
    page.press("Stop")
    page.tab.wait(IDLE)
    length = len(page.last())
    page.tab.wait("new Promise(done => setTimeout(() => done(true), 300))")
    assert len(page.last()) == length
    page.tab.wait("fetch('/metrics').then(r => r.text()).then(t => t.includes('dsv4_requests_running 0'))")
    stats = page.last(".meta")
    assert stats.startswith("stopped, ") and "tok/s" in stats, stats
    page.send("second")  # the conversation goes on
    assert page.last() == "The second answer."


@test
def regenerate(page):
    page.send("Hello")
    page.press("regenerate")
    page.tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 2")
    assert page.texts() == ["Hello", "Hello there."], page.texts()


@test
def edit(page):
    page.send("Hello")
    page.send("More")
    page.press("edit", within="document.querySelector('article')")
    assert page.tab.value("document.querySelector('#input').value") == "Hello"
    assert len(page.texts()) == 4, "editing must not drop messages before it is sent"
    page.shot("edit")
    page.tab.key("Escape")  # leaves all as it was
    assert page.tab.value("document.querySelector('#input').value") == "" and len(page.texts()) == 4
    page.press("edit", within="document.querySelector('article')")
    page.send("The second question")
    assert page.texts() == ["The second question", "The second answer."], page.texts()


@test
def thinking(page):
    page.set(effort="high")
    page.send("ponder this")
    assert page.last() == "Forty-two."
    summary = page.last("summary")
    assert summary.startswith("Thought for ") and "tokens" in summary, summary
    assert not page.tab.value(f"{LAST}.querySelector('details').open")
    page.tab.click("article details summary")
    assert page.last("details div") == "Hm, that is hard."
    page.shot("thinking")


@test
def tool_card(page):
    page.set(effort="high", tools=TOOLS)
    page.send("weather in Oslo?")
    assert page.last(".card strong") == "weather"
    assert json.loads(page.last(".card pre code")) == {"city": "Oslo", "days": 2}
    page.send("and now?", wait=False)  # refused: the call has no result yet
    assert len(page.texts()) == 2 and "result" in page.tab.value("document.querySelector('#state').textContent")
    page.tab.type(".card textarea", "sun; rain tomorrow")
    page.shot("tool")
    page.press("Continue with this result")
    page.tab.wait(f"{IDLE} && document.querySelectorAll('article').length === 3")
    assert page.last() == "Oslo will have sun today and rain tomorrow.", page.texts()
    page.shot("tool_answered")


@test
def two_calls(page):
    page.set(tools=TOOLS)
    page.send("two calls")
    assert page.tab.value("document.querySelectorAll('.card textarea').length") == 2
    for _ in range(2):
        page.tab.type(".card textarea", "sun")
        page.tab.click(".card textarea + button")
    page.tab.wait(f"{IDLE} && {LAST}.className === 'assistant' && document.querySelectorAll('article').length === 3")
    assert page.last() == "Sun in both.", page.texts()


@test
def a_cut_call_does_not_block(page):
    page.set(tools=TOOLS)
    page.send("cut inside")
    assert "limit" in page.last(".meta"), page.last(".meta")
    page.send("second")
    assert page.last() == "The second answer.", page.texts()


@test
def markdown(page):
    page.send("How do I store a cache?")
    count = "(s => " + LAST + ".querySelectorAll(s).length)"
    for selector, number in (("h3", 1), ("table", 1), ("tr", 3), ("th", 3), ("ol li", 2), ("ol", 1), ("strong", 1), ("em", 1),
                             ("pre", 1), ("blockquote a[rel~=noreferrer]", 1)):
        assert page.tab.value(f"{count}({json.dumps(selector)})") == number, selector
    page.press("copy", within="document.querySelector('.code')")
    page.press("copied", within="document.querySelector('.code')")
    page.shot("markdown")


@test
def the_models_text_is_no_html(page):
    page.tab.value("document.title = 'dsv4 chat'")
    page.send("hostile")
    assert page.tab.value(f"{LAST}.querySelectorAll('.text img, .text script, .text b').length") == 0
    links = page.tab.value(f"[...{LAST}.querySelectorAll('.text a')].map(a => a.protocol)")
    assert all(link == "https:" for link in links), links
    assert page.tab.value(f"{LAST}.querySelectorAll('[onmouseover]').length") == 0
    assert page.tab.value("document.title") == "dsv4 chat"


@test
def reload_keeps_history(page):
    page.send("Hello")
    page.press("New conversation")
    page.send("second")
    page.load()
    page.tab.wait("document.querySelectorAll('#chats li').length === 2")
    assert page.texts() == ["second", "The second answer."], page.texts()
    page.press("Hello")
    assert page.texts() == ["Hello", "Hello there."], page.texts()
    page.press("Delete Hello")
    page.tab.wait("document.querySelectorAll('#chats li').length === 1")
    assert page.texts() == ["second", "The second answer."], page.texts()


@test
def damaged_history_is_left_alone(page):
    for text in ("{", '{"a": 1}', "[1, null]", '[{"messages": [{"role": "user", "content": {"a": 1}}]}]',
                 '[{"title": {}, "messages": [null]}]'):
        page.tab.value(f"localStorage.setItem('dsv4.chats', {json.dumps(text)})")
        page.tab.goto(page.server.url + "/")
        page.send("Hello")
        assert page.texts()[-1] == "Hello there.", (text, page.texts())


@test
def export_and_import(page):
    page.send("Hello")
    saved = page.tab.value("localStorage.getItem('dsv4.chats')")
    assert len(json.loads(saved)) == 1
    page.press("Delete all")  # asks, and check_page says yes
    page.tab.wait("document.querySelectorAll('article').length === 0")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(saved)
        file.flush()
        root = page.tab.call("DOM.getDocument")["root"]["nodeId"]
        node = page.tab.call("DOM.querySelector", nodeId=root, selector="#file")["nodeId"]
        page.tab.call("DOM.setFileInputFiles", nodeId=node, files=[file.name])
        page.tab.wait("[...document.querySelectorAll('#chats li')].some(e => e.innerText.includes('Hello'))")
        page.tab.call("DOM.setFileInputFiles", nodeId=node, files=[__file__])  # no JSON
        page.tab.wait("document.querySelector('#state').textContent.startsWith('import:')")
    page.press("Export")


@test
def the_servers_errors_are_shown(page):
    page.open_settings()
    page.set(temperature="9")
    page.send("Hello")
    assert "temperature" in page.last(".error"), page.last(".error")
    page.shot("error")
    page.set(temperature="")
    page.send("second")  # an answer that failed is no turn of the history
    assert page.last() == "The second answer."
    page.set(tools="[{")
    page.send("third", wait=False)
    page.tab.wait("document.querySelector('#state').textContent.startsWith('tools:')")
    assert page.tab.value(IDLE)
    page.tab.problems.clear()  # the browser notes the 400


@test
def keyboard_and_names(page):
    """Everything has a name for a screen reader, and is reached with the keyboard."""
    page.open_settings()
    nameless = page.tab.value("""[...document.querySelectorAll('button, input, textarea, select, meter')].filter(e =>
        e.offsetParent && !(e.ariaLabel || e.labels?.length || e.textContent.trim() || e.title)).map(e => e.outerHTML)""")
    assert not nameless, nameless
    tree = page.tab.call("Accessibility.getFullAXTree")["nodes"]
    bare = [n["role"]["value"] for n in tree if n.get("role", {}).get("value") in ("button", "textbox", "combobox", "spinbutton")
            and not n.get("ignored") and not n.get("name", {}).get("value")]
    assert not bare, bare
    page.tab.value("document.activeElement.blur()")
    seen = set()
    for _ in range(20):
        page.tab.key("Tab")
        seen.add(page.tab.value("document.activeElement.id"))
    assert {"new", "input", "effort", "key", "export"} <= seen, seen
    page.send("count forever", wait=False)
    page.tab.wait("document.querySelector('#log').getAttribute('aria-busy') === 'true'")
    page.tab.key("Escape")
    page.tab.wait(f"{IDLE} && document.querySelector('#log').getAttribute('aria-busy') === 'false'")


@test
def narrow_screen(page):
    page.tab.size(360, 640, phone=True)
    page.send("How do I store a cache?")
    wide = page.tab.value("document.documentElement.scrollWidth")
    over = page.tab.value("""[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 360.5 &&
        !e.closest('.table, pre')).map(e => e.tagName + '#' + e.id + '.' + e.className)""")
    assert wide <= 360 and not over, f"{wide} pixels wide: {over}"
    assert page.tab.value("getComputedStyle(document.querySelector('aside')).display") == "none"
    page.tab.value("document.querySelector('#log').scrollTop = 0")
    page.shot("narrow")
    page.tab.click("#menu")
    page.tab.wait("document.querySelector('aside').offsetParent !== null || document.querySelector('aside').offsetWidth > 0")
    page.open_settings()
    page.shot("narrow_menu")
    page.press("Close")
    page.tab.wait("getComputedStyle(document.querySelector('aside')).display === 'none'")
    page.tab.click("#menu")
    page.press("New conversation")
    page.tab.wait("document.querySelectorAll('article').length === 0")


@test
def dark(page):
    page.tab.scheme("dark")
    page.send("How do I store a cache?")
    page.shot("dark")
    page.set(theme="light")
    assert page.tab.value("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


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
        assert KEY not in page.tab.value("JSON.stringify(localStorage)")
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
        runs += [(f.__name__, lambda f=f: f(program, options.binary, script)) for f in (key_needed, server_that_breaks)]
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
                line = next((one.lineno for one in place if one.filename == __file__ and one.name == name), 0)
                print(f"FAILED {name}, line {line}: {type(problem).__name__}: {str(problem)[:600]}", flush=True)
        server.stop()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
