"""Holds the kernels of one process that nvcap saw against CUPTI's records of the same run: as many of each grid and block.

    same.py NVCAP_JSON CUPTI_LOG
"""

import collections
import json
import sys


def shapes(path, kind, value):
    with open(path, encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row.get(kind) == value]
    return collections.Counter((tuple(row["grid"]), tuple(row["block"])) for row in rows)


def main():
    ours, theirs = shapes(sys.argv[1], "op", "launch"), shapes(sys.argv[2], "type", "kernel")
    more, less = ours - theirs, theirs - ours
    print(f"{ours.total()} kernels, by CUPTI {theirs.total()}; only nvcap {dict(more.most_common(4))}, only CUPTI {dict(less.most_common(4))}")
    return int(not theirs or ours != theirs)


if __name__ == "__main__":
    sys.exit(main())
