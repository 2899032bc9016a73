#!/usr/bin/env python3
"""What nvcap dump must have said of each hang: one line PASS or FAIL for each named thing. No cleverness: it reads the
JSON of the dump and the line in which the program said what it did."""
import json
import os
import re
import statistics
import subprocess
import sys
import time

failed = 0


def row(ok, what, detail):
    global failed
    failed += not ok
    print(f"{'PASS' if ok else 'FAIL'}  {what:<44} {detail}", flush=True)


def facts(log):
    line = next(l for l in open(log) if l.startswith("hung"))
    return dict(w.split("=", 1) for w in line.split()[1:])


def dims(d):
    return "x".join(map(str, d)) if d else "?"


def kernel(c):
    run = c.get("running") or {}
    op = run.get("operation") or {}
    return (run, op) if run.get("kind") == "kernel" else (run, {})


def launches(process):
    for c in process["channels"]:
        for step in c["last"]:
            for op in step["operations"]:
                if op["op"] == "launch" and op["kind"] == "user":
                    yield c, step, op


def load(path):
    return json.loads(open(path).read().splitlines()[-1])


def spin(path, log, trap=None):
    want, dump = facts(log), load(path)
    p = dump["processes"][0]
    row(p["verdict"] == "hang", "spin: verdict", p["verdict"] + ": " + p["says"][0])
    stuck = [c for c in p["channels"] if dims(kernel(c)[1].get("grid")) == want["grid"]]
    row(len(stuck) == 1, "spin: one stuck channel", f"{[c['channel'] for c in stuck]}")
    if not stuck:
        return
    c = stuck[0]
    run, op = kernel(c)
    row(dims(op["grid"]) == want["grid"] and dims(op["block"]) == want["block"], "spin: grid and block",
        f"{dims(op['grid'])} {dims(op['block'])}")
    row(run["certain"], "spin: proven by its semaphore", f"{c['semaphore']}")
    same = {o["program"] for _, s, o in launches(p) if s["done"] and dims(o["grid"]) == want["grid"]}
    others = {o["program"] for _, s, o in launches(p) if dims(o["grid"]) != want["grid"]}
    row(same == {op["program"]} and op["program"] not in others, "spin: program address",
        f"{op['program']:#x}; its earlier launch {[hex(x) for x in same]}, others' {[hex(x) for x in others if x]}")
    if trap:
        seen = {e["program"] for e in map(json.loads, open(trap)) if e.get("op") == "launch" and e.get("kind") == "user"
                and dims(e.get("grid")) == want["grid"]}
        row(seen == {op["program"]}, "spin: program address as trapped", f"{[hex(x) for x in seen]}")
    queued = [o for ch, s, o in launches(p) if ch is c and not s["done"] and dims(o["grid"]) == "1x1x1"]
    row(len(queued) == 19, "spin: launches queued behind it", f"{len(queued)}, GP_GET {c['gp_get']} GP_PUT {c['gp_put']}")
    waiting = [w for w in p["channels"] if w["wait"] and w["channel"] != c["channel"]]
    row(len(waiting) == 1, "spin: one waiter", f"{[w['channel'] for w in waiting]}")
    for w in waiting:
        row(w["wait"]["value"] is not None, "spin: the semaphore and its value",
            f"{w['wait']['address']:#x} {w['wait']['mode']} {w['wait']['payload']} now {w['wait']['value']}")
        row(any(r["channel"] == c["channel"] and r["kernel"] and r["position"] == run["position"] for r in w["wait"]["releasers"]), "spin: released by that kernel",
            f"{w['wait']['releasers'][:2]}")
        row(w["root"] == {"kind": "work", "channel": c["channel"]}, "spin: held up by the kernel", f"{w['root']}")


def wait(path, log):
    want, dump = facts(log), load(path)
    p = dump["processes"][0]
    row(p["verdict"] == "hang", "wait: verdict", p["verdict"] + ": " + p["says"][0])
    waiting = [c for c in p["channels"] if c["wait"]]
    row(len(waiting) == 1, "wait: one waiter", f"{[c['channel'] for c in waiting]}")
    for c in waiting:
        w = c["wait"]
        row(w["address"] == int(want["address"], 16), "wait: the semaphore", f"{w['address']:#x}, said {want['address']}")
        row(w["payload"] == int(want["payload"]) and w["mode"] == ">=", "wait: what is waited for", f"{w['mode']} {w['payload']}")
        row(w["value"] == 0, "wait: value now", f"{w['value']}")
        row(not w["releasers"] and c["root"]["kind"] == "nobody_releases", "wait: nobody releases it", f"{c['root']}")
        row(c["gp_get"] != c["gp_put"], "wait: what is queued", f"GP_GET {c['gp_get']} GP_PUT {c['gp_put']}")


