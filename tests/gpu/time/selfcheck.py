"""Runs time.py's comparisons on made-up data, without a GPU: of times that are right every row is ok, and of each fault that is put in
the row that is there for it fails.

    python3 selfcheck.py
"""
import contextlib
import importlib.util
import io
import json
import os
import random
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
spec = importlib.util.spec_from_file_location("gpu_time", os.path.join(HERE, "time.py"))
t = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode = True
spec.loader.exec_module(t)

# The GPU's clock less the host's, ns.
CLOCK = 1_700_000_000_000_000_000
# What nvcap's times are off by at most, and what is stated.
OFF, STATED = 60, 150
GR, CE, OTHER = 4, 9, 5


class Made:
    """A run of truth.cu, as its own file and as nvcap decodes it."""

    def __init__(self, seed=1):
        self.random, self.seq, self.at, self.lines = random.Random(seed), 0, 1_000_000_000, []
        self.kernels, self.works, self.waits = [], [], []
        self.serial = 0
        self.ping()

    def ping(self):
        self.lines.append(f"ping {self.at} {self.at + 500 + CLOCK} {self.at + 1000}")
        self.at += 10_000

    def work(self, op, channel, begin, end, **more):
        """An operation, with times that are a little off."""
        off = lambda: self.random.randint(-OFF, OFF)
        start = begin + off()
        ns = end - start + off()
        o = {"type": "operation", "op": op, "serial": self.serial, "channel": channel, "gpu_start_ns": start, "gpu_start_error_ns": 1500,
             "gpu_clock_start_ns": start + CLOCK, "gpu_clock_error_ns": STATED, "gpu_ns": ns, "gpu_ns_error": STATED, "gpu_ns_by": "release",
             "queued_ns": 3000, "queued_least_ns": 0, "queued_most_ns": 10**9, **more}
        self.serial += 1
        self.works.append(o)

    def kernel(self, phase, stream, begin, end):
        self.lines.append(f"k {phase} {self.seq} {stream} {begin + CLOCK} {end + CLOCK} {begin - 4000} {begin - 2000}")
        self.kernels.append((phase, stream, begin, end))
        args = (b"\0" * 16 + self.seq.to_bytes(4, "little")).hex()
        self.work("launch", GR if stream == 0 else OTHER + stream, begin, end, kind="user", block=[t.TAG + stream, 1, 1], args=args, program=1)
        self.seq += 1

    def phase(self, name, begin):
        self.at += 50_000
        self.lines.append(f"phase {name} 0 {begin} {self.at}")
        self.ping()

    def one_by_one(self, name, count, ns, apart):
        begin = self.at
        for _ in range(count):
            self.at += apart + self.random.randint(0, apart // 10)
            self.kernel(name, 0, self.at, self.at + ns)
            self.at += ns
        self.phase(name, begin)

    def all(self):
        self.one_by_one("queue5", 1000, 5000, 1500)
        self.one_by_one("pause20", 500, 20_000, 30_000)
        self.one_by_one("load", 50, 100_000, 9_900_000)
        begin = self.at
        for _ in range(10):
            self.at += 2_000_000
            for _ in range(500):
                for stream in (0, 1):
                    self.kernel("two", stream, self.at + 700 * stream, self.at + 700 * stream + 20_000)
                self.at += 21_500 + self.random.randint(0, 1000)
        self.phase("two", begin)
        begin = self.at
        for number in range(20):
            self.at += 100_000
            after = self.at + 1500
            self.kernel("mark", 1, self.at, after)
            for k in range(3):
                self.kernel("beside", 0, self.at + k * 101_500, self.at + k * 101_500 + 100_000)
            copied = after + 200_000 + number * 1000
            before = copied + 3000
            self.work("copy", CE, after + 2000, copied, src=1, bytes=8392704)
            self.kernel("mark", 1, before, before + 1000)
            self.lines.append(f"c {number} 8392704 {after + CLOCK} {before + CLOCK}")
            self.waits.append({"channel": OTHER + 1, "for_channel": CE, "ns": before - after - 3000, "until_ns": before, "semaphore": 1})
            self.at += 320_000
        self.phase("copy", begin)
        for name, first, last in (("graph-sync", 0, t.WAITED), ("graph-queue", t.WAITED, t.WAITED + 400)):
            begin = self.at
            for i in range(first, last):
                self.at += 3_000_000 if name == "graph-queue" and i % 50 == 0 else 30_000 if name == "graph-sync" else 2000
                self.lines.append(f"g {i} {self.at + CLOCK} {self.at + 170_000 + CLOCK} {self.at - 5000} {self.at - 3000}")
                self.work("graph", GR, self.at, self.at + 170_000, kernels=32)
                self.at += 170_000
            self.phase(name, begin)
        begin = self.at
        for i in range(3000):
            self.at += 3333
            self.kernel("rate", i % 4, self.at, self.at + (2000 if i % 2 else 6000))
        self.phase("rate", begin)
        return self

    def write(self, folder):
        trace, truth = os.path.join(folder, "trace.json"), os.path.join(folder, "truth.txt")
        with open(trace, "w") as file:
            for o in self.works:
                file.write(json.dumps(o, separators=(",", ":")) + "\n")
            file.write('{"type":"ledger","complete":true}\n')
        with open(truth, "w") as file:
            file.write("\n".join(self.lines) + "\n")
        return trace, truth

    def sums(self, window):
        """What nvcap time says of a window."""
        some = [o for o in self.works if o["gpu_start_ns"] is not None and window.begin <= o["gpu_start_ns"] <= window.end]
        of = lambda works: [(o["gpu_clock_start_ns"], o["gpu_clock_start_ns"] + o["gpu_ns"]) for o in works if o["gpu_ns"] is not None]

        def work(works):
            parts = t.union(of(works))
            return {"busy_ns": t.length(parts), "sum_ns": t.length(of(works)), "idle_ns": sum(t.lengths_between(parts)), "unknown_ns": 0}

        parts = t.union(of(some))
        gaps = sorted(({"gpu_clock_ns": a[1], "ns": b[0] - a[1], "at_ns": a[1] - CLOCK} for a, b in zip(parts, parts[1:])), key=lambda g: -g["ns"])[:10]
        engines = [{"engine": name, "work": work([o for o in some if (o["op"] == "copy") == (name != "gr")])} for name in ("gr", "ce1")]
        waits = sorted((w for w in self.waits if window.begin <= w["until_ns"] <= window.end), key=lambda w: -w["ns"])[:10]
        return {"type": "gpu_time", "gpus": [{"gpu": 0, "work": work(some), "gaps": gaps}], "engines": engines, "waits": waits}


def rows(run):
    """The rows that something prints, by what they are of."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run()
    found = {}
    for line in out.getvalue().splitlines():
        if line.startswith("ROW\t"):
            _, result, what, detail = line.split("\t", 3)
            assert what not in found, f"two rows {what}"
            found[what] = (result, detail)
    return found


def busy(made, change=lambda window, sums: sums, way="observed"):
    with tempfile.TemporaryDirectory() as folder:
        trace, truth = made.write(folder)
        parts = {f"gpu_start_ns>={w.begin}&&gpu_start_ns<={w.end}": w for w in t.windows(t.Truth(truth))}

        class Ran:
            returncode, stderr = 0, ""

            def __init__(self, window):
                self.stdout = json.dumps(change(window, made.sums(window)), separators=(",", ":")) + "\n"

        real = t.subprocess.run
        t.subprocess.run = lambda command, **_: Ran(parts[command[5]])
        try:
            return rows(lambda: t.busy_of(way, trace, truth, "nvcap", "run.pcapng"))
        finally:
            t.subprocess.run = real


def failed(found):
    return sorted(what for what, (result, _) in found.items() if result == "FAIL")


def of_window(name, edit):
    """Changes what is summed up of one window."""
    def change(window, sums):
        if window.name == name:
            edit(sums)
        return sums
    return change


def check_busy():
    made = Made().all()
    found = busy(made)
    assert not failed(found), {w: found[w] for w in failed(found)}
    for name in ("pause20", "load", "two", "copy", "graph-sync", "graph-queue", "rate"):
        for row in ("busy", "gaps"):
            assert found[f"observed {name}: {row}"][0] == "ok", (name, row)
    for what in ("observed two: overlap", "observed rate: overlap", "observed copy: overlap of copies and kernels", "observed copy: waits", "observed rate"):
        assert found[what][0] == "ok", what
    assert busy(made, way="attached")["attached rate"][0] == "note"

    def own(sums):
        return sums["engines"][0]["work"]

    def more_busy(sums):
        own(sums)["busy_ns"] += 500_000

    def no_overlap(sums):
        own(sums)["sum_ns"] = own(sums)["busy_ns"]

    def gap_moved(sums):
        sums["gpus"][0]["gaps"][3]["gpu_clock_ns"] += 700

    def gap_longer(sums):
        sums["gpus"][0]["gaps"][0]["ns"] += 1

    def no_gaps(sums):
        sums["gpus"][0]["gaps"] = []

    def wait_for_another(sums):
        sums["waits"][2]["for_channel"] = GR

    def no_copies(sums):
        sums["engines"][1]["work"]["busy_ns"] = 0

    for name, edit, what in (
        ("pause20", more_busy, "pause20: busy"), ("load", more_busy, "load: busy"), ("graph-sync", more_busy, "graph-sync: busy"),
        ("two", no_overlap, "two: overlap"), ("rate", no_overlap, "rate: overlap"), ("copy", no_copies, "copy: overlap of copies and kernels"),
        ("load", gap_moved, "load: gaps"), ("pause20", gap_longer, "pause20: gaps"), ("two", no_gaps, "two: gaps"),
        ("copy", wait_for_another, "copy: waits"),
    ):
        found = failed(busy(made, of_window(name, edit)))
        assert f"observed {what}" in found, (name, edit.__name__, found)

    # Times that are wrong by more than is stated, consistently in the sums too: the truth finds it.
    made = Made().all()
    for o in made.works:
        if o["op"] == "launch" and o["block"][0] == t.TAG:
            o["gpu_ns"] += 2000
    found = failed(busy(made))
    assert "observed pause20: busy" in found and "observed load: gaps" in found, found
    # Many without times.
    made = Made().all()
    for o in made.works[::3]:
        o["gpu_ns"] = None
    assert "observed pause20: durations known" in failed(busy(made))


def check_truth():
    with tempfile.TemporaryDirectory() as folder:
        made = Made().all()
        run = lambda: rows(lambda: t.truth_of("observed", *made.write(folder)))
        found = run()
        assert found["observed queue5: starts"][0] == found["observed queue5: coverage"][0] == "ok", found
        assert found["observed rate: coverage"][0] == "ok", found
        # Too late by more than the limit: known of two streams, and said to be over the limit; of others a failure.
        for o in made.works:
            o["gpu_clock_start_ns"] += 300
        found = run()
        assert found["observed queue5: starts"][0] == "FAIL"
        assert found["observed two: starts"][0] == "OVER" and found["observed two: starts"][1].startswith("LIMIT NOT HELD"), found["observed two: starts"]
        # Most are not known: a failure, but where the rings are known to go round.
        for o in made.works[::2]:
            o["gpu_clock_start_ns"] = o["gpu_start_ns"] = o["gpu_ns"] = None
        found = run()
        assert found["observed queue5: coverage"][0] == "FAIL"
        assert found["observed rate: coverage"][0] == "OVER"


def check_sums():
    with tempfile.TemporaryDirectory() as folder:
        made = Made()
        made.one_by_one("queue", 2000, 900, 1500)
        for o in made.works:
            o["kernel_mangled"] = "_Z4work"
        log = os.path.join(folder, "cupti.log")
        for ns, result in ((900, "ok"), (1000, "OVER"), (3000, "FAIL")):
            with open(log, "w") as file:
                for _ in made.works:
                    file.write(json.dumps({"type": "kernel", "name": "_Z4work", "start": 0, "end": ns, "block": [t.TAG, 1, 1]}) + "\n")
            found = rows(lambda: t.sums_of("way", made.write(folder)[0], log))
            assert found["way: sums by kernel"][0] == result, (ns, found)


def check_starts():
    def compared(late_by_cupti, late_by_nvcap):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
            made, under = Made(1).all(), Made(2).all()
            for place, o in enumerate(made.works):
                o["gpu_clock_start_ns"] += late_by_nvcap * (place % 2)
            log = os.path.join(folder, "cupti.log")
            with open(log, "w") as file:
                for place, (_, stream, begin, end) in enumerate(under.kernels):
                    start = begin + CLOCK - 576 + late_by_cupti * (place % 2)
                    file.write(json.dumps({"type": "kernel", "name": "_Z4workPy", "start": start, "end": end + CLOCK, "block": [t.TAG + stream, 1, 1]}) + "\n")
            trace, truth = made.write(folder)
            return rows(lambda: t.starts_of(under.write(other)[1], log, "observed", trace, truth))
    what = "observed queue5: starts and CUPTI's"
    assert compared(0, 0)[what][0] == "ok", compared(0, 0)
    assert compared(0, 500)[what][0] == "FAIL"


for check in (check_busy, check_truth, check_sums, check_starts):
    check()
    print(f"{check.__name__}: ok")
