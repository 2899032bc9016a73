"""Holds the GPU times that nvcap shows against what the kernels themselves, and CUPTI, say of them.

    time.py truth WAY TRACE.json TRUTH.txt     TRUTH.txt: truth.cu's
    time.py pairs FILE                         lines of `KIND NS`, KIND in turn untraced, observed, cupti
    time.py cupti TRUTH.txt CUPTI.log [FILE]   of the same run of truth.cu; FILE gets how many ns CUPTI's durations have beyond
    time.py sums WAY TRACE.json CUPTI.log      CUPTI.log: meaning/cupti_log.c's, of an equal run of the same program

Prints tables, and for time.sh lines `ROW <tab> ok|FAIL|note <tab> what <tab> numbers`. The limits are those of `LIMITS`.
Truth of the GPU is %globaltimer: read at a kernel's begin by the first thread of each block, at its end by the same ones.
"""
import bisect
import collections
import json
import os
import statistics
import sys

LIMITS = {
    "start": 200,  # ns, of 99 % of the starts on the GPU's clock
    "queued": (300, 2000),  # ns, median and 99th percentile of durations where work is queued behind
    "alone": (1500, 4000),  # ns, median and 90th percentile where it is not
    "coverage": 98.0,  # % of launches
    "claims": 99.0,  # % of the errors that are within the error that nvcap states
    "sums": 3.0,  # %, of the ten heaviest kernels
    "speed": 1.01,  # ratio of the traced program's time
}
# Of shorter kernels (ns, by CUPTI) a sum is not held against the limit in %.
SHORT = 2000
# %globaltimer counts in steps.
STEP = 64
TAG, NODE_TAG = 96, 128


def row(good, what, text):
    print(f"ROW\t{good if isinstance(good, str) else 'ok' if good else 'FAIL'}\t{what}\t{text}")


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share / 100))] if values else None


def three(values):
    """The 50th, 90th and 99th percentile of the absolute values, us."""
    if not values:
        return "-"
    absolute = [abs(v) for v in values]
    return "/".join(f"{percentile(absolute, p) / 1000:.2f}" for p in (50, 90, 99))


def within(values, claims, tolerance):
    """% of the values that are not further from 0 than claimed."""
    good = sum(abs(v) <= (c or 0) + tolerance for v, c in zip(values, claims))
    return 100 * good / len(values) if values else 100.0


class Time:
    """What nvcap says of a piece of work."""

    def __init__(self, o):
        self.host, self.host_error = o.get("gpu_start_ns"), o.get("gpu_start_error_ns")
        self.start, self.start_error = o.get("gpu_clock_start_ns"), o.get("gpu_clock_error_ns")
        self.ns, self.error, self.by = o.get("gpu_ns"), o.get("gpu_ns_error"), o.get("gpu_ns_by")
        self.queued = o.get("queued_ns")
        self.queued_range = o.get("queued_least_ns", self.queued), o.get("queued_most_ns", self.queued)


class Trace:
    """Launches, replays and copies of a trace in the order of their channels, each with its time. Where the operation has none, its
    submission's is taken if it is the only one of that submission."""

    def __init__(self, path):
        self.launches, self.graphs, self.copies, self.ledger = [], [], [], None
        submissions, count = {}, collections.Counter()
        with open(path) as lines:
            for line in lines:
                if line.startswith('{"type":"submission"'):
                    o = json.loads(line)
                    if "gpu_start_ns" in o or "gpu_ns" in o:
                        submissions[o["serial"]] = Time(o)
                elif line.startswith('{"type":"operation"'):
                    o = json.loads(line)
                    kept = (self.launches if o["op"] == "launch" and o["kind"] == "user" and o.get("replay") is None
                            else self.graphs if o["op"] == "graph" else self.copies if o["op"] == "copy" and o.get("src") is not None else None)
                    if kept is not None:
                        count[o["serial"]] += 1
                        kept.append(o)
                elif line.startswith('{"type":"ledger"'):
                    self.ledger = json.loads(line)
        for o in self.launches + self.graphs + self.copies:
            own = Time(o) if "gpu_start_ns" in o or "gpu_ns" in o else None
            if own is None and count[o["serial"]] == 1:
                own = submissions.get(o["serial"])
            o["time"] = own or Time({})

    def tagged(self):
        """Launches by their blocks' threads."""
        by = collections.defaultdict(list)
        for o in self.launches:
            if o["block"] and o["block"][1:] == [1, 1]:
                by[o["block"][0]].append(o)
        return by


