"""What `nvcap study sharing` has CUDA do: streams, priorities, copies and processes that share a GPU.

    python3 sharing.py sharing GPU RUNS STREAMS TIMES PHASES

GPU is N of /dev/nvidiaN; RUNS is not used; STREAMS are numbers of streams, separated by commas. TIMES gets one JSON object, PHASES the
phases, one a scene, for `nvcap --phases`.

This process makes no call of CUDA: it starts processes that do, and tells each what to do in a scene. Their kernels spin until the GPU's
clock has advanced by a given time, and write down when they began and ended and when they were stopped meanwhile. The first argument of each
kernel is its number, and each row of copies has a size of its own: by these the trace finds them.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys

# The folder is for results.
sys.dont_write_bytecode = True
from work import Study, fail, now  # noqa: E402

# A block's record: begin, SM, pauses, end, the kernel's number; then a pair of times a pause.
PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry nvcap_spin(.param .u64 number, .param .u64 out, .param .u64 ns, .param .u64 gap, .param .u64 most)
{
.reg .pred %p;
.reg .b32 %thread, %block, %sm;
.reg .b64 %number, %out, %ns, %gap, %most, %begin, %last, %now, %d, %at, %pauses;
mov.u64 %begin, %globaltimer;
mov.u64 %last, %begin;
mov.u64 %pauses, 0;
ld.param.u64 %number, [number];
ld.param.u64 %out, [out];
ld.param.u64 %ns, [ns];
ld.param.u64 %gap, [gap];
ld.param.u64 %most, [most];
mov.u32 %block, %ctaid.x;
mov.u32 %thread, %tid.x;
mov.u32 %sm, %smid;
shl.b64 %at, %most, 4;
add.u64 %at, %at, 40;
cvt.u64.u32 %d, %block;
mul.lo.u64 %d, %d, %at;
add.u64 %out, %out, %d;
add.u64 %at, %out, 40;
again:
mov.u64 %now, %globaltimer;
sub.u64 %d, %now, %last;
setp.le.u64 %p, %d, %gap;
@%p bra next;
setp.ge.u64 %p, %pauses, %most;
@%p bra next;
add.u64 %pauses, %pauses, 1;
setp.ne.u32 %p, %thread, 0;
@%p bra next;
st.global.u64 [%at], %last;
st.global.u64 [%at+8], %now;
add.u64 %at, %at, 16;
next:
mov.u64 %last, %now;
sub.u64 %d, %now, %begin;
setp.lt.u64 %p, %d, %ns;
@%p bra again;
setp.ne.u32 %p, %thread, 0;
@%p bra done;
cvt.u64.u32 %d, %sm;
st.global.u64 [%out], %begin;
st.global.u64 [%out+8], %d;
st.global.u64 [%out+16], %pauses;
st.global.u64 [%out+24], %now;
membar.sys;
st.global.u64 [%out+32], %number;
done:
ret;
}
\0"""
# The upper half of a kernel's number; the lower half is 0 for those that only read the clock.
NUMBERED = 0x6E766361 << 32
HEAD = 5
ARENA = 16 << 20
# Threads of a block of a grid that fills the GPU: a divisor of what any SM from Volta on takes.
FILLING = 512
# Seconds after which a GPU that has not done all of this is given up.
LONGEST = 60
MS = 1_000_000


def pointer(value):
    return ctypes.cast(ctypes.pointer(value), ctypes.c_void_p)


