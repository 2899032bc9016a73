#!/usr/bin/env python3
"""Checks of nvcap's JSON lines that run.sh asks for. Each prints what it found; status 0 when it is as it should be."""
import json
import re
import sys

from lines import ledger_of, lines


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


def log_of(path):
    """The calls and mappings of a log of ioctl_log.c, in order, by thread."""
    calls, maps, call = {}, {}, None
    for line in open(path):
        word, _, rest = line.rstrip("\n").partition(" ")
        if word in ("IOCTL", "MMAP"):
            pairs = dict(p.split("=", 1) for p in rest.split(" ")[1:])
            thread = int(pairs["pid"]), int(pairs["tid"])
            if word == "MMAP":
                maps.setdefault(thread, []).append((int(pairs["addr"], 16), int(pairs["len"], 16), int(pairs["prot"]) & 3))
                continue
            call = {"request": int(pairs["req"], 16) & 0xFFFFFFFF, "fd": int(pairs["fd"]), "ret": None}
            calls.setdefault(thread, []).append(call)
        elif rest.startswith("ret="):
            call["ret"] = int(rest[4:].split(" ")[0])
        else:
            name, _, data = rest.partition("[")
            call[name] = bytes.fromhex(data.partition("]")[2])
    return calls, maps


def ioctls(trace, log):
    """`nvcap ioctls --json -vv` and the log of the same run from within: the same calls, in the same order in each
    thread, with the same bytes before and after."""
    calls, maps = log_of(log)
    seen, mapped, bad, compared, cut = {}, {}, [], 0, 0
    for o in lines(trace):
        thread = o["pid"], o["tid"]
        if o["type"] == "ioctl":
            seen.setdefault(thread, []).append(o)
        elif o["type"] == "mapping" and not o["found"]:
            mapped.setdefault(thread, []).append((o["start"], o["len"], o["read"] | o["write"] << 1))
        elif o["type"] == "loss":
            bad.append(f"lost: {o['what']}")
    for thread in sorted(set(calls) | set(seen)):
        a, b = seen.get(thread, []), calls.get(thread, [])
        if len(a) != len(b):
            bad.append(f"thread {thread}: nvcap has {len(a)} calls, the log {len(b)}")
        for i, (x, y) in enumerate(zip(a, b)):
            what = f"thread {thread} call {i} {x['name']} {x.get('command_name') or x.get('class_name') or ''}"
            if (x["request"], x["fd"], x["result"]) != (y["request"], y["fd"], y["ret"]):
                bad.append(f"{what}: {x['request']:#x} fd {x['fd']} = {x['result']}, log {y['request']:#x} fd {y['fd']} = {y['ret']}")
                break
            for part, before, after in (("args", "in", "out"), ("params", "pin", "pout")):
                structure = x.get(part)
                if structure is None:
                    if y.get(before):
                        bad.append(f"{what}: no {part}")
                    continue
                for side, name in (("in_hex", before), ("out_hex", after)):
                    mine, its = bytes.fromhex(structure[side]), y.get(name, b"")
                    # All of a structure, up to what one record of nvcap holds; the log may have more than there is.
                    if len(mine) < min(structure["size"], 16384):
                        # The end of a structure of guessed size may not be there.
                        if len(its) > len(mine):
                            bad.append(f"{what}: {part} {side} has {len(mine)} of {structure['size']} bytes")
                    cut += len(mine) < structure["size"]
                    if mine != its[: len(mine)] or len(its) < len(mine):
                        at = next((i for i, (p, q) in enumerate(zip(mine, its)) if p != q), min(len(mine), len(its)))
                        bad.append(f"{what}: {part} {side} differs at byte {at} of {len(mine)} (log has {len(its)})")
                    compared += len(mine)
    if mapped != maps:
        bad.append(f"mappings differ: {sum(map(len, mapped.values()))} and {sum(map(len, maps.values()))}")
    for line in bad[:20]:
        print(line)
    total = sum(map(len, calls.values()))
    print(
        f"{sum(map(len, seen.values()))} ioctls and {total} in the log, of {len(calls)} threads; {compared} bytes equal or told, "
        f"{cut} structures longer than a record, {sum(map(len, maps.values()))} mappings; {len(bad)} differences"
    )
    return not bad and total > 0


