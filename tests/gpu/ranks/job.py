"""A job of several ranks over NCCL, as torch.distributed.run starts it: steps of a small model.

    job.py SECONDS none|kernels|host|slow|absent|crash|killed [ddp|fsdp|tensor|pipeline]

SECONDS, or so many steps as in 100x. How rank 1 is late: not at all; 30 kernels more a step; its host sleeps for 2 ms a step; a kernel of 1.5 ms a step;
once, after a second, it stays away for 8 s; after three seconds a kernel of PyTorch's asserts that an index is in range, which it is not; or the
process is killed. The truth of a crash is printed.
ddp: an all-reduce for each gradient. fsdp: all-gathers and reduce-scatters. tensor: layers that are split over the ranks. pipeline: two stages, sends and
receives. With STAMPS (the library of stamps.cu) and TRUTH, of ddp: just before each all-reduce the GPU's clock is stamped, to the file TRUTH.RANK.
"""

import ctypes
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

LAYERS, WIDTH = 8, 512


class Stamps:
    """The library of stamps.cu, or nothing at all where STAMPS does not name it."""

    MOST = 1 << 20

    def __init__(self):
        path = os.environ.get("STAMPS")
        self.library = ctypes.CDLL(path) if path else None
        self.count = 0
        self.call("stamps_open", self.MOST, torch.cuda.current_device())

    def call(self, name, *arguments):
        if self.library:
            error = getattr(self.library, name)(*arguments)
            if error:
                sys.exit(f"{name}: CUDA error {error}")

    def stream(self):
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def __enter__(self):
        self.call("stamp", self.count, self.stream())

    def __exit__(self, *raised):
        self.count += 1
        self.call("stamps_queued", self.count)

    def ping(self):
        self.call("stamps_ping", self.stream())

    def save(self, rank):
        self.call("stamps_save", f"{os.environ.get('TRUTH')}.{rank}".encode())


def layers(count):
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)]).cuda()


class Ddp:
    def __init__(self, stamps):
        self.stamps, self.net = stamps, layers(LAYERS)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self, samples, late):
        self.optimizer.zero_grad()
        self.net(samples).square().mean().backward()
        late()
        for parameter in self.net.parameters():
            with self.stamps:
                dist.all_reduce(parameter.grad)
        self.optimizer.step()


class Fsdp(Ddp):
    def __init__(self, stamps):
        from torch.distributed.fsdp import fully_shard

        self.net = layers(LAYERS)
        for layer in self.net:
            fully_shard(layer)
        fully_shard(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self, samples, late):
        self.optimizer.zero_grad()
        loss = self.net(samples).square().mean()
        late()
        loss.backward()
        self.optimizer.step()


class Tensor:
    """Each rank has a part of each layer's columns, and the parts are gathered; the next layer is split by rows, and its parts are added."""

    def __init__(self, stamps):
        self.ranks = dist.get_world_size()
        part = WIDTH // self.ranks
        self.columns = [torch.randn(WIDTH, part, device="cuda") / WIDTH for _ in range(LAYERS // 2)]
        self.rows = [torch.randn(part, WIDTH, device="cuda") / WIDTH for _ in range(LAYERS // 2)]

    def step(self, samples, late):
        late()
        for column, row in zip(self.columns, self.rows):
            part = torch.relu(samples @ column)
            samples = part @ row
            dist.all_reduce(samples)


class Pipeline:
    """Rank 0 has the first half of the layers and sends what comes out; the last rank has the other half and sends the gradient back."""

    def __init__(self, stamps):
        self.net = layers(LAYERS // 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.is_first = dist.get_rank() == 0

    def step(self, samples, late):
        self.optimizer.zero_grad()
        late()
        if self.is_first:
            out = self.net(samples)
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            got = torch.empty_like(samples)
            dist.recv(got, 0)
            got.requires_grad_()
            self.net(got).square().mean().backward()
            dist.send(got.grad, 0)
        self.optimizer.step()


SHAPES = {"ddp": Ddp, "fsdp": Fsdp, "tensor": Tensor, "pipeline": Pipeline}


def main():
    length, how = sys.argv[1:3]
    most = int(length[:-1]) if length.endswith("x") else None
    seconds = 0 if most else float(length)
    shape = sys.argv[3] if len(sys.argv) > 3 else "ddp"
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    go = torch.ones(1, device="cuda")
    dist.all_reduce(go)
    stamps = Stamps()
    job = SHAPES[shape](stamps)
    begin, steps, made, away = 0.0, 0, [], []
    samples, more = torch.randn(64, WIDTH, device="cuda"), torch.randn(4096, 4096, device="cuda")

    def late():
        if rank == 1 and how == "kernels":
            for _ in range(30):
                more.mul_(1.0)
        if rank == 1 and how == "host":
            time.sleep(0.002)
        if rank == 1 and how == "absent" and len(made) == 1 and not away:
            away.append(steps)
            time.sleep(8)
        if rank == 1 and how == "crash" and len(made) == 3:
            print("truth rank=1 index", flush=True)
            more[torch.tensor([10**9], device="cuda")].sum().item()
        if rank == 1 and how == "killed" and len(made) == 3:
            print("truth rank=1 killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and how == "slow":
            torch.cuda._sleep(3_000_000)

    job.step(samples, late)
    with stamps:
        dist.all_reduce(go)
    torch.cuda.synchronize()
    stamps.ping()
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    begin = time.monotonic()
    while True:
        job.step(samples, late)
        steps += 1
        # All ranks end with one step.
        if most and steps == most:
            break
        if not most and steps % 20 == 0:
            now = time.monotonic() - begin
            if now >= len(made) + 1:
                made.append(steps)
            go.fill_(float(now < seconds))
            with stamps:
                dist.all_reduce(go, op=dist.ReduceOp.MIN)
            if go.item() == 0:
                break
            stamps.ping()
    torch.cuda.synchronize()
    stamps.save(rank)
    print(f"rank {rank} made {steps} steps, of each second {[b - a for a, b in zip([0, *made], made)]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
