"""Holds what nvcap says was run against what CUPTI says was run.

    meaning.py NVCAP.json CUPTI.log OUT [-p OUT] [--profiled]
    meaning.py --truth CUPTI.log OUT        what CUPTI saw, a line a phase and kind: phase, kind, grid and block or bytes, count

NVCAP.json: `nvcap --json`. CUPTI.log: cupti_log.c's. OUT: what the program printed (`phase NAME NS NS`). -p OUT: the phases of
another run of the same program, which CUPTI saw (where it must not see the one that nvcap traced). Prints a row a phase and the
differences; status 1 where there is one.

--profiled: a profiler is in the program; of its own copies and memsets, which CUPTI does not log, those in PROFILERS are told and counted apart.

Kernels are compared as a multiset of (grid, block), and in their order where a phase has one stream; copies and memsets by
kind and bytes. Known and counted apart, never as equal: a copy that the driver splits, kernels that the GPU starts itself.
Names of loads.cu's kernels are held against their grids.
"""
import collections
import json
import re
import sys

Counter = collections.Counter

# Work of CUPTI's own (CUDA 13.0) that no run without a profiler has, and that CUPTI does not log: kind and bytes.
PROFILERS = {("d2h", 320), ("d2h", 2016), ("memset", 3200000)}


def phases_of(path):
    return [(n, int(a), int(b)) for n, a, b in (l.split()[1:4] for l in open(path) if l.startswith("phase "))]


def phase_at(phases, ns):
    return next((n for n, a, b in phases if a <= ns <= b), None)


def within(kernel):
    """The direction of a copy within the device, by the name of the driver's kernel."""
    sides = re.search(r"(A|D)(?:2D|3D)?to(A|D)", kernel or "")
    return f"{sides[1]}2{sides[2]}".lower() if sides else "d2d"


class Seen:
    def __init__(self):
        self.names, self.unnamed, self.unsure, self.named_by = Counter(), Counter(), Counter(), Counter()
        self.kernels, self.order, self.copies, self.memsets = Counter(), collections.defaultdict(list), Counter(), Counter()
        self.contradicted = Counter()
        self.unresolved, self.conditional, self.unknown_bytes, self.replays, self.images, self.driver = 0, False, Counter(), 0, 0, 0


def nvcap(path, phases):
    seen, ledger = collections.defaultdict(Seen), None
    for line in open(path):
        r = json.loads(line)
        if r["type"] == "ledger":
            ledger = r
        if r["type"] != "operation":
            continue
        phase = phase_at(phases, r["time_ns"])
        if phase is None:
            continue
        s, op = seen[phase], r["op"]
        if op == "launch":
            kind = r["kind"]
            s.images += r["qmd_from"] == "image"
            if kind == "user":
                key = tuple(r["grid"]), tuple(r["block"])
                s.kernels[key] += 1
                s.order[r["channel"]].append(key)
                # loads.cu: the grid is the function's.
                told = re.fullmatch(r"f(\d+)_(\d+)", r.get("kernel_mangled") or "")
                if told and r["kernel_certain"] and 1 + 12 * int(told[1]) + int(told[2]) != r["grid"][0]:
                    s.contradicted[(r["kernel_mangled"],) + key] += 1
                if r["kernel"] is None:
                    s.unnamed[(r["program"],) + key] += 1
                elif not r["kernel_certain"]:
                    s.unsure[(r["kernel_mangled"],) + key] += 1
                else:
                    s.names[(r["kernel_mangled"],) + key] += 1
                    s.named_by[r["kernel_from"]] += 1
            elif kind == "unresolved":
                s.unresolved += 1
            elif kind in ("driver_memset", "driver_copy"):
                what = "memset" if kind == "driver_memset" else within(r["kernel"] if r.get("kernel_certain") else None)
                size = r["moves"] and r["moves"]["bytes"]
                if size is None:
                    s.unknown_bytes["memset" if what == "memset" else "d2d"] += 1
                else:
                    (s.memsets if what == "memset" else s.copies)[(what, size)] += 1
        elif op == "graph":
            s.replays += 1
            s.driver += r["driver"]
            s.conditional |= r["conditional"]
        elif op == "copy":
            if r["src"] is None:
                s.memsets[("memset", r["bytes"])] += 1
            else:
                s.copies[(r["direction"], r["bytes"])] += 1
        elif op == "inline" and r["content"] == "data":
            if r.get("fill") is not None:
                s.memsets[("memset", r["bytes"])] += 1
            else:
                s.copies[("h2d", r["bytes"])] += 1
    return seen, ledger


