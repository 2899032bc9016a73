"""The book of the documentation, built by mdBook; every link of it leads somewhere.

usage: book.py MDBOOK

A link out of the book (`../`) is one to a file of the repository, which must be there. Prints `test NAME ... ok` or `... FAILED` with the reason below it,
and `N passed, N failed, N skipped` at the end.
"""

import html.parser
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, file):
        super().__init__()
        self.links, self.anchors = set(), {"top"}
        self.feed(file.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and tag in ("a", "img", "script", "link") and value:
                self.links.add(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


def built(mdbook, folder):
    """mdBook builds it without an error or a warning, and each page of the summary is there."""
    done = subprocess.run([mdbook, "build", "--dest-dir", str(folder), str(ROOT)], capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and not re.search(r"WARN|ERROR", said), said
    pages = re.findall(r"\]\((\w[\w-]*)\.md\)", (ROOT / "docs/SUMMARY.md").read_text())
    # README is the first page.
    lacking = [page for page in pages if not (folder / f"{page.replace('README', 'index')}.html").is_file()]
    assert len(pages) > 20 and not lacking, f"not in the book: {lacking}"


def links(_mdbook, folder):
    """Each link leads to a page and an anchor of the book, or to a file of the repository."""
    pages = {file: Page(file) for file in folder.glob("*.html")}
    faults, seen = set(), 0
    for file, page in pages.items():
        # All pages in one, with anchors of its own; and the page that a server shows for what is not there.
        if file.name in ("print.html", "404.html"):
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            seen += 1
            path = urllib.parse.unquote(parts.path)
            if path.startswith("../"):
                there = ROOT / "docs" / path
                if not there.exists() and not there.with_suffix(".md").exists():
                    faults.add(f"{file.name}: {link} is no file of the repository")
                continue
            to = folder / path if path else file
            if not to.exists():
                faults.add(f"{file.name}: {link} leads nowhere")
            elif parts.fragment and to in pages and urllib.parse.unquote(parts.fragment) not in pages[to].anchors:
                faults.add(f"{file.name}: {link} has no such anchor")
    assert seen > 500 and not faults, f"{seen} links; " + "\n".join(sorted(faults))


def main():
    mdbook = os.path.abspath(sys.argv[1])
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="nvcap-book-") as folder:
        for test in (built, links):
            try:
                test(mdbook, Path(folder))
                passed += 1
                print(f"test book::{test.__name__} ... ok")
            except Exception as e:  # noqa: BLE001 - told, and counted
                failed += 1
                print(f"test book::{test.__name__} ... FAILED")
                for line in f"{type(e).__name__}: {e}".splitlines():
                    print(f"    {line}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
