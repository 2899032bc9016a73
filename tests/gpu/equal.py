#!/usr/bin/env python3
"""Whether two runs of one program submitted the same.

    equal.py ONE.json OTHER.json LEAST    compares; status 0 when nothing differs and the busiest channel has LEAST entries
    equal.py flips ONE.json OTHER.json    flips bits of ONE, one at a time: each must be noticed
    equal.py self-test                    the same on two runs that are made up, and everything else that must be noticed

Both files are JSON of `nvcap -vv` with entries, of any source. Channel by channel and entry by entry, in ring order,
everything must be equal but what two runs of a program may differ in:

- addresses: the words of methods that take one, and the address fields of a QMD; and in other data, 64-bit numbers that are
  addresses in both runs, and words that differ by as much as the addresses of some mapping do (machine code has them as
  constants);
- payloads of semaphores: not what they are, but that each is as much more than the one before as in the other run;
- waits: the driver has the GPU wait for a semaphore only if that was not released yet when it looked. A run that is slowed
  down has fewer. They are counted apart;
- the random number of a process (the stack protector's), which CUDA writes to each launch's constants: one a run.

Anything else that differs is a difference.
"""
import json
import os
import random
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
# The upper parts of addresses whose lower parts follow.
PAIRS = {0x188, 0x1B00, 0x240, 0x400, 0x408, 0x790, 0x7B0, 0x2A0, 0x155C, 0x1574}
# SEM_ADDR_LO and what follows it, in one row; SEM_EXECUTE's operations that wait.
WAIT, WAIT_WORDS, WAITING = 0x2005_0017, 6, {0, 2, 3, 4, 5}
# Machine code's calls and jumps to an address, which they hold from bit 24 on: the last 12 bits.
JUMPS = {0x943, 0x944, 0x94A}
# Where a launch's constants have the process's random number: words of the block, and the number's word.
RANDOM = (132, 128)

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
        self.waits = []
        at = 0
        while at < len(words):
            header = words[at]
            self.headers.append(at)
            mode, count = header >> 29, header >> 16 & 0x1FFF
            sub, method = header >> 13 & 7, (header & 0xFFF) << 2
            if header & ~0xE000 == WAIT and at + WAIT_WORDS <= len(words) and words[at + 5] & 7 in WAITING:
                self.waits.append(4 * at)
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
        chosen = set(self.headers)
        head = b"".join(b"\xff\xff\xff\xff" if i in chosen else b"\0\0\0\0" for i in range(len(words)))
        self.head = int.from_bytes(head, "little")
        self.head_bits = None
        self.address = int.from_bytes(mask({ADDRESS}), "little")
        self.addresses = self.kinds.count(ADDRESS)
        self.pairs = [i for i, m in enumerate(self.methods) if m in PAIRS and self.kinds[i] == ADDRESS and i + 1 < len(words)]
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


class Run:
    """One run: by channel, its entries in ring order as (what the entry says beside its address, bytes)."""

    def __init__(self, path):
        channels = {}
        for o in lines(path):
            if o["type"] == "entry":
                raw, data = int(o["raw"], 16), bytes.fromhex(o["data"] or "")
                channels.setdefault((o["pid"], o["channel"]), []).append((raw, data, o["missing"]))
        # Numbers of channels depend on who found them when. Their pushbuffers lie at addresses that CUDA gives out in
        # the order in which it makes the channels.
        first = lambda entries: entries[0][0] & 0xFF_FFFF_FFFC
        self.channels = sorted(channels.values(), key=first)


def without(data, places):
    """An entry without its waits."""
    for at in reversed(places):
        data = data[:at] + data[at + 4 * WAIT_WORDS :]
    return data


def words_of(bits):
    """The numbers of the words in which bits are set."""
    while bits:
        word = ((bits & -bits).bit_length() - 1) // 32
        yield word
        bits &= ~(0xFFFF_FFFF << 32 * word)


def bits_of(fields):
    return sum(((1 << last - first + 1) - 1) << first for first, last in fields)


QMD_ADDRESS_BITS, QMD_PAYLOAD_BITS = bits_of(QMD_ADDRESS), bits_of(QMD_PAYLOAD)


