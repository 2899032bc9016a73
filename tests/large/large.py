#!/usr/bin/env python3
"""Recordings of 1 GiB and of millions of submissions: what each command takes of time and memory.

  tests/large/large.py exports            1 GiB: a captured run of an H200 again and again, through each command
  sudo tests/large/large.py record        10 million submissions of the software GPU, recorded: nvcap's memory meanwhile
  tests/large/large.py diff               two recordings of 256 MiB that differ here and there
  sudo tests/large/large.py rate          submissions a second of one core, of captures (decode -s) and of a live trace (-s)

The programs are those of cargo xtask build --release. What is made lies in --dir, and is removed at the end. Status 1 where a
command fails, or takes more memory than --most-mib.
"""

import argparse
import json
import lzma
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "target/x86_64-unknown-linux-gnu/release"
CAPTURE = ROOT / "tests/captures/h200-mixed.orc.xz"
CHANNELS = ROOT / "tests/captures/h200-mixed.channels"
PHASES = ROOT / "tests/captures/h200-mixed.phases"
# Those in which kernels are launched one after the other: each submission is a launch by an inline QMD, 1.5 kB.
LAUNCHES = ("empty_x100", "threads_4x20")
MIB = 1 << 20
HEAD = struct.Struct("<4sIQQIIIIQ")
# Statuses of commands that have read everything: complete; something missing; not all understood; diff: different.
WHOLE = (0, 3, 5)


def records(data):
    """The records of an oracle's capture (nvcap/recording/src/file/orc.rs), each as its head and the bytes behind it."""
    at = 0
    while at < len(data):
        head = HEAD.unpack_from(data, at)
        end = at + HEAD.size
        for _ in range(head[7]):
            length = struct.unpack_from("<I", data, end + 8)[0]
            end += 12 + (0 if length >> 31 else length)
        yield head, data[at + HEAD.size : end]
        at = end


def ring_sizes():
    """Entries of each channel's ring, by its token, as the oracle named them."""
    sizes = {}
    for line in CHANNELS.read_text().splitlines():
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "token" in words and "entries" in words:
            sizes[int(words["token"], 16)] = int(words["entries"], 0)
    return sizes


def phases(names):
    """Begin and end of the capture's phases of these names, ns."""
    lines = (line.split() for line in PHASES.read_text().splitlines())
    return [(int(words[2]), int(words[3])) for words in lines if words[:1] == ["PHASE"] and words[1] in names]


def repeat(to, size, changed_each=0, only=()):
    """Writes the capture again and again, up to so many bytes: later, and farther in the rings. Of each so many submissions one is
    left out. With names of phases, what is repeated is only what was submitted in these."""
    turn_records = list(records(lzma.decompress(CAPTURE.read_bytes())))
    spans = phases(only)
    repeated = [r for r in turn_records if not only or any(begin <= r[0][2] <= end for begin, end in spans)]
    sizes, puts = ring_sizes(), {}
    times = [head[2] for head, _ in turn_records]
    period = times[-1] - times[0] + 1_000_000
    written = count = turn = 0
    while written < size:
        for head, rest in turn_records:
            magic, tid, ns, address, token, before, put, entries, ip = head
            ring = sizes.get(token, 1024)
            begin = puts.get(token, before)
            puts[token] = (begin + put - before) % ring
            # The oracle's times are sorted but for threads that ran at once.
            head = HEAD.pack(magic, tid, ns + turn * period, address, token, begin, puts[token], entries, ip)
            count += 1
            if not (changed_each and count % changed_each == 0):
                to.write(head + rest)
                written += len(head) + len(rest)
        turn += 1
        turn_records = repeated
    return count


class Failed(Exception):
    pass


