"""Checks that `nvcap ranks --json` matched the calls of a job: of the rank that was seen for the shortest time at most 2 % (the first and last ones)
are unmatched, and nobody is without a communicator.

    matched.py RANKS_JSON
"""

import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        said = next(line for line in map(json.loads, file) if line.get("type") == "ranks")
    least = sum(min(member["calls"] for member in communicator["members"]) for communicator in said["communicators"])
    kinds = [kind for communicator in said["communicators"] for kind in communicator["kinds"]]
    calls, matched, timed = (sum(kind[what] for kind in kinds) for what in ("calls", "matched", "timed"))
    text = ", ".join(f"{kind['kind']} {kind['matched']} of {kind['calls']}" for kind in kinds)
    print(f"{matched} of {calls} calls matched, {timed} with times ({text}): {said['verdict']}")
    return int(not least or matched < 0.98 * least)


if __name__ == "__main__":
    sys.exit(main())