class Comparison:
    """What was compared, and what differs."""

    def __init__(self):
        self.differences = []
        self.entries = self.bytes = self.identical = 0
        self.masked = Counter()
        self.waits = [0, 0]
        self.shapes = Shapes()
        self.moved = set()
        self.moved_words = set()
        self.moved_jumps = set()
        self.uppers = set()
        self.seen_pairs = set()
        self.random = None

    def differ(self, text):
        self.differences.append(text)

    def channels(self, one, other):
        if len(one) != len(other):
            self.differ(f"{len(one)} and {len(other)} channels")
        for mine, theirs in zip(one, other):
            for a, b in zip(mine, theirs):
                self.learn(*self.pair(a[1], b[1])[:2])
        for number, (mine, theirs) in enumerate(zip(one, other)):
            if len(mine) != len(theirs):
                self.differ(f"channel {number}: {len(mine)} and {len(theirs)} entries")
            payloads = {}
            for position, (a, b) in enumerate(zip(mine, theirs)):
                self.entry(f"channel {number} entry {position}", a, b, payloads)

    def pair(self, data, theirs):
        """Both without waits, and how many those were."""
        counts = []
        both = []
        for d in (data, theirs):
            waits = self.shapes.of(d, int.from_bytes(d, "little")).waits if d else []
            counts.append(len(waits))
            both.append(without(d, waits) if waits else d)
        return both[0], both[1], counts

    def learn(self, data, theirs):
        """By how much the addresses of two runs differ."""
        if data == theirs or len(data) != len(theirs):
            return
        number = int.from_bytes(data, "little")
        shape = self.shapes.of(data, number)
        if not (number ^ int.from_bytes(theirs, "little")) & shape.address:
            return
        for i in shape.pairs:
            places = data[4 * i : 4 * i + 8] + theirs[4 * i : 4 * i + 8]
            if places in self.seen_pairs:
                continue
            self.seen_pairs.add(places)
            upper, low, its_upper, its_low = struct.unpack("<4I", places)
            moved = (its_upper << 32 | its_low) - (upper << 32 | low)
            if upper != its_upper:
                self.uppers.add((upper, its_upper))
            if moved:
                self.moved.add(moved & 0xFFFF_FFFF_FFFF_FFFF)
                self.moved_words.add(moved & 0xFFFF_FFFF)
                self.moved_jumps.add(moved << 24 & 0xFFFF_FFFF_FFFF_FFFF)

    def as_addresses(self, x, y):
        """Whether two words differ as addresses of the two runs do, or are the upper halves of such."""
        return (y - x) & 0xFFFF_FFFF in self.moved_words or (x, y) in self.uppers

    def entry(self, where, a, b, payloads):
        self.entries += 1
        # Beside address and length: the length is that of the bytes.
        if (a[0] ^ b[0]) & ~(0xFF_FFFF_FFFC | 0x1F_FFFF << 42):
            self.differ(f"{where}: ring entries {a[0]:#018x} and {b[0]:#018x}")
            return
        if a[2] or b[2]:
            self.differ(f"{where}: {a[2]} and {b[2]} bytes were not read")
            return
        data, theirs, waits = self.pair(a[1], b[1])
        self.waits = [n + m for n, m in zip(self.waits, waits)]
        if len(data) != len(theirs):
            self.differ(f"{where}: {len(data)} and {len(theirs)} bytes without waits")
            return
        self.bytes += len(data)
        if not data:
            return
        mine, its = int.from_bytes(data, "little"), int.from_bytes(theirs, "little")
        shape = self.shapes.of(data, mine)
        unlike = mine ^ its
        self.payloads(where, shape, data, theirs, payloads)
        if not unlike:
            self.identical += 1
            # One that is the same in both here must be so everywhere.
            for start, end in shape.inline:
                if end - start == RANDOM[0]:
                    number = mine >> 32 * (start + RANDOM[1]) & (1 << 64) - 1
                    self.one_random(where, number, number)
            return
        for word in words_of(unlike & shape.exact):
            x, y = (int.from_bytes(d[4 * word : 4 * word + 4], "little") for d in (data, theirs))
            method = shape.methods[word]
            if method is not None and self.as_addresses(x, y):
                self.masked["words that differ as addresses do"] += 1
                continue
            what = "header" if method is None else f"method {method:#x}"
            self.differ(f"{where}: word {word} of {shape.count} ({what}): {x:#010x} and {y:#010x}")
            return
        self.masked["words of address methods"] += sum(1 for _ in words_of(unlike & shape.address))
        for start, end in shape.inline:
            size = end - start
            block = unlike >> 32 * start & (1 << 32 * size) - 1
            if size == RANDOM[0]:
                self.one_random(where, *(n >> 32 * (start + RANDOM[1]) & (1 << 64) - 1 for n in (mine, its)))
                # Judged: whether it is the same all along is all there is to it.
                block &= ~((1 << 64) - 1 << 32 * RANDOM[1])
            if block:
                numbers = [n >> 32 * start & (1 << 32 * size) - 1 for n in (mine, its)]
                self.inline(where, size, block, *numbers, payloads, (start, shape.count))

    def one_random(self, where, x, y):
        """The process's random number: one a run. Its last byte is zero, as the stack protector has it."""
        if self.random is None:
            self.random = (x, y)
        before = self.random
        # Two that are equal say nothing against others that are, but for a run that has one of its own.
        if (x != y or before[0] != before[1]) and before != (x, y) or x != y and (x | y) & 0xFF:
            self.differ(f"{where}: the process's random number is {x:#x} and {y:#x}, and was {before[0]:#x} and {before[1]:#x}")
        self.masked["times the process's random number"] += x != y

    def step(self, where, key, x, y, payloads):
        """Two payloads at one place: as much more than the ones before."""
        before = payloads.setdefault(key, (x, y))
        if (x - before[0] - y + before[1]) & 0xFFFF_FFFF:
            self.differ(f"{where}: payload {x:#x} after {before[0]:#x}, and {y:#x} after {before[1]:#x}")
        payloads[key] = (x, y)
        self.masked["payloads, by their steps"] += x != y

    def payloads(self, where, shape, data, theirs, payloads):
        for i in shape.payloads:
            x, y = (int.from_bytes(d[4 * i : 4 * i + 4], "little") for d in (data, theirs))
            self.step(where, (shape.methods[i], data[4 * i - 8 : 4 * i]), x, y, payloads)

    def inline(self, where, size, unlike, x, y, payloads, place):
        """Two blocks of inline data that are not the same: `size` words, and what differs in them."""
        if size == 1:
            self.step(where, ("inline", *place), x, y, payloads)
            return
        if size == QMD_WORDS and not unlike & ~(QMD_ADDRESS_BITS | QMD_PAYLOAD_BITS):
            self.masked["QMDs, in their addresses"] += bool(unlike & QMD_ADDRESS_BITS)
            for first, last in QMD_PAYLOAD if unlike & QMD_PAYLOAD_BITS else ():
                field = lambda number: number >> first & (1 << last - first + 1) - 1
                self.step(where, ("qmd", first), field(x), field(y), payloads)
            return
        part = lambda number, word, words: number >> 32 * word & (1 << 32 * words) - 1 if word >= 0 else 0
        done = -1
        for word in words_of(unlike):
            if word <= done:
                continue
            # A 64-bit number begins at a word of an even number; in machine code a word is one by itself.
            low = word & ~1
            a, b = part(x, low, 2), part(y, low, 2)
            if is_address(a) and is_address(b) or (b - a) & 0xFFFF_FFFF_FFFF_FFFF in self.moved:
                self.masked["addresses in inline data"] += 1
                done = low + 1
            elif self.as_addresses(part(x, word, 1), part(y, word, 1)):
                self.masked["words that differ as addresses do"] += 1
            elif a & 0xFFF in JUMPS and a & 0xFFF == b & 0xFFF and (b - a) & 0xFFFF_FFFF_FFFF_FFFF in self.moved_jumps:
                self.masked["jumps of machine code"] += 1
                done = low + 1
            else:
                self.differ(f"{where}: inline data word {word} of {size}: {a:#x} and {b:#x}")
                return


