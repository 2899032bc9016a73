"""What tracing costs, with and without names and stacks, in one run.

    cost.py run NVCAP LOOP BP FOLDER     rows and tables on standard output; FOLDER for what is written meanwhile
    cost.py modes NVCAP LOOP BP FOLDER   the launch loop alone
    cost.py worker                       the training of meaning/workload.py in turns: a line `steps N` or `seconds S` on standard
                                         input, an answer `pass STEPS NS`

Each traced pass comes right after an untraced one of the same program, and the ways follow each other in another order in each round.
"""
import os
import queue
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Issue 15's, and for the trap that of docs/verification.md.
LIMITS = {"share": 1.0, "first": 100.0, "later": 10.0, "floor": 1.6}
# Seconds of each section, and the least rounds of it.
SECONDS = {"loop": 28, "train": 42, "minute": 60, "baseline": 12}
LEAST_ROUNDS = 3
STEPS = 100
LAUNCHES = 20000
WAYS = {
    "floor": None,
    "trap, no names": ["--no-names"],
    "trap": [],
    "trap, stacks": ["--stacks"],
    "precommit": ["--precommit"],
    "observe": ["--how", "observe"],
}
# What `--batch`, `--count` and `--duty` save, and how much more than the bare watchpoint they may cost (issue 19).
MODES = {
    "floor": (None, None),
    "strict": (["--no-names"], 1.35),
    "strict, precommit": (["--no-names", "--precommit"], 1.35),
    "batch 8": (["--no-names", "--batch", "8"], 1.12),
    "batch 32": (["--no-names", "--batch", "32"], None),
    "count": (["--no-names", "--count"], 1.03),
    "duty 10 %": (["--no-names", "--duty", "10%"], None),
    "observe": (["--no-names", "--how", "observe"], None),
}


def row(result, what, detail):
    result = {True: "ok", False: "FAIL"}.get(result, result)
    print("ROW", result, what, detail, sep="\t", flush=True)


