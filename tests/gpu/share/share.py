#!/usr/bin/env python3
"""Shares of `nvcap share` beside what the programs themselves say (work.cu): share.py SECTION NVCAP WORK FOLDER.

Prints rows: ROW, ok or FAIL, what, detail. Every verdict is about sums of times, none about how fast the machine is.
"""
import bisect
import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time

SECTION, NVCAP, WORK, FOLDER = sys.argv[1:5]
SECONDS = float(os.environ.get("SECONDS_OF", "5"))
PAIRS = int(os.environ.get("PAIRS", "10"))
SAVED_US = 150
FLAGS = os.environ.get("SHARE_FLAGS", "").split()


def row(good, what, detail):
    result = "ok" if good is True else "FAIL" if good is False else "NOTE"
    print("ROW" if good is not None else "NOTE", result, what, detail, sep="\t", flush=True)


def start(name, kernel_us, pause_us, seconds):
    out = os.path.join(FOLDER, name)
    command = [WORK, out, str(kernel_us), str(pause_us), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.out, process.name = out, name
    return process


def ready(processes):
    for process in processes:
        line = process.stdout.readline()
        assert line.startswith("ready"), (process.name, line)


def kernels(process):
    process.wait(120)
    assert process.returncode == 0, process.name
    with open(process.out) as lines:
        return [tuple(map(int, line.split())) for line in lines]


def share(seconds, *more, user=None):
    command = [NVCAP, "share", "--json", "--duration", str(seconds), *FLAGS, *more]
    if user is not None:
        command = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups", *command]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def measured(process):
    text, said = process.communicate(timeout=120)
    usage = os.times()
    objects = [json.loads(line) for line in text.splitlines()]
    return objects, said, process.returncode


def busiest(objects):
    return max(objects, key=lambda o: sum(p["share"] for p in o["processes"]))


def worked(of, begin, end):
    """What a program worked between two times, and what of its time was another's, ns."""
    work = gaps = count = 0
    for b, e, w, g, n in of:
        part = max(0, min(e, end) - max(b, begin)) / max(1, e - b)
        work += w * part
        gaps += g * part
        count += n * part
    return work, gaps, count


def adds_up(what, one):
    sums = sum(p["share"] for p in one["processes"]) * one["seconds"]
    sums += one.get("others", {}).get("resident_seconds", 0)
    parts = one["switch_seconds"] + one["nobody_seconds"] + one["unknown_seconds"]
    whole = 100 * (sums + parts) / one["seconds"]
    known = 100 * (sums + one["switch_seconds"]) / one["seconds"]
    row(99.5 <= whole <= 100.5, f"{what}: sum of all", f"{whole:.3f} %; shares and switches alone {known:.3f} %, not known {one['unknown_seconds']:.4f} s, "
        f"nobody {one['nobody_seconds']:.4f} s, missing {one['missing_records']}, incomplete {one['incomplete_slices']}")
    return known


def compare(what, one, processes, busy):
    begin, end = one["gpu_time_begin_ns"], one["gpu_time_end_ns"]
    by_pid = {p.get("pid"): p for p in one["processes"]}
    names = by_pid
    for process in processes:
        own = kernels(process)
        work, gaps, count = worked(own, begin, end)
        told = names.get(process.pid)
        if told is None:
            row(False, f"{what}: {process.name}", f"pid {process.pid} is not told: {sorted(map(str, by_pid))}")
            continue
        resident = told["resident_seconds"] * 1e9
        off = 100 * (resident - work) / max(1, work)
        # A slice ends when the context's state is saved: 62 to 80 us on an H200. One that does not always work is resident for longer.
        saved = (resident - work) / max(1, told["slices"]) / 1e3
        good = -1 <= off and (saved <= SAVED_US or process.name not in busy)
        row(good, f"{what}: {process.name}", f"its own {work / 1e6:.2f} ms, nvcap {resident / 1e6:.2f} ms ({off:+.2f} %, {saved:.1f} us a slice), share {100 * told['share']:.2f} %, {told['slices']} slices, "
            f"mean {1e3 * told['mean_slice_seconds']:.3f} ms, longest {1e3 * told['longest_slice_seconds']:.3f} ms; {gaps / max(1, count) / 1e3:.1f} us a gap, {len(own)} kernels, {told.get('comm')}")
    row(None, what, f"{one['switches']} switches, {1e6 * one['switch_seconds'] / max(1, one['switches']):.1f} us each, {100 * one['switch_seconds'] / one['seconds']:.2f} %")


def working():
    long = SECONDS + 4
    three = [start("busy", 2000, 0, long), start("busier", 700, 0, long), start("seldom", 500, 3000, long)]
    ready(three)
    time.sleep(1)
    objects, said, status = measured(share(SECONDS))
    row(status == 0, "three: status", f"{status} {said.strip()[-300:]}")
    one = busiest(objects)
    known = adds_up("three", one)
    row(99.5 <= known <= 100.5, "three: shares and switches", f"{known:.3f} %")
    compare("three", one, three, ["busy", "busier"])


def ends():
    long = SECONDS + 4
    three = [start("stays", 2000, 0, long), start("ends", 1000, 0, 1 + SECONDS / 2), start("idle", 0, 0, long)]
    ready(three)
    time.sleep(1)
    objects, said, status = measured(share(SECONDS))
    row(status == 0, "ends: status", f"{status} {said.strip()[-300:]}")
    one = busiest(objects)
    adds_up("ends", one)
    compare("ends", one, three[:2], ["stays"])
    pids = {p.get("pid"): p for p in one["processes"]}
    idle = pids.get(three[2].pid)
    row(idle is None or idle["share"] < 0.01, "ends: idle", "not told: it never had the GPU" if idle is None else f"{100 * idle['share']:.3f} %")
    three[2].wait(60)


def alone():
    one = start("alone", 2000, 0, SECONDS + 2)
    ready([one])
    time.sleep(0.5)
    text = subprocess.run([NVCAP, "share", "--duration", "2", *FLAGS], capture_output=True, text=True)
    row(text.returncode == 0, "alone", " | ".join(text.stdout.splitlines()))
    one.wait(60)


def eight():
    def run(with_nvcap):
        eight = [start(f"eight{i}", 1000, 0, SECONDS) for i in range(8)]
        ready(eight)
        cost = None
        if with_nvcap:
            before = os.times()
            process = share(max(1, SECONDS - 1))
            text, said = process.communicate(timeout=120)
            after = os.times()
            cost = after.children_user + after.children_system - before.children_user - before.children_system
            one = busiest([json.loads(line) for line in text.splitlines()])
            cost = 100 * cost / one["seconds"], one, process.returncode
        done = sum(len(kernels(p)) for p in eight)
        return done, cost
    pairs = []
    for i in range(PAIRS):
        (without, _), (beside, cost) = run(False), run(True)
        pairs.append((beside / without, without, beside, cost))
    ratios = [p[0] for p in pairs]
    spread = f"{statistics.mean(ratios):.4f} of the speed without, {min(ratios):.4f}..{max(ratios):.4f} in {PAIRS} pairs"
    one = pairs[-1][3][1]
    row(None, "eight: speed", spread + f"; kernels {pairs[-1][1]} and {pairs[-1][2]}")
    row(None, "eight: cost", " ".join(f"{p[3][0]:.3f}" for p in pairs) + " % of a core")
    row(all(p[3][2] == 0 for p in pairs), "eight: nothing is lost", f"{one['switches'] / one['seconds']:.0f} switches/s; statuses {[p[3][2] for p in pairs]}")
    row(len(one["processes"]) >= 8, "eight: all are told", " ".join(f"{100 * p['share']:.2f}" for p in one["processes"]))
    adds_up("eight", one)


def killed():
    two = [start("k1", 1000, 0, SECONDS + 8), start("k2", 1000, 0, SECONDS + 8)]
    ready(two)
    first = share(60)
    time.sleep(1)
    first.send_signal(signal.SIGKILL)
    first.wait(60)
    both = [share(2), share(2)]
    results = [measured(p) for p in both]
    ones = [busiest(r[0]) for r in results]
    row(all(r[2] == 0 for r in results), "after kill -9: two at once", " and ".join(
        " ".join(f"{p.get('pid')}:{100 * p['share']:.2f}" for p in one["processes"]) for one in ones))
    for one in ones:
        adds_up("two at once", one)
    interrupted = share(60)
    time.sleep(1)
    interrupted.send_signal(signal.SIGINT)
    objects, said, status = measured(interrupted)
    row(status == 0 and busiest(objects)["whole"], "Ctrl-C", f"{status}, {busiest(objects)['seconds']:.2f} s {said.strip()[-200:]}")
    objects, said, status = measured(share(2, user=65534))
    detail = f"{status}: {said.strip()[-400:]}"
    if objects:
        detail += " " + json.dumps(busiest(objects))[:700]
    row(None, "not root", detail)
    for process in two:
        process.wait(60)


def spent(process):
    """Processor time of nvcap, ns, and its parts in user space and in the kernel (the driver's), s."""
    with open(f"/proc/{process.pid}/schedstat") as text:
        all_ns = int(text.read().split()[0])
    with open(f"/proc/{process.pid}/stat") as text:
        fields = text.read().rsplit(")", 1)[1].split()
    tick = os.sysconf("SC_CLK_TCK")
    return all_ns, int(fields[11]) / tick, int(fields[12]) / tick


def often():
    """Many switches: nothing is lost, and what it costs; then nvcap is stopped until its buffer is full."""
    names = [f"often{i}" for i in range(16)]
    programs = [start(name, 20, 1, 2 * SECONDS + 24) for name in names]
    ready(programs)
    process = share(SECONDS + 2)
    time.sleep(1)
    (t0, before) = time.monotonic(), spent(process)
    time.sleep(SECONDS)
    (t1, after) = time.monotonic(), spent(process)
    objects, said, status = measured(process)
    one = busiest(objects)
    rate = one["switches"] / one["seconds"]
    row(status == 0 and one["missing_records"] == 0, "often: nothing is lost", f"{rate:.0f} switches/s, {len(one['processes'])} processes, status {status} {said.strip()[-200:]}")
    adds_up("often", one)
    row(None, "often: cost", f"{100 * (after[0] - before[0]) / 1e9 / (t1 - t0):.3f} % of a core at {rate:.0f} switches/s (user {after[1] - before[1]:.2f} s, kernel {after[2] - before[2]:.2f} s of {t1 - t0:.1f})")
    process = share(SECONDS + 14)
    time.sleep(1)
    process.send_signal(signal.SIGSTOP)
    time.sleep(12)
    process.send_signal(signal.SIGCONT)
    objects, said, status = measured(process)
    one = busiest(objects)
    lost = one["missing_records"]
    row(status == (3 if lost else 0), "stopped for 12 s", f"{lost} records missing, {one['unknown_seconds']:.2f} of {one['seconds']:.2f} s not known, status {status}")
    adds_up("stopped", one)
    text = subprocess.run([NVCAP, "share", "--duration", "1", *FLAGS], capture_output=True, text=True)
    print(text.stdout, file=sys.stderr)
    for program in programs:
        program.kill()


def killed_program():
    """One of three programs is killed in the middle: its last slices are told as nobody else's."""
    long = SECONDS + 4
    three = [start(name, 2000, 0, long) for name in ("stays1", "stays2", "dies")]
    ready(three)
    process = share(SECONDS)
    time.sleep(SECONDS / 2)
    three[2].kill()
    objects, said, status = measured(process)
    one = busiest(objects)
    adds_up("one is killed", one)
    compare("one is killed", one, three[:2], ["stays1", "stays2"])
    told = [f"{p.get('pid', 'not named')}:{100 * p['share']:.2f}" for p in one["processes"]]
    row(status == 0, "one is killed", f"{' '.join(told)}, killed {three[2].pid}")


def gone():
    """Two programs end, and nobody else has the GPU: its last holder must not have it for ever."""
    two = [start("gone1", 1000, 0, SECONDS / 2), start("gone2", 1000, 0, SECONDS / 2)]
    ready(two)
    process = share(SECONDS + 2, "--interval", "0.5")
    for program in two:
        program.wait(60)
    objects, said, status = measured(process)
    last = [o for o in objects if not o["whole"]][-2]
    whole = [o for o in objects if o["whole"]][-1]
    row(last["nobody_seconds"] > 0.99 * last["seconds"], "gone: the end", " ".join(
        f"{sum(p['share'] for p in o['processes']):.2f}/{o['nobody_seconds']:.2f}" for o in objects) + f" (shares/s nobody, by interval), incomplete {whole['incomplete_slices']}")
    adds_up("gone", whole)


class Slices:
    """The slices of one process, by one clock."""

    def __init__(self, rows, pid, begin, end):
        own = [row for row in rows if row["pid"] == str(pid) and row[begin] and row[end]]
        self.all = sorted((int(row[begin]), int(row[end])) for row in own)
        self.begins = [begin for begin, _ in self.all]

    def around(self, time):
        at = bisect.bisect(self.begins, time) - 1
        return self.all[at] if at >= 0 else None

    def has(self, begin, end, slack=0):
        found = self.around(begin + slack)
        return found is not None and found[0] - slack <= begin and end <= found[1] + slack


def table(name, file):
    text = subprocess.run([NVCAP, "export", "csv", file, "--table", name], capture_output=True, text=True)
    assert text.returncode == 0, text.stderr
    return list(csv.DictReader(text.stdout.splitlines()))


def recorded():
    """A recording of one program with the slices of three: by the GPU's clock against what the programs say, by the host's against the times of the
    traced one's kernels."""
    long = SECONDS + 5
    three = [start("busy", 2000, 0, long), start("busier", 700, 0, long), start("seldom", 500, 3000, long)]
    ready(three)
    time.sleep(1)
    file = os.path.join(FOLDER, "shares.pcapng")
    command = [NVCAP, "record", "--shares", "--gpu-time", "--how", "observe", "-p", str(three[1].pid), "--duration", str(SECONDS), "-o", file, "--force"]
    # Before the traced program is observed: what its parent starts meanwhile may be of its descent.
    beside = share(SECONDS)
    time.sleep(0.5)
    record = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    live, _, _ = measured(beside)
    said = record.communicate(timeout=60)[0]
    row(record.returncode == 0, "recorded: the recording", f"{record.returncode} {said.strip().splitlines()[-1:]}")
    text = subprocess.run([NVCAP, "share", "--json", file], capture_output=True, text=True)
    row(text.returncode == 0, "recorded: status", f"{text.returncode} {text.stderr.strip()[-200:]}")
    one = busiest([json.loads(line) for line in text.stdout.splitlines()])
    adds_up("recorded", one)
    others = {p.get("pid"): p["share"] for p in busiest(live)["processes"]}
    shares = {p.get("pid"): p["share"] for p in one["processes"]}
    apart = max(abs(shares.get(p.pid, 0) - others.get(p.pid, 0)) for p in three)
    row(apart < 0.01, "recorded: as live", " ".join(f"{100 * shares.get(p.pid, 0):.2f}/{100 * others.get(p.pid, 0):.2f}" for p in three) + " %")
    slices = table("slices", file)
    begin, end = one["gpu_time_begin_ns"], one["gpu_time_end_ns"]
    for process in three:
        own = Slices(slices, process.pid, "gpu_begin_ns", "gpu_end_ns")
        whole = [k for k in kernels(process) if k[4] == 0 and own.all and own.all[0][0] < k[0] and k[1] < own.all[-1][0]]
        within = sum(own.has(k[0], k[1]) for k in whole)
        row(within >= 0.999 * len(whole) > 0, f"recorded: {process.name}", f"{within} of {len(whole)} kernels without a gap lie in one slice of their own program; {len(own.all)} slices")
    own = Slices(slices, three[1].pid, "begin_ns", "end_ns")
    timed = [(int(k["gpu_start_ns"]), int(k["gpu_start_error_ns"])) for k in table("kernels", file) if k["gpu_start_ns"]]
    # A kernel is launched in its program's slice; what ran then is known as exactly as both clocks are.
    timed = [(t, e) for t, e in timed if own.all and own.all[0][0] < t < own.all[-1][0]]
    within = sum(own.has(t, t, e + 5000) for t, e in timed)
    row(within >= 0.99 * len(timed) > 0, "recorded: the host's clock", f"{within} of {len(timed)} begins of kernels lie in a slice of their program within their errors and 5 us")
    row(None, "recorded: size", f"{os.path.getsize(file)} B, {len(slices)} slices")


def preempted():
    """A recording of a program whose kernels last longer than a turn: what of each kernel's time was another's, against the gaps that the kernel saw."""
    for kernel_us in (5000, 1500):
        long = SECONDS + 4
        three = [start("long", kernel_us, 0, long), start("busier", 700, 0, long), start("seldom", 500, 3000, long)]
        ready(three)
        time.sleep(1)
        file = os.path.join(FOLDER, "preempted.pcapng")
        command = [NVCAP, "record", "--shares", "--gpu-time", "--how", "observe", "-p", str(three[0].pid), "--duration", str(SECONDS), "-o", file, "--force"]
        status = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        truth = kernels(three[0])
        for process in three[1:]:
            process.wait(120)
        all_told = [k for k in table("kernels", file) if k["gpu_ns"]]
        told = [k for k in all_told if k["preempted_ns"]]
        others = [int(k["preempted_ns"]) for k in told]
        # They follow each other in both; where the recording began is where the gaps fit best.
        begin = min(range(max(1, len(truth) - len(others))), key=lambda at: sum(abs(o - t[3]) for o, t in zip(others, truth[at:])))
        pairs = list(zip(others, truth[begin:]))
        # A program's turn ends when its state is saved: its kernel has stood still by then.
        fits = sum(0 <= t[3] - o <= SAVED_US * 1000 * t[4] if t[4] else o == 0 for o, t in pairs)
        gaps = sum(t[4] for _, t in pairs)
        saved = sum(t[3] - o for o, t in pairs) / max(1, gaps) / 1000
        row(
            status == 0 and gaps > 0 and fits >= 0.99 * len(pairs) and len(told) >= 0.99 * len(all_told),
            f"preempted: {kernel_us} us",
            f"{fits} of {len(pairs)} kernels ({len(told)} of {len(all_told)} told) lack their gaps but for {SAVED_US} us a turn; {gaps} gaps, {saved:.0f} us a turn more than told",
        )


{"preempted": preempted, "recorded": recorded, "gone": gone, "often": often, "killed_program": killed_program, "working": working, "ends": ends, "alone": alone, "eight": eight, "killed": killed}[SECTION]()