def compare(one, other):
    c = Comparison()
    c.channels(one.channels, other.channels)
    return c


def equal(one, other, least):
    mine, theirs = Run(one), Run(other)
    c = compare(mine, theirs)
    busiest = max(map(len, mine.channels), default=0)
    masked = ", ".join(f"{n} {what}" for what, n in sorted(c.masked.items()) if n) or "nothing"
    for d in c.differences[:20]:
        print(d)
    print(
        f"{len(mine.channels)} channels, {c.entries} entries, {c.bytes} bytes compared: {len(c.differences)} differences"
        f"{' (the first: ' + c.differences[0] + ')' if c.differences else ''}; {c.identical} entries identical, in the others "
        f"masked: {masked}; {c.waits[0]} and {c.waits[1]} waits left out"
    )
    return not c.differences and busiest >= int(least)


def flips(one, other, count=3000):
    """Flips bits of words that are not masked, one at a time."""
    mine, theirs = Run(one), Run(other)
    c = compare(mine, theirs)
    if c.differences:
        print(f"the two runs differ: {c.differences[0]}")
        return False
    rng, tried, noticed = random.Random(1), Counter(), Counter()
    pairs = [p for a, b in zip(mine.channels, theirs.channels) for p in zip(a, b) if p[0][1]]
    while tried.total() < count:
        a, b = rng.choice(pairs)
        shape = c.shapes.of(a[1], int.from_bytes(a[1], "little"))
        bit = rng.randrange(8 * len(a[1]))
        word = bit // 32
        kind = ("headers and arguments", "", "", "inline data")[shape.kinds[word]]
        if not kind or shape.waits:
            continue
        changed = (int.from_bytes(a[1], "little") ^ 1 << bit).to_bytes(len(a[1]), "little")
        again = Comparison()
        for name in ("moved", "moved_words", "moved_jumps", "uppers", "random"):
            setattr(again, name, getattr(c, name))
        again.entry("flipped", (a[0], changed, 0), b, {})
        tried[kind] += 1
        noticed[kind] += bool(again.differences)
    share = {k: noticed[k] / n for k, n in tried.items()}
    print("; ".join(f"{noticed[k]} of {n} bits flipped in {k} noticed" for k, n in tried.items()))
    # Inline data has addresses and counters, which may differ; all else may not.
    return share.get("headers and arguments", 0) == 1 and share.get("inline data", 0) > 0.5


