"""`nvcap study` on a GPU: whether what it finds agrees with `nvcap stats`, with the graphs that were made, and with itself.

    python3 study.py NVCAP FOLDER        # as root; a minute and a half on an H200; writes both studies into FOLDER

Exit status 1 where something does not hold.
"""

import json
import pathlib
import subprocess
import sys

FAILED = []


def check(what, holds, said=""):
    print(f"{'ok' if holds else 'FAILED'}: {what}{': ' if said else ''}{said}")
    if not holds:
        FAILED.append(what)


def dma(nvcap, folder):
    """Copies: the sizes at which CUDA changes its means are those that stats finds in the same recording."""
    subprocess.run([nvcap, "study", "dma", "-o", str(folder)], check=True)
    study = json.loads((folder / "dma.json").read_text())["study"]
    check("dma: the trace is complete", study["ledger"].startswith("complete"), study["ledger"])
    unseen = [f"{row['kind']} {row['bytes']}" for row in study["rows"] if not row["means"]]
    check("dma: each size was seen", not unseen, ", ".join(unseen[:5]))
    command = [nvcap, "stats", "--json", str(folder / "dma.pcapng"), "--phases", str(folder / "dma.traced.phases")]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    thresholds = {}
    for line in said:
        line = json.loads(line)
        if line["type"] == "stats":
            for t in line["thresholds"]:
                if t["below"] == "inline":
                    thresholds[t["series"]] = (t["up_to"], t["from"])
    for kind in ["h2d_pinned", "h2d_pageable"]:
        own = [(c["from"], c["to"]) for c in study["changes"] if c["kind"] == kind and c["from_means"] == ["inline"]]
        check(f"dma: {kind} changes where stats says", own == [thresholds.get(kind)], f"{own} and {thresholds.get(kind)}")
    for kind, size in [("h2d_pinned", 8), ("h2d_pinned", 32 << 20), ("d2h_pinned", 8), ("d2h_pinned", 32 << 20)]:
        row = next(r for r in study["rows"] if (r["kind"], r["bytes"]) == (kind, size))
        print(f"dma: {kind} {size} B: {row['done_ns']:.0f} ns, engine {row['engine_ns']:.0f} ns, {row['rest_percent']:.2f} % not engine")
    return study


def graph(nvcap, folder):
    """Graphs: chains and branches run as many kernels as they have nodes."""
    subprocess.run([nvcap, "study", "graph", "-o", str(folder)], check=True)
    study = json.loads((folder / "graph.json").read_text())["study"]
    check("graph: the trace is complete", study["ledger"].startswith("complete"), study["ledger"])
    for row in study["rows"]:
        kernels = row["nodes"] if row["shape"] != "copy" else row["nodes"] // 2
        got = (row["first"]["kernels"], row["later"]["kernels"])
        check(f"graph: {row['shape']} of {row['nodes']}: {kernels} kernels a launch", got == (kernels, kernels), f"{got}")
    return study


def main():
    nvcap, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    first = dma(nvcap, folder / "dma")
    graph(nvcap, folder / "graph")
    again = dma(nvcap, folder / "again")
    same = first["changes"] == again["changes"]
    check("dma: the same changes again", same)
    sys.exit(1 if FAILED else 0)


main()
