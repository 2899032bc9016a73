"""Programs as people write them, for a comparison of nvcap with CUPTI.

    workload.py NAME [-w] [-n STEPS]      -w: prepare and warm up, print `ready NS`, wait for a line on standard
                                         input, and for another one before the end

NAME: train, profiler, generate, compile, graph, triton, cupy, jax. Prints `pid N`, `ready NS`, `phase NAME NS NS` and `done`; times
are nanoseconds of CLOCK_MONOTONIC, and the device is idle at each of them.
"""
import os
import sys
import time


def clock():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def train():
    """An eager training step: convolutions, a linear layer, dropout, Adam."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(64 * 256, 128), nn.GELU(), nn.Linear(128, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pinned = torch.randn(64, 3, 32, 32).pin_memory()

    def step():
        x = pinned.to("cuda", non_blocking=True)
        y = torch.randint(0, 10, (64,), device="cuda")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, torch.cuda.synchronize


def profiler():
    """The training of `train` with torch.profiler on in five of ten steps; without it where CUPTI has another user already."""
    import torch

    step, synchronize = train()
    if "CUDA_INJECTION64_PATH" in os.environ:
        return step, synchronize
    count = [0]

    def profiled():
        count[0] += 1
        if count[0] % 10 >= 5:
            return step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            return step()

    return profiled, synchronize


def generate():
    """A transformer that generates text: GPT-2 of the transformers package with random weights."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=4, n_head=8, n_embd=512, vocab_size=8192, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config).cuda().half().eval()
    prompt = torch.randint(2, 8192, (2, 16), device="cuda")

    def step():
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=1)

    return step, torch.cuda.synchronize


def transformer():
    """A transformer that is trained, its kernels 5 to 1,000 us long: libraries load their modules while others run."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=6, n_head=12, n_embd=768, vocab_size=8192, bos_token_id=0, eos_token_id=1)
    model = GPT2LMHeadModel(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(2, 8192, (8, 512), device="cuda")

    def step():
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step, torch.cuda.synchronize


def compiled():
    """torch.compile: kernels made by Triton at run time."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    @torch.compile
    def loss_of(x):
        return (model(x) - x).square().mean()

    def step():
        x = torch.randn(128, 512, device="cuda")
        optimizer.zero_grad()
        loss_of(x).backward()
        optimizer.step()

    return step, torch.cuda.synchronize


def graph():
    """A training step captured in a CUDA graph and replayed."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(64, 256, device="cuda")

    def once():
        optimizer.zero_grad(set_to_none=True)
        (model(x) - x).square().mean().backward()
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(aside)
    whole = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(whole):
        once()
    return whole.replay, torch.cuda.synchronize


def triton_kernel():
    """A kernel written in Triton, with several launch shapes."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit
    def scale(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    x = torch.randn(100_000, device="cuda")
    y = torch.empty_like(x)

    def step():
        for block in (128, 256, 1024):
            scale[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block)

    return step, torch.cuda.synchronize


def cupy_kernels():
    """CuPy: a raw kernel, a sort and a reduction of CUB, a matrix product."""
    import cupy

    raw = cupy.RawKernel(r'extern "C" __global__ void twice(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2; }', "twice")
    x = cupy.random.random((512, 512), dtype=cupy.float32)

    def step():
        raw((1024,), (256,), (x, cupy.int32(x.size)))
        cupy.sort(x.ravel())
        (x @ x).sum()
        x[:] = cupy.asarray(cupy.asnumpy(x[:16]).mean())

    return step, cupy.cuda.runtime.deviceSynchronize


def jax_step():
    """JAX: a jitted training step by XLA."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Which kernels are chosen must not depend on how fast they were: runs are compared with each other.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    import jax
    import jax.numpy as jnp

    key = jax.random.PRNGKey(1)
    weights = [jax.random.normal(key, (256, 256)) * 0.01 for _ in range(3)]
    x = jax.random.normal(key, (64, 256))

    @jax.jit
    def update(weights, x):
        def loss(weights):
            y = x
            for w in weights:
                y = jnp.tanh(y @ w)
            return jnp.mean((y - x) ** 2)

        grads = jax.grad(loss)(weights)
        return [w - 0.1 * g for w, g in zip(weights, grads)]

    state = [weights]

    def step():
        state[0] = update(state[0], x)

    return step, lambda: jax.block_until_ready(state[0])


WORKLOADS = {
    "train": (train, 40), "profiler": (profiler, 20), "generate": (generate, 6), "transformer": (transformer, 20), "compile": (compiled, 60), "graph": (graph, 100), "triton": (triton_kernel, 100),
    "cupy": (cupy_kernels, 60), "jax": (jax_step, 80),
}


def main():
    print("pid", os.getpid(), flush=True)
    name = sys.argv[1]
    make, steps = WORKLOADS[name]
    if "-n" in sys.argv:
        steps = int(sys.argv[sys.argv.index("-n") + 1])
    step, synchronize = make()
    if "-w" in sys.argv:
        for _ in range(5):
            step()
        synchronize()
    print("ready", clock(), flush=True)
    if "-w" in sys.argv and not sys.stdin.readline():
        sys.exit(1)
    begun = clock()
    for _ in range(steps):
        step()
    synchronize()
    # What is observed is told later than it was submitted: it is to fall into its phase, and the end to be seen.
    time.sleep(0.5)
    print("phase", name, begun, clock(), flush=True)
    print("done", flush=True)
    # A tracer that was attached can go before the end.
    if "-w" in sys.argv:
        sys.stdin.readline()


if __name__ == "__main__":
    main()
