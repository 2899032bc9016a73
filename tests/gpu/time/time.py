"""Holds the GPU times that nvcap shows against what the kernels themselves, and CUPTI, say of them.

    time.py truth WAY TRACE.json TRUTH.txt     TRUTH.txt: truth.cu's
    time.py pairs FILE                         lines of `KIND NS`, KIND in turn untraced, observed, cupti
    time.py cupti TRUTH.txt CUPTI.log          of the same run of truth.cu
    time.py sums WAY TRACE.json CUPTI.log      CUPTI.log: meaning/cupti_log.c's, of an equal run of the same program
    time.py busy WAY TRACE.json TRUTH.txt NVCAP RECORDING
                                               what NVCAP's `nvcap time --json RECORDING` says of each phase: how busy the GPU was, overlaps,
                                               gaps, waits; TRACE.json: the same recording decoded
    time.py starts CUPTI_TRUTH.txt CUPTI.log WAY TRACE.json TRUTH.txt
                                               times between starts by CUPTI and by nvcap, in two equal runs of truth.cu
    time.py ahead WHAT TIME.json OUT.txt       what `nvcap time --json` says of time/ahead.cu; OUT.txt: what that printed

Prints tables, and for time.sh lines `ROW <tab> ok|FAIL|OVER|NOT RUN|note <tab> what <tab> numbers`. The limits are those of `LIMITS`. OVER: a limit is
not held, for a reason that is known and named in the row. note: no limit is asked for. selfcheck.py runs this on made-up data.
Truth of the GPU is %globaltimer: read at a kernel's begin by the first thread of each block, at its end by the same ones.
"""
import bisect
import collections
import json
import statistics
import subprocess
import sys

LIMITS = {
    "start": 200,  # ns, of 99 % of the starts on the GPU's clock
    "queued": (300, 2000),  # ns, median and 99th percentile of durations where work is queued behind
    "alone": (1500, 4000),  # ns, median and 90th percentile where it is not
    "coverage": 98.0,  # % of launches
    "claims": 99.0,  # % of the errors that are within the error that nvcap states
    "sums": 3.0,  # %, of the ten heaviest kernels
    "speed": 1.01,  # ratio of the traced program's time
    "rate": 0.9,  # of 300,000 submissions a second, so many were made in the phase of that name
}
RATE = 300000
# Of shorter kernels (ns, by CUPTI) a sum is not held against the limit in %.
SHORT = 2000
# %globaltimer counts in steps.
STEP = 64
TAG, NODE_TAG = 96, 128
# Of the replays of the graph, so many are waited for (truth.cu).
WAITED = 500


def row(good, what, text):
    print(f"ROW\t{good if isinstance(good, str) else 'ok' if good else 'FAIL'}\t{what}\t{text}")


def limited(held, known, what, text):
    """A row of a limit. `known`: why it is known not to be held, if it is."""
    if held or not known:
        row(held, what, text)
    else:
        row("OVER", what, f"LIMIT NOT HELD: {text}; {known}")


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
    """What nvcap says of a piece of work: of kernels from the first instruction, as the truth is. `began` and `whole` are from the stamp, as CUPTI's are."""

    def __init__(self, o):
        self.began, self.whole, self.by = o.get("gpu_start_ns"), o.get("gpu_ns"), o.get("gpu_ns_by")
        launch, error = o.get("gpu_launch_ns", 0), o.get("gpu_launch_error_ns", 0)
        behind = lambda name: None if o.get(name) is None else o[name] + launch
        self.host, self.host_error = behind("gpu_start_ns"), o.get("gpu_start_error_ns", 0) + error
        self.start, self.start_error = behind("gpu_clock_start_ns"), o.get("gpu_clock_error_ns", 0) + error
        name = "gpu_exec_ns" if "gpu_exec_ns" in o else "gpu_ns"
        self.ns, self.error = o.get(name), o.get(name + "_error")
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
        for o in [o for o in launches if o["channel"] != channel][:5]:
            print(f"elsewhere: {o}")
        last = -1
        for place, o in enumerate(o for o in launches if o["channel"] == channel):
            args = o.get("args")
            if isinstance(args, str) and len(args) >= 40:
                seq = int.from_bytes(bytes.fromhex(args[32:40]), "little")
                by_args += 1
                if seq <= last:
                    disorder += 1
                    if disorder <= 10:
                        print(f"out of order: {seq} behind {last}: {o}")
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


