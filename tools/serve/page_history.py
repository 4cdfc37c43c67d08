"""Tests of the chat page: what a reload keeps, the list of conversations, export and import, attached files
(check_page.py)."""

import json
import pathlib
import tempfile

from page_driver import IDLE, LAST, test


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
def a_reload_keeps_the_part_that_came(page):
    page.send("count forever", wait=False)
    page.tab.wait(f"{LAST}?.querySelector('.text').innerText.length > 40")
    before = page.last()
    page.load()
    page.tab.wait("document.querySelectorAll('article').length === 2")
    part = page.last()
    assert before.startswith("tick tick tick") and part.startswith(before), (before, part)
    assert "interrupted" in page.last(".meta"), page.last(".meta")
    page.shot("interrupted")
    page.press("continue")
    page.tab.wait(f"{LAST}.querySelector('.text').innerText.length > {len(part) + 20}")
    page.press("Stop")
    page.tab.wait(IDLE)
    assert page.last().startswith(part) and "stopped" in page.last(".meta")
    page.press("regenerate")
    page.tab.wait(f"{LAST}?.querySelector('.text').innerText.length > 5")
    page.press("Stop")
    page.tab.wait(f"{IDLE} && document.querySelectorAll('.versions').length === 1")
    page.press("Previous version")
    assert page.last().startswith(part)


@test
def rename_and_search(page):
    page.send("Hello")
    page.press("New conversation")
    page.send("second")
    page.press("Rename second")
    page.tab.wait("document.activeElement.closest('#chats') !== null")
    page.tab.call("Input.insertText", text="Of herons")  # the old title was selected
    page.shot("rename")
    page.tab.key("Enter")
    page.tab.wait("document.querySelector('#title').textContent === 'Of herons'")
    page.press("Rename Of herons")
    page.tab.call("Input.insertText", text="dropped")
    page.tab.key("Escape")
    listed = "[...document.querySelectorAll('#chats .open')].map(e => e.textContent)"
    assert page.tab.value(listed) == ["Of herons", "Hello"], page.tab.value(listed)
    page.load()
    page.tab.wait("document.querySelectorAll('#chats li').length === 2")
    for words, titles in (("HERON", ["Of herons"]), ("hello there", ["Hello"]), ("nowhere", []), ("", ["Of herons", "Hello"])):
        page.tab.type("#search", words)
        if not words:
            page.tab.value("document.querySelector('#search').focus()")
            page.tab.key("Escape")
        assert page.tab.value(listed) == titles, (words, page.tab.value(listed))
        found = page.tab.value("document.querySelector('#found').textContent")
        assert found == (f"{len(titles)} of 2 conversations" if words else ""), found


@test
def damaged_history_is_left_alone(page):
    bad = [{"id": "1", "nodes": 5}, {"id": "2", "nodes": [{"role": "user", "content": {"a": 1}, "parent": -1}]},
           {"id": "3", "nodes": [{"role": "user", "content": "x", "parent": 0}]}, {"id": "4", "title": {}, "nodes": [None]}]
    page.tab.value(f"""new Promise(done => {{ const opening = indexedDB.open('dsv4', 1); opening.onsuccess = () => {{
        const writing = opening.result.transaction('conversations', 'readwrite');
        for (const one of {json.dumps(bad)}) writing.objectStore('conversations').put(one);
        writing.oncomplete = () => {{ opening.result.close(); done(true); }}; }}; }})""")
    for text in ("{", '{"a": 1}', "[1, null]", '[{"messages": [{"role": "user", "content": {"a": 1}}]}]'):
        page.tab.value(f"localStorage.setItem('dsv4.chats', {json.dumps(text)}); localStorage.setItem('dsv4.unsaved.x', {json.dumps(text)})")
        page.load()
        page.press("New conversation")
        page.send("Hello")
        assert page.texts() == ["Hello", "Hello there."], (text, page.texts())
    assert page.tab.value("Object.keys(localStorage)") == []


@test
def the_history_of_earlier_pages_is_taken_over(page):
    old = [{"title": "Old", "created": 1, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}]
    page.tab.value(f"localStorage.setItem('dsv4.chats', {json.dumps(json.dumps(old))})")
    page.load()
    page.press("Old")
    assert page.texts() == ["Hi", "Ho"], page.texts()
    assert page.tab.value("localStorage.getItem('dsv4.chats')") is None and page.stored()[0]["title"] == "Old"


@test
def export_and_import(page):
    page.send("Hello")
    page.press("regenerate")
    page.tab.wait(f"{IDLE} && document.querySelectorAll('.versions').length === 1")
    saved = page.tab.value("""new Promise(done => { const make = URL.createObjectURL;
        URL.createObjectURL = blob => { blob.text().then(done); return make(blob); };
        document.querySelector('#export').click(); })""")
    assert len(json.loads(saved)) == 1
    page.press("Delete all")  # asks, and the browser of the tests says yes
    page.tab.wait("document.querySelectorAll('article').length === 0")
    page.load()
    page.tab.wait("new Promise(done => setTimeout(() => done(true), 200))")
    assert page.tab.value("document.querySelectorAll('#chats li').length") == 0, "deleted for good"
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(saved)
        file.flush()
        page.give_files("#file", file.name)
        page.tab.wait("document.querySelectorAll('#chats li').length === 1 && document.querySelectorAll('.versions').length === 1")
        page.give_files("#file", __file__)  # no JSON
        page.tab.wait("document.querySelector('#state').textContent.startsWith('import:')")


@test
def text_files_go_with_a_message(page):
    with tempfile.TemporaryDirectory() as folder:
        notes, binary, large = (pathlib.Path(folder) / name for name in ("notes.txt", "photo.bin", "large.txt"))
        notes.write_text("the word is heron")
        binary.write_bytes(b"\x89PNG\0\xff")
        context = page.tab.value("fetch('/v1/models').then(r => r.json()).then(list => list.data[0].context_length)")
        large.write_text("many words " * (context // 2))
        page.give_files("#attach_file", binary)
        page.tab.wait("document.querySelector('#state').textContent.includes('photo.bin: is no text')")
        page.give_files("#attach_file", large)
        page.tab.wait("/large.txt: its \\d+ tokens do not fit/.test(document.querySelector('#state').textContent)")
        large.write_text("x" * 9 * context)  # refused before it is read
        page.give_files("#attach_file", large)
        page.tab.wait("/large.txt: \\d+ bytes do not fit/.test(document.querySelector('#state').textContent)")
        page.give_files("#attach_file", notes, notes)
        page.tab.wait("document.querySelectorAll('#attached li').length === 2")
        assert "tokens" in page.tab.value("document.querySelector('#attached').innerText")
        page.shot("attached")
        page.press("Remove notes.txt")
        page.tab.wait("document.querySelectorAll('#attached li').length === 1")
        page.send("Which word is it?")
        assert page.last() == "I read the heron.", page.texts()
        assert page.tab.value("document.querySelector('#attached').hidden && document.querySelectorAll('article.user .files li').length === 1")
        page.press("edit", within="document.querySelector('article')")
        page.tab.wait("document.querySelectorAll('#attached li').length === 1")  # an edited message keeps its files
        page.tab.key("Escape")
        page.tab.wait("document.querySelector('#attached').hidden")
        drop(page, notes)
        page.tab.wait("document.querySelectorAll('#attached li').length === 1")


def drop(page, path):
    data = {"items": [], "files": [str(path)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        page.tab.call("Input.dispatchDragEvent", type=kind, x=600, y=400, data=data)
