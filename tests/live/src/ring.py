"""Submits as a CUDA program does, from Python alone: a ring and a doorbell in memory at fixed addresses (ring.txt has them). Functions have known
names, and the line that rings is the one that says RINGS. Arguments: submissions of a thread, threads, and a file: all go on while it is there."""
import ctypes
import itertools
import os
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

RING, USERD, WORDS, DOORBELL = 0x200600000, 0x200602000, 0x212000000, 0x210010090
ENTRIES = 1024


def map_at(address, size):
    # PROT_READ | PROT_WRITE; MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS
    if libc.mmap(address, size, 3, 0x1 | 0x10 | 0x20, -1, 0) != address:
        raise OSError(ctypes.get_errno(), "mmap")


def word(address):
    return ctypes.c_uint32.from_address(address)


class Trainer:
    def __init__(self):
        map_at(RING, 0x3000)
        map_at(WORDS, 0x1000)
        map_at(DOORBELL & ~0xFFFF, 0x10000)
        # SET_OBJECT of HOPPER_COMPUTE_A on subchannel 1.
        word(WORDS).value = 1 << 29 | 1 << 16 | 1 << 13
        word(WORDS + 4).value = 0xCBC0
        self.lock = threading.Lock()
        self.put = 0
        self.doorbell = word(DOORBELL)

    def step(self):
        with self.lock:
            ctypes.c_uint64.from_address(RING + 8 * self.put).value = WORDS | 2 << 42
            self.put = (self.put + 1) % ENTRIES
            word(USERD + 0x8C).value = self.put
            (lambda: self.ring())()

    def ring(self):
        self.doorbell.value = 0xA  # RINGS


def train(trainer, steps):
    for _ in itertools.takewhile(lambda n: n < steps or any(map(os.path.exists, sys.argv[3:])), itertools.count()):
        # A call through C: the interpreter is called again.
        list(map(lambda _: trainer.step(), [0]))
        time.sleep(0.002)


def main():
    steps, threads = int(sys.argv[1]), int(sys.argv[2])
    trainer = Trainer()
    print("ready", flush=True)
    time.sleep(0.3)
    others = [threading.Thread(target=train, args=(trainer, steps)) for _ in range(threads - 1)]
    for thread in others:
        thread.start()
    train(trainer, steps)
    for thread in others:
        thread.join()
    print("done", flush=True)


main()
