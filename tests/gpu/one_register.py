"""Two GPUs of one process watched with one debug register: an execution breakpoint at the store that rings them.

    python3 one_register.py NVCAP BP     # as root, on a machine with two GPUs and PyTorch; BP is bp.c, compiled

A process launches kernels on both GPUs by turns. Three of the four debug registers of each of its threads are taken, and it is attached to. Each
launch must be there, byte-exact submissions of both GPUs, and nothing missing. Exit status 1 where something does not hold.
"""

import collections
import json
import subprocess
import sys
import tempfile

LAUNCHES = 5000
PROGRAM = f"""
import sys, time, torch
x = [torch.ones(64, device=f"cuda:{{i}}") for i in range(2)]
for t in x:
    t.add_(1)
    torch.cuda.synchronize(t.device)
print("ready", flush=True)
sys.stdin.readline()
for _ in range({LAUNCHES}):
    for t in x:
        t.add_(1)
    time.sleep(0.0001)
for t in x:
    torch.cuda.synchronize(t.device)
print([float(t[0]) for t in x], flush=True)
time.sleep(1)
"""


def main():
    nvcap, bp = sys.argv[1:]
    failed = False
    for taken, options in [(3, []), (3, ["--precommit"]), (0, [])]:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout.readline() == "ready\n"
        held = subprocess.Popen([bp, str(program.pid), "fill", str(taken)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        armed = held.stdout.readline().strip()
        with tempfile.NamedTemporaryFile() as out:
            command = [nvcap, *options, "--json", "-e", "type=submission || op=launch", "-o", out.name, "-p", str(program.pid)]
            trace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            said = [trace.stderr.readline()]
            while "attached" not in said[-1] and said[-1]:
                said.append(trace.stderr.readline())
            program.stdin.write("go\n")
            program.stdin.flush()
            result = program.stdout.readline().strip()
            status = trace.wait(60)
            said.append(trace.stderr.read())
            program.wait(60)
            held.communicate()
            kernels, how, verdict, gpu = collections.Counter(), collections.Counter(), "", {}
            for line in open(out.name):
                event = json.loads(line)
                if event["type"] == "channel":
                    gpu[event["channel"]] = event.get("gpu")
                elif event["type"] == "submission":
                    how[gpu.get(event["channel"]), event["how"], event["late"]] += 1
                elif event["type"] == "operation" and event["kind"] == "user":
                    kernels[gpu.get(event["channel"])] += 1
                elif event["type"] == "ledger":
                    verdict = event["verdict"]
        launched = f"[{LAUNCHES + 2}.0, {LAUNCHES + 2}.0]"
        holds = status == 0 and result == launched and all(kernels[g] == LAUNCHES for g in (0, 1))
        failed |= not holds
        print(f"{'ok' if holds else 'FAILED'}: {taken} registers taken ({armed}) {options}: status {status}, {verdict}")
        print(f"  kernels of {LAUNCHES} by GPU: {dict(kernels)}; submissions by GPU, how and late: {dict(how)}")
        for line in said:
            print("  " + line.strip().replace("\n", "\n  "))
    sys.exit(1 if failed else 0)


main()