class Truth:
    """What truth.cu wrote."""

    def __init__(self, path):
        self.phases, self.pings, self.kernels, self.replays, self.copies = {}, [], {}, {}, {}
        for line in open(path):
            kind, *rest = line.split()
            if kind == "phase":
                self.phases[rest[0]] = (int(rest[1]), int(rest[2]), int(rest[3]))
            elif kind == "ping":
                self.pings.append(tuple(map(int, rest)))
            elif kind == "k":
                self.kernels[int(rest[1])] = (rest[0], int(rest[2]), *map(int, rest[3:]))
            elif kind == "g":
                self.replays[int(rest[0])] = tuple(map(int, rest[1:]))
            elif kind == "c":
                self.copies[int(rest[0])] = tuple(map(int, rest[1:]))
        self.ping_times = [p[1] for p in self.pings]

    def host(self, gpu):
        """The host time of a GPU time, and how far it may be off: a line through the two answers of the GPU around it."""
        at = min(max(bisect.bisect(self.ping_times, gpu), 1), len(self.pings) - 1)
        (a0, a, a1), (b0, b, b1) = self.pings[at - 1], self.pings[at]
        # In whole numbers: the GPU's clock has more digits than a float.
        first, second = (a0 + a1) // 2 - a, (b0 + b1) // 2 - b
        share = (gpu - a) / (b - a) if b != a else 0
        return gpu + first + round((second - first) * share), max(a1 - a0, b1 - b0) // 2


def align(trace, truth):
    """(seq, launch) of each launch of truth.cu that nvcap shows: by the sequence number in its arguments, else by order."""
    of_stream = collections.defaultdict(list)
    for seq, k in sorted(truth.kernels.items()):
        of_stream[k[1]].append(seq)
    pairs, by_args, disorder, strange = [], 0, 0, 0
    for tag, launches in trace.tagged().items():
        seqs = of_stream.get(tag - TAG)
        if not seqs:
            continue
        channels = collections.Counter(o["channel"] for o in launches)
        channel = channels.most_common(1)[0][0]
        strange += len(launches) - channels[channel]
        last = -1
        for place, o in enumerate(o for o in launches if o["channel"] == channel):
            args = o.get("args")
            if isinstance(args, str) and len(args) >= 40:
                seq = int.from_bytes(bytes.fromhex(args[32:40]), "little")
                by_args += 1
                disorder += seq <= last
                last = seq
            elif place < len(seqs):
                seq = seqs[place]
            else:
                continue
            if seq in truth.kernels:
                pairs.append((seq, o))
    return pairs, by_args, disorder + strange


def kind_of(phase):
    """Whether work is queued behind that of a phase."""
    if phase.startswith(("queue", "two", "graph-queue", "beside")):
        return "queued"
    return "alone" if phase.startswith(("sync", "pause", "load", "graph-sync")) else None


