#!/usr/bin/env python3
"""Names of kernels by the code in files against those by libcuda's records, of two runs of one program.

  fatbin.py RECORDS.json FILES.json

A name that is certain by its code must be one that the records have too, with the same block and registers. Status 1 for a wrong name, and
where no launch has a name by a file."""
import collections
import json
import sys


def launches(path):
    with open(path) as lines:
        for line in lines:
            event = json.loads(line)
            if event.get("op") == "launch":
                yield event


def main():
    known = collections.defaultdict(set)
    for launch in launches(sys.argv[1]):
        if launch.get("kernel") and launch["kernel_certain"]:
            known[launch["kernel_mangled"]].add((launch["registers"], tuple(launch["block"])))
    names = collections.Counter()
    wrong, uncertain, unnamed, others = set(), 0, 0, collections.Counter()
    for launch in launches(sys.argv[2]):
        if launch.get("kind") != "user":
            continue
        if not launch.get("kernel"):
            unnamed += 1
            continue
        if launch["kernel_from"] != "file":
            others[launch["kernel_from"]] += 1
            continue
        name = launch["kernel_mangled"]
        names[name] += 1
        if not launch["kernel_certain"]:
            uncertain += 1
        elif (launch["registers"], tuple(launch["block"])) not in known.get(name, ()):
            wrong.add(name)
    for name in sorted(wrong):
        print("not among the records:", name[:200])
    for name, count in names.most_common(10):
        print(f"{count:8} {name[:160]}")
    print(
        f"{sum(names.values())} launches of {len(names)} kernels by files ({uncertain} not certain), {unnamed} without a name, "
        f"{len(known)} kernels by records, {len(wrong)} wrong names, otherwise named: {dict(others)}"
    )
    sys.exit(1 if wrong or not names or others else 0)


main()
