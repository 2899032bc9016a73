#!/usr/bin/env python3
"""Checks of `nvcap --how observe` that observe.sh asks for. Each prints what it found; status 0 when it is as it should be."""
import statistics
import sys

from lines import ledger_of, lines


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
        f"looks={seen.get('looks')} peeks={seen.get('peeks')} cpu={100 * seen.get('cpu_ns', 0) / wall:.1f}% looking={100 * seen.get('reader_ns', 0) / wall:.1f}% "
        f"{'' if o['complete'] else o['verdict'][:300]}"
    )
    return o["complete"] is True and o["gaps"] == 0 and most >= int(least)


def cpu(path, most):
    """CPU that nvcap used, in per cent of one core."""
    seen = (ledger_of(path) or {}).get("observed") or {}
    wall = max(1, seen.get("wall_ns", 1))
    used = 100 * seen.get("cpu_ns", wall) / wall
    print(f"{used:.1f} % of one core, {seen.get('looks')} looks and {seen.get('peeks')} peeks in {wall / 1e9:.1f} s")
    return used <= float(most)


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
    checks = {f.__name__: f for f in (ledger, cpu, pairs, same)}
    sys.exit(0 if checks[sys.argv[1]](*sys.argv[2:]) else 1)
