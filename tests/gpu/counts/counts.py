#!/usr/bin/env python3
"""Whether `nvcap counts` and `nvcap serve` say what is true: judges what counts.sh gathered.

  counts.py beside KIND BEFORE AFTER TRACE   two lines of `counts --json` around one kind of work, and the trap's trace of it
  counts.py speed WINDOWS STEPS...           the speed of the processes with and without serve

Prints lines `ROW <tab> ok|FAIL|note <tab> what <tab> numbers` for counts.sh.
"""
import json
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


if __name__ == "__main__":
    {"beside": beside, "speed": speed}[sys.argv[1]](*sys.argv[2:])
