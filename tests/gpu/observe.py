#!/usr/bin/env python3
"""Checks of `nvcap --how observe` that observe.sh asks for. Each prints what it found; status 0 when it is as it should be."""
import json
import statistics
import sys
from array import array


def lines(path):
    with open(path) as f:
        for line in f:
            yield json.loads(line)


def ledger_of(path):
    last = None
    with open(path, "rb") as f:
        # The ledger is the last object; what lies before it may be a gigabyte.
        f.seek(0, 2)
        f.seek(max(0, f.tell() - (4 << 20)))
        for line in f.read().splitlines():
            if line.startswith(b'{"type":"ledger"'):
                last = json.loads(line)
    return last


def ledger(path, least):
    """Complete, with at least so many submissions on the busiest channel."""
    o = ledger_of(path)
    if o is None:
        print("no ledger")
        return False
    most = max((c["submissions"] for c in o["channels"]), default=0)
    seen = o.get("observed") or {}
    wall = max(1, seen.get("wall_ns", 1))
    print(
        f"complete={o['complete']} submissions={o['submissions']} busiest={most} bytes={o['bytes']} gaps={o['gaps']} "
        f"laps={seen.get('laps')} largest_part={seen.get('largest_part', 0):.3f} longest_ms={seen.get('longest_ns', 0) / 1e6:.2f} "
        f"late_ms={seen.get('latest_ns', 0) / 1e6:.2f} look_ms={seen.get('longest_look_ns', 0) / 1e6:.2f} "
        f"search_ms={seen.get('longest_search_ns', 0) / 1e6:.2f} "
        f"looks={seen.get('looks')} cpu={100 * seen.get('cpu_ns', 0) / wall:.1f}% looking={100 * seen.get('reader_ns', 0) / wall:.1f}% "
        f"{'' if o['complete'] else o['verdict'][:300]}"
    )
    return o["complete"] is True and o["gaps"] == 0 and most >= int(least)


def pairs(path):
    """`untraced NS` and `observed NS` in turn: the ratio of each pair, and their median."""
    values = {"untraced": [], "observed": []}
    for line in open(path):
        kind, value = line.split()
        values[kind].append(float(value))
    both = list(zip(values["untraced"], values["observed"]))
    ratios = [b / a for a, b in both]
    if not ratios:
        print("no pairs")
        return False
    median = statistics.median(ratios)
    print(
        f"{len(ratios)} pairs: untraced {statistics.median(values['untraced']):.1f} ns, observed "
        f"{statistics.median(values['observed']):.1f} ns a launch, median ratio {median:.4f} "
        f"(from {min(ratios):.3f} to {max(ratios):.3f})"
    )
    return median <= 1.01 and len(ratios) >= 10


def segments(path):
    """The busiest channel's entries: the words of each, in ring order."""
    counts = {c["channel"]: c["entries"] for c in ledger_of(path)["channels"]}
    busiest = max(counts, key=counts.get)
    with open(path) as f:
        for line in f:
            if '"type":"entry"' not in line or f'"channel":{busiest},' not in line:
                continue
            o = json.loads(line)
            if o["channel"] == busiest and o.get("data"):
                yield array("I", bytes.fromhex(o["data"]))


def payload(words):
    n = len(words)
    if n >= 5 and words[n - 5] & 0x1FFF == 0x1B00 >> 2 and words[n - 5] >> 29 == 1:
        return words[n - 2]
    return None


def methods(words):
    """The headers of a segment: which methods are written, with how many words each; and where their data lies."""
    at, out = 0, []
    while at < len(words):
        header = words[at]
        count = 0 if header >> 29 == 4 else header >> 16 & 0x1FFF
        # Immediate data is carried in the header.
        out.append(header & ~0x1FFF0000 if header >> 29 == 4 else header)
        at += 1 + (count if header >> 29 in (1, 3, 5) else 0)
    return tuple(out)


def classes(path):
    """Of the busiest channel: the entries by the methods that they write, each class in ring order."""
    out, count, before, breaks = {}, 0, None, 0
    for words in segments(path):
        count += 1
        p = payload(words)
        if p is not None:
            breaks += before is not None and p != before + 1
            before = p
        out.setdefault(methods(words), []).append(words)
    return out, count, breaks


def equal(one, other, least):
    """Two runs of the same program, seen by two means: as many entries, writing the same methods as often; and entry by
    entry of each kind the same data, but for words that hold addresses and payloads, which differ by the same amount
    again and again."""
    (mine, count, breaks), (theirs, others, _) = classes(one), classes(other)
    unlike = sum(abs(len(mine.get(k, ())) - len(theirs.get(k, ()))) for k in mine.keys() | theirs.keys())
    compared = identical = 0
    amounts = {}
    for key in mine.keys() & theirs.keys():
        for a, b in zip(mine[key], theirs[key]):
            compared += len(a)
            if a == b:
                identical += 1
                continue
            for i, (x, y) in enumerate(zip(a, b)):
                if x != y:
                    k = (key, i, (y - x) & 0xFFFFFFFF)
                    amounts[k] = amounts.get(k, 0) + 1
    places = {k[:2] for k in amounts}
    rare = sum(n for n in amounts.values() if n < 3)
    common = sorted(((len(v), len(k)) for k, v in mine.items()), reverse=True)[:4]
    print(
        f"{count} and {others} entries of {len(mine)} and {len(theirs)} kinds (most: {common}), {unlike} of one side alone, "
        f"{breaks} breaks of payloads; {4 * compared} bytes compared, {identical} entries identical, the others differ in "
        f"{len(places)} places by {len(amounts)} amounts ({rare} words by an amount seen less than three times)"
    )
    return count >= int(least) and breaks == 0 and abs(count - others) <= 16 and unlike <= count // 100


def by_channel(path):
    all_of = {}
    for o in lines(path):
        if o["type"] == "entry":
            all_of.setdefault((o.get("pid"), o["channel"]), []).append((o["raw"], o.get("data")))
    return all_of


def same(one, other):
    """The same process seen by both: every channel's entries and bytes equal, in order. Observed channels have no
    token, so a channel is known by its first entry."""
    mine, theirs = by_channel(one), by_channel(other)
    twins = {entries[0]: entries for entries in theirs.values()}
    bad, entries, size = [], 0, 0
    for key, seen in mine.items():
        twin = twins.pop(seen[0], None)
        if twin is None:
            bad.append(f"channel {key[1]} ({len(seen)} entries) begins as none of the other side does")
            continue
        entries += len(seen)
        size += sum(len(d or "") // 2 for _, d in seen)
        if seen != twin:
            at = next((i for i, (a, b) in enumerate(zip(seen, twin)) if a != b), min(len(seen), len(twin)))
            bad.append(f"channel {key[1]}: {len(seen)} and {len(twin)} entries, different from number {at} on")
    bad += [f"a channel of {len(t)} entries was not observed" for t in twins.values()]
    print(f"{len(mine)} channels, {entries} entries, {size} bytes compared; {'; '.join(bad[:6]) or 'all equal'}")
    return not bad and entries > 0


if __name__ == "__main__":
    checks = {f.__name__: f for f in (ledger, pairs, equal, same)}
    sys.exit(0 if checks[sys.argv[1]](*sys.argv[2:]) else 1)