# Why a limit is known not to be held, by phase (docs/verification.md, docs/gpu-time.md).
LATE_STARTS = {
    "write": "the writes of the kernel before delay the first instruction",
    "two": "of two kernels that begin within half a us the first may be late by 0.43 us, and nothing seen from outside tells which",
}
LATE_STARTS["fast"] = LATE_STARTS["rate"] = LATE_STARTS["two"]
FAST = "the rings go round faster than they are read"
REUSED = "entries were missing, and memory of late ones was used again before it was read (docs/limitations.md)"


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
    limited(e.starts != [] and start <= LIMITS["start"], e.starts and LATE_STARTS.get(name), f"{what}: starts",
            f"of {len(e.starts)} of {e.count}; error us 50/90/99 {three(e.starts)} (limit {LIMITS['start'] / 1000} at 99 %)")
    limited(e.share(e.starts) >= LIMITS["coverage"], name in ("fast", "rate") and FAST, f"{what}: coverage",
            f"{e.share(e.starts):.2f} % of {e.count} starts known (limit {LIMITS['coverage']})")
    if kind is None:
        row("note", f"{what}: durations", f"{e.share(e.durations):.2f} % known; error us 50/90/99 {three(e.durations)}; no limit is asked for")
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
        e.count = sum((i < WAITED) == (name == "graph-sync") for i in truth.replays)
    if len(ours) != len(truth.replays):
        row(False, f"{way} graph: replays", f"{len(ours)} of {len(truth.replays)} shown: they cannot be told apart")
        return {}
    for (i, times), o in zip(sorted(truth.replays.items()), ours):
        shown["graph-sync" if i < WAITED else "graph-queue"].add(truth, o["time"], *times)
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
    limited(wrong == 0 and len(pairs) > 0, pairs and not complete and wrong <= len(pairs) / 10000 and REUSED, f"{way}: launches", f"{len(pairs)} of {len(truth.kernels)} aligned, {by_args} by their arguments, {wrong} out of order or elsewhere; ledger: complete {complete}")
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
        if o["time"].whole is None:
            without += 1
        else:
            ours[name] += o["time"].whole
    theirs, their_counts = collections.Counter(), collections.Counter()
    for line in open(cupti_path):
        o = json.loads(line)
        if o["type"] == "kernel":
            theirs[o["name"]] += o["end"] - o["start"]
            their_counts[o["name"]] += 1
    print(f"\n## {way}: time by kernel, ms\n{'nvcap':>10} {'CUPTI':>10} {'off %':>7} {'launches':>9} {'CUPTI':>9}  name")
    worst, each, heavy = 0.0, 0.0, theirs.most_common(10)
    for name, total in heavy:
        off = 100 * (ours[name] - total) / total
        worst = max(worst, abs(off))
        each = max(each, abs(off) / 100 * total / max(1, counts[name]))
        print(f"{ours[name] / 1e6:>10.3f} {total / 1e6:>10.3f} {off:>7.2f} {counts[name]:>9} {their_counts[name]:>9}  {name[:90]}")
    launches = len(trace.launches)
    coverage = 100 * (launches - without) / max(1, launches)
    by = collections.Counter(o["time"].by for o in trace.launches)
    # Kernels that take less than an end can be off.
    short = bool(heavy) and min(total / their_counts[name] for name, total in heavy) < SHORT
    limited(bool(heavy) and worst <= LIMITS["sums"], short and "some take less than 2 us, of which what an end can be off is a large part", f"{way}: sums by kernel",
        f"the ten heaviest: at most {worst:.2f} % from CUPTI's (limit {LIMITS['sums']} %), {each:.0f} ns a launch; all kernels: {sum(ours.values()) / 1e6:.2f} and {sum(theirs.values()) / 1e6:.2f} ms")
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
            row("NOT RUN", "cupti: stream", f"CUPTI has {len(durations)} of {len(all_seqs)} kernels of stream {stream}: not compared")
            continue
        for seq, duration in zip(all_seqs, durations):
            phase, _, begin, end, *_ = truth.kernels[seq]
            more[phase].append(duration - (end - begin))
    print("\n## what CUPTI's durations have beyond the time from the first to the last instruction, ns\nphase         launches    10 %    50 %    90 %")
    for phase, values in more.items():
        print(f"{phase:<12} {len(values):>9} {percentile(values, 10):>7} {percentile(values, 50):>7} {percentile(values, 90):>7}")
    every = [v for values in more.values() for v in values]
    row("note" if every else False, "cupti: durations", f"{len(every)} kernels: CUPTI's are longer by {percentile(every, 50)} ns in the median")