class Program:
    """A program whose output is read line by line."""

    def __init__(self, command, log, errors=False, **environment):
        self.log = open(log, "w")
        # Of nvcap standard error is read, of the others standard output; the other one goes to the log as it is.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **environment},
            stdout=subprocess.DEVNULL if errors else subprocess.PIPE, stderr=subprocess.PIPE if errors else self.log)
        self.lines, self.seen, self.usage, self.status = queue.Queue(), [], None, None
        self.reader = threading.Thread(target=self.read, args=(self.process.stderr if errors else self.process.stdout,), daemon=True)
        self.reader.start()

    def read(self, pipe):
        for line in pipe:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def next(self, pattern, seconds=60):
        """The next line with the pattern."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.01, end - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"{self.process.args[:3]}: no {pattern!r} in {seconds} s") from None
            if line is None:
                raise RuntimeError(f"{self.process.args[:3]} ended without {pattern!r}: {self.seen[-1:]}")
            self.seen.append(line)
            if re.search(pattern, line):
                return line

    def say(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def ticks(self):
        """Processor time so far, s, of all its threads, also of those that have ended."""
        fields = open(f"/proc/{self.process.pid}/stat").read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, by=None):
        """Its exit status and processor time. Ends it by a signal, or by the end of its input."""
        if by is not None:
            self.process.send_signal(by)
        try:
            self.process.stdin.close()
        except OSError:
            pass
        _, status, usage = os.wait4(self.process.pid, 0)
        self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
        self.usage = usage.ru_utime + usage.ru_stime
        self.reader.join(10)
        while not self.lines.empty():
            line = self.lines.get()
            if line is not None:
                self.seen.append(line)
        self.log.write("\n".join(self.seen) + "\n")
        self.log.close()
        return self.status


class Tracer(Program):
    """nvcap at a process, when it has attached."""

    number = 0

    def __init__(self, folder, nvcap, options, pid, log="info"):
        Tracer.number += 1
        self.output = os.path.join(folder, "trace")
        super().__init__([nvcap, *options, "--force", "-o", self.output, "-p", str(pid)], os.path.join(folder, f"nvcap-{Tracer.number}.log"), errors=True, NVCAP_LOG=log)
        try:
            self.next(r"process \d+ attached(:|$)", 30)
        except RuntimeError:
            self.process.kill()
            raise

    def end(self, by=signal.SIGINT):
        status = super().end(by)
        if os.path.exists(self.output):
            os.remove(self.output)
        # 3: something is missing, 5: not all was understood. The ledger says so.
        if status not in (0, 3, 5):
            raise RuntimeError(f"nvcap's status {status}: {self.seen[-1:]}")
        return status


class Loop(Program):
    """loop.cu: a launch loop; a pass gives ns a launch."""

    unit, name = "ns a launch", "loop"

    def __init__(self, loop, folder, **environment):
        super().__init__([loop, str(LAUNCHES), "1000000", "turns"], os.path.join(folder, f"loop-{len(environment)}.log"), **environment)
        self.pid = int(self.next("^pid ").split()[1])
        self.next("^ready")

    def once(self):
        self.say("g")
        return float(re.search(r"total_ns=([0-9.]+)", self.next("^loop pass"))[1])


class Training(Program):
    """The training of meaning/workload.py; a pass gives us a step."""

    unit, name = "us a step", "train"

    def __init__(self, folder):
        super().__init__([sys.executable, os.path.abspath(__file__), "worker"], os.path.join(folder, "train.log"))

    def begin(self):
        self.pid = int(self.next("^pid ", 100).split()[1])
        self.next("^ready", 100)

    def turn(self, what):
        self.say(what + "\n")
        steps, ns = map(int, self.next("^pass ", 100).split()[1:3])
        return steps, ns / 1e3 / steps

    def once(self):
        return self.turn(f"steps {STEPS}")[1]


def traced(program, options, nvcap, bp, folder):
    """A pass of a program, traced with these options (None: the bare watchpoint), after a first one that is not counted; and the tracer's
    exit status."""
    if options is None:
        tracer = Program([bp, str(program.pid)], os.path.join(folder, "bp.log"))
        tracer.next("^armed", 20)
        by = None
    else:
        tracer, by = Tracer(folder, nvcap, options, program.pid), signal.SIGINT
    try:
        program.once()
        value = program.once()
    except RuntimeError:
        tracer.process.kill()
        raise
    return value, tracer.end(by)


def pairs(program, nvcap, bp, folder):
    """Rounds of all ways. Rows of what they cost."""
    ways, values, befores, statuses = list(WAYS), {w: [] for w in WAYS}, {w: [] for w in WAYS}, {w: {} for w in WAYS}
    program.once()
    begin, rounds = time.monotonic(), 0
    while rounds < LEAST_ROUNDS or time.monotonic() - begin < SECONDS[program.name] * rounds / (rounds + 1):
        for way in ways[rounds % len(ways):] + ways[:rounds % len(ways)]:
            before = program.once()
            value, status = traced(program, WAYS[way], nvcap, bp, folder)
            values[way].append(value)
            befores[way].append(before)
            statuses[way][status] = statuses[way].get(status, 0) + 1
        rounds += 1
    took = time.monotonic() - begin

    def ratio(of, to):
        some = [a / b for a, b in zip(of, to)]
        return f"{statistics.median(some):6.3f} ({min(some):.3f} to {max(some):.3f})"

    print(f"\n## {program.name}: {program.unit}, {rounds} rounds in {took:.0f} s; medians, and of the ratios least and greatest")
    every = [v for w in WAYS for v in befores[w]]
    print(f"{'untraced':<16} {statistics.median(every):>10.1f}")
    print(f"{'way':<16} {program.unit:>12}  {'to untraced':<24} {'to the floor':<24} {'to the trap without names':<26} exit statuses")
    for way in WAYS:
        v = values[way]
        print(f"{way:<16} {statistics.median(v):>12.1f}  {ratio(v, befores[way]):<24} {ratio(v, values['floor']):<24} "
              f"{ratio(v, values['trap, no names']):<26} {statuses[way]}")
    names = statistics.median(a / b for a, b in zip(values["trap"], values["trap, no names"]))
    stacks = statistics.median(a / b for a, b in zip(values["trap, stacks"], values["trap"]))
    floor = statistics.median(a / b for a, b in zip(values["trap"], values["floor"]))
    row("note", f"{program.name}: names, stacks", f"the trap with names {names:.3f} of that without; with stacks {stacks:.3f} of that with names; {rounds} rounds")
    row(floor < LIMITS["floor"] if program.name == "loop" else "note", f"{program.name}: trap to the floor",
        f"{floor:.3f} of the watchpoint without BPF (limit {LIMITS['floor']} for the launch loop)")


NAMES = re.compile(r"process \d+: names of (\d+) of (\d+) programs; (\d+) searches .*; processor time (\d+) ms at first and (\d+) ms later;"
                   r".* the longest ([0-9.]+) ms, at most ([0-9.]+) ms after a launch")


def searched(tracer):
    """What the log says of the names: programs named, asked for, searches, ms at first and later, the longest search, the latest name."""
    found = [m for m in map(NAMES.search, tracer.seen) if m]
    return [float(x) for x in found[-1].groups()] if found else None


def minute(training, nvcap, folder):
    """nvcap's processor time over a minute of training, with names, and over a shorter time without."""
    used = {}
    for way, options, seconds in (("without names", ["--no-names"], SECONDS["baseline"]), ("with names", [], SECONDS["minute"])):
        tracer = Tracer(folder, nvcap, options, training.pid)
        before, begin = tracer.ticks(), time.monotonic()
        steps, us = training.turn(f"seconds {seconds}")
        inside, took = tracer.ticks() - before, time.monotonic() - begin
        status = tracer.end()
        used[way] = inside / steps, steps / took, tracer
        print(f"{way}: {took:.1f} s, {steps} steps of {us:.0f} us, {100 * inside / took:.2f} % of one core in nvcap ({1e6 * inside / steps:.1f} us a step); "
              f"with its start and end {tracer.usage:.2f} s; status {status}", flush=True)
    (without, _, _), (with_names, rate, tracer) = used["without names"], used["with names"]
    log = searched(tracer)
    if log is None:
        row(False, "names: a minute of training", "nvcap's log says nothing of names")
        return
    found, asked, searches, first, later, longest, latest = log
    share = (first + later) / 10 / SECONDS["minute"]
    row(share < LIMITS["share"] and found > 0, "names: a minute of training",
        f"searches took {share:.2f} % of one core (limit {LIMITS['share']}): {first:.0f} ms at first and {later:.0f} ms later, {searches:.0f} searches, "
        f"{found:.0f} of {asked:.0f} programs named, the latest {latest:.0f} ms after its launch")
    row("note", "names: whole nvcap", f"{100 * (with_names - without) * rate:+.2f} % of one core between the traces with and without names at {rate:.0f} steps/s "
        f"({1e6 * with_names:.1f} and {1e6 * without:.1f} us a step)")