def client(path, *wants):
    """`--json -vv` of a graphics or video program: nothing lost, every pushbuffer readable and decoded to its end, every
    method named; and at least so many operations of each kind in `wants` (draw>=8)."""
    operations, methods, unnamed, stops, classes = {}, 0, {}, [], set()
    for o in lines(path):
        if o["type"] == "operation":
            what = o["op"] + (f" {o['what']}" if "what" in o else f" {o.get('kind') or o.get('mode') or ''}".rstrip())
            operations[what] = operations.get(what, 0) + 1
            if o["op"] == "bind":
                classes.add(o["class"])
        elif o["type"] == "method":
            methods += 1
            if o.get("name") is None:
                key = f"{o['class']:#x}:{o['method']:#x}" if o.get("class") is not None else f"subchannel {o['subchannel']}:{o['method']:#x}"
                unnamed[key] = unnamed.get(key, 0) + 1
        elif o["type"] == "stop":
            stops.append({k: v for k, v in o.items() if k not in ("type", "time_ns", "pid", "tid")})
    end = ledger_of(path)
    print(", ".join(f"{v} {k}" for k, v in sorted(operations.items())))
    print("classes bound: " + " ".join(f"{c:#06x}" for c in sorted(classes)))
    if unnamed:
        print(f"{sum(unnamed.values())} methods without a name: " + ", ".join(f"{v} {k}" for k, v in sorted(unnamed.items(), key=lambda i: -i[1])[:20]))
    for stop in stops[:5]:
        print("stop", stop)
    ok = end is not None and end["complete"] and end["unreadable_bytes"] == 0 and not stops
    for want in wants:
        op, _, least = want.partition(">=")
        count = sum(v for k, v in operations.items() if k.split(" ")[0] == op or k == op)
        if count < int(least):
            print(f"{count} {op}, wanted {least}")
            ok = False
    print(f"{methods} methods, {sum(unnamed.values())} without a name, {len(stops)} stops, {sum(operations.values())} operations; {end['verdict'] if end else 'no ledger'}")
    return ok


def doorbells(path, said):
    """Of a video program, against the oracle in another run of it: as many submissions as the oracle's breakpoints had
    hits (it does not find the rings of video channels, but it watches their doorbell), less those that came late: what a hit
    rang for that the machine lost comes with the channel's next. And from within: the semaphore
    that hands the pictures from engine to engine has every payload once, in order, one for each job."""
    jobs, releases = [], {}
    for o in lines(path):
        if o["type"] != "operation" or not (o.get("engine") or "").startswith("nvdec"):
            continue
        if o["op"] == "video":
            jobs.append(o["engine"])
        elif o["op"] == "semaphore" and o["action"] == "release":
            releases.setdefault(o["address"], []).append((o["engine"], o["payload"]))
    end = ledger_of(path)
    hits = re.search(r"\[oracle\] hits (\d+)", open(said, errors="replace").read())
    hits = int(hits[1]) if hits else None
    chain = max(releases.items(), key=lambda r: len({e for e, _ in r[1]}), default=(0, []))
    payloads = [p for _, p in chain[1]]
    print(
        f"{end['submissions']} submissions ({end['late']} late), {hits} doorbells in the oracle's run; {len(jobs)} jobs on {len(set(jobs))} engines, "
        f"payloads {payloads} at {chain[0]:#x}"
    )
    as_many = hits is not None and 0 <= hits - end["submissions"] <= end["late"]
    return end["complete"] and as_many and len(jobs) > 0 and payloads == list(range(1, len(jobs) + 1))


