"""One process on every GPU of the machine: attached by the trap, with all debug registers and with one, and observed.

    python3 many_gpus.py NVCAP BP     # as root, on a machine with two GPUs or more and PyTorch; BP is bp.c, compiled

A process launches kernels on all GPUs by turns. With one register (three of the four of each of its threads are taken) it is a watchpoint of one GPU's
doorbell, and then an execution breakpoint at the store that rings all of them. Each launch must be there on its GPU, and nothing missing. A line for each
way, `ok` or `FAILED`; exit status 1 where something does not hold.
"""

import collections
import json
import subprocess
import sys
import tempfile

LAUNCHES = 5000
PROGRAM = f"""
import sys, time, torch
x = [torch.ones(64, device=f"cuda:{{i}}") for i in range(torch.cuda.device_count())]
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
    for taken, options in [(0, ["--how", "trap"]), (3, ["--how", "trap"]), (3, ["--how", "trap", "--precommit"]), (0, ["--how", "observe", "--stop-at-exit=always"])]:
        program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout.readline() == "ready\n"
        held = subprocess.Popen([bp, str(program.pid), "fill", str(taken)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        armed = held.stdout.readline().strip()
        with tempfile.NamedTemporaryFile() as out:
            command = [nvcap, *options, "--json", "--force", "-e", "type=submission || op=launch", "-o", out.name, "-p", str(program.pid)]
            trace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            said = [trace.stderr.readline()]
            while " attached: " not in said[-1] and said[-1]:
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
        results = json.loads(result)
        right = all(value == LAUNCHES + 2.0 for value in results)
        every = len(kernels) == len(results) and all(count == LAUNCHES for count in kernels.values())
        holds = status == 0 and right and every
        failed |= not holds
        print(f"{'ok' if holds else 'FAILED'}: {len(results)} GPUs, {taken} registers taken ({armed}) {options}: status {status}, {verdict}")
        print(f"  kernels of {LAUNCHES} by GPU: {dict(kernels)}; submissions by GPU, how and late: {dict(how)}")
        for line in said:
            print("  " + line.strip().replace("\n", "\n  "))
    sys.exit(1 if failed else 0)


main()
