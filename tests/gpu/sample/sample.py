#!/usr/bin/env python3
"""`nvcap sample` beside what programs say of themselves (graph.cu): sample.py SECTION NVCAP GRAPH FOLDER.

Prints rows: ROW, ok or FAIL, what, detail; rates are notes.
"""
import json
import os
import random
import re
import resource
import signal
import stat
import statistics
import subprocess
import sys
import time

SECTION, NVCAP, GRAPH, FOLDER = sys.argv[1:5]
KILLS = int(os.environ.get("KILLS", "30"))
PAIRS = int(os.environ.get("PAIRS", "5"))
os.environ["NVCAP_SAMPLE_PROGRAMMES"] = os.path.join(FOLDER, "programmes")


def row(good, what, detail):
    kind = "NOTE" if good is None else "ROW"
    print(kind, "NOTE" if good is None else "ok" if good else "FAIL", what, detail, sep="\t", flush=True)


def start(seconds, *more):
    process = subprocess.Popen([GRAPH, str(seconds), *more], stdout=subprocess.PIPE, text=True)
    process.alone = {}
    for line in process.stdout:
        words = line.split()
        if words[0] == "ready":
            return process
        process.alone[words[1]] = float(words[2])
    raise SystemExit("graph.cu did not begin")


def end(process):
    process.terminate()
    process.wait(60)


def sample(pid, *more):
    done = subprocess.run([NVCAP, "sample", "-p", str(pid), "--json", *more], capture_output=True, text=True, timeout=120)
    return json.loads(done.stdout) if done.stdout else None, done.stderr.strip(), done.returncode


def shares(found):
    """Shares by kernel, without the code of the driver's that saves and restores warps where contexts take turns."""
    kernels = [(kernel["kernel"].split("(")[0], kernel["samples"]) for kernel in found["kernels"]]
    kernels = [(name, samples) for name, samples in kernels if not re.search("trap_?(handler|reason)|do_preempt", name)]
    whole = sum(samples for _, samples in kernels) + found["unknown"]["samples"]
    return {name: 100 * samples / whole for name, samples in kernels}


def truth(process):
    whole = sum(process.alone.values())
    return {name: 100 * ms / whole for name, ms in process.alone.items()}


def learnt():
    if not os.path.isdir(os.environ["NVCAP_SAMPLE_PROGRAMMES"]):
        subprocess.run([NVCAP, "sample", "--learn"], check=True, timeout=120)


def section_learn():
    process = start(60)
    found, said, status = sample(process.pid)
    row(found is None and status == 1 and "--learn" in said, "learn: without", said[-160:])
    done = subprocess.run([NVCAP, "sample", "--learn"], capture_output=True, text=True, timeout=120)
    row(done.returncode == 0, "learn: with CUPTI", (done.stderr.strip() or "nothing said")[-160:])
    folder = os.environ["NVCAP_SAMPLE_PROGRAMMES"]
    files = [os.path.join(folder, name) for name in os.listdir(folder)]
    modes = [stat.S_IMODE(os.stat(name).st_mode) for name in files]
    row(modes == [0o600], "learn: kept for its owner alone", str([oct(mode) for mode in modes]))
    with open(files[0]) as kept:
        text = kept.read()
    calls = os.path.join(FOLDER, "calls.jsonl")
    # The program that --learn starts: a bundle has it here, a checkout in its place.
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.join(here, "cupti.py"), os.path.join(here, "../../../nvcap/src/cli/sample/learn/cupti.py")]
    program = next(place for place in places if os.path.exists(place))
    query = ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader", "--id=0"]
    bus = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    command = [NVCAP, "ioctls", "-vv", "--json", "-o", calls, "--force", "--", "python3", "-I", program, bus, "10", "24"]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    done = subprocess.run([NVCAP, "sample", "--learn", calls], capture_output=True, text=True, timeout=120)
    with open(files[0]) as kept:
        again = "".join(line for line in kept if not line.startswith("period"))
    same = again.split("write")[1:-1] == text.split("write")[1:-1]
    row(done.returncode == 0 and same, "learn: of a file, the same", done.stderr.strip()[-160:])
    subprocess.run([NVCAP, "sample", "--learn"], check=True, capture_output=True, timeout=120)
    end(process)


