#!/usr/bin/env python3
"""Sums over the stacks in nvcap's JSON: how many submissions have one, where they end, which calls of CUDA they name, and the most
frequent stacks. With --python FILE: how many have a Python frame of that file."""
import argparse
import json
from collections import Counter


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--python")
    args = parser.parse_args()
    ends, apis, stacks, depths = Counter(), Counter(), Counter(), []
    submissions = late = without = python = unnamed = interpreter = 0
    last_modules = Counter()
    for line in open(args.trace):
        o = json.loads(line)
        if o["type"] == "ledger":
            print("  ", o["verdict"], "stacks", o["stacks"])
        if o["type"] != "submission":
            continue
        submissions += 1
        late += o["late"]
        stack = o.get("stack")
        if stack is None:
            without += not o["late"]
            continue
        ends[o["stack_end"]] += 1
        if o["stack_end"] != "whole":
            last_modules[(o["stack_end"], stack[-1]["module"].rsplit("/", 1)[-1])] += 1
        apis[o.get("api", "-")] += 1
        depths.append(len(stack))
        names = [f["symbol"] or f"[{f['module'].rsplit('/', 1)[-1]}]" for f in stack]
        interpreter += any(n.startswith("_PyEval_EvalFrameDefault") for n in names)
        if args.python:
            python += any(f.get("python") and f["file"].endswith(args.python) for f in stack)
        stacks[tuple(names[:14])] += 1
    depths.sort()
    middle = depths[len(depths) // 2] if depths else 0
    print(f"   {submissions} submissions, {late} late, {without} others without a stack; ends {dict(ends)}; frames: median {middle}, most {depths[-1] if depths else 0}")
    print("   where stacks end before their time:", dict(last_modules.most_common(6)))
    print("   api:", dict(apis.most_common(12)))
    if args.python:
        print(f"   {python} with a Python frame of {args.python}, {interpreter} with a frame of the interpreter left")
    for stack, count in stacks.most_common(3):
        print(f"   {count}: " + " < ".join(n.split("(")[0][:50] for n in stack))


main()
