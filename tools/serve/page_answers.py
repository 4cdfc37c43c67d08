"""Tests of the chat page: sending, streaming, stopping, continuing, thinking, and calls of tools (check_page.py)."""

import json

from page_driver import IDLE, LAST, TOOLS, test


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
def continues_a_cut_answer(page):
    page.send("tell a tale")
    assert page.last() == "Once upon" and "limit" in page.last(".meta"), page.last(".meta")
    page.press("continue")
    page.tab.wait(f"{IDLE} && {LAST}.querySelector('.text').innerText === 'Once upon a time.'")
    assert len(page.texts()) == 2 and "limit" not in page.last(".meta"), page.last(".meta")
    assert not page.tab.value("[...document.querySelectorAll('button')].some(b => b.textContent === 'continue')")


@test
def continues_inside_the_thinking(page):
    page.set(effort="high", tools=TOOLS)  # a continued answer is requested without tools
    page.send("deep thought")
    assert page.last("details div") == "I think" or page.tab.value(f"{LAST}.querySelector('details div').textContent") == "I think"
    page.press("continue")
    page.tab.wait(f"{IDLE} && {LAST}.querySelector('.text').innerText === 'Yes.'")
    assert page.tab.value(f"{LAST}.querySelector('details div').textContent") == "I think so."


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
def switches_between_versions(page):
    """An edited message and a regenerated answer are new versions; the old ones keep what followed them."""
    page.send("Hello")
    page.send("More")
    page.press("edit", within="document.querySelector('article')")
    page.send("The second question")
    assert page.texts() == ["The second question", "The second answer."], page.texts()
    page.press("Previous version")
    assert page.texts() == ["Hello", "Hello there.", "More", "Hello there."], page.texts()
    assert page.tab.value("document.activeElement.ariaLabel") == "Previous version", "the focus stays on the button"
    page.press("Next version")
    assert page.texts() == ["The second question", "The second answer."], page.texts()
    page.press("regenerate")
    page.tab.wait(f"{IDLE} && document.querySelectorAll('.versions').length === 2")
    page.press("Previous version")
    page.shot("versions")
    page.load()  # what was on the screen is there again
    page.tab.wait("document.querySelectorAll('article').length === 2")
    groups = page.tab.value("[...document.querySelectorAll('.versions')].map(e => e.ariaLabel)")
    assert groups == ["Version 2 of 2", "Version 1 of 2"], groups
    assert len(page.stored()[0]["nodes"]) == 7


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