def section_graph():
    learnt()
    process = start(60)
    for period in (19, 16):
        found, said, status = sample(process.pid, "--period", str(period))
        if found is None:
            row(False, f"graph: period 2^{period}", said[-160:])
            continue
        got, want = shares(found), truth(process)
        off = max(abs(got.get(name, 0) - share) for name, share in want.items())
        detail = ", ".join(f"{name} {got.get(name, 0):.2f} % (alone {share:.2f})" for name, share in want.items())
        row(off < 2, f"graph: shares at 2^{period}", f"{detail}; {found['samples']} samples")
        row(found["unknown"]["samples"] == 0, f"graph: all in kernels at 2^{period}", f"{found['unknown']['samples']} are not")
        row(found["complete"] and status == 0, f"graph: complete at 2^{period}", f"{found['strange_bytes']} of {found['stream_bytes']} B strange, {found['cut_bytes']} cut, {found['overflows']} overflows")
        hot = [kernel for kernel in found["kernels"] if kernel["kernel"].startswith("memory_walk")]
        first = hot[0]["instructions"][0] if hot else {}
        reasons = {reason["name"]: reason["samples"] for reason in first.get("stall_reasons", [])}
        waits = reasons.get("long_scoreboard", 0) > 0.9 * first.get("samples", 1)
        row(waits, f"graph: memory_walk waits for memory at 2^{period}", f"{first.get('offset', 0):#x}: {reasons}")
    end(process)


def section_speed():
    learnt()
    process = start(20 * PAIRS + 60)
    spans = []
    for _ in range(PAIRS):
        time.sleep(2)
        begin = time.monotonic()
        sample(process.pid, "--duration", "4s")
        spans.append((begin + 1, begin + 4))
        time.sleep(2)
    end(process)
    rates = [line.split()[:2] for line in process.stdout if line.endswith("replays/s\n")]
    rates = [(float(when), float(rate)) for when, rate in rates]
    within = [rate for when, rate in rates if any(a + 0.5 < when < b for a, b in spans)]
    beside = [rate for when, rate in rates if not any(a - 2 < when < b + 2 for a, b in spans)]
    process = start(30)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    sample(process.pid, "--duration", "10s")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    ten = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    before = after
    sample(process.pid, "--duration", "1s")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    one = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    end(process)
    row(None, "speed: nvcap's processor time", f"{one:.2f} s of 1 s, {ten:.2f} s of 10 s: {100 * (ten - one) / 9:.1f} % of a core")
    ratio = statistics.median(within) / statistics.median(beside)
    row(None, "speed: sampled to not", f"{ratio:.4f} ({statistics.median(within):.1f} and {statistics.median(beside):.1f} replays/s)")


