"""The chat page of one server in a browser of its own, as the tests of check_page.py use it: `Page`, the decorator `test`
that lists a test, and what the scripted engine answers."""

import json
import pathlib

import browser

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
MATH = r"""Inline $a^2$, \(b_i\) and $$c$$ cost $5 and $10, $3-$4, `$code$`, \$x\$.

$$
\int_0^1 x\,dx
= \frac{1}{2}
$$

- in a list:
  \[
  E = mc^2
  \]

Bad: $\undefinedcommand$.
"""
LISTS = """- one
  1. inner
     - deepest
  2. second

  A paragraph of the first item.
- two

Tasks:

- [x] done
- [ ] open
"""
CODE = """```python
def f(x):
    return "text"  # a comment
```

```cuda
__global__ void kernel(float* x);
```

```nolanguage
plain
```
"""
HOSTILE = r"""<img src=x onerror="window.hacked=1"> <script>window.hacked=2</script> <svg onload=window.hacked=3>
<iframe srcdoc="<script>parent.hacked=4</script>"></iframe> <b style="position:fixed">bold</b>

[a](javascript:window.hacked=5) [b](https://example.org/"onmouseover="window.hacked=6) <https://example.org/ok>
[c](data:text/html,<script>opener.hacked=7</script>) [d](vbscript:x) [e](JaVaScRiPt:window.hacked=8) [f]( javascript:window.hacked=9)
[g](&#106;avascript:window.hacked=10) ![picture](https://example.org/c.png) ![h](data:image/png;base64,AAAA) [i]: javascript:window.hacked=11

<sub onclick="window.hacked=12">sub</sub> x<sub>2</sub><br>y

$\href{javascript:window.hacked=13}{x}$ $\includegraphics{https://example.org/x.png}$ $\htmlStyle{position:fixed}{x}$
$\fcolorbox{red}{yellow}{x}$ $\pmb{x}$ $\text{<img src=x onerror=window.hacked=14>}$

```html"onmouseover="window.hacked=15
<img src=x onerror="window.hacked=16"><script>window.hacked=17</script>
```

```html
<img src=x onerror="window.hacked=18">
```

| <img src=x onerror=window.hacked=19> | b |
|:-:|--:|
| [x](javascript:window.hacked=20) | y |
"""
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
    {"match": "formulas", "output": MATH, "step_ms": 2},
    {"match": "nested lists", "output": LISTS, "step_ms": 2},
    {"match": "code please", "output": CODE, "step_ms": 2},
    {"match": "</think>Once upon", "output": " a time."},
    {"match": "tell a tale", "output": "\n\nOnce upon", "finish": "length"},
    {"match": "<think>I think", "output": " so.</think>\n\nYes."},
    {"match": "deep thought", "output": "I think", "finish": "length"},
    {"match": "[file name]: notes.txt\n[file content begin]\nthe word is heron", "output": "I read the heron."},
    {"match": "store a cache", "output": TABLE, "step_ms": 5},
    {"output": "Hello there."},
]
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

    def stored(self):
        """The conversations in the browser's database, when all writes are done."""
        return self.tab.value("""new Promise((resolve, reject) => { const opening = indexedDB.open('dsv4', 1);
            opening.onerror = () => reject(opening.error); opening.onsuccess = () => {
                const all = opening.result.transaction('conversations').objectStore('conversations').getAll();
                all.onsuccess = () => { opening.result.close(); resolve(all.result); }; }; })""")

    def give_files(self, selector, *paths):
        root = self.tab.call("DOM.getDocument")["root"]["nodeId"]
        node = self.tab.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.tab.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def state(self):
        return self.tab.value("document.querySelector('#state').textContent")

    def count(self, selector):
        """Elements of the last message's text."""
        return self.tab.value(f"{LAST}.querySelectorAll('.text ' + {json.dumps(selector)}).length")

    def shot(self, name):
        if self.screenshots:
            self.tab.screenshot(pathlib.Path(self.screenshots) / f"{name}.png")