def cupti(path, phases):
    seen = collections.defaultdict(Seen)
    for line in open(path):
        r = json.loads(line)
        if r["type"] == "end":
            if r["dropped"]:
                print("CUPTI dropped", r["dropped"], "records")
            continue
        phase = phase_at(phases, r["start"])
        if phase is None:
            continue
        s = seen[phase]
        # A copy between two places of the host is the CPU's.
        if r["type"] == "copy" and r["kind"] == "h2h":
            continue
        if r["type"] == "kernel":
            key = tuple(r["grid"]), tuple(r["block"])
            s.kernels[key] += 1
            s.names[(r["name"],) + key] += 1
            s.order[r["stream"]].append((r["start"], key))
        elif r["type"] == "copy":
            s.copies[(r["kind"], r["bytes"])] += 1
        else:
            s.memsets[("memset", r["bytes"])] += 1
    return seen


def total(counter):
    return sum(counter.values())


def bytes_by_kind(counter):
    sums = Counter()
    for (kind, size), n in counter.items():
        sums[kind] += size * n
    return sums


def pieces_but_for(ours, truth, unknown):
    """Whether the truth has, beyond the same bytes of each kind, just so many copies within the device."""
    within = ("d2d", "d2a", "a2d", "a2a")
    rest = Counter({k: n for k, n in (truth - ours).items() if k[0] in within})
    return total(rest) == unknown and bytes_by_kind(ours) == bytes_by_kind(truth - rest)


def difference(a, b):
    return dict(a - b), dict(b - a)


