"""A job of several ranks over NCCL, as torch.distributed.run starts it: steps of a small model, an all-reduce for each of its gradients.

    job.py SECONDS none|kernels|host|slow      how rank 1 is late: not at all; 30 kernels more a step; its host sleeps for 2 ms a step; a kernel of 1.5 ms a step
"""

import os
import sys
import time

import torch
import torch.distributed as dist


def main():
    seconds, late = float(sys.argv[1]), sys.argv[2]
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    samples, more = torch.randn(64, 512, device="cuda"), torch.randn(2048, 2048, device="cuda")
    go = torch.ones(1, device="cuda")
    dist.all_reduce(go)
    torch.cuda.synchronize()
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    end, steps = time.monotonic() + seconds, 0
    while True:
        loss = net(samples).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if rank == 1 and late == "kernels":
            for _ in range(30):
                more.mul_(1.0)
        if rank == 1 and late == "host":
            time.sleep(0.002)
        if rank == 1 and late == "slow":
            torch.cuda._sleep(3_000_000)
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        steps += 1
        # All ranks end with one step.
        if steps % 20 == 0:
            go.fill_(float(time.monotonic() < end))
            dist.all_reduce(go, op=dist.ReduceOp.MIN)
            if go.item() == 0:
                break
    print(f"rank {rank} made {steps} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