def peer(path, log):
    want, dump = facts(log), load(path)
    p = dump["processes"][0]
    row(p["verdict"] == "hang", "peer: verdict", p["verdict"] + ": " + p["says"][0])
    stuck = [c for c in p["channels"] if kernel(c)[1]]
    row(len(stuck) == 1, "peer: one stuck channel", f"{[c['channel'] for c in stuck]}")
    for c in stuck:
        run, op = kernel(c)
        row(dims(op["grid"]) == want["grid"] and dims(op["block"]) == want["block"], "peer: grid and block",
            f"{dims(op['grid'])} {dims(op['block'])} program {op['program'] or 0:#x}")
    blocked = [t for t in p["threads"] if t["tid"] == p["pid"]]
    row(bool(blocked), "peer: the CPU's side", f"{blocked[:1]}")


def speed(nvcap, pid, out, stopped="", rounds=int(os.environ.get("ROUNDS", 12))):
    """A process that goes on shows another moment at each look. One that is stopped has the one only in which it was stopped: of that
    it must be told how much was used again, and the rest must follow."""
    walls, tooks, whole, only = [], [], 0, []
    for i in range(rounds):
        begin = time.perf_counter()
        text = subprocess.run([nvcap, "dump", "-p", pid, "--no-names", "--no-stacks", "--last", "1000", "--json"], capture_output=True, text=True)
        walls.append((time.perf_counter() - begin) * 1e3)
        if not text.stdout:
            row(False, "torch: dump", text.stderr.strip()[:150])
            return
        dump = json.loads(text.stdout)
        tooks.append(dump["took_ns"] / 1e6)
        p = dump["processes"][0]
        busy = max(p["channels"], key=lambda c: (len(c["last"]), c["gp_put"]))
        positions = [s["position"] for s in busy["last"]]
        payloads = [o["payload"] for s in busy["last"] for o in s["operations"]
                    if o["op"] == "semaphore" and o["action"] == "release" and busy["semaphore"]
                    and o["address"] == busy["semaphore"]["address"]]
        gaps = sum(b - a != 1 for a, b in zip(payloads, payloads[1:]))
        ok = (len(positions) >= 1000 and positions == list(range(positions[0], positions[0] + len(positions)))
              and not any(s["missing"] or s["stop"] for s in busy["last"]) and gaps == 0)
        f = busy["found"]
        told = f["recycled"] > 0 and len(payloads) + f["recycled"] == len(positions) and gaps <= 1
        whole += ok or bool(stopped) and told
        if i == 0 or not ok:
            f = busy["found"]
            print(f"      torch: channel {busy['channel']} {len(positions)} entries, {sum(s['bytes'] for s in busy['last'])} B, "
                  f"payload gaps {gaps} of {len(payloads)}, overwritten {f['overwritten']}, recycled {f['recycled']}, "
                  f"unreadable {f['unreadable']}, found in {p['finding_ns'] / 1e6:.2f} ms, read in {p['reading_ns'] / 1e6:.2f} ms, "
                  f"token {busy['token']}")
            open(f"{out}/torch-dump-{i}.json", "w").write(text.stdout)
    for i in range(rounds):
        begin = time.perf_counter()
        subprocess.run([nvcap, "dump", "-p", pid, "--no-names", "--no-stacks", "--last", "1000", "--channel", str(busy["channel"])], stdout=subprocess.DEVNULL)
        only.append((time.perf_counter() - begin) * 1e3)
    row(statistics.median(only) < 50, "torch: under 50 ms (that channel, as text)",
        f"median {statistics.median(only):.1f} ms, worst {max(only):.1f}")
    row(whole == rounds, "torch: the last 1000 of the busiest, whole" + (" or told" if stopped else ""), f"{whole} of {rounds} looks")
    row(statistics.median(tooks) < 50, "torch: under 50 ms (reading, decoding, judging)",
        f"median {statistics.median(tooks):.1f} ms, worst {max(tooks):.1f}")
    row(statistics.median(walls) < 50, "torch: under 50 ms (the whole program, as JSON)",
        f"median {statistics.median(walls):.1f} ms, worst {max(walls):.1f}")


def tokens(dump_path, channels_path):
    p = load(dump_path)["processes"][0]
    trapped = {c.get("ring"): c.get("token") for c in json.load(open(channels_path)) if c.get("token") is not None}
    dumped = {c["found"]["ring"]: c["token"] for c in p["channels"]}
    known = {r: t for r, t in dumped.items() if t is not None}
    wrong = {hex(r): (t, trapped[r]) for r, t in known.items() if r in trapped and trapped[r] != t}
    both = sum(r in trapped for r in known)
    row(bool(known), "tokens: from error notifiers", f"{len(known)} of {len(dumped)} channels")
    row(not wrong and both > 0, "tokens: as the trap sees them", f"{both} compared, wrong: {wrong}")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    try:
        {"spin": spin, "wait": wait, "peer": peer, "speed": speed, "tokens": tokens}[what](*rest)
    except Exception as e:  # noqa: BLE001: a report that cannot be read is a failure of its own
        row(False, f"{what}: check", f"{type(e).__name__}: {e}")
    sys.exit(failed != 0)