SEARCH = re.compile(r"process \d+: (\d+)(?: of \d+)? programs named in (\S+?),? .*(?:Some\((\S+)\)|None) after the first")


def ms(text):
    value, unit = re.fullmatch(r"([0-9.]+)(ns|µs|ms|s)", text).groups()
    return float(value) * {"ns": 1e-6, "µs": 1e-3, "ms": 1, "s": 1000}[unit]


def two_gigabytes(way, program, nvcap, folder):
    """The time from a launch to its name in a process with 2 GB of private memory (names.py)."""
    pid = int(program.next("^pid ", 100).split()[1])
    program.next("^ready", 100)
    tracer = Tracer(folder, nvcap, WAYS[way], pid, log="debug")
    program.say("\n")
    program.next("^done", 60)
    tracer.end()
    program.say("\n")
    program.end()
    searches = []
    for m in map(SEARCH.search, tracer.seen):
        # Programs of graphs and of launches before have no first launch.
        if m and m[3] and int(m[1]):
            searches.append((ms(m[3]), ms(m[2]), int(m[1])))
    print(f"\n## 2 GB, {way}: ms from the first launch of a search's programs to their names, and what the search took\n"
          + ", ".join(f"{a:.1f} ({b:.1f})" for a, b, _ in searches))
    log = searched(tracer)
    said = f"{log[0]:.0f} of {log[1]:.0f} programs named, {log[3]:.0f} and {log[4]:.0f} ms of processor time" if log else "nothing in the log"
    if not searches:
        row(False, f"2 GB, {way}", f"no search of a launch: {said}")
        return
    waits = [a for a, _, _ in searches]
    row(max(waits) <= LIMITS["first"], f"2 GB, {way}: every name", f"at most {max(waits):.1f} ms after a launch (limit {LIMITS['first']:.0f}), "
        f"{sum(w > LIMITS['first'] for w in waits)} of {len(waits)} searches later; the first {waits[0]:.1f} ms; {said}")
    later = statistics.median(waits[1:]) if len(waits) > 1 else 0
    row(later <= LIMITS["later"] and len(waits) > 1, f"2 GB, {way}: after the first", f"median {later:.1f} ms of {len(waits) - 1} searches (limit {LIMITS['later']:.0f})")


