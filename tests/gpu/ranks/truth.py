"""Holds the arrivals of `nvcap ranks --arrivals --json` against the stamps that a job's ranks wrote by their GPUs' own clocks (stamps.cu).

    truth.py RANKS_JSON TRUTH       TRUTH.0, TRUTH.1, ...: a file a rank

A stamp stands in the stream just before its collective, and waits until that is queued: what lies between is some microseconds, alike in all ranks. Status 1 where the order of arrival is
wrong for more than 1 % of the calls whose skew is above its error, the waiting sums differ by more than 3 %, or nothing could be held.
"""

import bisect
import glob
import json
import sys

NEAREST = 100_000  # ns from a stamp to its collective's begin at most
SLACK = 3_000  # ns by which the two clocks may differ


class Truth:
    """The stamps of one rank, on the host's CLOCK_MONOTONIC, ns."""

    def __init__(self, path):
        self.pings, stamps = [], []
        with open(path, encoding="utf-8") as file:
            for line in file:
                kind, *rest = line.split()
                if kind == "ping":
                    before, gpu, after = map(int, rest)
                    self.pings.append((gpu, (before + after) / 2, (after - before) / 2))
                else:
                    stamps.append(tuple(map(int, rest)))
        self.pings.sort()
        self.gpu_times = [ping[0] for ping in self.pings]
        self.error = max(ping[2] for ping in self.pings)
        self.numbers = [number for number, _ in stamps]
        self.hosts = [self.host(gpu) for _, gpu in stamps]

    def host(self, gpu):
        at = min(max(bisect.bisect(self.gpu_times, gpu), 1), len(self.pings) - 1)
        (a, host_a, _), (b, host_b, _) = self.pings[at - 1], self.pings[at]
        return host_a + (gpu - a) * (host_b - host_a) / (b - a)

    def before(self, host):
        """The newest stamp at or before a host time, or None: its number and its time."""
        at = bisect.bisect(self.hosts, host + SLACK) - 1
        if at < 0 or host - self.hosts[at] > NEAREST:
            return None
        return self.numbers[at], self.hosts[at]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        said = next(line for line in map(json.loads, file) if line.get("type") == "ranks")
    prefix = sys.argv[2]
    truth = {"rank " + path.rsplit(".", 1)[1]: Truth(path) for path in sorted(glob.glob(prefix + ".*"))}
    held = other = told = wrong = beyond = 0
    said_sum = true_sum = 0.0
    errors, behind = [], []
    for communicator in said["communicators"]:
        for arrival in communicator["arrivals"]:
            begins = {one["name"]: one["begin_ns"] for one in arrival["order"]}
            stamps = {name: truth[name].before(begin) for name, begin in begins.items() if name in truth}
            if len(stamps) < len(truth) or None in stamps.values():
                continue
            if len({number for number, _ in stamps.values()}) > 1:
                other += 1
                continue
            held += 1
            came = sorted((host, name) for name, (_, host) in stamps.items())
            skew = came[-1][0] - came[0][0]
            said_sum += arrival["skew_ns"]
            true_sum += skew
            errors.append(abs(arrival["skew_ns"] - skew))
            behind += [begins[name] - host for name, (_, host) in stamps.items()]
            beyond += errors[-1] > arrival["skew_error_ns"] + sum(one.error for one in truth.values())
            if len(arrival["last"]) == 1:
                told += 1
                wrong += arrival["last"][0] != came[-1][1]
    if not told:
        print(f"nothing was held: {held} calls with stamps, {other} of another call")
        return 1
    errors.sort()
    behind.sort()
    share, waited = 100 * (told - wrong) / told, 100 * (said_sum / true_sum - 1)
    tables = sum(kind["waited_ns"] or 0 for of in said["communicators"] for kind in of["kinds"])
    print(
        f"{held} calls ({other} with stamps of different calls): order told of {told}, {share:.2f} % right; waited {said_sum / 1e6:.2f} ms (tables {tables / 1e6:.2f}),"
        f" by the stamps {true_sum / 1e6:.2f} ({waited:+.2f} %); skews differ by {errors[len(errors) // 2] / 1e3:.2f} us (median),"
        f" {errors[len(errors) * 99 // 100] / 1e3:.2f} (p99); {beyond} by more than their errors; begins behind stamps by"
        f" {behind[len(behind) // 100] / 1e3:.2f}, {behind[len(behind) // 2] / 1e3:.2f}, {behind[len(behind) * 99 // 100] / 1e3:.2f} us (p1, median, p99);"
        f" stamps +- {max(one.error for one in truth.values()) / 1e3:.2f} us"
    )
    return int(share < 99 or abs(waited) > 3 or other * 100 > held)


if __name__ == "__main__":
    sys.exit(main())
