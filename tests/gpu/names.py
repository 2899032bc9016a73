"""A process with much private memory that launches kernels which are new, one after another, for names.sh.

    names.py [-m MB]     MB of touched private memory (default 2000)

Prints `pid N`, `ready`, waits for a line, launches a new kernel every 0.3 s, prints `done`, and waits for a line.
"""
import sys
import time

import torch


def main():
    size = int(sys.argv[sys.argv.index("-m") + 1]) if "-m" in sys.argv else 2000
    # Private, touched, in pieces as an allocator has them, and without any word that is zero.
    memory = [bytearray(b"\x5a" * (8 << 20)) for _ in range(size // 8)]
    x = torch.rand(1 << 16, device="cuda")
    y = x + 1
    torch.cuda.synchronize()
    print("pid", __import__("os").getpid(), flush=True)
    print("ready", flush=True)
    sys.stdin.readline()
    new = [torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.sqrt, torch.rsqrt, torch.log1p, torch.floor,
           torch.sort, torch.cumsum, torch.argmax, torch.std, torch.prod, torch.softmax]
    for f in new:
        print("new", f.__name__, time.clock_gettime_ns(time.CLOCK_MONOTONIC), flush=True)
        y = f(x, 0) if f in (torch.cumsum, torch.softmax) else f(x)
        torch.cuda.synchronize()
        time.sleep(0.3)
    print("done", len(memory), flush=True)
    sys.stdin.readline()


main()
