#!/usr/bin/env python3
"""A PyTorch training of a transformer without an end. On a line of standard input: 30 steps under CUPTI (torch.profiler), after which
it prints, as one line of JSON, each kernel's launches and time in us, and ends.
"""
import json
import select
import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x = torch.randn(16, 512, 1024, device="cuda")

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def steps(n):
        for _ in range(n):
            step()
        torch.cuda.synchronize()

    steps(10)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        steps(10)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        steps(30)
    kernels = {}
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset")):
            kernel = kernels.setdefault(event.name, [0, 0.0])
            kernel[0] += 1
            kernel[1] += event.time_range.elapsed_us()
    print(json.dumps(kernels), flush=True)


main()