def run(args, stdin=None, stdout=subprocess.DEVNULL, codes=WHOLE):
    """Runs a command; seconds, those of processors, the most memory that it took (MiB; at least that of this script, which starts it), and what it wrote to
    standard error."""
    begun = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([str(a) for a in args], stdin=stdin, stdout=stdout, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode not in codes:
        raise Failed(f"{' '.join(map(str, args))}: status {process.returncode}\n{text[-2000:]}")
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, text


def size_of(path):
    path = Path(path)
    if path.is_dir():
        return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
    return path.stat().st_size if path.exists() else 0


class Table:
    def __init__(self, most_mib):
        self.most_mib = most_mib
        self.over = []
        print(f"{'command':44} {'seconds':>8} {'of CPU':>8} {'MiB of memory':>14} {'MiB written':>12}", flush=True)

    def row(self, name, args, out=None, **options):
        seconds, cpu, mib, said = run(args, **options)
        written = f"{size_of(out) / MIB:.0f}" if out else ""
        print(f"{name:44} {seconds:8.1f} {cpu:8.1f} {mib:14.0f} {written:>12}", flush=True)
        if mib > self.most_mib:
            self.over.append(f"{name}: {mib:.0f} MiB")
        return said

    def conclude(self):
        if self.over:
            raise Failed(f"more than {self.most_mib} MiB: {'; '.join(self.over)}")


def make(options, name, mib, changed_each=0):
    """A recording of the repeated capture."""
    path = options.dir / name
    args = [options.nvcap, "export", "pcapng", "-", "--from", "orc", "--channels", CHANNELS, "-o", path]
    process = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    count = repeat(process.stdin, mib * MIB, changed_each)
    process.stdin.close()
    if process.wait() not in WHOLE:
        raise Failed(f"{path} could not be made: status {process.returncode}")
    print(f"{name}: {size_of(path) / MIB:.0f} MiB, {count} submissions", flush=True)
    return path


def commands(options, table, big):
    """Each command on a recording."""
    nvcap, folder = options.nvcap, options.dir
    out = folder / "out.json"
    with open(out, "wb") as file:
        table.row("decode --json", [nvcap, "decode", "--json", big], out, stdout=file)
    out.unlink()
    table.row("decode", [nvcap, "decode", big])
    table.row("stats", [nvcap, "stats", big])
    for format in options.formats:
        out = folder / f"out.{format}"
        table.row(f"export {format}", [nvcap, "export", format, big, "-o", out], out)
        shutil.rmtree(out) if out.is_dir() else out.unlink()
    out = folder / "out.parts"
    parts = ["--partition", "channel", "--part-rows", "1000000"]
    table.row(" ".join(["export csv", *parts]), [nvcap, "export", "csv", big, "-o", out, *parts], out)
    shutil.rmtree(out)
    out = folder / "out.html"
    table.row("report", [nvcap, "report", big, "-o", out], out)
    out.unlink()
    for tool, args in [("capinfos", [big]), ("tshark", ["-q", "-z", "io,stat,0", "-r", big])]:
        if shutil.which(tool):
            table.row(" ".join([tool, *args[:-2]]), [tool, *args])
        else:
            print(f"NOT RUN {tool}: it is not installed")


def dissected(options, table):
    """tshark with nvcap's dissector on a part of the size: it must count the launches that nvcap counts."""
    if not shutil.which("tshark"):
        print("NOT RUN tshark with the dissector: it is not installed")
        return
    nvcap, folder = options.nvcap, options.dir
    part = make(options, "part.pcapng", options.dissect_mib)
    out, lua = folder / "part.ws.pcapng", folder / "wireshark/plugins/nvcap.lua"
    table.row("export wireshark of the part", [nvcap, "export", "wireshark", part, "-o", out], out)
    run([nvcap, "wireshark", "install", "--dir", folder / "wireshark"])
    with tempfile.TemporaryFile() as shown:
        # Of each launch its kind, so that those of one packet are counted apart.
        fields = ["-T", "fields", "-e", "nvcap.launch.kind", "-E", "aggregator=/s"]
        table.row("tshark with the dissector", ["tshark", "-X", f"lua_script:{lua}", *fields, "-r", out], stdout=shown)
        shown.seek(0)
        found = len(shown.read().split())
    stats = json.loads(subprocess.run([nvcap, "stats", "--json", part], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.splitlines()[0])
    launches = sum(kind["count"] for kind in stats["operations"] if kind["op"] == "launch")
    print(f"launches: {found} by tshark, {launches} by nvcap stats", flush=True)
    if found != launches or not found:
        raise Failed("tshark counts other launches than nvcap stats")


def exports(options):
    big = make(options, "big.pcapng", options.mib)
    table = Table(options.most_mib)
    commands(options, table, big)
    big.unlink()
    dissected(options, table)
    table.conclude()


def diff(options):
    mib = options.mib // 4
    a = make(options, "a.pcapng", mib)
    b = make(options, "b.pcapng", mib, changed_each=997)
    table = Table(options.most_mib)
    for name, args in [("diff A A", [a, a]), ("diff A B", [a, b]), ("diff -q A B", ["-q", a, b])]:
        table.row(name, [options.nvcap, "diff", *args], codes=(0, 1, 3))
    table.conclude()


def rate(options):
    """How many submissions a second one core takes to sums, by processor time: the best of several rounds."""
    core = max(os.sched_getaffinity(0))
    print(f"{'':24} {'submissions':>12} {'kB each':>8} {'s of CPU':>9} {'a second':>9} {'MB/s':>6}", flush=True)

    def row(name, count, size, cpu):
        print(f"{name:24} {count:12} {size / count / 1000:8.2f} {cpu:9.2f} {count / cpu:9.0f} {size / cpu / 1e6:6.0f}", flush=True)

    for name, only in [("mixed", ()), ("launches", LAUNCHES)]:
        path = options.dir / f"{name}.orc"
        with open(path, "wb") as file:
            count = repeat(file, options.mib * MIB, only=only)
        decode = ["taskset", "-c", core, options.nvcap, "decode", "-s", path]
        row(f"decode -s {name}", count, size_of(path), min(run(decode)[1] for _ in range(options.rounds)))
        path.unlink()
    if os.geteuid():
        print("NOT RUN live: it needs root")
        return
    ledger, cpu = min((live(options) for _ in range(options.rounds)), key=lambda of: of[1] / of[0]["submissions"])
    row("-s -p, software GPU", ledger["submissions"], ledger["bytes"], cpu)
    print(f"doorbells that found the buffer full: {ledger['trapped']['deferred']}; complete: {ledger['complete']}")


def ticks(pid):
    """Processor time of a process so far, s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def live(options):
    """The ledger of a live trace of the software GPU's launch loop, and the processor time that nvcap took once it was attached."""
    described, out = options.dir / "channels.txt", options.dir / "live.json"
    subprocess.run([options.softgpu, "--describe", described], check=True, stdout=subprocess.DEVNULL)
    args = [options.softgpu, "--wait-stdin", f"--bench={options.launches}"]
    gpu = subprocess.Popen([str(a) for a in args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while gpu.stdout.readline().strip() != "ready":
        if gpu.poll() is not None:
            raise Failed(f"the software GPU ended with {gpu.returncode}")
    args = [options.nvcap, "-s", "--json", "--force", "-o", out, "-p", gpu.pid, "--channels", described]
    nvcap = subprocess.Popen([str(a) for a in args], stderr=subprocess.PIPE, text=True)
    while "attached" not in (line := nvcap.stderr.readline()):
        if not line:
            raise Failed("nvcap could not attach")
    before = ticks(nvcap.pid)
    gpu.communicate("\n")
    nvcap.stderr.read()
    _, status, used = os.wait4(nvcap.pid, 0)
    nvcap.returncode = os.waitstatus_to_exitcode(status)
    if nvcap.returncode not in WHOLE:
        raise Failed(f"nvcap: status {nvcap.returncode}")
    return json.loads(out.read_text().splitlines()[-1]), used.ru_utime + used.ru_stime - before


def rss(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def record(options):
    """Records the software GPU, and looks at nvcap's memory meanwhile."""
    out, described = options.dir / "many.pcapng", options.dir / "channels.txt"
    subprocess.run([options.softgpu, "--describe", described, "--submissions=1"], check=True, stdout=subprocess.DEVNULL)
    args = [options.nvcap, "record", "--channels", described, "-o", out]
    if options.rotate:
        args += ["--rotate", options.rotate, "--keep", "2"]
    args += ["--", options.softgpu, f"--submissions={options.submissions}", "--threads=1", "--channels=4"]
    begun = time.monotonic()
    said = open(options.dir / "said", "w+")
    process = subprocess.Popen([str(a) for a in args], stdout=subprocess.DEVNULL, stderr=said)
    seen, shown = [], 0
    while process.poll() is None:
        try:
            seen.append((time.monotonic() - begun, rss(process.pid)))
        except (FileNotFoundError, ProcessLookupError):
            break
        if seen[-1][0] >= shown:
            written = sum(size_of(f) for f in options.dir.glob("many*")) / MIB
            print(f"after {seen[-1][0]:5.0f} s: {seen[-1][1]:5.0f} MiB of memory, {written:6.0f} MiB written", flush=True)
            shown += options.every
        time.sleep(0.5)
    status = process.wait()
    said.seek(0)
    print(said.read().strip().splitlines()[-1])
    seconds = time.monotonic() - begun
    print(f"{options.submissions} submissions in {seconds:.0f} s, status {status}", flush=True)
    if status not in WHOLE:
        raise Failed(f"record: status {status}")
    # From the first tenth on, when all buffers have been used once.
    settled = [mib for at, mib in seen if at > seconds / 10]
    print(f"memory after the first tenth: {min(settled):.0f} to {max(settled):.0f} MiB")
    if max(settled) > options.most_mib:
        raise Failed(f"more than {options.most_mib} MiB")
    if not options.rotate:
        table = Table(options.most_mib)
        commands(options, table, out)
        table.conclude()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["exports", "record", "diff", "rate"])
    parser.add_argument("--nvcap", type=Path, default=BUILT / "nvcap")
    parser.add_argument("--softgpu", type=Path, default=BUILT / "softgpu")
    parser.add_argument("--dir", type=Path, help="a folder with room for six times --mib")
    parser.add_argument("--mib", type=int, default=1024, help="size of the recording")
    parser.add_argument("--submissions", type=int, default=10_000_000)
    parser.add_argument("--launches", type=int, default=100_000, help="of the live trace, three times")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts, for rate")
    parser.add_argument("--rotate", help="record into files of this size, of which 2 are kept")
    parser.add_argument("--every", type=float, default=10, help="seconds between two lines about memory")
    parser.add_argument("--most-mib", type=int, default=1024, help="memory that no command may take more of")
    parser.add_argument("--formats", nargs="*", default=["pcapng", "perfetto", "csv", "parquet", "wireshark"])
    parser.add_argument("--dissect-mib", type=int, default=16, help="size of the recording that tshark dissects")
    options = parser.parse_args()
    options.dir = Path(tempfile.mkdtemp(prefix="nvcap-large-", dir=options.dir))
    try:
        {"exports": exports, "record": record, "diff": diff, "rate": rate}[options.what](options)
    except Failed as why:
        sys.exit(f"large.py: {why}")
    finally:
        shutil.rmtree(options.dir)


main()