def section_killed():
    learnt()
    process = start(30 + 4 * KILLS)
    for _ in range(KILLS):
        nvcap = subprocess.Popen([NVCAP, "sample", "-p", str(process.pid), "--duration", "60s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0, 2.5))
        nvcap.send_signal(signal.SIGKILL)
        nvcap.wait()
    row(process.poll() is None, "killed: the process goes on", f"{KILLS} kills")
    found, said, status = sample(process.pid)
    got, want = shares(found) if found else {}, truth(process)
    right = all(abs(got.get(name, 0) - share) < 2 for name, share in want.items())
    row(right and status == 0, "killed: sampled again", f"{got} {said[-120:]}")
    row(process.poll() is None, "killed: the process still goes on", "")
    done = subprocess.run([NVCAP, "sample", "--learn"], capture_output=True, text=True, timeout=120)
    row(done.returncode == 0, "killed: CUPTI works", done.stderr.strip()[-160:])
    end(process)


def section_two():
    learnt()
    one, other = start(60), start(60, "other")
    for process, names in ((one, {"arithmetic", "memory_walk"}), (other, {"other_work"})):
        found, said, _ = sample(process.pid)
        got = set(shares(found)) if found else set()
        row(got == names and found["unknown"]["samples"] == 0, f"two: only {sorted(names)}", f"{shares(found) if found else said[-160:]}")
    begun = subprocess.Popen([NVCAP, "sample", "-p", str(one.pid), "--duration", "8s"], stdout=subprocess.DEVNULL)
    time.sleep(3)
    found, said, status = sample(other.pid)
    row(found is None and status == 1 and "profiler" in said, "two: a profiler is had once", said[-200:])
    row(begun.wait(60) == 0, "two: the first goes on", "")
    end(one)
    end(other)


def spawn(*command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    while "ready" not in (line := process.stdout.readline()):
        if not line:
            raise SystemExit(f"{command} did not begin")
    return process


def several(*more, duration="4s"):
    done = subprocess.run([NVCAP, "sample", "--json", "--duration", duration, *more], capture_output=True, text=True, timeout=120)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip(), done.returncode


def section_contexts():
    learnt()
    two, graph = spawn(os.path.join(FOLDER, "contexts"), "60"), start(60)
    found, said, status = several("-p", str(two.pid))
    names = [set(shares(one)) for one in found]
    row(sorted(map(sorted, names)) == [["spin_one"], ["spin_two"]] and status == 0, "contexts: two of a process", f"{[shares(one) for one in found]} {said[-120:]}")
    for what, ask in (("three of two processes", ("-p", f"{two.pid},{graph.pid}")), ("every process", ("-a",))):
        began = time.monotonic()
        found, said, status = several(*ask, duration="6s")
        took = time.monotonic() - began
        names = sorted(tuple(sorted(shares(one))) for one in found)
        row(names == [("arithmetic", "memory_walk"), ("spin_one",), ("spin_two",)] and status == 0, f"contexts: {what}", f"{names} {said[-120:]}")
        sampled = sum(one["seconds"] for one in found)
        row(None, f"contexts: {what}, time sampled", f"{sampled:.2f} s of 6 s ({[round(one['seconds'], 2) for one in found]}), {took:.2f} s in all")
        row(all(one["complete"] for one in found), f"contexts: {what}, complete", f"{[one['cut_bytes'] for one in found]}")
    end(two)
    end(graph)


def section_planted():
    learnt()
    graph = start(60)
    found, _, _ = sample(graph.pid)
    hostile = spawn(sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "planted.py"), str(found["client"]), "60")
    other, said, status = sample(hostile.pid)
    row(other is None and status == 1 and "another process's" in said, "planted: another's client is refused", said[-300:])
    again, said, status = sample(graph.pid)
    row(status == 0 and again["client"] == found["client"], "planted: its own process is sampled", said[-120:])
    hostile.terminate()
    hostile.wait(60)
    end(graph)


def section_command():
    learnt()
    output = os.path.join(FOLDER, "command.json")
    done = subprocess.run([NVCAP, "sample", "--json", "-o", output, "--", "sh", "-c", f"{GRAPH} 4; exit 7"], capture_output=True, text=True, timeout=120)
    found = [json.loads(line) for line in open(output)]
    row(done.returncode == 0 and "the command ended with exit status: 7" in done.stderr, "command: its status is told", done.stderr.strip()[-160:])
    row("ready" in done.stdout and "replays/s" in done.stdout and "samples" not in done.stdout, "command: its output is its own", repr(done.stdout[:80]))
    got = shares(found[0]) if found else {}
    row(len(found) == 1 and set(got) == {"arithmetic", "memory_walk"} and found[0]["complete"], "command: its kernels", f"{got} in {found[0]['seconds'] if found else 0:.2f} s, unknown {found[0]['unknown']['samples'] if found else '-'}")
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
        text = "import torch,time\na=torch.randn(4096,4096,device='cuda',dtype=torch.float16)\nt=time.time()\nwhile time.time()<t+5:\n  b=a@a\n  torch.cuda.synchronize()"
        os.remove(output)
        began = time.monotonic()
        done = subprocess.run([NVCAP, "sample", "--json", "-o", output, "--", sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
        found = [json.loads(line) for line in open(output)]
        row(bool(found) and found[0]["complete"], "command: PyTorch", f"{shares(found[0]) if found else {}} {found[0]['seconds'] if found else 0:.2f} s of {time.monotonic() - began:.1f} s, unknown {found[0]['unknown']['share'] if found else 1:.4f} {done.stderr[-160:]}")


def section_code():
    learnt()
    process = start(60)
    done = subprocess.run([NVCAP, "sample", "-p", str(process.pid), "--code", "memory_walk"], capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if "long_scoreboard" in line and "/*" in line]
    print(*done.stdout.splitlines(), sep="\n", flush=True)
    row(done.returncode == 0 and len(lines) > 0, "code: samples beside instructions", lines[0].strip() if lines else done.stderr[-160:])
    found, _, _ = sample(process.pid, "--code", "memory_walk", "--top", "1000")
    kernel = [one for one in found["kernels"] if one["kernel"].startswith("memory_walk")][0]
    listed = {one["offset"]: one["samples"] for one in kernel["code"]["instructions"] if one["samples"]}
    hottest = {one["offset"]: one["samples"] for one in kernel["instructions"]}
    row(listed == hottest, "code: as the hottest instructions", f"{len(listed)} of {len(kernel['code']['instructions'])} instructions with samples, disassembled {'text' in kernel['code']['instructions'][0]}")
    end(process)


def divided(path, names):
    """The graph with these kernels as `nvcap time` divides it: per cent by kernel, and their errors."""
    done = subprocess.run([NVCAP, "time", "--json", path], capture_output=True, text=True, timeout=120)
    graphs = json.loads(done.stdout.splitlines()[0])["graphs"]
    for graph in graphs:
        nodes = graph["kernels"] or []
        found = {node["kernel"].split("(")[0]: 100 * node["share"] for node in nodes if node["by"] == "samples"}
        if set(found) == names:
            return found, graph
    return {}, {}


def section_recorded():
    learnt()
    process = start(60)
    want = truth(process)
    for what, more in (("text", ()), ("JSON", ("--json", "--top", "5"))):
        path = os.path.join(FOLDER, f"sampled-{what}.pcapng")
        live = subprocess.run([NVCAP, "sample", "-p", str(process.pid), "--record", path, *more], capture_output=True, text=True, timeout=120)
        again = subprocess.run([NVCAP, "sample", path, *more], capture_output=True, text=True, timeout=120)
        same = live.stdout == again.stdout and live.returncode == again.returncode == 0 and "arithmetic" in live.stdout
        row(same, f"recorded: {what} is that of the live sampling", f"{len(live.stdout)} B, a file of {os.path.getsize(path)} B {live.stderr.strip()[-120:]}")
    command = [NVCAP, "record", "--gpu-time", "--sample-pc", "-o"]
    attached, whole = os.path.join(FOLDER, "attached.pcapng"), os.path.join(FOLDER, "whole.pcapng")
    subprocess.run([*command, attached, "--how", "observe", "-p", str(process.pid), "--duration", "5"], capture_output=True, timeout=120)
    end(process)
    subprocess.run([*command, whole, "--", GRAPH, "4"], capture_output=True, timeout=120)
    for what, path in (("attached", attached), ("a command", whole)):
        got, graph = divided(path, set(want))
        off = max(abs(got.get(name, 0) - share) for name, share in want.items())
        detail = ", ".join(f"{name} {got.get(name, 0):.2f} % (alone {share:.2f})" for name, share in want.items())
        row(off < 2, f"recorded: {what}, a replay's time divided", f"{detail}; {graph.get('replays')} replays of {graph.get('mean_ns')} ns")
    other = os.path.join(FOLDER, "unsampled.pcapng")
    subprocess.run([NVCAP, "record", "--gpu-time", "-o", other, "--", GRAPH, "2"], capture_output=True, timeout=120)
    done = subprocess.run([NVCAP, "time", other, "--times-from", whole], capture_output=True, text=True, timeout=120)
    said = [line for line in done.stdout.splitlines() if "--times-from: 2 of 2 nodes" in line]
    row(bool(said), "recorded: times from another recording", said[0] if said else done.stdout[-300:])


globals()[f"section_{SECTION}"]()
