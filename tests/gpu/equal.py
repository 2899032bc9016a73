#!/usr/bin/env python3
"""Whether two runs of one program submitted the same: equal.py ONE.json OTHER.json LEAST

Both are JSON of `nvcap -vv` with entries. Channel by channel and entry by entry, in ring order, everything must be equal
but what two runs of a program may differ in:

- addresses: the words of methods that take one, address fields of a QMD, and 64-bit numbers in inline data that are
  addresses in both runs;
- payloads of semaphores: not what they are, but that each is as much more than the one before as in the other run.

Anything else that differs is a difference. Prints what was compared; status 0 when nothing differs and the busiest channel
has at least LEAST entries. `equal.py self-test` proves that it can fail.
"""
import struct
import sys
from collections import Counter

from lines import lines

# Methods by class whose data is an address or the upper or lower part of one, and payloads of semaphores. The host's
# methods (below 0x100) are the same on every subchannel.
HOST_ADDRESS = {0x10, 0x14, 0x28, 0x2C, 0x30, 0x5C, 0x60}
HOST_PAYLOAD = {0x18, 0x64, 0x68}
COMPUTE_ADDRESS = {
    0x188, 0x18C, 0x1DC, 0x1E0, 0x2A0, 0x2A4, 0x2B4, 0x2E4, 0x2E8, 0x318, 0x31C, 0x550, 0x554, 0x790, 0x794, 0x7B0,
    0x7B4, 0x7B8, 0x7BC, 0x160, 0x164, 0x155C, 0x1560, 0x1574, 0x1578, 0x1B00, 0x1B04,
}  # fmt: skip
COMPUTE_PAYLOAD = {0x158, 0x15C, 0x1E4, 0x1B08}
COPY_ADDRESS = {0x220, 0x224, 0x240, 0x244, 0x400, 0x404, 0x408, 0x40C}
COPY_PAYLOAD = {0x248, 0x24C}
LOAD_INLINE_DATA = 0x1B4
OFFSET_OUT_UPPER, OFFSET_OUT = 0x188, 0x18C

# QMD 4.0: first and last bit of the fields that hold an address, and of the payloads that it releases.
QMD_WORDS = 96
QMD_ADDRESS = [(256, 287), (448, 511), (640, 696), (768, 824), (896, 952), (1216, 1272), (1344, 1392), (2048, 2087)]
QMD_ADDRESS += [(1536 + 64 * i, 1586 + 64 * i) for i in range(8)]
QMD_PAYLOAD = [(704, 767), (832, 895), (960, 1023)]

EXACT, ADDRESS, PAYLOAD, DATA = range(4)


def is_address(value):
    """What CUDA gives out: its own range from 8 GiB on, and the process's mappings."""
    return 0x2_0000_0000 <= value < 0x10_0000_0000 or 0x7000_0000_0000 <= value < 0x8000_0000_0000


class Shape:
    """What the words of an entry are, by its method headers."""

    def __init__(self, words):
        self.count = len(words)
        self.kinds = [EXACT] * len(words)
        self.methods = [None] * len(words)
        self.headers = []
        self.inline = []
        at = 0
        while at < len(words):
            header = words[at]
            self.headers.append(at)
            mode, count = header >> 29, header >> 16 & 0x1FFF
            sub, method = header >> 13 & 7, (header & 0xFFF) << 2
            at += 1
            if mode not in (1, 3, 5):
                continue
            if mode == 3 and method == LOAD_INLINE_DATA and sub < 4:
                self.inline.append((at, min(at + count, len(words))))
            for i in range(at, min(at + count, len(words))):
                step = i - at if mode == 1 else min(i - at, 1) if mode == 5 else 0
                m = method + 4 * step
                self.methods[i] = m
                self.kinds[i] = self.kind(sub, m)
            at += count
        mask = lambda kinds: b"".join(b"\xff\xff\xff\xff" if k in kinds else b"\0\0\0\0" for k in self.kinds)
        self.exact = int.from_bytes(mask({EXACT}), "little")
        self.data = int.from_bytes(mask({DATA}), "little")
        chosen = set(self.headers)
        head = b"".join(b"\xff\xff\xff\xff" if i in chosen else b"\0\0\0\0" for i in range(len(words)))
        self.head = int.from_bytes(head, "little")
        self.head_bits = None
        self.addresses = self.kinds.count(ADDRESS)
        self.payloads = [i for i, k in enumerate(self.kinds) if k == PAYLOAD]

    @staticmethod
    def kind(sub, method):
        if method < 0x100:
            return ADDRESS if method in HOST_ADDRESS else PAYLOAD if method in HOST_PAYLOAD else EXACT
        if sub < 4:
            if method == LOAD_INLINE_DATA:
                return DATA
            return ADDRESS if method in COMPUTE_ADDRESS else PAYLOAD if method in COMPUTE_PAYLOAD else EXACT
        return ADDRESS if method in COPY_ADDRESS else PAYLOAD if method in COPY_PAYLOAD else EXACT


class Shapes:
    """The shapes seen, so that each is made once."""

    def __init__(self):
        self.by_len = {}

    def of(self, data, number):
        known = self.by_len.setdefault(len(data), [])
        for i, shape in enumerate(known):
            if number & shape.head == shape.head_bits:
                if i:
                    known.insert(0, known.pop(i))
                return shape
        shape = Shape(struct.unpack(f"<{len(data) // 4}I", data))
        shape.head_bits = number & shape.head
        known.insert(0, shape)
        return shape