class MadeUp:
    """Runs that are made up: launches as CUDA forms them, at addresses that the run has."""

    def __init__(self, heap=0x7F00_1200_0000, payload=5, wait=False, canary=0x1122_3344_5566_7700):
        self.entries = []
        for n in range(40):
            at = heap + 0x210 * n
            constants = [256, 1, 1] + [0] * 125 + [canary & 0xFFFF_FFFF, canary >> 32] + [at & 0xFFFF_FFFF, at >> 32]
            qmd = [0] * QMD_WORDS
            qmd[32], qmd[38], qmd[39] = 64, heap & 0xFFFF_FFFF, heap >> 32
            words = [0x2002_2062, at >> 32, at & 0xFFFF_FFFF, 0x2002_2060, 0x210, 1, 0x2001_206C, 0x41]
            words += [0x6000_206D | 132 << 16, *constants]
            words += [WAIT, 0x460_FF70, 2, n, 0, 0x1003] if wait and n % 3 else []
            words += [0x6000_206D | QMD_WORDS << 16, *qmd]
            words += [0x2001_20AD, heap >> 8 & 0xFFFF_FFFF, 0x2004_26C0, 2, 0x460_FFF0, payload + n, 4]
            self.entries.append(words)

    def write(self, path):
        with open(path, "w") as f:
            for n, words in enumerate(self.entries):
                raw = len(words) << 42 | 1 << 41 | 0x2_0080_0000 + 0x1000 * n
                data = struct.pack(f"<{len(words)}I", *words).hex()
                o = {"type": "entry", "pid": 1, "channel": 0, "raw": f"{raw:#018x}", "data": data, "missing": 0}
                print(json.dumps(o), file=f)
        return path


def self_test():
    import tempfile

    folder = tempfile.mkdtemp()
    first = MadeUp().write(os.path.join(folder, "first.json"))

    def against(change, **how):
        run = MadeUp(**how)
        change(run.entries)
        other = run.write(os.path.join(folder, "other.json"))
        c = compare(Run(first), Run(other))
        return not c.differences

    def word(at, change):
        return lambda e: e[7].__setitem__(at, change(e[7][at]))

    code = 9 + 20
    may = {
        "nothing": lambda: against(lambda e: None),
        "addresses, payloads, waits, the random number": lambda: against(
            lambda e: None, heap=0x7F00_5600_0000, payload=900, wait=True, canary=0xAA00
        ),
    }
    must = {
        "an entry less": lambda e: e.pop(),
        "an entry twice": lambda e: e.insert(3, e[3]),
        "two entries exchanged": lambda e: e.__setitem__(slice(3, 5), [e[4], e[3]]),
        "a header": word(3, lambda w: w ^ 1),
        "an argument": word(4, lambda w: w + 1),
        "a constant": word(code, lambda w: w ^ 0x80),
        "an address where none was": lambda e: e[7].__setitem__(slice(code - 1, code + 1), [0x1200_0000, 0x7F00]),
        "another random number once": word(9 + 128, lambda w: w ^ 0x100),
        "the grid in a QMD": word(-7 - QMD_WORDS + 32, lambda w: w + 1),
        "a payload left out": word(-2, lambda w: w + 1),
        "a release for a wait": lambda e: e[7].__setitem__(slice(9 + 132, 9 + 132), [WAIT, 0x460_FF70, 2, 5, 0, 1]),
        "a word less": lambda e: e[7].pop(),
    }
    wrong = [what for what, run in may.items() if not run()]
    wrong += [what for what, change in must.items() if against(change)]
    wrong += [f"{what}, in a run at other places" for what, change in must.items() if against(change, heap=0x7F00_5600_0000, wait=True)]
    other = MadeUp(heap=0x7F00_5600_0000, payload=77).write(os.path.join(folder, "other.json"))
    if not flips(first, other):
        wrong.append("bits flipped")
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    os.rmdir(folder)
    print(f"{len(may)} things that may differ, {2 * len(must)} that must not: {'; '.join(wrong) or 'all as it should be'}")
    return not wrong


if __name__ == "__main__":
    if sys.argv[1:] == ["self-test"]:
        sys.exit(0 if self_test() else 1)
    if sys.argv[1:2] == ["flips"]:
        sys.exit(0 if flips(*sys.argv[2:]) else 1)
    sys.exit(0 if equal(*sys.argv[1:]) else 1)
