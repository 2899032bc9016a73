"""What `nvcap study` has CUDA do: calls of libcuda with nothing of a framework around them.

    python3 work.py dma    GPU RUNS SIZES TIMES PHASES      # copies of each size, in bytes
    python3 work.py graph  GPU RUNS NODES TIMES PHASES      # graphs of so many nodes

GPU is N of /dev/nvidiaN. TIMES gets one JSON object: what the processor's clock says, in ns. PHASES gets the phases, for `nvcap --phases`.
"""

import ctypes
import glob
import json
import mmap
import os
import sys
import time

now = time.monotonic_ns
# An empty kernel, for the driver to compile.
PTX = b".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n\0"
# Bytes that a copy node of a graph copies.
NODE_BYTES = 4096
BRANCHES = 4


def fail(why):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {why}")


class Cuda:
    """The driver library; a function that fails ends the program."""

    def __init__(self):
        try:
            self.lib = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            fail(f"libcuda.so.1 cannot be loaded ({error}): install the driver's CUDA library")

    def __getattr__(self, name):
        function = getattr(self.lib, name)

        def call(*args):
            status = function(*args)
            if status:
                fail(f"{name}: CUDA error {status}")

        setattr(self, name, call)
        return call


def bus_of(minor):
    """Where /dev/nvidiaN is on the bus."""
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        pairs = (line.split(":", 1) for line in open(path) if ":" in line)
        said = {name.strip(): value.strip() for name, value in pairs}
        if said.get("Device Minor") == str(minor):
            return said["Bus Location"].encode()
    return None


