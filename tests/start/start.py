#!/usr/bin/env python3
"""How soon `nvcap -p PID` shows something, and what it takes at rest: start.py NVCAP SOFTGPU [--runs N] [limits].

A software GPU submits every 2 ms; nvcap attaches to it with a pipe as its output. Then it watches one that submits nothing.
With limits it fails where the median is beyond them. --pid PID attaches to that process instead, which uses a GPU."""

import argparse
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

REST_S = 10


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nvcap")
    parser.add_argument("softgpu", nargs="?")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--most-ms", type=float, help="until the first line")
    parser.add_argument("--most-mib", type=float, help="resident memory")
    parser.add_argument("--most-percent", type=float, help="of a processor at rest")
    return parser.parse_args()


def target(softgpu, folder, *more):
    command = [softgpu, "--channels=4", "--threads=2", "--kernels", *more]
    gpu = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    time.sleep(0.5)
    assert gpu.poll() is None, "the software GPU has ended"
    return gpu


def attach(nvcap, channels, pid, *more):
    named = ["--channels", channels] if channels else []
    return subprocess.Popen([nvcap, *more, *named, "-p", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def first(nvcap, channels, pid):
    """Milliseconds until nvcap says that it is attached, and until the first line of the trace."""
    began = time.monotonic()
    tracer = attach(nvcap, channels, pid)
    said, seen = {}, {tracer.stderr.fileno(): "attached", tracer.stdout.fileno(): "line"}
    said_so = b""
    while len(said) < 2:
        ready, _, _ = select.select(list(seen), [], [], 10)
        assert ready, f"nothing within 10 s: {said_so!r}"
        for stream in ready:
            text = os.read(stream, 65536)
            assert text, f"nvcap has ended: {said_so!r}"
            said_so += text if seen[stream] == "attached" else b""
            if seen[stream] == "line" or b"attached" in said_so:
                said.setdefault(seen[stream], (time.monotonic() - began) * 1e3)
    tracer.terminate()
    tracer.communicate()
    assert tracer.returncode == 0, f"status {tracer.returncode}"
    return said["attached"], said["line"]


def at_rest(nvcap, channels, pid):
    """MiB resident, and percent of a processor, of a trace that shows nothing."""
    tracer = attach(nvcap, channels, pid, "-q")
    time.sleep(2)

    def ticks():
        fields = open(f"/proc/{tracer.pid}/stat").read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    time.sleep(REST_S)
    percent = (ticks() - before) / os.sysconf("SC_CLK_TCK") / REST_S * 100
    status = open(f"/proc/{tracer.pid}/status").read().splitlines()
    kib = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    tracer.terminate()
    tracer.communicate()
    return kib / 1024, percent


def of_software_gpu(args):
    nvcap, softgpu = map(os.path.abspath, (args.nvcap, args.softgpu))
    with tempfile.TemporaryDirectory() as folder:
        channels = os.path.join(folder, "channels.txt")
        subprocess.run([softgpu, "--describe", channels], check=True, stdout=subprocess.DEVNULL)
        gpu = target(softgpu, folder, "--submissions=10000000", "--sleep-us=2000")
        runs = [first(nvcap, channels, gpu.pid) for _ in range(args.runs)]
        gpu.kill()
        gpu.wait()
        gpu = target(softgpu, folder, "--submissions=100", "--wait-stdin", "--before-wait=7")
        mib, percent = at_rest(nvcap, channels, gpu.pid)
        gpu.kill()
        gpu.wait()
    return runs, mib, percent


def main():
    args = arguments()
    if args.pid:
        nvcap = os.path.abspath(args.nvcap)
        runs = [first(nvcap, None, args.pid) for _ in range(args.runs)]
        mib, percent = at_rest(nvcap, None, args.pid)
    else:
        runs, mib, percent = of_software_gpu(args)
    attached, line = (statistics.median(column) for column in zip(*runs))
    least, most = min(r[1] for r in runs), max(r[1] for r in runs)
    print(f"attached after {attached:.0f} ms; first line after {line:.0f} ms ({least:.0f} to {most:.0f}, {args.runs} runs)")
    print(f"{'beside it' if args.pid else 'at rest'}: {mib:.1f} MiB resident, {percent:.2f} % of one processor over {REST_S} s")
    limits = [(line, args.most_ms), (mib, args.most_mib), (percent, args.most_percent)]
    return int(any(limit is not None and value > limit for value, limit in limits))


sys.exit(main())