class Errors:
    """The errors of one phase."""

    def __init__(self):
        self.count, self.shown, self.starts, self.start_claims = 0, 0, [], []
        self.durations, self.claims = [], []
        self.by = collections.defaultdict(list)
        self.clock, self.clock_claims, self.queue_good, self.queue_all, self.queued = [], [], 0, 0, []

    def add(self, truth, time, begin, end, before, after):
        self.shown += 1
        if time.start is not None:
            self.starts.append(time.start - begin)
            self.start_claims.append(time.start_error)
        if time.ns is not None:
            error = time.ns - (end - begin)
            self.durations.append(error)
            self.claims.append(time.error)
            self.by[time.by].append(error)
        host, half = truth.host(begin)
        if time.start is not None and time.host is not None:
            self.clock.append(time.host - (host + time.start - begin))
            self.clock_claims.append((time.host_error or 0) + half)
        least, most = time.queued_range
        if least is not None and most is not None:
            # The doorbell was rung between `before` and `after`.
            self.queue_all += 1
            self.queue_good += least <= host - before + half + 500 and most >= host - after - half - 500
            self.queued.append(time.queued if time.queued is not None else (least + most) // 2)

    def share(self, some):
        return 100 * len(some) / max(1, self.count)


HEAD = f"{'phase':<12} {'launches':>8} {'shown %':>8} {'start %':>8} {'start error us':>15} {'time %':>7} {'error us':>16}  by (share: error us 50/90/99)"


def table_line(name, e):
    by = "  ".join(f"{k} {100 * len(v) / max(1, len(e.durations)):.1f} %: {three(v)}" for k, v in sorted(e.by.items(), key=str))
    print(f"{name:<12} {e.count:>8} {100 * e.shown / max(1, e.count):>8.2f} {e.share(e.starts):>8.2f} {three(e.starts):>15} "
          f"{e.share(e.durations):>7.2f} {three(e.durations):>16}  {by}")


def judge(way, name, e):
    """The rows of one phase."""
    what = f"{way} {name}"
    kind = kind_of(name)
    start = percentile([abs(v) for v in e.starts], 99)
    # Writes of the kernel before delay the first instruction, and its own the stamp that tells its end: CUPTI, too, says the end of
    # such kernels later than their last instruction (section cupti). The stated errors have both.
    writes = name == "write"
    good = e.starts != [] and (writes or start <= LIMITS["start"]) and (kind is None or e.share(e.starts) >= LIMITS["coverage"])
    row(good, f"{what}: starts", f"{e.share(e.starts):.2f} % of {e.count} known; error us 50/90/99 {three(e.starts)} (limit {LIMITS['start'] / 1000} at 99 %)")
    if kind is None:
        row("note", f"{what}: durations", f"{e.share(e.durations):.2f} % known; error us 50/90/99 {three(e.durations)}")
    else:
        median, high = LIMITS[kind]
        share = 99 if kind == "queued" else 90
        absolute = [abs(v) for v in e.durations]
        good = (e.share(e.durations) >= LIMITS["coverage"] and percentile(absolute, 50) <= median and percentile(absolute, share) <= high)
        row(good, f"{what}: durations",
            f"{e.share(e.durations):.2f} % known; error us 50/90/99 {three(e.durations)} (limits {median / 1000} at 50 %, {high / 1000} at {share} %)")
    claims = within(e.starts, e.start_claims, STEP), within(e.durations, e.claims, STEP)
    row(min(claims) >= LIMITS["claims"], f"{what}: stated errors hold", f"of starts {claims[0]:.2f} %, of durations {claims[1]:.2f} %")


def graphs(way, trace, truth):
    shown = {}
    for name in ("graph-sync", "graph-queue"):
        if name in truth.phases:
            shown[name] = Errors()
    if not shown:
        return shown
    ours = [o for o in trace.graphs if o["kernels"] == 32]
    # Attached or observed, the replay of the preparation is not among them; from the start it is the first.
    ours = ours[-len(truth.replays):]
    for name, e in shown.items():
        e.count = sum((i < 100) == (name == "graph-sync") for i in truth.replays)
    if len(ours) != len(truth.replays):
        row(False, f"{way} graph: replays", f"{len(ours)} of {len(truth.replays)} shown: they cannot be told apart")
        return {}
    for (i, times), o in zip(sorted(truth.replays.items()), ours):
        shown["graph-sync" if i < 100 else "graph-queue"].add(truth, o["time"], *times)
    return shown


def copies(way, trace, truth):
    """A copy's times lie between the end of the kernel before it and the begin of the one behind it."""
    if not truth.copies:
        return
    size = next(iter(truth.copies.values()))[0]
    ours = [o for o in trace.copies if o["bytes"] == size]
    known, outside, shares = 0, [], []
    for (_, after, before), o in zip((c for _, c in sorted(truth.copies.items())), ours):
        t = o["time"]
        if t.start is None or t.ns is None:
            continue
        known += 1
        shares.append(t.ns / max(1, before - after))
        early, late = after - t.start, t.start + t.ns - before
        if max(early - (t.start_error or 0), late - (t.start_error or 0) - (t.error or 0)) > STEP:
            outside.append(max(early, late))
    by = collections.Counter(o["time"].by for o in ours)
    row(len(ours) == len(truth.copies) and not outside and known > 0, f"{way} copy: between its neighbours",
        f"{len(ours)} of {len(truth.copies)} copies shown, {known} with both times, {len(outside)} outside by {max(outside, default=0)} ns at most; "
        f"share of the time between the neighbours: median {statistics.median(shares) if shares else 0:.3f}; by {dict(by)}")


def truth_of(way, trace_path, truth_path):
    trace, truth = Trace(trace_path), Truth(truth_path)
    pairs, by_args, wrong = align(trace, truth)
    phases = {}
    for k in truth.kernels.values():
        phases.setdefault(k[0], Errors()).count += 1
    for seq, o in pairs:
        name, _, *times = truth.kernels[seq]
        phases[name].add(truth, o["time"], *times)
    phases.pop("mark", None)
    complete = trace.ledger is not None and trace.ledger["complete"]
    row(wrong == 0 and len(pairs) > 0, f"{way}: launches", f"{len(pairs)} of {len(truth.kernels)} aligned, {by_args} by their arguments, {wrong} out of order or elsewhere; ledger: complete {complete}")
    phases.update(graphs(way, trace, truth))
    print(f"\n## {way}\n{HEAD}")
    for name, e in phases.items():
        table_line(name, e)
    for name, e in phases.items():
        judge(way, name, e)
    copies(way, trace, truth)
    clock, claims, good, every = [], [], 0, 0
    for e in phases.values():
        clock += e.clock
        claims += e.clock_claims
        good, every = good + e.queue_good, every + e.queue_all
    half = max((p[2] - p[0]) / 2 for p in truth.pings)
    held = within(clock, claims, STEP)
    row(bool(clock) and held >= LIMITS["claims"], f"{way}: host clock",
        f"of {len(clock)} starts: from the middle of the GPU's answers, us 50/90/99 {three(clock)}, answers known to {half:.0f} ns; within the stated error {held:.2f} %")
    row(every > 0 and 100 * good / every >= LIMITS["claims"], f"{way}: time in the queue",
        f"{good} of {every} as the doorbell between two readings of the clock and the kernel's own begin say")


def pairs_of(path):
    values = collections.defaultdict(list)
    for line in open(path):
        kind, value = line.split()
        values[kind].append(float(value))
    base = values.pop("untraced", [])
    for kind, some in values.items():
        ratios = [b / a for a, b in zip(base, some)]
        median = statistics.median(ratios) if ratios else 0
        good = len(ratios) >= 10 and median <= LIMITS["speed"] if kind == "observed" else "note"
        row(good, f"speed: {kind}",
            f"{len(ratios)} pairs: untraced {statistics.median(base):.1f}, {kind} {statistics.median(some):.1f} ns a launch; ratio: median {median:.4f}, "
            f"from {min(ratios, default=0):.3f} to {max(ratios, default=0):.3f}")


def sums_of(way, trace_path, cupti_path):
    trace = Trace(trace_path)
    ours, counts, without = collections.Counter(), collections.Counter(), 0
    for o in trace.launches:
        name = o.get("kernel_mangled") or hex(o["program"] or 0)
        counts[name] += 1
        if o["time"].ns is None:
            without += 1
        else:
            ours[name] += o["time"].ns
    theirs, their_counts = collections.Counter(), collections.Counter()
    for line in open(cupti_path):
        o = json.loads(line)
        if o["type"] == "kernel":
            theirs[o["name"]] += o["end"] - o["start"]
            their_counts[o["name"]] += 1
    print(f"\n## {way}: time by kernel, ms\n{'nvcap':>10} {'CUPTI':>10} {'off %':>7} {'launches':>9} {'CUPTI':>9}  name")
    # What CUPTI counts beyond the last instruction less the first, by this machine's own measurement (section cupti).
    beyond = float(os.environ.get("CUPTI_BEYOND_NS") or 0)
    worst, raw, each, heavy = 0.0, 0.0, 0.0, theirs.most_common(10)
    for name, total in heavy:
        off = 100 * (ours[name] + beyond * counts[name] - total) / total
        raw = max(raw, abs(100 * (ours[name] - total) / total))
        worst = max(worst, abs(off))
        each = max(each, abs(off) / 100 * total / max(1, counts[name]))
        print(f"{ours[name] / 1e6:>10.3f} {total / 1e6:>10.3f} {off:>7.2f} {counts[name]:>9} {their_counts[name]:>9}  {name[:90]}")
    launches = len(trace.launches)
    coverage = 100 * (launches - without) / max(1, launches)
    by = collections.Counter(o["time"].by for o in trace.launches)
    # Kernels that take less than a start and an end can be off.
    short = bool(heavy) and min(total / their_counts[name] for name, total in heavy) < SHORT
    row("note" if short else bool(heavy) and worst <= LIMITS["sums"], f"{way}: sums by kernel",
        f"the ten heaviest: at most {worst:.2f} % from CUPTI's ({'some take less than 2 us, so this is no test' if short else 'limit %s %%' % LIMITS['sums']}), "
        f"{each:.0f} ns a launch, with the {beyond:.0f} ns a kernel that CUPTI counts beyond its "
        f"instructions; {raw:.2f} % without; all kernels: {sum(ours.values()) / 1e6:.2f} and {sum(theirs.values()) / 1e6:.2f} ms")
    row(launches > 0 and coverage >= LIMITS["coverage"], f"{way}: coverage",
        f"{launches - without} of {launches} launches ({coverage:.2f} %, limit {LIMITS['coverage']}), CUPTI {sum(their_counts.values())}; by {dict(by)}")


def equal_of(name, one_path, other_path):
    """How equal two runs under CUPTI are: what a comparison of two runs can show at best."""
    def sums(path):
        all_of = collections.Counter()
        for line in open(path):
            o = json.loads(line)
            if o["type"] == "kernel":
                all_of[o["name"]] += o["end"] - o["start"]
        return all_of
    one, other = sums(one_path), sums(other_path)
    worst = max((100 * abs(other[k] - v) / v for k, v in one.most_common(10)), default=100)
    row(worst <= LIMITS["sums"], f"{name}: two runs under CUPTI", f"the sums of the ten heaviest kernels differ by at most {worst:.2f} %")


def cupti_of(truth_path, cupti_path, *_):
    """What CUPTI says of kernels whose first and last instruction are known: what it calls a kernel's duration."""
    truth, theirs = Truth(truth_path), collections.defaultdict(list)
    for line in open(cupti_path):
        o = json.loads(line)
        if o["type"] == "kernel" and o["name"].startswith(("_Z4work", "_Z11work_writes")):
            theirs[o["block"][0] - TAG].append((o["start"], o["end"] - o["start"]))
    seqs = collections.defaultdict(list)
    for seq, kernel in sorted(truth.kernels.items()):
        seqs[kernel[1]].append(seq)
    more = collections.defaultdict(list)
    for stream, all_seqs in seqs.items():
        durations = [d for _, d in sorted(theirs[stream])]
        if len(durations) != len(all_seqs):
            row("note", "cupti: stream", f"{len(durations)} of {len(all_seqs)} kernels of stream {stream}: not compared")
            continue
        for seq, duration in zip(all_seqs, durations):
            phase, _, begin, end, *_ = truth.kernels[seq]
            more[phase].append(duration - (end - begin))
    print("\n## what CUPTI's durations have beyond the time from the first to the last instruction, ns\nphase         launches    10 %    50 %    90 %")
    for phase, values in more.items():
        print(f"{phase:<12} {len(values):>9} {percentile(values, 10):>7} {percentile(values, 50):>7} {percentile(values, 90):>7}")
    every = [v for values in more.values() for v in values]
    if every and len(sys.argv) > 4:
        with open(sys.argv[4], "w") as file:
            file.write(f"{statistics.mean(v for v in every if abs(v) < 10000):.0f}\n")
    row("note" if every else False, "cupti: durations", f"{len(every)} kernels: CUPTI's are longer by {percentile(every, 50)} ns in the median")


if __name__ == "__main__":
    {"truth": truth_of, "pairs": pairs_of, "sums": sums_of, "equal": equal_of, "cupti": cupti_of}[sys.argv[1]](*sys.argv[2:])
