#!/usr/bin/env python3
"""A PyTorch training without an end, which prints its time and number of steps twice a second."""
import time

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, target = torch.randn(64, 1024, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda")
    steps, last = 0, time.time()
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        steps += 1
        if steps % 20 == 0:
            torch.cuda.synchronize()
            now = time.time()
            if now - last > 0.5:
                print(f"{now:.3f} {steps}", flush=True)
                last = now


main()
