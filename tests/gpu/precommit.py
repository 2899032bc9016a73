"""Where GP_GET was at each trap of a program that waits for every kernel: precommit.py trapped|precommit TRACE

With --precommit the GPU must have fetched all before the submission and nothing of it.
"""
import collections
import json
import sys

way, path = sys.argv[1:3]
at, hows = collections.Counter(), collections.Counter()
for line in open(path):
    o = json.loads(line)
    if o["type"] != "submission":
        continue
    hows[o["how"]] += 1
    if o["how"] == way and o["gp_get"] is not None:
        at["before" if o["gp_get"] == o["prev_put"] else "behind" if o["gp_get"] == o["gp_put"] else "elsewhere"] += 1
every = sum(at.values())
shares = ", ".join(f"{n} {100 * n / max(1, every):.2f} %" for n in at.values())
print(f"{dict(hows)}; of {every} {way}: GP_GET {dict(at)} it ({shares})")
# The warm-up's last kernels may still be fetched; waits of the program leave nothing else.
good = every > 15000 and (way != "precommit" or at["before"] >= every - 3 and not at["behind"])
sys.exit(not good)