def union(intervals):
    """The parts of time in which something ran."""
    parts = []
    for begin, end in sorted(intervals):
        if parts and begin <= parts[-1][1]:
            parts[-1][1] = max(parts[-1][1], end)
        else:
            parts.append([begin, end])
    return parts


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def lengths_between(parts):
    return [b[0] - a[1] for a, b in zip(parts, parts[1:])]


class Window:
    """A part of a run: work that began between two host times, and what the truth says of it. `copies`: between which times of the GPU each
    copy ran; when exactly is not known."""

    def __init__(self, name, begin, end, kernels, copies=()):
        self.name, self.begin, self.end = name, begin, end
        self.kernels, self.copies = sorted(kernels), sorted(copies)


# How far before and behind the times of the truth a window reaches where other work is not far, ns.
BEFORE, BEHIND = 20000, 5000


def windows(truth):
    """The parts of a run of truth.cu in which all work is known."""
    by = collections.defaultdict(list)
    for _, k in sorted(truth.kernels.items()):
        by[k[0]].append((k[2], k[3]))
    found = []

    def whole(name, kernels, copies=()):
        """A phase in which the device does nothing else."""
        if name in truth.phases and kernels:
            _, begin, end = truth.phases[name]
            found.append(Window(name, begin, end, kernels, copies))

    def batch(name, some):
        """A batch between kernels that hold the streams: these begin long before it, and behind it."""
        if some:
            begin, _ = truth.host(min(b for b, _ in some))
            end, _ = truth.host(max(b for b, _ in some))
            found.append(Window(name, begin - BEFORE, end + BEHIND, some))

    for name in list(by):
        if name.startswith("pause") or name in ("load", "rate"):
            whole(name, by[name])
    batch("two", by["two"][4000:5000])
    whole("copy", by["beside"] + by["mark"], [c[1:] for c in truth.copies.values()])
    replays = {i: r[:2] for i, r in truth.replays.items()}
    whole("graph-sync", [r for i, r in replays.items() if i < WAITED])
    batch("graph-queue", [r for i, r in sorted(replays.items()) if WAITED + 100 <= i < WAITED + 150])
    return found


