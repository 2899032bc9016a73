"""A process on every GPU there is that forks children, starts a program, and lets a child execute a new Python that uses
the GPU. Prints what it and that child computed."""
import os
import subprocess
import sys

import torch

CHILD = "import torch; b = torch.ones(1000, device='cuda'); [b.add_(1) for _ in range(300)]; print('child', float(b[0]))"

all_gpus = [torch.ones(1 << 20, device=f"cuda:{i}") for i in range(torch.cuda.device_count())]


def add(times):
    for a in all_gpus:
        for _ in range(times):
            a += 1
    for i in range(len(all_gpus)):
        torch.cuda.synchronize(i)


add(300)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
subprocess.run(["true"], check=True)
add(2000)
pid = os.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", CHILD])
os.waitpid(pid, 0)
add(500)
print("parent", *(float(a[0]) for a in all_gpus))
