#!/usr/bin/env python3
"""Checks of nvcap's JSON lines that run.sh asks for. Each prints what it found; status 0 when it is as it should be."""
import json
import sys


def lines(path):
    with open(path) as f:
        for line in f:
            yield json.loads(line)


def ledger_of(path):
    last = None
    for o in lines(path):
        if o["type"] == "ledger":
            last = o
    return last


def ledger(path, least):
    """Complete, and one channel has at least so many submissions in one run."""
    o = ledger_of(path)
    if o is None:
        print("no ledger")
        return False
    best = max(o["channels"], key=lambda c: c["submissions"], default=None)
    most = best["submissions"] if best else 0
    print(
        f"complete={o['complete']} submissions={o['submissions']} entries={o['entries']} bytes={o['bytes']} "
        f"gaps={o['gaps']} late={o['late']}; busiest channel {best['token']:#x}: {most} consecutive" if best else o["verdict"]
    )
    return o["complete"] is True and o["gaps"] == 0 and most >= int(least)


def contiguous(path, least):
    """Ring positions and semaphore payloads of every channel grow without a hole: counted from the lines themselves."""
    position, payload, count, breaks, payload_steps = {}, {}, 0, 0, 0
    for o in lines(path):
        key = (o.get("pid"), o.get("gpu"), o.get("channel"))
        if o["type"] == "submission":
            if key in position and position[key] != o["position"]:
                breaks += 1
            position[key] = o["position"] + o["entries"]
            count += 1
        elif o["type"] == "entry" and o.get("kind") == "segment":
            words = bytes.fromhex(o["data"])
            if len(words) >= 20:
                # A compute channel's segment ends with SET_REPORT_SEMAPHORE_A..D: the payload is the third word.
                header = int.from_bytes(words[-20:-16], "little")
                if header & 0x1FFF == 0x1B00 >> 2 and header >> 29 == 1:
                    value = int.from_bytes(words[-8:-4], "little")
                    if key in payload and value != (payload[key] + 1) & 0xFFFFFFFF:
                        breaks += 1
                    payload[key] = value
                    payload_steps += 1
    print(f"{count} submissions, {payload_steps} semaphore payloads followed, {breaks} breaks")
    return breaks == 0 and count >= int(least)


def vadd(path):
    """Reads as a human would want: code, launch with its geometry and arguments, three copies of 4 MiB."""
    launches, copies, code, inline = [], [], 0, 0
    for o in lines(path):
        if o["type"] != "operation":
            continue
        if o["op"] == "launch" and o.get("kind") == "user":
            launches.append(o)
        elif o["op"] == "copy" and o["bytes"]:
            copies.append(o)
        elif o["op"] == "inline":
            inline += 1
            code += o.get("content") == "code"
    ok = True
    mine = [o for o in launches if o["grid"] == [4096, 1, 1] and o["block"] == [256, 1, 1]]
    if len(mine) != 1:
        print(f"{len(mine)} launches with grid 4096x1x1 and block 256x1x1, of {len(launches)}")
        return False
    args = bytes.fromhex(mine[0]["args"])
    pointers = [int.from_bytes(args[8 * i : 8 * i + 8], "little") for i in range(3)]
    n = int.from_bytes(args[24:28], "little")
    print(
        f"launch grid {mine[0]['grid']} block {mine[0]['block']} registers {mine[0]['registers']} "
        f"program bytes {mine[0].get('program_bytes')} args {[hex(p) for p in pointers]} n={n}"
    )
    ok &= n == 1 << 20
    # By the launch's own pointers: what else the program's start copies does not count.
    total = {"h2d": 0, "d2h": 0}
    for o in copies:
        direction, at = o["direction"], o["dst"] if o["direction"] == "h2d" else o["src"]
        arrays = pointers[:2] if direction == "h2d" else pointers[2:]
        if direction in total and any(p <= at < p + (4 << 20) for p in arrays):
            total[direction] += o["bytes"]
            print(f"copy {direction} {o['bytes']} B engine {o['engine']} mode {o['mode']}")
    print(f"copied to a and b {total['h2d']} B, from c {total['d2h']} B")
    ok &= total == {"h2d": 8 << 20, "d2h": 4 << 20}
    ok &= bool(mine[0].get("program_bytes")) or code > 0
    return ok


def costs(path):
    """Medians of `KIND issue_ns` lines and their ratios to the watchpoint without BPF."""
    kinds = {}
    for line in open(path):
        kind, value = line.split()
        kinds.setdefault(kind, []).append(float(value))
    median = {k: sorted(v)[len(v) // 2] for k, v in kinds.items()}
    floor = median.get("watchpoint")
    for kind, value in median.items():
        ratio = f"{value / floor:.2f} of the watchpoint" if floor else ""
        print(f"{kind:<22} {value:9.1f} ns a launch ({len(kinds[kind])} passes) {ratio}")
    ratios = [v / floor for k, v in median.items() if k.startswith("nvcap")] if floor else []
    # Less than the bare trap would mean that nothing was traced.
    return len(ratios) == 2 and all(1 < r < 1.6 for r in ratios)


if __name__ == "__main__":
    checks = {f.__name__: f for f in (ledger, contiguous, vadd, costs)}
    sys.exit(0 if checks[sys.argv[1]](*sys.argv[2:]) else 1)