class Shown:
    """What the decoded recording says of the work in a window: begins, ends, and how far they may be off."""

    def __init__(self, window, works):
        self.count, self.known = 0, []
        for o in works:
            t = o["time"]
            if t.began is None or not window.begin <= t.began <= window.end:
                continue
            self.count += 1
            # What is this vague is left out of the sums (docs/gpu-time.md).
            if t.ns is not None and (t.error <= 100000 or t.error <= t.ns // 10):
                self.known.append((t.start, t.start + t.ns, t.start_error + STEP, t.error + STEP))
        self.allowed = sum(k[2] + k[3] for k in self.known)
        self.ends = {k[1]: k[3] for k in self.known}
        self.begins = {k[0]: k[2] for k in self.known}


def judge_busy(way, window, works, sums, is_copy):
    """Rows of one window: what `nvcap time` sums up (`sums`) against the truth. `works`: the recording's operations."""
    what = f"{way} {window.name}"
    kernels = Shown(window, [o for o in works if not is_copy(o)])
    copies = Shown(window, [o for o in works if is_copy(o)])
    if len(sums["gpus"]) != 1 or not kernels.known:
        row(False, f"{what}: busy", f"{len(sums['gpus'])} GPUs, {len(kernels.known)} kernels with times")
        return
    engines = {e["engine"]: e["work"] for e in sums["engines"]}
    gpu, own = sums["gpus"][0], engines.get("gr")
    if own is None:
        row(False, f"{what}: busy", f"no engine gr: {sorted(engines)}")
        return
    # Of kernels without times it is not known which they are: the longest ones at most.
    missing = max(0, len(window.kernels) - len(kernels.known))
    unseen = sum(sorted((e - b for b, e in window.kernels), reverse=True)[:missing])
    allowed = kernels.allowed + unseen
    parts = union(window.kernels)
    busy, span = length(parts), parts[-1][1] - parts[0][0]
    share = own["busy_ns"] / max(1, own["busy_ns"] + own["idle_ns"])
    known = 100 * len(kernels.known) / len(window.kernels)
    row(abs(own["busy_ns"] - busy) <= allowed and abs(share - busy / span) <= (allowed + own["unknown_ns"]) / span, f"{what}: busy",
        f"{100 * share:.3f} % of the time, {100 * busy / span:.3f} in truth; {own['busy_ns'] / 1e6:.3f} and {busy / 1e6:.3f} ms, which may differ by "
        f"{allowed / 1e6:.3f} by the stated errors")
    limited(known >= LIMITS["coverage"], window.name == "rate" and FAST, f"{what}: durations known", f"{known:.2f} % of {len(window.kernels)} (limit {LIMITS['coverage']})")
    if window.name in ("two", "rate"):
        told, truth = own["sum_ns"] - own["busy_ns"], length(window.kernels) - busy
        row(abs(told - truth) <= allowed, f"{what}: overlap", f"{told / 1e6:.3f} ms, {truth / 1e6:.3f} in truth, which may differ by {allowed / 1e6:.3f}")
    if window.copies:
        # A copy ran within its window, for most of it.
        within = length(union(window.copies))
        ran = sum(w["busy_ns"] for name, w in engines.items() if name.startswith("ce"))
        told = own["busy_ns"] + ran - gpu["work"]["busy_ns"]
        both = busy + within - length(union(window.kernels + window.copies))
        slack = max(0, within - ran)
        allowed += copies.allowed
        row(ran > 0 and both - slack - allowed <= told <= both + allowed, f"{what}: overlap of copies and kernels",
            f"{told / 1e6:.3f} ms; copies ran within {within / 1e6:.3f} ms, of which kernels ran {both / 1e6:.3f}; by nvcap they ran for {ran / 1e6:.3f}; stated errors {allowed / 1e6:.3f}")
    judge_gaps(what, window, kernels, copies, gpu["gaps"])


def judge_gaps(what, window, kernels, copies, listed):
    """The ten longest gaps: each begins where work ends and ends where work begins, and they are the truth's longest ones."""
    parts, off, loose, worst = union(window.kernels), [], 0, 0
    begins, ends = [p[0] for p in parts], [p[1] for p in parts]
    for gap in listed:
        begin, end = gap["gpu_clock_ns"], gap["gpu_clock_ns"] + gap["ns"]
        late = kernels.ends.get(begin, copies.ends.get(begin))
        early = kernels.begins.get(end, copies.begins.get(end))
        if late is None or early is None:
            loose += 1
            continue
        # Nothing but what may be wrong of the two ran in it.
        after = bisect.bisect_left(ends, begin + late + 1)
        ran = [p for p in parts[after:after + 1] if p[0] < end - early]
        shorter = False
        if not window.copies:
            # It is as long as that of the truth around its middle.
            middle = (begin + end) // 2
            at = bisect.bisect_right(begins, middle)
            if 0 < at < len(parts):
                wrong = max(abs(begin - ends[at - 1]), abs(end - begins[at]))
                worst = max(worst, wrong)
                shorter = abs(begin - ends[at - 1]) > late or abs(end - begins[at]) > early
        if ran or shorter:
            off.append(gap["ns"])
    # As each gap is wrong by the errors of two times at most, so is the one at each place in the order; no gap is shorter than none.
    longest = sorted(lengths_between(parts), reverse=True)[:10]
    told = [g["ns"] for g in listed] + [0] * (len(longest) - len(listed))
    allowed = 2 * max([k[2] for k in kernels.known] + [k[3] for k in kernels.known])
    # A piece of work without times may lie in one gap, or begin or end one.
    missing = len(window.kernels) - len(kernels.known) + len(window.copies) - len(copies.known)
    ranked = window.copies or missing or all(abs(a - b) <= allowed for a, b in zip(told, longest))
    row((bool(listed) or not longest) and len(off) + loose <= max(0, missing) and bool(ranked), f"{what}: gaps",
        f"of the {len(listed)} longest {len(off)} are not as the truth says, within the stated errors, {loose} are not between two times of the recording, "
        f"{missing} works have no times; wrong by {worst} ns at most; "
        f"the longest {told[:1]}, in truth {longest[:1] if not window.copies else 'not known'}")
    if not window.copies:
        mine = sorted(lengths_between(union((k[0], k[1]) for k in kernels.known)))
        theirs = sorted(lengths_between(parts))
        print(f"{what + ': all gaps, us':<34} {len(mine):>7} {'/'.join(f'{(percentile(mine, p) or 0) / 1000:.2f}' for p in (10, 50, 90, 99)):>30} "
              f"in truth {len(theirs):>7} {'/'.join(f'{(percentile(theirs, p) or 0) / 1000:.2f}' for p in (10, 50, 90, 99)):>30}  (10/50/90/99 %)")


def judge_waits(way, truth, window, trace, sums):
    """The kernel behind a copy waits for it: these are the longest waits of the phase `copy`."""
    marks = sorted(before for _, _, before in truth.copies.values())
    after = {before: a for _, a, before in truth.copies.values()}
    channels = {o["channel"] for o in trace.copies}
    good, waits = 0, sums["waits"]
    print(f"\n## {way}: the longest waits of the phase copy; channels of copies: {sorted(channels)}\n  ns  by nvcap, of the truth  until, off by  channel  for")
    for wait in waits:
        near = min(marks, key=lambda m: abs(truth.host(m)[0] - wait["until_ns"]))
        host, half = truth.host(near)
        print(f"  {wait['ns']} {near - after[near]} {wait['until_ns'] - host}+-{half} {wait['channel']} {wait['for_channel']}")
        good += (wait["for_channel"] in channels and wait["channel"] not in channels
                 and abs(host - wait["until_ns"]) <= half + 10000 and wait["ns"] <= near - after[near] + 5000)
    row(len(waits) == 10 and good == 10, f"{way} {window.name}: waits", f"{good} of {len(waits)} are of a kernel for the copy before it, and no longer than that can have been")


def busy_of(way, trace_path, truth_path, nvcap, recording):
    trace, truth = Trace(trace_path), Truth(truth_path)
    works = trace.launches + trace.graphs + trace.copies
    print(f"\n## {way}: nvcap time by phase")
    parts = windows(truth)
    row(bool(parts), f"{way}: phases", ", ".join(w.name for w in parts))
    for window in parts:
        if window.name == "rate":
            kernels = [k for k in truth.kernels.values() if k[0] == "rate"]
            rate = len(kernels) * 1e9 / (max(k[5] for k in kernels) - min(k[4] for k in kernels))
            if way != "observed":
                row("note", f"{way} rate", f"{rate:.0f} submissions a second: a trap at each is no way for that; no limit is asked for")
                continue
            row(rate >= LIMITS["rate"] * RATE, f"{way} rate", f"{rate:.0f} submissions a second (at least {LIMITS['rate'] * RATE:.0f} are a test)")
        told = subprocess.run([nvcap, "time", "--exec-time", "--json", "-e", f"gpu_start_ns>={window.begin}&&gpu_start_ns<={window.end}", recording], capture_output=True, text=True)
        sums = next((json.loads(l) for l in told.stdout.splitlines() if '"type":"gpu_time"' in l), None)
        if sums is None:
            row(False, f"{way} {window.name}: busy", f"nvcap time: status {told.returncode}: {told.stderr.strip()[-200:]}")
            continue
        judge_busy(way, window, works, sums, lambda o: o["op"] == "copy")
        if window.copies:
            judge_waits(way, truth, window, trace, sums)


def between_starts(truth, told):
    """By phase: from each start to the next one of its stream, as told and as the kernels say; only within what was launched in one go. `told`: starts by
    sequence number."""
    by = collections.defaultdict(lambda: ([], []))
    last = {}
    for seq, kernel in sorted(truth.kernels.items()):
        phase, stream, begin = kernel[:3]
        before = last.get(stream)
        last[stream] = (seq, phase)
        if before is None or before[1] != phase or seq not in told or before[0] not in told:
            continue
        apart = begin - truth.kernels[before[0]][2]
        if kind_of(phase) == "queued" and apart > 2 * (truth.kernels[before[0]][3] - truth.kernels[before[0]][2]) + 20000:
            continue  # Another batch.
        by[phase][0].append(told[seq] - told[before[0]])
        by[phase][1].append(apart)
    return by


def starts_of(cupti_truth_path, cupti_path, way, trace_path, truth_path):
    """Starts by nvcap against CUPTI's. Two runs have no common clock: the times between starts are compared, each with the truth of its own run."""
    truth, cupti_truth = Truth(truth_path), Truth(cupti_truth_path)
    theirs, seqs = collections.defaultdict(list), collections.defaultdict(list)
    for line in open(cupti_path):
        o = json.loads(line)
        if o["type"] == "kernel" and o["name"].startswith(("_Z4work", "_Z11work_writes")):
            theirs[o["block"][0] - TAG].append(o["start"])
    for seq, kernel in sorted(cupti_truth.kernels.items()):
        seqs[kernel[1]].append(seq)
    by_cupti = {}
    for stream, all_seqs in seqs.items():
        if len(theirs[stream]) == len(all_seqs):
            by_cupti.update(zip(all_seqs, sorted(theirs[stream])))
    pairs, _, _ = align(Trace(trace_path), truth)
    by_nvcap = {seq: o["time"].start for seq, o in pairs if o["time"].start is not None}
    ours, others = between_starts(truth, by_nvcap), between_starts(cupti_truth, by_cupti)
    if not others:
        row("NOT RUN", f"{way}: starts and CUPTI's", "CUPTI has not all kernels")
        return
    shares = (1, 10, 50, 90, 99)
    print(f"\n## {way}: times between starts, us, {'/'.join(map(str, shares))} %: by nvcap and in its run's truth; by CUPTI and in its run's truth; errors of single ones")
    for phase in sorted(set(ours) & set(others)):
        (mine, true), (its, its_true) = ours[phase], others[phase]
        at = lambda values: [percentile(values, s) for s in shares]
        text = lambda values: "/".join(f"{v / 1000:.2f}" for v in at(values))
        print(f"{phase:<12} {text(mine)}  {text(true)}  CUPTI {text(its)}  {text(its_true)}  errors {three([a - b for a, b in zip(mine, true)])} CUPTI {three([a - b for a, b in zip(its, its_true)])}")
        # What each says beyond its own run's truth: CUPTI slows its run.
        off = max(abs((m - t) - (i - j)) for m, t, i, j in zip(at(mine), at(true), at(its), at(its_true)))
        raw = max(abs(m - i) for m, i in zip(at(mine), at(its)))
        limited(off <= LIMITS["start"], LATE_STARTS.get(phase), f"{way} {phase}: starts and CUPTI's",
                f"{len(mine)} and {len(its)} times between starts: distributions beyond the truth's differ by {off} ns at most (limit {LIMITS['start']}), as they are by {raw}")


def ahead_of(what, sums_path, said_path):
    """Sums of work that ends seconds after its submission: all kernels timed, and the time in which kernels ran as they say."""
    sums = json.loads(open(sums_path).readline())
    said = next(line for line in open(said_path) if line.startswith("truth "))
    truth = {name: int(value) for name, value in (word.split("=") for word in said.split()[1:])}
    rows = [k for k in sums["kernels"] if k["kernel"].startswith("busy")]
    count, timed = sum(k["count"] for k in rows), sum(k["gpu"]["timed"] for k in rows)
    row(count == truth["kernels"] and timed >= 0.99 * count, f"ahead, {what}: kernels", f"{count} of {truth['kernels']} shown, {timed} timed")
    channels = [c["work"]["busy_ns"] + c["work"]["unknown_ns"] for c in sums["channels"] if c["engine"] == "gr"]
    # Kernels of other channels ran within the time of the longest.
    busy = max(channels, default=0)
    row(abs(busy - truth["union_ns"]) <= 0.01 * truth["union_ns"], f"ahead, {what}: time", f"{busy / 1e6:.1f} ms, {truth['union_ns'] / 1e6:.1f} ms by the kernels")
    gpu = max(sums["gpus"], key=lambda g: g["work"]["busy_ns"])
    work = gpu["work"]
    row(gpu["verdict"] == "GPU-bound" and work["unknown_ns"] <= 0.01 * work["span_ns"], f"ahead, {what}: verdict", f"{gpu['verdict']}, {work['unknown_ns'] / 1e6:.2f} of {work['span_ns'] / 1e6:.1f} ms not known, {gpu['copies_alone_ns'] / 1e6:.2f} ms of copies alone")


if __name__ == "__main__":
    {"truth": truth_of, "pairs": pairs_of, "sums": sums_of, "equal": equal_of, "cupti": cupti_of, "busy": busy_of, "starts": starts_of, "ahead": ahead_of}[sys.argv[1]](*sys.argv[2:])