def run(nvcap, loop, bp, folder):
    # Everything that imports torch does so at once.
    big = {way: Program([sys.executable, os.path.join(HERE, "..", "names.py")], os.path.join(folder, f"big-{way}.log")) for way in ("trap", "observe")}
    training = Training(folder)
    launches = Loop(loop, folder)

    def part(what, function, *arguments):
        begin = time.monotonic()
        try:
            function(*arguments)
        except (OSError, RuntimeError, ValueError) as e:
            row(False, what, str(e).replace("\n", " ")[:300])
        print(f"({what}: {time.monotonic() - begin:.0f} s)", flush=True)

    # The processes with 2 GB are gone before speeds are compared.
    for way, program in big.items():
        part(f"2 GB, {way}", two_gigabytes, way, program, nvcap, folder)
        if program.process.poll() is None and program.status is None:
            program.process.kill()
    part("loop", pairs, launches, nvcap, bp, folder)
    launches.process.kill()
    part("training: its start", training.begin)
    print("\n## a minute of training")
    part("minute", minute, training, nvcap, folder)
    part("train", pairs, training, nvcap, bp, folder)
    training.process.kill()


def ways(nvcap, loop, bp, folder):
    launches = Loop(loop, folder)
    try:
        pairs(launches, nvcap, bp, folder)
    except (OSError, RuntimeError, ValueError) as e:
        row(False, "loop", str(e).replace("\n", " ")[:300])
    launches.process.kill()


def modes(nvcap, loop, bp, folder):
    """Each mode in turn, right after an untraced pass; and another loop under CUPTI (CUPTI_LIBRARY)."""
    launches, cupti = Loop(loop, folder), None
    if os.environ.get("CUPTI_LIBRARY"):
        cupti = Loop(loop, folder, CUDA_INJECTION64_PATH=os.environ["CUPTI_LIBRARY"], CUPTI_LOG=os.path.join(folder, "loop.cupti"))
    else:
        row("NOT RUN", "CUPTI", "no CUPTI here")
    try:
        mode_rounds(launches, cupti, nvcap, bp, folder)
    except (OSError, RuntimeError, ValueError) as e:
        row(False, "modes", str(e).replace("\n", " ")[:300])
    for program in filter(None, [launches, cupti]):
        program.process.kill()


def mode_rounds(launches, cupti, nvcap, bp, folder):
    untraced, values, rounds = [], {w: [] for w in MODES}, int(os.environ.get("ROUNDS", "9"))
    under_cupti = []
    launches.once()
    for n in range(rounds):
        order = list(MODES)
        for way in order[n % len(order):] + order[:n % len(order)]:
            untraced.append(launches.once())
            value, status = traced(launches, MODES[way][0], nvcap, bp, folder)
            values[way].append(value)
            # Observed, a ring of 1,024 entries may go round; whatever else misses something fails.
            if status not in ((0, 3) if way == "observe" else (0,)):
                row(False, way, f"exit status {status}")
        if cupti:
            cupti.once()
            under_cupti.append(cupti.once())
    floor = statistics.median(values["floor"])
    print(f"\n## {LAUNCHES} launches a pass, {rounds} rounds of all ways in turn; medians")
    print(f"{'way':<20} {'ns a launch':>12} {'to untraced':>12} {'to the floor':>13}  least to greatest of a round's ratio to its floor")
    rows = [("untraced", untraced), *([("CUPTI", under_cupti)] if cupti else []), *values.items()]
    for way, v in rows:
        middle = statistics.median(v)
        spread = ""
        if way in values:
            ratios = [a / b for a, b in zip(v, values["floor"])]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{way:<20} {middle:>12.0f} {middle / statistics.median(untraced):>12.2f} {middle / floor:>13.3f}  {spread}")
        limit = MODES.get(way, (None, None))[1]
        if limit:
            row(middle / floor <= limit, way, f"{middle / floor:.3f} of the watchpoint without BPF (limit {limit})")


def worker():
    sys.path.insert(0, os.path.join(HERE, "..", "meaning"))
    import workload

    print("pid", os.getpid(), flush=True)
    step, synchronize = workload.train()
    for _ in range(20):
        step()
    synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        what, value = line.split()
        steps, begin = 0, time.monotonic_ns()
        while steps < int(value) if what == "steps" else time.monotonic_ns() - begin < float(value) * 1e9:
            step()
            steps += 1
        synchronize()
        print("pass", steps, time.monotonic_ns() - begin, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker()
    else:
        {"run": run, "ways": ways, "modes": modes}[sys.argv[1]](*sys.argv[2:6])