def main():
    args = sys.argv[1:]
    if args[0] == "--truth":
        for name, t in cupti(args[1], phases_of(args[2])).items():
            rows = [(name, "kernel", "x".join(map(str, g)), "x".join(map(str, b)), n) for (g, b), n in t.kernels.items()]
            rows += [(name, kind, size, "", n) for (kind, size), n in (t.copies + t.memsets).items()]
            for row in sorted(rows, key=str):
                print(*row, sep="\t")
        return
    profiled = "--profiled" in args
    other = args.index("-p") if "-p" in args else None
    truth_out = args[other + 1] if other is not None else args[2]
    phases = phases_of(args[2])
    ours, ledger = nvcap(args[0], phases)
    truth = cupti(args[1], phases_of(truth_out))
    bad = 0
    print(f"{'phase':<20} {'kernels':>8} {'CUPTI':>8} {'copies':>7} {'CUPTI':>7} {'memsets':>8} {'CUPTI':>7}  verdict")
    for name, _, _ in phases:
        s, t = ours[name], truth[name]
        notes, wrong = [], []
        more, less = difference(s.kernels, t.kernels)
        if more or less:
            told = [f"{n} x {g} {b}" for (g, b), n in list(less.items())[:6]]
            if s.conditional and not more:
                notes.append(f"conditional nodes: {sum(less.values())} kernels started by the GPU")
            else:
                wrong.append(f"kernels: {sum(more.values())} only nvcap {list(more.items())[:6]}, {sum(less.values())} only CUPTI {told}")
        elif len(s.order) == 1 and len(t.order) == 1:
            a, b = next(iter(s.order.values())), [k for _, k in sorted(next(iter(t.order.values())))]
            (notes if a == b else wrong).append("in order" if a == b else "in another order")
        # Of an attached process's first copies the direction is not known: their channel's token is not.
        blind = Counter({k: n for k, n in s.copies.items() if k[0] is None})
        for (_, size), n in blind.items():
            same = [k for k in (t.copies - s.copies) if k[1] == size]
            if same and n <= (t.copies - s.copies)[same[0]]:
                s.copies[same[0]] += n
                del s.copies[(None, size)]
                notes.append(f"{n} copies of unknown direction")
        for what, a, b in (("copies", s.copies, t.copies), ("memsets", s.memsets, t.memsets)):
            more, less = difference(a, b)
            if not more and not less:
                continue
            kind = "memset" if what == "memsets" else "d2d"
            own = what == "copies" and not less and s.driver and all(k == "h2d" and n <= 4096 for k, n in more)
            if profiled and not less and all(k in PROFILERS for k in more):
                notes.append(f"{what}: {sum(more.values())} of the profiler's own")
            elif own:
                notes.append(f"{sum(more.values())} small inline writes of the driver's own, for graphs")
            elif bytes_by_kind(a) == bytes_by_kind(b):
                notes.append(f"{what}: the same bytes in other pieces")
            elif s.unknown_bytes[kind] and pieces_but_for(a, b, s.unknown_bytes[kind]):
                notes.append(f"{what}: the same bytes in other pieces, {s.unknown_bytes[kind]} of a size that the launch does not tell")
            elif not more and sum(less.values()) == s.unknown_bytes[kind]:
                notes.append(f"{what}: {sum(less.values())} of a size that the launch does not tell")
            else:
                wrong.append(f"{what}: only nvcap {dict(list(more.items())[:6])}, only CUPTI {dict(list(less.items())[:6])}")
        if s.unresolved:
            wrong.append(f"{s.unresolved} QMDs not seen")
        if s.replays:
            notes.append(f"{s.replays} replays")
        if s.images:
            notes.append(f"{s.images} QMDs from memory")
        bad += bool(wrong)
        known = total(s.copies) + s.unknown_bytes["d2d"], total(s.memsets) + s.unknown_bytes["memset"]
        print(f"{name:<20} {total(s.kernels):>8} {total(t.kernels):>8} {known[0]:>7} {total(t.copies):>7} "
              f"{known[1]:>8} {total(t.memsets):>7}  {'DIFFERS: ' + '; '.join(wrong) if wrong else 'equal'}"
              f"{' (' + ', '.join(notes) + ')' if notes else ''}")
    # Names: a name that CUPTI does not have for such a launch is wrong; conditional nodes are launched by the GPU.
    reloads = False
    named, wrong_names, unnamed, unsure, by = 0, Counter(), Counter(), Counter(), Counter()
    for name, _, _ in phases:
        s, t = ours[name], truth[name]
        named += total(s.names)
        # Of modules that are unloaded at once CUPTI itself has wrong names: there the launch tells.
        by_launch = any(re.fullmatch(r"f\d+_\d+", str(n)) for n, _, _ in t.names)
        reloads |= by_launch
        wrong_names += s.contradicted if by_launch else s.names - t.names
        unnamed += s.unnamed
        unsure += s.unsure
        by += s.named_by
    launches = named + total(unnamed) + total(unsure)
    for what, some in (("WRONG", wrong_names), ("without a name", unnamed), ("uncertain", unsure)):
        for (name, grid, block), n in some.most_common(8):
            print(f"name {what}: {n} x {name if isinstance(name, str) else hex(name)} {grid} {block}")
    share = 100 * named / max(1, launches)
    print(f"names: {named} of {launches} launches ({share:.2f} %), {total(wrong_names)} wrong, {total(unsure)} uncertain, {total(unnamed)} without; by {dict(by)}")
    # Under CUPTI every kernel is launched through one program of CUPTI's own, which has no name.
    # A module that is unloaded at once may be gone before its names are read: no name then, never a wrong one.
    if truth_out != args[2] or reloads:
        bad += bool(wrong_names) or (share < 99.5 and launches > 0 and not reloads)
    all_ours = sum(total(s.kernels) for s in ours.values())
    all_truth = sum(total(t.kernels) for t in truth.values())
    print(f"kernels {all_ours} of {all_truth} ({100 * all_ours / max(1, all_truth):.2f} %); phases that differ: {bad}; "
          f"named {share:.2f} %, {total(wrong_names)} wrong; ledger: complete {ledger and ledger['complete']}, understood {ledger and ledger['understood']}")
    whole = ledger is not None and ledger["complete"]
    # What compares nothing proves nothing.
    empty = all_truth == 0
    sys.exit(bad != 0 or empty or not whole)


if __name__ == "__main__":
    main()
