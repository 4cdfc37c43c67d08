#!/usr/bin/env python3
"""Makes docs/figures/{page,page_phone,terminal_chat}.png: tools/serve/figures.py BINARY. The page's answers are scripted
(the script of page_driver.py), the terminal's are the bundled model's."""

import fcntl
import html
import os
import pathlib
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time

import browser
from page_driver import SCRIPT, TOOLS, Page
from server import Server, write_script

FIGURES = pathlib.Path(__file__).parents[2] / "docs/figures"
COLUMNS, ROWS = 88, 24
STYLES = {"1": "font-weight:bold", "2": "opacity:.6", "3": "font-style:italic", "31": "color:#ff8a80", "32": "color:#9ece6a",
          "36": "color:#7dcfff"}


def page_figures(program, binary):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(binary, "--engine", f"script:{write_script(folder, SCRIPT)}")
        with Page(program, server, None) as page:
            page.tab.size(960, 640)
            page.set(effort="high", tools=TOOLS)
            page.send("What is the weather in Oslo?")
            page.tab.type(".card textarea", "sun; rain tomorrow")
            page.press("Continue with this result")
            page.tab.wait("document.querySelectorAll('article').length === 3 && !document.querySelector('#stop').offsetParent")
            page.tab.click("article details summary")
            page.tab.value("document.activeElement.blur()")
            page.tab.screenshot(FIGURES / "page.png")
            page.tab.value("localStorage.clear()")
            page.tab.size(390, 720, phone=True)
            page.tab.scheme("dark")
            page.load()
            page.press("Conversations and settings")
            page.press("New conversation")
            page.send("How do I store a cache?")
            page.tab.value("document.activeElement.blur()")
            page.tab.screenshot(FIGURES / "page_phone.png")
        server.stop()


def terminal_text(binary, lines):
    """What `dsv4 chat demo` writes on a terminal while the lines are typed, each after the answer to the one before."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(binary, ["dsv4", "chat", "demo"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    out = b""

    def read_until_prompt():
        nonlocal out
        begin, end = len(out), time.monotonic() + 60
        while time.monotonic() < end and not out[begin:].endswith(b"> "):
            if select.select([terminal], [], [], 0.2)[0]:
                out += os.read(terminal, 1 << 16)

    read_until_prompt()
    for line in lines:
        os.write(terminal, line.encode() + b"\r")
        read_until_prompt()
    os.write(terminal, b"\x04")
    os.close(terminal)
    os.waitpid(child, 0)
    return "$ dsv4 chat demo\n" + out.decode().replace("\r", "")


def as_html(text):
    """Colors and weights as spans; other control sequences are left out."""
    out, spans = [], 0
    for piece in re.split(r"(\x1b\[[0-9;?]*[A-Za-z])", text):
        if not piece.startswith("\x1b"):
            out.append(html.escape(piece))
        elif piece.endswith("m"):
            codes = piece[2:-1].split(";")
            if codes[0] in ("", "0"):
                out.append("</span>" * spans)
                spans = 0
            else:
                out.append(f'<span style="{";".join(STYLES.get(c, "") for c in codes)}">')
                spans += 1
    return "".join(out)


def terminal_figure(program, binary):
    text = terminal_text(binary, ["Tell me a story about a fox.", "/stats", "/retry", "/help"]).rstrip("> \n")
    tab = browser.Browser(program)
    tab.size(760, 620)
    tab.call("Page.navigate", url="about:blank")
    content = f"""<body style="margin:0;background:#1a1b26"><pre style="margin:0;padding:16px;color:#d5d9e8;width:{COLUMNS}ch;
        font:13px/1.45 'DejaVu Sans Mono',monospace;white-space:pre-wrap;box-sizing:content-box">{as_html(text)}</pre></body>"""
    frame = tab.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
    tab.call("Page.setDocumentContent", frameId=frame, html=content)
    size = tab.value("(() => { const r = document.querySelector('pre').getBoundingClientRect(); return [r.width, r.height]; })()")
    tab.size(int(size[0]) + 1, int(size[1]) + 1)
    tab.screenshot(FIGURES / "terminal_chat.png")
    tab.close()


def main():
    binary = str(pathlib.Path(sys.argv[1]).absolute())
    program = browser.chromium()
    if not program:
        sys.exit("there is no Chromium")
    FIGURES.mkdir(exist_ok=True)
    page_figures(program, binary)
    terminal_figure(program, binary)


if __name__ == "__main__":
    main()