class Worker:
    """A process with a context. It gets scenes as lines of JSON, says `ready`, gets the time at which to begin, and answers by a line."""

    def __init__(self, minor):
        self.study = Study(minor, 0)
        c = self.cuda = self.study.cuda
        c.cuStreamDestroy_v2(self.study.stream)
        module, self.kernel = ctypes.c_void_p(), ctypes.c_void_p()
        c.cuModuleLoadData(ctypes.byref(module), PTX)
        c.cuModuleGetFunction(ctypes.byref(self.kernel), module, b"nvcap_spin")
        self.arena, self.clock = self.study.memory(ARENA), self.study.pinned(4096)
        self.buffers = {}
        self.calibrated()

    def device(self):
        c, device, value = self.cuda, ctypes.c_int(), ctypes.c_int()
        least, greatest = ctypes.c_int(), ctypes.c_int()
        c.cuCtxGetDevice(ctypes.byref(device))
        # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        c.cuDeviceGetAttribute(ctypes.byref(value), 16, device)
        sms = value.value
        c.cuOccupancyMaxActiveBlocksPerMultiprocessor(ctypes.byref(value), self.kernel, FILLING, ctypes.c_size_t(0))
        c.cuCtxGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
        return {
            "cuda": self.study.version(),
            "sms": sms,
            "fill_blocks": sms * value.value,
            "least_priority": least.value,
            "greatest_priority": greatest.value,
        }

    def launch_of(self, stream, number, out, blocks, threads, ns, gap, most):
        """A launch, with everything made that it needs."""
        values = [ctypes.c_ulonglong(v) for v in (NUMBERED | number, out, ns, gap, most)]
        params = (ctypes.c_void_p * len(values))(*(pointer(v) for v in values))
        launch = self.cuda.cuLaunchKernel

        def call(_kept=values):
            begin = now()
            launch(self.kernel, blocks, 1, 1, threads, 1, 1, 0, stream, params, None)
            return begin, now()

        return call

    def stamp(self, stream):
        """The GPU's time at the end of a kernel, and the processor's before its launch and when it was seen to have ended."""
        words = (ctypes.c_ulonglong * HEAD).from_address(self.clock.value)
        words[HEAD - 1] = 0
        called, _ = self.launch_of(stream, 0, self.clock.value, 1, 1, 0, MS, 0)()
        while not words[HEAD - 1]:
            if now() - called > 10_000 * MS:
                fail("the GPU has not run an empty kernel within 10 s")
        return words[3], called, now()

    def calibrated(self):
        """What is to be added to the processor's time to have the GPU's, and by how much it may be wrong."""
        stamps = [self.stamp(None) for _ in range(12)]
        least = max(gpu - seen for gpu, _, seen in stamps)
        most = min(gpu - called for gpu, called, _ in stamps)
        return (least + most) // 2, abs(most - least) // 2

    def stream(self, priority, flags):
        stream = ctypes.c_void_p()
        self.cuda.cuStreamCreateWithPriority(ctypes.byref(stream), flags, priority)
        return stream

    def event(self):
        event = ctypes.c_void_p()
        self.cuda.cuEventCreate(ctypes.byref(event), 0)
        return event

    def buffer(self, way, size):
        """Device memory and pinned memory of a direction, the same in all scenes."""
        have = self.buffers.get(way)
        if not have or have[0] < size:
            have = self.buffers[way] = (size, self.study.memory(size), self.study.pinned(size))
        return have[1:]

    def copies_of(self, step, stream):
        c, size, events = self.cuda, ctypes.c_size_t(step["bytes"]), [self.event() for _ in range(step["count"])]
        device, pinned = self.buffer(step["way"], step["bytes"])
        if step["way"] == "h2d":
            copy, to, source = c.cuMemcpyHtoDAsync_v2, device, pinned
        else:
            copy, to, source = c.cuMemcpyDtoHAsync_v2, pinned, device
        record = c.cuEventRecord

        def call():
            begin = now()
            for event in events:
                copy(to, source, size, stream)
                record(event, stream)
            return begin, now()

        return call, events

    def based(self, stream):
        """An event of the stream, and the GPU's time just before it."""
        base = self.event()
        time, _, _ = self.stamp(stream)
        self.cuda.cuEventRecord(base, stream)
        self.cuda.cuStreamSynchronize(stream)
        return base, time

    def ends(self, base, events):
        """The GPU's time of each event."""
        event, time = base
        passed, times = ctypes.c_float(), []
        for later in events:
            self.cuda.cuEventElapsedTime(ctypes.byref(passed), event, later)
            times.append(time + round(passed.value * MS))
        return times

    def scene(self, scene):
        c, streams, made, at = self.cuda, {"null": None}, [], self.arena.value
        priorities = {"null": 0}
        for name, priority, flags in scene["streams"]:
            streams[name], priorities[name] = self.stream(priority, flags), priority
        offset, error = self.calibrated()
        for step in scene["steps"]:
            stream = streams[step["stream"]]
            if "way" in step:
                base = self.based(stream)
                made.append((step, *self.copies_of(step, stream), base))
            else:
                place = [step[k] for k in ("blocks", "threads", "ns", "gap", "most")]
                made.append((step, self.launch_of(stream, step["number"], at, *place), at, None))
                at += (HEAD + 2 * step["most"]) * 8 * step["blocks"]
        c.cuCtxSynchronize()
        say("ready")
        begin = sys.stdin.readline()
        if not begin:
            os._exit(0)
        begin = json.loads(begin)
        while now() < begin:
            pass
        called = [call() for _, call, _, _ in made]
        c.cuCtxSynchronize()
        kernels, copies = [], []
        size = max(8, at - self.arena.value)
        read = (ctypes.c_ulonglong * (size // 8))()
        c.cuMemcpyDtoH_v2(read, self.arena, ctypes.c_size_t(size))
        for (step, _, of, base), (begin, returned) in zip(made, called):
            row = {**step, "priority": priorities[step["stream"]], "called": begin + offset, "returned": returned + offset}
            if base:
                copies.append({**row, "ends": self.ends(base, of)})
            else:
                kernels.append({**row, **self.record(step, read, (of - self.arena.value) // 8)})
        for stream in streams.values():
            if stream:
                c.cuStreamDestroy_v2(stream)
        return {"pid": os.getpid(), "offset": offset, "clock_error": error, "kernels": kernels, "copies": copies}

    def record(self, step, words, at):
        """What a kernel's blocks have written."""
        width = HEAD + 2 * step["most"]
        blocks = [words[at + i * width : at + (i + 1) * width] for i in range(step["blocks"])]
        blocks = [b for b in blocks if b[HEAD - 1] == NUMBERED | step["number"]]
        if len(blocks) != step["blocks"]:
            fail(f"kernel {step['number']} of {step['blocks']} blocks has written {len(blocks)} records")
        first = blocks[0]
        pauses = first[HEAD : HEAD + 2 * first[2]]
        return {
            "start": min(b[0] for b in blocks),
            "end": max(b[3] for b in blocks),
            "starts": sorted(b[0] for b in blocks),
            "sms": len({b[1] for b in blocks}),
            "pauses": list(zip(pauses[::2], pauses[1::2])),
        }


def say(what):
    sys.stdout.write((what if isinstance(what, str) else json.dumps(what)) + "\n")
    sys.stdout.flush()


def worker(minor):
    work = Worker(minor)
    say(work.device())
    for line in iter(sys.stdin.readline, ""):
        say(work.scene(json.loads(line)))
    # Without libcuda's end: the trace looks at the channels when the process ends.
    os._exit(0)


class Ended(Exception):
    """A process has ended, or said what cannot be read."""


class Process:
    """A process that uses the GPU, told by lines."""

    all = []

    def __init__(self, minor, connections=None):
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_DEVICE_MAX_CONNECTIONS"}
        if connections:
            environment["CUDA_DEVICE_MAX_CONNECTIONS"] = str(connections)
        command = [sys.executable, __file__, "worker", str(minor)]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        Process.all.append(self.process)
        self.device = self.hear()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise Ended(f"a process that used the GPU ended with {self.process.wait()}")
        return line.strip() if line.startswith("ready") else json.loads(line)

    def tell(self, what):
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Ended(f"a process that used the GPU ended with {self.process.wait()}") from None

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Scenes:
    """Has processes play scenes at the same time, and keeps what they say."""

    def __init__(self):
        self.rows, self.phases, self.number = [], [], 0

    def play(self, name, parts, connections=None):
        """`parts` are pairs of a process and what it has to do."""
        for process, part in parts:
            process.tell(part)
        for process, _ in parts:
            process.hear()
        begin = now() + 3 * MS
        for process, _ in parts:
            process.tell(begin)
        said = [process.hear() for process, _ in parts]
        self.phases.append((name, begin, now()))
        self.rows.append({"name": name, "connections": connections, "processes": said})

    def kernel(self, stream, ns, blocks=1, threads=32, gap=MS, most=0):
        self.number += 1
        return {
            "stream": stream,
            "number": self.number,
            "blocks": blocks,
            "threads": threads,
            "ns": ns,
            "gap": gap,
            "most": most,
        }

    def copies(self, way, size, count):
        self.number += 1
        return {"stream": way, "way": way, "bytes": size + 4096 * self.number, "count": count}

    def streams(self, count):
        """Two kernels in each of so many streams, stream by stream. No two last equally long, so that it is known whose end one began at."""
        names = [str(i) for i in range(count)]
        steps = [self.kernel(name, 4 * MS + (2 * i + nth) * 7919 % 997 * 2000) for i, name in enumerate(names) for nth in range(2)]
        return {"streams": [(name, 0, 1) for name in names], "steps": steps}

    def priorities(self, device):
        levels = range(device["greatest_priority"], device["least_priority"] + 1)
        names = [(f"priority {level}", level, 1) for level in levels]
        return {"streams": names, "steps": [self.kernel(name, 2 * MS) for name, _, _ in names]}

    def filled(self, device, second):
        """A grid four times as large as what runs at once, and a small one behind it in a stream of this priority."""
        fill, least = device["fill_blocks"], device["least_priority"]
        names = [("first", least, 1), ("second", second, 1)]
        steps = [self.kernel("first", MS, 4 * fill, FILLING), self.kernel("second", MS, max(1, fill // 4), FILLING)]
        return {"streams": names, "steps": steps}

    def null(self):
        names = [("blocking 1", 0, 0), ("blocking 2", 0, 0), ("non-blocking", 0, 1)]
        order = ["blocking 1", "null", "blocking 2", "non-blocking"]
        return {"streams": names, "steps": [self.kernel(name, 3 * MS) for name in order]}

    def copied(self, ways, size, count):
        return {"streams": [(way, 0, 1) for way in ways], "steps": [self.copies(way, size, count) for way in ways]}

    def spinning(self, ns):
        """One block that writes down each time when it stood still for 20 us."""
        return {"streams": [("spin", 0, 1)], "steps": [self.kernel("spin", ns, gap=20_000, most=1024)]}


def one_process(scenes, process, numbers):
    device = process.device
    for count in numbers:
        scenes.play(f"streams_{count}", [(process, scenes.streams(count))])
    scenes.play("priorities", [(process, scenes.priorities(device))])
    scenes.play("fill_same", [(process, scenes.filled(device, device["least_priority"]))])
    scenes.play("fill_higher", [(process, scenes.filled(device, device["greatest_priority"]))])
    scenes.play("null_stream", [(process, scenes.null())])
    for name, ways in [("copies_h2d", ["h2d"]), ("copies_d2h", ["d2h"]), ("copies_both", ["h2d", "d2h"])]:
        scenes.play(name, [(process, scenes.copied(ways, 64 << 20, 6))])


def connections(scenes, minor, number, count):
    process = Process(minor, number)
    scenes.play(f"connections_{number}", [(process, scenes.streams(count))], number)
    process.end()


def two_processes(scenes, first, second):
    def few():
        return scenes.copied(["h2d"], 4 << 20, 200)

    scenes.play("alone_compute", [(first, scenes.spinning(30 * MS))])
    scenes.play("alone_copies", [(second, few())])
    scenes.play("pair_compute", [(first, scenes.spinning(60 * MS)), (second, scenes.spinning(60 * MS))])
    scenes.play("pair_copies", [(first, few()), (second, few())])
    scenes.play("pair_compute_copies", [(first, scenes.spinning(60 * MS)), (second, few())])


def give_up(_signal, _frame):
    for process in Process.all:
        process.kill()
    fail(f"the GPU has not done its work within {LONGEST} s")


def all_of(minor, numbers):
    scenes, notes = Scenes(), []
    first = Process(minor)
    one_process(scenes, first, numbers)
    connections(scenes, minor, 1, 8)
    connections(scenes, minor, 32, max(numbers))
    try:
        second = Process(minor)
        two_processes(scenes, first, second)
        second.end()
    except Ended as error:
        notes.append(f"two processes at once: {error}")
    first.end()
    return first.device, scenes, notes


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "worker":
        return worker(int(sys.argv[2]))
    try:
        what, minor, _, numbers, times, phases = sys.argv[1:]
        numbers = [int(number) for number in numbers.split(",")]
    except ValueError:
        sys.exit(__doc__)
    if what != "sharing":
        sys.exit(__doc__)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST)
    try:
        device, scenes, notes = all_of(int(minor), numbers)
    except Ended as error:
        fail(error)
    with open(phases, "w") as file:
        file.writelines(f"PHASE {name} {begin} {end}\n" for name, begin, end in scenes.phases)
    with open(times, "w") as file:
        json.dump({"device": device, "scenes": scenes.rows, "notes": notes}, file)


main()