def two(path, channels_path, said_path):
    """Work of one process on several GPUs: each launch and copy on the GPU that the program says it gave it to."""
    channels = json.load(open(channels_path))
    minors = {c["pci"].lower()[-12:]: c["gpu"] for c in channels if c["pci"]}
    ok = True
    for pci, minor in sorted(minors.items()):
        own = [c for c in channels if c["gpu"] == minor]
        rung = [c for c in own if c["submissions"]]
        print(f"/dev/nvidia{minor} {pci} {own[0]['uuid']}: {len(own)} channels, {len(rung)} with submissions, tokens {len({c['token'] for c in own})}")
        ok &= len(own) >= 8 and len(rung) > 0 and all(c["token"] is not None for c in own)
    gpus = []
    for line in open(said_path):
        word = line.split()
        if line.startswith("gpu ") and "pci" in word:
            said = dict(zip(word[0::2], word[1::2]))
            said["minor"] = minors.get(said["pci"].lower()[-12:])
            gpus.append(said)
    found = [{"launches": 0, "elsewhere": 0, "h2d": 0, "d2h": 0} for _ in gpus]
    # What goes from the first to the second GPU goes through the host where they cannot reach each other.
    peer = [int(line.split()[2]) for line in open(said_path) if line.startswith("peer bytes")]
    staged = {(0, "d2h"): peer[0] if peer else 0, (1, "h2d"): peer[0] if peer else 0}
    for o in lines(path):
        if o["type"] != "operation":
            continue
        for g, f in zip(gpus, found):
            device, size = int(g["device"], 16), int(g["bytes"])
            if o["op"] == "launch" and o.get("kind") == "user" and o["args"]:
                if int.from_bytes(bytes.fromhex(o["args"])[:8], "little") == device and o["grid"][0] == int(g["blocks"]):
                    f["launches" if o.get("gpu") == g["minor"] else "elsewhere"] += 1
            elif o["op"] == "copy" and o["bytes"]:
                for way, at in (("h2d", o["dst"]), ("d2h", o["src"])):
                    if o["direction"] == way and device <= at < device + size:
                        f[way] += o["bytes"] if o.get("gpu") == g["minor"] else 0
                        f["elsewhere"] += o.get("gpu") != g["minor"]
    for g, f in zip(gpus, found):
        print(f"CUDA device {g['gpu']} is /dev/nvidia{g['minor']}: {f} of {g['launches']} launches, {2 * int(g['bytes'])} B each way")
        ok &= f["launches"] == int(g["launches"]) and f["elsewhere"] == 0
        for way in ("h2d", "d2h"):
            own = 2 * int(g["bytes"])
            ok &= f[way] in (own, own + staged.get((int(g["gpu"]), way), 0))
    end = ledger_of(path)
    print(f"{len(gpus)} GPUs of {len(minors)}; {end['verdict'] if end else 'no ledger'}")
    return ok and len(gpus) >= 2 and len({g["minor"] for g in gpus}) == len(gpus) and end is not None and end["complete"]


def ticks(trace, said):
    """`--gpu-time --json` of vulkan.c: what its own timestamp queries say lies within the times of one submission each, and is most of them."""
    spans = []
    submissions, known = 0, 0
    for o in lines(trace):
        if o["type"] != "submission":
            continue
        submissions += 1
        if o.get("gpu_start_ns") is not None and o.get("gpu_ns") is not None:
            known += 1
            spans.append((o["gpu_clock_start_ns"], o["gpu_clock_start_ns"] + o["gpu_ns"]))
    ok, rounds, before, behind = True, 0, [], []
    with open(said, errors="replace") as file:
        for line in file:
            if not line.startswith("ticks "):
                continue
            rounds += 1
            begin, end = map(int, line.split()[1:])
            within = [s for s in spans if s[0] <= begin <= end <= s[1]]
            if len(within) == 1:
                before.append(begin - within[0][0])
                behind.append(within[0][1] - end)
            else:
                near = min(spans, key=lambda s: abs(s[0] - begin), default=None)
                print(f"round {rounds}: {begin}..{end} lies in {len(within)} submissions; the nearest is {near}")
                ok = False
    print(f"{known} of {submissions} submissions timed; {rounds} rounds, each in one submission; ns from its begin to the first query {before}, from the second to its end {behind}")
    return ok and rounds > 0 and known >= submissions * 0.9


if __name__ == "__main__":
    checks = {f.__name__: f for f in (ledger, contiguous, vadd, costs, ioctls, client, doorbells, ticks, two)}
    sys.exit(0 if checks[sys.argv[1]](*sys.argv[2:]) else 1)
