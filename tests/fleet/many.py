"""2,000 processes of the software GPU, twice as many after them, counted by one `nvcap serve --by-process --sample --otlp`: every submission, in bounded memory and series.

usage: many.py NVCAP SOFTGPU [--processes 2000]        as root, with opentelemetry-proto; needs openssl and util-linux

Prints what was measured, then `test NAME ... ok` or `... FAILED` with the reason below it, `NOT RUN NAME: why` for what could not run, and
`N passed, N failed, N skipped` at the end.
"""

import argparse
import collections
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
from collector import Collector, answer, openssl, points  # noqa: E402
from prometheus import until  # noqa: E402

# What each submits, and how much of it before it waits for all to be found.
SUBMISSIONS, BEFORE = 20, 2
# docs/counts.md: as many processes have series of their own.
MOST = 1000
# Of a process in one metric: two stages of what is pending, four states of channels; kinds and paths of copies have a bound of their own.
# Stages, states, reasons, and at most so many buckets.
OF_A_PROCESS = {
    "nvcap_pending_submissions": 2, "nvcap_channels": 4, "nvcap_lost_submissions_total": 4, "nvcap_lost_submissions_created": 4,
    "nvcap_completion_delay_seconds_bucket": 16,
}  # fmt: skip
OF_SAMPLES = ("nvcap_copy_", "nvcap_estimate_error_ratio")
PATHS = 3 * 7
# Resident, bytes: of the program, of each process with samples. And by how much it may grow from the first wave to the second, which has what is
# kept of those that ended, too, and from the second to the third, which has nothing more.
OF_PROGRAM, OF_EACH, GROWTH, NO_GROWTH = 96 << 20, 128 << 10, 1.5, 1.15


def shipped_limit():
    """The least that the service and the pod may have, bytes."""
    packaging = Path(__file__).resolve().parents[2] / "packaging"
    unit = re.search(r"^MemoryMax=(\d+)M$", (packaging / "systemd/nvcap.service").read_text(), re.M)
    pod = re.search(r"^            limits:\n(?:.*\n){2,4}?              memory: (\d+)Mi$", (packaging / "kubernetes/daemonset.yaml").read_text(), re.M)
    return min(int(unit[1]), int(pod[1])) << 20


