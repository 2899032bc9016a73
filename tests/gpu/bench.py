"""`nvcap bench` on a GPU: how far three runs agree, how near its copies come to CUDA's, and whether nvcap sees every byte of it.

    python3 bench.py NVCAP FOLDER        # as root; writes what it measures into FOLDER

CUDA's copies are PyTorch's of 1 GiB, pinned, the best of ten by CUDA's events. Exit status 1 where something does not hold.
"""

import json
import pathlib
import subprocess
import sys

GIB = 1 << 30
LIMIT = 0.05


def runs(nvcap, folder):
    """Three runs; the figures that vary by more than the limit."""
    measured = []
    for i in range(3):
        out = folder / f"bench{i}.json"
        # Of an earlier run of this test.
        for old in (out, folder / "bench.svg") if i == 0 else (out,):
            old.unlink(missing_ok=True)
        plots = ["--plots", str(folder / "bench.svg")] if i == 0 else []
        subprocess.run([nvcap, "bench", "--json", "-o", str(out), *plots], check=True)
        measured.append(json.loads(out.read_text()))
    figures = {}
    for one in measured:
        for latency in one["latencies"]:
            figures.setdefault(latency["name"], []).append(latency["ns"])
        for series in one["transfers"]:
            for point in series["points"]:
                name = f"{series['engine']} {series['way']} {point['bytes']}"
                figures.setdefault(name, []).append(point["ns"])
    unsteady = {n: v for n, v in figures.items() if max(v) / min(v) - 1 > LIMIT}
    print(f"{len(figures) - len(unsteady)} of {len(figures)} figures within {LIMIT:.0%} over three runs")
    for name, values in unsteady.items():
        print(f"  {name}: {' '.join(f'{v:.0f}' for v in values)} ns, {max(values) / min(values) - 1:.1%}")
    for note in measured[0]["notes"]:
        print(f"  not measured: {note}")
    return measured


def cuda():
    """CUDA's best GB/s for 1 GiB in each direction."""
    import torch

    host = torch.empty(GIB, dtype=torch.uint8).pin_memory()
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(device)

    def best(copy):
        times = []
        for _ in range(10):
            begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
            begin.record()
            copy()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return GIB / min(times) / 1e6

    return {
        "h2d": best(lambda: device.copy_(host, non_blocking=True)),
        "d2h": best(lambda: host.copy_(device, non_blocking=True)),
        "d2d": best(lambda: other.copy_(device)),
    }


def compare(measured):
    """Raw bandwidth of 1 GiB beside CUDA's; whether those over PCIe are within the limit. CUDA copies on the device by a kernel."""
    holds = True
    for way, theirs in cuda().items():
        ours = max(
            (point["gb_per_s"], series["engine"])
            for one in measured
            for series in one["transfers"]
            for point in series["points"]
            if series["way"] == way and point["bytes"] == GIB
        )
        print(f"{way} 1 GiB: {ours[0]:.2f} GB/s by {ours[1]}, CUDA {theirs:.2f} GB/s, {ours[0] / theirs - 1:+.1%}")
        holds &= way == "d2d" or ours[0] >= theirs * (1 - LIMIT)
    return holds


def traced(nvcap, folder):
    """Whether nvcap sees what `nvcap bench` submits, byte for byte."""
    truth, trace = folder / "submissions.txt", folder / "trace.jsonl"
    truth.unlink(missing_ok=True)
    bench = [nvcap, "bench", "--sizes", "4,1000,4K,64K,1M", "--passes", "1", "--warm-up", "5", "--submissions", str(truth)]
    command = [nvcap, "--json", "-vv", "-e", "type=submission,entry", "--force", "-o", str(trace), "--", *bench]
    ended = subprocess.run(command, stdout=subprocess.DEVNULL)
    submitted, seen = {}, {}
    for line in truth.read_text().splitlines():
        token, entry, data = line.split(" ")
        submitted.setdefault(int(token, 16), []).append((f"0x{entry}", data))
    for line in trace.read_text().splitlines():
        event = json.loads(line)
        if event["type"] == "entry":
            seen.setdefault(event["token"], []).append((event["raw"], event["data"]))
    entries = sum(map(len, submitted.values()))
    size = sum(len(data) // 2 for all in submitted.values() for _, data in all)
    equal = submitted == seen
    print(
        f"traced by nvcap: status {ended.returncode}, {entries} entries and {size} bytes on {len(submitted)} channels, "
        + ("all equal" if equal else "NOT EQUAL")
    )
    if not equal:
        for token, all in submitted.items():
            got = seen.get(token, [])
            differs = next((i for i, pair in enumerate(zip(all, got)) if pair[0] != pair[1]), None)
            print(f"  token {token:#x}: {len(all)} submitted, {len(got)} seen, the first that differs {differs}")
    return equal and ended.returncode == 0


def main():
    nvcap, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    measured = runs(nvcap, folder)
    # CUDA last: while this process uses the GPU, nvcap refuses to measure it.
    held = [traced(nvcap, folder), compare(measured)]
    sys.exit(0 if all(held) else 1)


main()
