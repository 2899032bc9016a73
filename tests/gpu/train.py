#!/usr/bin/env python3
"""A small training loop with many launches: deterministic, so that a traced run can be compared with an untraced one.

Prints "pid N", "training" once warm, and at the end a line with the checksum of all weights.
"""
import argparse
import hashlib
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="training steps; about 250 submissions each")
    parser.add_argument("--warm", type=int, default=50, help="steps before `training` is said")
    parser.add_argument("--seconds", type=float, default=0, help="go on until so many seconds have passed instead")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    device = torch.device("cuda")
    layers = []
    for _ in range(6):
        layers += [torch.nn.Linear(128, 128), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 16)).to(device)
    # One launch for each operation on each parameter: many submissions on purpose.
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    inputs = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)).to(device)
    targets = torch.randint(0, 16, (64,), generator=torch.Generator().manual_seed(3)).to(device)
    loss_of = torch.nn.CrossEntropyLoss()
    print(f"pid {os.getpid()}", flush=True)
    begin = time.monotonic()
    step = 0
    while (step < args.steps) if not args.seconds else (time.monotonic() - begin < args.seconds):
        if step == args.warm:
            torch.cuda.synchronize()
            print("training", flush=True)
            begin_warm = time.monotonic()
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
    torch.cuda.synchronize()
    took = time.monotonic() - begin_warm
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(
        f"trained steps={step} us_per_step={took / max(1, step - args.warm) * 1e6:.1f} loss={loss.item():.6f} "
        f"checksum={digest.hexdigest()[:32]}",
        flush=True,
    )


main()