class Many:
    """The tests, in their order: each goes on where the one before has ended."""

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", folder / "tls.key", "-out", folder / "tls.crt",
        )  # fmt: skip
        self.collector = Collector(folder)
        self.said = folder / "serve.out"
        words = ["serve", "--listen=127.0.0.1:0", "--interval=1", "--budget=80%", "--by-process", "--sample=40%", "--otlp-interval=2s"]
        words += [f"--otlp=https://localhost:{self.collector.port}", f"--otlp-ca={folder / 'tls.crt'}"]
        with open(self.said, "w") as out:
            self.server = subprocess.Popen([args.nvcap, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        serving = until("nvcap serves", lambda: re.search(r"serving (\S+)", self.said.read_text()))
        self.url = serving[1]
        self.processes, self.truth, self.memory, self.most, self.times = [], 0, [], [], []

    def metrics(self):
        """The sums and the numbers of series by the metrics' names."""
        text = until("nvcap answers", lambda: answer(self.url))
        self.bytes = len(text)
        sums, series = collections.Counter(), collections.Counter()
        for line in text.splitlines():
            if not line.startswith("#"):
                name = re.match(r"\w+", line)[0]
                sums[name] += float(line.rsplit(" ", 1)[1])
                series[name] += 1
        return sums, series

    def counted(self):
        sums, _ = self.metrics()
        return sums["nvcap_submissions_total"] + sums["nvcap_ended_submissions_total"]

    def sampled(self):
        """How many submissions were sampled, or told to be lost for samples; of those without series, too."""
        lines = until("nvcap answers", lambda: answer(self.url)).splitlines()
        of = re.compile(r'nvcap_(?:lost|sampled)_submissions_total{|nvcap_ended_counters_total{.*metric="nvcap_(?:lost|sampled)_submissions"')
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if of.match(line))

    def wait_for_sampled(self, truth):
        until(lambda: f"{truth} are sampled, or told to be lost for samples, not {self.sampled():.0f}", lambda: self.sampled() == truth)

    def wave(self):
        """So many processes; when all are found they go on, at once, so that samples are taken; all that they submit is counted."""
        began = time.monotonic()
        own = ["--files", "--gpus=1", "--channels=1", f"--submissions={SUBMISSIONS}", "--linger-ms=3600000"]
        own += ["--wait-stdin", f"--before-wait={BEFORE}"]
        for _ in range(self.args.processes):
            seed = len(self.processes) + self.truth
            self.processes.append(subprocess.Popen([self.args.softgpu, *own, f"--seed={seed}"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        found = lambda: self.metrics()[0]["nvcap_channels"]  # noqa: E731
        until(lambda: f"{self.args.processes} are found, not {found():.0f}", lambda: found() == self.args.processes)
        self.times.append(time.monotonic() - began)
        # What is there before the first sample is not sampled.
        self.wait_for_sampled(self.truth + BEFORE * self.args.processes)
        for process in self.processes:
            process.stdin.write(b"x")
            process.stdin.close()
        began = time.monotonic()
        self.truth += SUBMISSIONS * self.args.processes
        until(lambda: f"{self.truth} are counted, not {self.counted():.0f}", lambda: self.counted() == self.truth)
        self.times.append(time.monotonic() - began)
        # What samples keep is in the memory that is compared: all of it, however slow the machine is.
        self.wait_for_sampled(self.truth)
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        for name, all_of_them in (("VmRSS", self.memory), ("VmHWM", self.most)):
            all_of_them.append(1024 * int(re.search(rf"{name}:\s*(\d+)", status)[1]))

    def leave(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            process.stdin.close()
        self.processes = []

    # The tests.

    def all_are_counted(self):
        """What 2,000 processes have submitted is counted, each submission once."""
        self.wave()
        sums, _ = self.metrics()
        assert sums["nvcap_channels"] == self.args.processes, sums["nvcap_channels"]

    def series_are_bounded(self):
        """No metric has more series than MOST processes and the host have."""
        sums, self.series = self.metrics()
        assert sums["nvcap_sampled_submissions_total"] > 0, "nothing was sampled"
        for name, number in self.series.items():
            each = OF_A_PROCESS.get(name, PATHS if name.startswith(OF_SAMPLES) else 1)
            assert number <= (MOST + 100) * each, f"{name} has {number} series"

    def otlp_has_the_same(self):
        """A collector gets the same sum, of as many series."""
        sent = lambda name: [point.as_int for _, point in points(self.collector.newest(), name)]  # noqa: E731
        until("a request has all", lambda: self.collector.newest() and sum(sent("nvcap.submissions") + sent("nvcap.ended_submissions")) == self.truth)
        assert len(sent("nvcap.submissions")) <= MOST + 100, len(sent("nvcap.submissions"))
        self.sent = max(len(body) for _, _, body, status in self.collector.got if status == 200)

    def the_next_as_many_take_no_more(self):
        """They end, as many others come: all are counted, and neither memory nor series grow with those that were."""
        self.leave()
        self.wave()
        self.series_are_bounded()
        self.otlp_has_the_same()
        first, second = self.memory
        most = OF_PROGRAM + OF_EACH * self.args.processes
        assert second < most and second < GROWTH * first, f"{first >> 20} MiB, then {second >> 20} MiB; at most {most >> 20}"

    def a_third_wave_takes_nothing(self):
        """What the second needed is used again: nothing grows. And the most that it ever had fits what the service and the pod may have."""
        self.leave()
        self.wave()
        self.series_are_bounded()
        _, second, third = self.memory
        assert third < NO_GROWTH * second, f"{second >> 20} MiB, then {third >> 20} MiB"
        # The kernel counts files and page tables, too.
        most, limit = self.most[-1], shipped_limit()
        assert most < 0.8 * limit, f"{most >> 20} MiB at most, of {limit >> 20} MiB that are allowed"

    def tell(self):
        sums, _ = self.metrics()
        mib = ", ".join(str(memory >> 20) for memory in self.memory) + f" MiB, {self.most[-1] >> 20} MiB at most"
        found = ", ".join(f"{seconds:.0f}" for seconds in self.times)
        print(f"{self.args.processes} processes, three times: found, then counted after {found} s; nvcap resident {mib}, {sums['nvcap_cpu_seconds_total']:.1f} s of CPU time;")
        print(f"{sum(self.series.values())} series, {self.bytes} bytes a scrape, {self.sent} bytes a request at most")


TESTS = [Many.all_are_counted, Many.series_are_bounded, Many.otlp_has_the_same, Many.the_next_as_many_take_no_more, Many.a_third_wave_takes_nothing]


def tests(args, folder):
    passed = failed = skipped = 0
    many = None
    for test in TESTS:
        name = f"many::{test.__name__}"
        if failed:
            # Each needs what the ones before it have left.
            skipped += 1
            print(f"NOT RUN {name}: a test before it failed")
            continue
        try:
            many = many or Many(args, folder)
            test(many)
            passed += 1
            print(f"test {name} ... ok")
        except Exception as e:  # noqa: BLE001 - told, and counted
            failed += 1
            print(f"test {name} ... FAILED")
            for line in f"{type(e).__name__}: {e}".splitlines():
                print(f"    {line}")
    if not failed:
        many.tell()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def refused(own):
    """Why this cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "only root makes namespaces and looks into other processes"
    for tool, package in [("unshare", "util-linux"), ("openssl", "openssl")]:
        if not shutil.which(tool):
            return f"{tool} is not here; type: sudo apt-get install {package}"
    done = subprocess.run([*own, "true"], capture_output=True, text=True)
    return f"namespaces cannot be made here: {done.stderr.strip()}" if done.returncode != 0 else None


def main():
    parser = argparse.ArgumentParser()
    for name in ("nvcap", "softgpu"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--processes", type=int, default=2000)
    parser.add_argument("--inside", action="store_true")
    args = parser.parse_args()
    # The software GPU's memory is that of files which are called as the driver's devices.
    os.environ["NVCAP_DEVICES_BY_NAME"] = "1"
    # A pipe for each.
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if args.inside:
        with tempfile.TemporaryDirectory(prefix="nvcap-many-") as folder:
            return tests(args, Path(folder))
    # A PID namespace: nvcap sees this test's processes alone, and all end with it.
    own = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
    if why := refused(own):
        for test in TESTS:
            print(f"NOT RUN many::{test.__name__}: {why}")
        print(f"0 passed, 0 failed, {len(TESTS)} skipped")
        return 0
    return subprocess.run([*own, sys.executable, __file__, *sys.argv[1:], "--inside"]).returncode


if __name__ == "__main__":
    sys.exit(main())
