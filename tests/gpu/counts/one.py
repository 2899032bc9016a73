#!/usr/bin/env python3
"""A PyTorch process that does one kind of work for each line that it reads: launches, copies, streams, graphs, workers, slow.

Says `ready PID` when it is prepared, and `over KIND` after each.
"""
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    device = torch.device("cuda")
    x = torch.randn(256, 256, device=device)
    stream, side = torch.cuda.Stream(), torch.cuda.Stream()
    pinned = torch.randn(1 << 20).pin_memory()
    (x @ x).relu()
    with torch.cuda.stream(side):
        for _ in range(3):
            (x @ x).relu()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (x @ x).relu() + 1
    torch.cuda.synchronize()
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        kind = line.strip()
        if kind == "launches":
            for _ in range(100000):
                x.relu()
        elif kind == "copies":
            for _ in range(3000):
                there = pinned.to(device, non_blocking=True)
            for _ in range(200):
                there.cpu()
        elif kind == "streams":
            for _ in range(20000):
                with torch.cuda.stream(stream):
                    x + 1
                stream.wait_stream(torch.cuda.current_stream())
                torch.cuda.current_stream().wait_stream(stream)
        elif kind == "graphs":
            for _ in range(20000):
                graph.replay()
        elif kind == "workers":
            data = TensorDataset(torch.randn(1024, 64))
            for (batch,) in DataLoader(data, batch_size=16, num_workers=4):
                (batch.to(device) @ batch.to(device).t()).sum().item()
                time.sleep(0.01)
        elif kind == "slow":
            torch.cuda._sleep(int(6e9))
            time.sleep(4)
        torch.cuda.synchronize()
        print("over", kind, flush=True)


main()