class Study:
    def __init__(self, minor, runs):
        self.cuda, self.runs = Cuda(), runs
        self.phases, self.rows = [], []
        c = self.cuda
        c.cuInit(0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        bus = bus_of(minor)
        if bus:
            c.cuDeviceGetByPCIBusId(ctypes.byref(device), bus)
        else:
            c.cuDeviceGet(ctypes.byref(device), minor)
        c.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        c.cuCtxSetCurrent(context)
        self.stream = self.new_stream()

    def new_stream(self):
        stream = ctypes.c_void_p()
        self.cuda.cuStreamCreate(ctypes.byref(stream), 1)
        return stream

    def memory(self, size):
        at = ctypes.c_ulonglong()
        self.cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def pinned(self, size):
        at = ctypes.c_void_p()
        self.cuda.cuMemHostAlloc(ctypes.byref(at), ctypes.c_size_t(size), 0)
        return at

    def version(self):
        version = ctypes.c_int()
        self.cuda.cuDriverGetVersion(ctypes.byref(version))
        return version.value

    def overhead(self):
        """What a call that does nothing costs, which is Python's."""
        times = []
        version = ctypes.c_int()
        for _ in range(1000):
            begin = now()
            self.cuda.cuDriverGetVersion(ctypes.byref(version))
            times.append(now() - begin)
        return sorted(times)[len(times) // 2]

    def timed(self, call, stream=None):
        """Time until the call returns, and until the stream has nothing left to do."""
        begin = now()
        call()
        called = now()
        self.cuda.cuStreamSynchronize(stream or self.stream)
        return called - begin, now() - begin

    def phase(self, name, runs, once):
        """Runs it; the mean of the middle half of the runs."""
        begin = now()
        times = [once() for _ in range(runs)]
        self.phases.append((name, begin, now()))

        def middle(values):
            values = sorted(values)
            kept = values[len(values) // 4 : len(values) - len(values) // 4]
            return sum(kept) / len(kept)

        return [middle(column) for column in zip(*times)]


def copies(study, sizes):
    c, stream, most = study.cuda, study.stream, max(sizes)
    device, other, pinned = study.memory(most), study.memory(most), study.pinned(most)
    pages = mmap.mmap(-1, most)
    for at in range(0, most, mmap.PAGESIZE):
        pages[at] = 1
    pageable = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
    kinds = {
        "h2d_pinned": lambda n: c.cuMemcpyHtoDAsync_v2(device, pinned, n, stream),
        "h2d_pageable": lambda n: c.cuMemcpyHtoDAsync_v2(device, pageable, n, stream),
        "d2h_pinned": lambda n: c.cuMemcpyDtoHAsync_v2(pinned, device, n, stream),
        "d2h_pageable": lambda n: c.cuMemcpyDtoHAsync_v2(pageable, device, n, stream),
        "d2d": lambda n: c.cuMemcpyDtoDAsync_v2(other, device, n, stream),
    }
    for kind, copy in kinds.items():
        for size in sizes:
            n = ctypes.c_size_t(size)
            # Fewer of the large ones: 4 GiB at most.
            runs = max(3, min(study.runs, (4 << 30) // size))
            for _ in range(3):
                study.timed(lambda: copy(n))
            call, done = study.phase(f"{kind}_{size}", runs, lambda: study.timed(lambda: copy(n)))
            study.rows.append({"kind": kind, "bytes": size, "runs": runs, "call_ns": call, "done_ns": done})


class Captured:
    """Graphs, each the capture of a stream."""

    def __init__(self, study):
        self.study, c = study, study.cuda
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        c.cuModuleLoadData(ctypes.byref(module), PTX)
        c.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"empty")
        self.branches = [study.new_stream() for _ in range(BRANCHES)]
        self.device, self.host = study.memory(NODE_BYTES), study.pinned(NODE_BYTES)
        study.timed(lambda: self.launch(study.stream))

    def event(self):
        event = ctypes.c_void_p()
        self.study.cuda.cuEventCreate(ctypes.byref(event), 2)
        return event

    def launch(self, stream):
        self.study.cuda.cuLaunchKernel(self.kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None)

    def chain(self, nodes):
        for _ in range(nodes):
            self.launch(self.study.stream)

    def branch(self, nodes):
        """One kernel, branches of as many, and one that waits for all of them."""
        c, main = self.study.cuda, self.study.stream
        self.launch(main)
        begin = self.event()
        c.cuEventRecord(begin, main)
        for i, stream in enumerate(self.branches):
            c.cuStreamWaitEvent(stream, begin, 0)
            for _ in range((nodes - 2 + i) // BRANCHES):
                self.launch(stream)
            end = self.event()
            c.cuEventRecord(end, stream)
            c.cuStreamWaitEvent(main, end, 0)
        self.launch(main)

    def copy(self, nodes):
        """A copy to the GPU and a kernel by turns."""
        stream, size = self.study.stream, ctypes.c_size_t(NODE_BYTES)
        for i in range(nodes):
            if i % 2:
                self.launch(stream)
            else:
                self.study.cuda.cuMemcpyHtoDAsync_v2(self.device, self.host, size, stream)

    def capture(self, shape, nodes):
        c, graph = self.study.cuda, ctypes.c_void_p()
        c.cuStreamBeginCapture_v2(self.study.stream, 0)
        getattr(self, shape)(nodes)
        c.cuStreamEndCapture(self.study.stream, ctypes.byref(graph))
        count = ctypes.c_size_t()
        c.cuGraphGetNodes(graph, None, ctypes.byref(count))
        return graph, count.value


def graphs(study, nodes):
    c, captured = study.cuda, Captured(study)
    for shape, least, most in [("chain", 1, 1 << 30), ("branch", 6, 1 << 30), ("copy", 2, 256)]:
        for asked in nodes:
            if not least <= asked <= most:
                continue
            graph, count = captured.capture(shape, asked)
            run = ctypes.c_void_p()
            row = {"shape": shape, "nodes": count}

            def phase(what, runs, call, row=row, count=count, shape=shape):
                called, done = study.phase(f"{shape}_{what}_{count}", runs, lambda: study.timed(call))
                row[what] = {"call_ns": called, "done_ns": done}

            phase("instantiate", 1, lambda: c.cuGraphInstantiateWithFlags(ctypes.byref(run), graph, ctypes.c_ulonglong(0)))
            phase("upload", 1, lambda: c.cuGraphUpload(run, study.stream))
            phase("first", 1, lambda: c.cuGraphLaunch(run, study.stream))
            phase("later", study.runs, lambda: c.cuGraphLaunch(run, study.stream))
            row["runs"] = study.runs
            study.rows.append(row)
            c.cuGraphExecDestroy(run)
            c.cuGraphDestroy(graph)


def main():
    try:
        what, minor, runs, numbers, times, phases = sys.argv[1:]
        work = {"dma": copies, "graph": graphs}[what]
        numbers = [int(number) for number in numbers.split(",")]
    except (ValueError, KeyError):
        sys.exit(__doc__)
    study = Study(int(minor), int(runs))
    work(study, numbers)
    with open(phases, "w") as file:
        file.writelines(f"PHASE {name} {begin} {end}\n" for name, begin, end in study.phases)
    with open(times, "w") as file:
        json.dump({"cuda": study.version(), "empty_call_ns": study.overhead(), "rows": study.rows}, file)


if __name__ == "__main__":
    main()
