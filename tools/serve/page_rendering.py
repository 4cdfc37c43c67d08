"""Tests of the chat page: what the model writes as elements, hostile text, widths, themes, keyboard and screen readers
(check_page.py)."""

from page_driver import IDLE, LAST, test


@test
def markdown(page):
    page.send("How do I store a cache?")
    for selector, number in (("h3", 1), ("table", 1), ("tr", 3), ("th", 3), ("ol li", 2), ("ol", 1), ("strong", 1), ("em", 1),
                             ("pre", 1), ("blockquote a[rel~=noreferrer]", 1)):
        assert page.count(selector) == number, selector
    assert page.tab.value(f"getComputedStyle({LAST}.querySelector('td:nth-child(2)')).textAlign") == "right"
    page.press("copy", within="document.querySelector('.code')")
    page.press("copied", within="document.querySelector('.code')")
    page.shot("markdown")


@test
def nested_lists_and_tasks(page):
    page.send("nested lists")
    for selector, number in (("ul > li > ol > li > ul > li", 1), ("ul > li > ol > li", 2), ("ul > li > p", 3),
                             ("li.task > input[type=checkbox]:disabled", 2), ("input:checked[aria-label=done]", 1)):
        assert page.count(selector) == number, (selector, page.count(selector))
    assert "[x]" not in page.last() and "done" in page.last()
    page.shot("lists")


@test
def formulas(page):
    page.send("formulas")
    page.tab.wait(f"{LAST}.querySelectorAll('.katex').length === 5")
    sources = page.tab.value(f"[...{LAST}.querySelectorAll('annotation')].map(e => e.textContent.trim())")  # in the MathML
    assert sources == ["a^2", "b_i", "c", "\\int_0^1 x\\,dx\n= \\frac{1}{2}", "E = mc^2"], sources
    assert page.count(".katex-display") == 3 and page.count("li .katex-display") == 1
    text = page.last()
    assert "cost $5 and $10, $3-$4, " in text and "$x$" in text, text  # no formulas
    assert page.tab.value(f"{LAST}.querySelector('code').textContent") == "$code$"
    assert page.tab.value(f"{LAST}.querySelector('.math.unread').textContent") == "\\undefinedcommand"
    page.tab.wait("document.fonts.check('16px KaTeX_Math')")
    page.shot("formulas")


@test
def colors_of_code(page):
    page.send("code please")
    page.tab.wait(f"{LAST}.querySelectorAll('.hljs-keyword').length >= 3")
    assert page.tab.value(f"{LAST}.querySelector('.hljs-comment').textContent") == "# a comment"
    plain, keyword = page.tab.value(f"""[{LAST}.querySelector('code'), {LAST}.querySelector('.hljs-keyword')]
        .map(e => getComputedStyle(e).color)""")
    assert plain != keyword
    assert page.count("pre") == 3 and "nolanguage" in page.last()
    page.shot("code")


@test
def blocks_that_are_complete_keep_their_elements(page):
    """While an answer grows, a selection in what came before must stay."""
    page.send("How do I store a cache?", wait=False)
    page.tab.wait(f"{LAST}?.querySelector('.text h3 + *')")
    page.tab.value(f"window.heading = {LAST}.querySelector('.text h3'); getSelection().selectAllChildren(window.heading)")
    page.tab.wait(IDLE)
    assert page.tab.value(f"window.heading === {LAST}.querySelector('.text h3') && window.heading.isConnected")
    assert page.tab.value("getSelection().toString()") == "Two ways to store a cache"


@test
def hostile_text_is_inert(page):
    page.send("hostile")
    page.tab.wait(f"{LAST}.querySelectorAll('.hljs-tag').length && {LAST}.querySelectorAll('.katex').length")
    for selector in ("img", "script", "iframe", "object", "style", "b", "a img", "[onerror]", "[onclick]", "[onmouseover]",
                     "sub[onclick]", "p [style*=fixed]", "[src]", "[srcdoc]", "[id]"):
        assert page.count(selector) == 0, selector
    links = page.tab.value(f"[...{LAST}.querySelectorAll('.text a')].map(a => a.href)")
    assert links and all(link.startswith("https://example.org/") for link in links), links
    assert page.tab.value(f"[...{LAST}.querySelectorAll('.text a')].every(a => a.rel === 'noreferrer noopener')")
    assert page.count("sub") == 1 and page.count("p br") >= 1  # those without attributes
    page.tab.wait("new Promise(done => setTimeout(() => done(true), 200))")
    assert page.tab.value("window.hacked") is None
    page.shot("hostile")


@test
def the_policy_runs_no_other_script(page):
    """The last gate: even an element that reaches the page runs nothing."""
    refused = page.tab.value("""(() => { const refused = [], all = [
        () => { const e = document.createElement('div'); e.innerHTML = '<img src=x onerror=window.hacked=1>'; document.body.append(e); },
        () => { const e = document.createElement('script'); e.text = 'window.hacked=2'; document.body.append(e); },
        () => { setTimeout('window.hacked=3'); }];
        for (const one of all) try { one(); refused.push(false); } catch { refused.push(true); }
        const e = document.createElement('div'); e.setAttribute('style', 'color: red'); document.body.append(e);
        refused.push(getComputedStyle(e).color !== 'rgb(255, 0, 0)'); e.remove();
        return refused; })()""")
    assert refused == [True, True, True, True], refused
    assert page.tab.value("window.hacked") is None
    page.tab.problems.clear()  # the browser notes each refusal


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
