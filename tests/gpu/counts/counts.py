#!/usr/bin/env python3
"""Whether `nvcap counts` and `nvcap serve` say what is true: judges what counts.sh gathered.

  counts.py beside KIND BEFORE AFTER TRACE   two lines of `counts --json` around one kind of work, and the trap's trace of it
  counts.py speed WINDOWS STEPS...           the speed of the processes with and without serve
  counts.py lone COUNTS                 lines of `counts --json` while a kernel runs for seconds
  counts.py shares COUNTS PROFILE            the last line of `counts --sample --json`, and what CUPTI recorded of the same training

Prints lines `ROW <tab> ok|FAIL|note <tab> what <tab> numbers` for counts.sh.
"""
import json
import math
import re
import statistics
import sys


def row(good, what, text):
    print(f"ROW\t{good if isinstance(good, str) else 'ok' if good else 'FAIL'}\t{what}\t{text}")


def beside(kind, before, after, trace):
    before, after = json.loads(before), json.loads(after)

    def grown(name):
        return sum(g[name] for g in after["gpus"]) - sum(g[name] for g in before["gpus"])

    ledger = [json.loads(line) for line in open(trace) if '"type":"ledger"' in line or '"ledger"' in line][-1]
    submitted, done, trapped = grown("submitted"), grown("done"), ledger["submissions"]
    exact = all(g["exact"] for g in after["gpus"])
    row(trapped > 0 and submitted == done == trapped and exact, f"{kind}: counts beside the trap",
        f"{submitted} submitted and {done} done by counts, {trapped} by the trap (complete: {ledger.get('complete')}); exact: {exact}")


def speed(windows, *logs):
    runs = [[tuple(map(float, line.split())) for line in open(log) if len(line.split()) == 2] for log in logs]

    def at(run, time):
        for (a, n), (b, m) in zip(run, run[1:]):
            if a <= time <= b:
                return n + (m - n) * (time - a) / (b - a)
        return None

    rates = {"plain": [], "served": []}
    for line in open(windows):
        kind, begin, end = line.split()
        steps = [(at(r, float(begin)), at(r, float(end))) for r in runs]
        if all(a is not None and b is not None for a, b in steps):
            rates[kind].append(sum(b - a for a, b in steps) / (float(end) - float(begin)))
    ratios = [s / p for s, p in zip(rates["served"], rates["plain"])]
    noise = [b / a for a, b in zip(rates["plain"], rates["plain"][1:])]
    if not ratios or not noise:
        row(False, "serve: speed", "no pairs")
        return
    low, high = min(noise), max(noise)
    median = statistics.median(ratios)
    row(low <= median <= high, "serve: speed of the processes",
        f"{len(ratios)} pairs: with serve {median:.4f} of without ({min(ratios):.4f} to {max(ratios):.4f}); without, one window to the next {low:.4f} to {high:.4f}")


def lone(counts):
    lines = [json.loads(line) for line in open(counts)]
    seen = [gpu for line in lines if line["type"] == "process" for gpu in line["gpus"]]
    pending = [gpu["pending"] for gpu in seen]
    age = max((gpu.get("oldest_pending_seconds_least", 0) for gpu in seen), default=0)
    row(len(seen) >= 6 and all(pending[:-2]) and max(pending) == 1 and age > 2, "lone: a running kernel is pending",
        f"pending in {len(seen)} readings, half a second each: {pending}; the oldest's age at most {age:.1f} s")


def plain(name):
    """A kernel's own name: without namespaces, types and arguments, which nvcap shortens in its own way."""
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    while True:
        shorter = re.sub(r"<[^<>]*>", "", name)
        if shorter == name:
            return name.split("(")[0].split("::")[-1].strip()
        name = shorter


def shares(counts, profile):
    sampled = [json.loads(line) for line in open(counts) if '"sampled":{' in line][-1]["sampled"]
    cupti, launches, times = {}, {}, {}
    for name, (count, us) in json.load(open(profile)).items():
        n, t = cupti.get(plain(name), (0, 0.0))
        cupti[plain(name)] = n + count, t + us
    for kernel in sampled["kernels"]:
        name = plain(kernel["kernel"] or f"program {kernel['program']:#x}")
        total, square = launches.get(name, (0.0, 0.0))
        launches[name] = total + kernel["launches"]["estimate"], square + kernel["launches"]["error_95"] ** 2
        if kernel["time_share"]:
            share, square = times.get(name, (0.0, 0.0))
            low, high = kernel["time_share"]["interval_95"]
            times[name] = share + kernel["time_share"]["share"], square + ((high - low) / 2) ** 2
    all_launches, all_time = (sum(c[i] for c in cupti.values()) for i in (0, 1))
    estimated = sum(total for total, _ in launches.values())
    timed = sum(share for share, _ in times.values())
    held, rows = {"launches": 0, "time": 0}, 0
    for name, (count, us) in sorted(cupti.items(), key=lambda c: -c[1][1]):
        if us < 0.01 * all_time:
            continue
        rows += 1
        total, square = launches.get(name, (0.0, 0.0))
        share, error, truth = total / estimated, math.sqrt(square) / estimated, count / all_launches
        held["launches"] += abs(share - truth) <= error
        time, wide = times.get(name, (0.0, 0.0))
        time, wide, true_time = time / timed, math.sqrt(wide) / timed, us / all_time
        held["time"] += abs(time - true_time) <= wide
        print(f"NOTE {name[:60]}: {us / count:.0f} us each; launches {100 * share:.2f} +- {100 * error:.2f} % (CUPTI {100 * truth:.2f} %); "
              f"time {100 * time:.2f} +- {100 * wide:.2f} % (CUPTI {100 * true_time:.2f} %)")
    for what in held:
        row(rows >= 5 and held[what] >= 0.8 * rows, f"shares of {what}",
            f"{held[what]} of {rows} kernels that take 1 % of the time or more are within their interval of CUPTI's (at least 80 % must be); "
            f"{sampled['decoded']} of {sampled['submissions']} submissions decoded, {sampled['unread']} unread, {sampled['moments']} moments")


if __name__ == "__main__":
    {"beside": beside, "speed": speed, "shares": shares, "lone": lone}[sys.argv[1]](*sys.argv[2:])
