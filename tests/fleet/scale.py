"""What a fleet costs Prometheus: one real answer of `nvcap serve`, as many hosts would give it, scraped by the real Prometheus.

usage: scale.py NVCAP SOFTGPU PROMETHEUS [--hosts 500] [--gpus 8] [--interval 2] [--seconds 60]    as root

nvcap serve counts eight processes of the software GPU, with 20 channels each; another one beside it takes samples, too (`--sample`). One of the eight takes
a GPU's time for what it submits (`--timed`), so that the GPU is seen to be busy; a ninth ended before, while its work was pending. The answer of each is
then that of all hosts, with the labels that a Kubernetes node has (UUID, namespace, pod, container), a GPU after the other, and numbers that grow.
Prometheus has the shipped rules. First it scrapes hosts without samples, then, anew, hosts with them.

Prints what was measured, what 10,000 GPUs would take by that, and fails beyond the bounds of docs/scale.md; then `test NAME ... ok` or `... FAILED`, `NOT RUN NAME: why` for what could
not run, and `N passed, N failed, N skipped`.
"""

import argparse
import asyncio
import fcntl
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
from prometheus import GUARD, Prometheus, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TESTS = [
    "series_are_the_arithmetic", "every_series_is_there", "numbers_are_the_hosts", "prometheus_s_memory_is_bounded", "nvcap_s_memory_is_bounded",
]  # fmt: skip
# The two ways to serve, as tests are named and as nvcap is told.
WAYS = {"plain": [], "sampled": ["--sample=0.5%"]}
# In a network namespace of this test: nobody else takes them.
PORTS, PROMETHEUS_PORT = {"plain": 9837, "sampled": 9838}, 9090
# Series that Prometheus adds to each target: up, and four about the scrape.
OF_TARGET = 5
# What the figures are wanted for, and how often hosts are scraped then.
FLEET_GPUS, FLEET_INTERVAL = 10_000, 15
PROCESSES = 8
# docs/scale.md has these numbers. Series of a host; of a GPU (its name); of a GPU and container.
OF_HOST, OF_GPU, OF_CONTAINER = 18, 1, 10
# Of a GPU and container where a channel ended with work pending.
OF_ENDED = 2
# With --sample, of a GPU and container: always; where graphs are replayed; of each kind and path of copies. Of a GPU and engine: how busy it is, and
# the two ends of that share's interval.
SAMPLED, GRAPHS, OF_COPIES, OF_ENGINE = 27, 3, 6, 3
ENGINES = ["any", "compute", "copy"]
# Bytes that Prometheus may take, of the program and of each series; and nvcap serve.
OF_PROGRAM, OF_SERIES, SERVE_MEMORY = 150 << 20, 10 << 10, 64 << 20


def loopback_up():
    """In a new network namespace it is down."""
    set_flags, is_up = 0x8914, 1
    with socket.socket() as one:
        fcntl.ioctl(one, set_flags, struct.pack("16sH22x", b"lo", is_up))


class Served:
    """`nvcap serve` beside processes of the software GPU: its answer, and what it cost."""

    def __init__(self, nvcap, port, options):
        self.url = f"http://127.0.0.1:{port}/metrics"
        self.process = subprocess.Popen([nvcap, "serve", f"--listen=127.0.0.1:{port}", *options], **QUIET)

    def measure(self, seconds):
        """Before and after the time; what is run with both together waits for it."""
        began, before = time.monotonic(), self.value("nvcap_cpu_seconds_total")
        yield
        self.text = self.answer()
        self.seconds = time.monotonic() - began
        self.cpu = (self.value("nvcap_cpu_seconds_total") - before) / self.seconds
        self.memory = resident(self.process.pid)

    def answer(self):
        """As soon as there is one: a busy nvcap may have none within ten seconds (503)."""
        return until("nvcap answers", self.ask)

    def ask(self):
        try:
            with urllib.request.urlopen(self.url, timeout=GUARD) as answer:
                self.kind = answer.headers["Content-Type"]
                return answer.read().decode()
        except OSError:
            return None

    def value(self, begin):
        """The sum of the values of series that begin so."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.answer().splitlines() if line.startswith(begin))


QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def serving(nvcap, softgpu, seconds):
    """Both ways to serve, at once, of the same processes."""
    served = {way: Served(nvcap, PORTS[way], options) for way, options in WAYS.items()}
    started = [one.process for one in served.values()]
    try:
        for one in served.values():
            until("nvcap serves", one.ask)
        end_with_work_pending(softgpu, served)
        for seed in range(PROCESSES):
            # So busy that it submits until it is ended.
            words = ["--files", "--gpus=1", "--channels=20", "--submissions=100000000", "--sleep-us=2000", f"--seed={seed}"]
            started.append(subprocess.Popen([softgpu, *words, *(TIMED if seed == 0 else [])], **QUIET))
        for one in served.values():
            until("all channels are counted", lambda one=one: one.value("nvcap_channels{") == 20 * PROCESSES)
        sampled = served["sampled"]
        until("samples are taken", lambda: sampled.value("nvcap_sampled_submissions_total{") > 0)
        # What had work within a minute is shown.
        busy = lambda: re.findall(r'^nvcap_gpu_busy_ratio{.*?engine="(\w+)"', sampled.answer(), re.M)  # noqa: E731
        until(lambda: f"all engines are seen at work, not only {busy()}", lambda: sorted(busy()) == ENGINES)
        # Finding them is over.
        time.sleep(3)
        measuring = [one.measure(seconds) for one in served.values()]
        for one in measuring:
            next(one)
        time.sleep(seconds)
        for one in measuring:
            next(one, None)
        return served
    finally:
        for one in started:
            one.kill()
            one.wait()


# Each submission takes milliseconds, so that the moments of samples meet one.
TIMED = ["--timed", "--timed-kernel-us=5000", "--timed-burst=4", "--timed-pause-us=10000"]


def end_with_work_pending(softgpu, served):
    """A process that is killed while a kernel of it runs: what was pending is lost."""
    words = ["--files", "--gpus=1", "--channels=4", "--submissions=40", "--hang=spin", "--linger-ms=3600000"]
    hangs = subprocess.Popen([softgpu, *words], **QUIET)
    try:
        for one in served.values():
            until("work is pending", lambda one=one: one.value("nvcap_pending_submissions{") > 0)
    finally:
        hangs.kill()
        hangs.wait()
    for one in served.values():
        until("it is lost", lambda one=one: one.value('nvcap_lost_submissions_total{gpu="0",reason="ended"}') > 0)


def resident(pid):
    return 1024 * int(re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def of_a_host(text, host, gpus):
    """The answer as this host would give it: `%d` stands for what grows."""
    lines = []
    for line in text.replace("%", "%%").splitlines():
        if 'gpu="0"' not in line:
            if line.startswith("# TYPE nvcap_build info"):
                lines += ["# TYPE nvcap_gpu info", "# HELP nvcap_gpu GPUs of this machine."]
                lines += [f'nvcap_gpu_info{{{of_gpu(host, gpu)},modelName="NVIDIA H200",pci_bus_id="00000000:{gpu:02X}:00.0"}} 1' for gpu in range(gpus)]
            lines.append(line)
            continue
        for gpu in range(gpus):
            labels = of_gpu(host, gpu)
            if not line.startswith("nvcap_gpu_"):
                labels += f',namespace="training",pod="train-{host:05}-0",container="main"'
            series, value = line.replace('gpu="0"', labels).rsplit(" ", 1)
            lines.append(f"{series} %d" if series.startswith("nvcap_submissions_total") else f"{series} {value}")
    return "\n".join(lines) + "\n"


def of_gpu(host, gpu):
    return f'UUID="GPU-{host:08x}-0000-4000-8000-{gpu:012x}",gpu="{gpu}"'


class Hosts:
    """All hosts, behind one port: /metrics/N is what host N says."""

    def __init__(self, texts, kind, gpus):
        self.texts, self.kind, self.gpus = texts, kind, gpus
        self.asked = [0] * len(texts)
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self.run, args=(ready,), daemon=True).start()
        assert ready.wait(GUARD), "the hosts do not answer"

    def run(self, ready):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self.answer, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    async def answer(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                host = int(re.match(rb"GET /metrics/(\d+) ", head)[1])
                self.asked[host] += 1
                # 1000 submissions of each GPU from scrape to scrape.
                body = (self.texts[host] % ((1000 * self.asked[host],) * self.gpus)).encode()
                words = f"HTTP/1.1 200 OK\r\nContent-Type: {self.kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(words.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def configuration(folder, port, hosts, interval):
    rules = folder / "nvcap.rules.yml"
    shutil.copy(ROOT / "packaging/prometheus/nvcap.rules.yml", rules)
    text = f"global: {{scrape_interval: {interval}s, scrape_timeout: {interval}s, evaluation_interval: 5s}}\nrule_files: [{rules}]\n"
    text += "scrape_configs:\n  - job_name: nvcap\n    static_configs:\n"
    for host in range(hosts):
        text += f'      - {{targets: ["127.0.0.1:{port}"], labels: {{__metrics_path__: /metrics/{host}, instance: gpu-{host:05}}}}}\n'
    return text


class Measured:
    """Prometheus with these hosts, over a time."""

    def __init__(self, args, served, folder):
        texts = [of_a_host(served.text, host, args.gpus) for host in range(args.hosts)]
        self.served = served
        self.args, self.hosts = args, Hosts(texts, served.kind, args.gpus)
        self.bytes = len((texts[0] % ((123456789,) * args.gpus)).encode())
        self.series = sum(not line.startswith("#") for line in texts[0].splitlines())
        self.channels = sum(float(line.rsplit(" ", 1)[1]) for line in texts[0].splitlines() if line.startswith("nvcap_channels{"))
        self.prometheus = Prometheus(args.prometheus, folder, configuration(folder, self.hosts.port, args.hosts, args.interval), PROMETHEUS_PORT)
        try:
            until("every host was scraped", lambda: self.prometheus.number("sum(up)") == args.hosts)
            self.measure(args)
            self.answers()
        finally:
            self.prometheus.stop()

    def measure(self, args):
        before, began = self.prometheus.own(), time.monotonic()
        time.sleep(args.seconds)
        after, self.seconds = self.prometheus.own(), time.monotonic() - began
        grown = lambda name: (after[name] - before[name]) / self.seconds
        self.samples = grown("prometheus_tsdb_head_samples_appended_total")
        self.cpu = grown("process_cpu_seconds_total")
        self.memory = after["process_resident_memory_bytes"]
        self.heap = after["go_memstats_heap_inuse_bytes"]

    def answers(self):
        ask, wanted = self.prometheus.number, self.args.hosts * self.series
        questions = {
            "up": "sum(up)",
            "series": 'count({__name__=~"nvcap_.+"})',
            "channels": "sum(nvcap_channels)",
            "gpus": "count(count by (UUID) (nvcap_submissions_total))",
        }
        # In one query: a scrape that comes too late on a busy machine leaves its host out of all of them.
        together = " or ".join(f'label_replace({query}, "what", "{what}", "", "")' for what, query in questions.items())
        at_once = lambda: {labels["what"]: number for labels, number in self.prometheus.ask(together)}  # noqa: E731
        whole = lambda: (all_of := at_once()).get("up") == self.args.hosts and all_of.get("series", 0) >= wanted and all_of  # noqa: E731
        found = until(lambda: f"every host is up, with its series: {at_once()}", whole)
        self.counted, self.sum_of_channels, self.gpus_seen = found["series"], found["channels"], found["gpus"]
        self.head = until("the series in the head", self.head_without_alerts)
        self.mean_scrape, self.slowest = ask("avg(scrape_duration_seconds)"), ask(f"max(max_over_time(scrape_duration_seconds[{int(self.seconds)}s]))")
        self.rules = max(v for _, v in self.prometheus.ask("prometheus_rule_group_last_duration_seconds") or [({}, 0)]) or None
        began = time.monotonic()
        ask("sum(rate(nvcap_submissions_total[1m]))")
        self.query = time.monotonic() - began

    def head_without_alerts(self):
        """The series in the head but for those that Prometheus makes of alerts: NvcapDown's, where a scrape came too late. None while there come some."""
        of_alerts = lambda: self.prometheus.number('count(count_over_time({__name__=~"ALERTS|ALERTS_FOR_STATE"}[1d]))') or 0  # noqa: E731
        before, head = of_alerts(), self.prometheus.own()["prometheus_tsdb_head_series"]
        return head - before if of_alerts() == before else None

    # The tests.

    def series_are_the_arithmetic(self):
        """Those of a host are as many as docs/scale.md says."""
        text = self.served.text
        copies = len(set(re.findall(r'nvcap_copy_operations_total{.*?(kind="\w+",path="\w+")', text)))
        engines = len(re.findall(r"^nvcap_gpu_busy_ratio{", text, re.M))
        busy = OF_ENGINE * engines
        of_samples = SAMPLED + GRAPHS * ("nvcap_graph_launches_total{" in text) + OF_COPIES * copies if "nvcap_sampled" in text else 0
        assert 'reason="ended"' in text, "no channel ended with work pending"
        wanted = OF_HOST + self.args.gpus * (OF_GPU + OF_CONTAINER + OF_ENDED + busy + of_samples)
        assert self.series == wanted, f"{self.series} series, not {wanted}: copies of {copies} kinds and paths, {engines} engines"
        assert engines == (len(ENGINES) if of_samples else 0), f"{engines} engines"

    def every_series_is_there(self):
        a = self.args
        assert self.counted == a.hosts * self.series, f"{self.counted} series, not {a.hosts} x {self.series}"
        assert self.head == a.hosts * (self.series + OF_TARGET), f"{self.head} in the head, not {a.hosts} x {self.series + OF_TARGET}"

    def numbers_are_the_hosts(self):
        a = self.args
        assert self.sum_of_channels == a.hosts * self.channels, f"{self.sum_of_channels} channels"
        assert self.gpus_seen == a.hosts * a.gpus, f"{self.gpus_seen} GPUs"

    def prometheus_s_memory_is_bounded(self):
        all_series = self.args.hosts * (self.series + OF_TARGET)
        most = OF_PROGRAM + OF_SERIES * all_series
        assert self.memory < most, f"{self.memory / (1 << 20):.0f} MiB resident, more than {most / (1 << 20):.0f} for {all_series} series"

    def nvcap_s_memory_is_bounded(self):
        assert self.served.memory < SERVE_MEMORY, f"nvcap serve has {self.served.memory >> 20} MiB"

    def rows(self):
        a, served = self.args, self.served
        kib, mib = 1 << 10, 1 << 20
        all_series = a.hosts * (self.series + OF_TARGET)
        fleet = FLEET_GPUS / a.gpus
        fleet_series = fleet * (self.series + OF_TARGET)
        rows = [
            ("hosts x GPUs, interval", f"{a.hosts} x {a.gpus}, {a.interval} s", f"{fleet:.0f} x {a.gpus}, {FLEET_INTERVAL} s"),
            ("series of a host, with Prometheus's own", self.series + OF_TARGET, self.series + OF_TARGET),
            ("series", f"{all_series}", f"{fleet_series:.0f}"),
            ("bytes of a scrape", self.bytes, self.bytes),
            ("scraped, KiB/s", f"{a.hosts * self.bytes / a.interval / kib:.0f}", f"{fleet * self.bytes / FLEET_INTERVAL / kib:.0f}"),
            ("samples/s", f"{self.samples:.0f}", f"{fleet_series / FLEET_INTERVAL:.0f}"),
            ("Prometheus: resident, MiB", f"{self.memory / mib:.0f}", f"{self.memory / all_series * fleet_series / mib:.0f}"),
            ("Prometheus: resident, KiB a series", f"{self.memory / all_series / kib:.1f}", ""),
            ("Prometheus: of one core, %", f"{100 * self.cpu:.0f}", f"{100 * self.cpu / self.samples * fleet_series / FLEET_INTERVAL:.0f}"),
            ("Prometheus: CPU time of a sample, us", f"{1e6 * self.cpu / self.samples:.0f}", ""),
            ("a scrape, ms: mean, most", f"{1e3 * self.mean_scrape:.1f}, {1e3 * self.slowest:.0f}", ""),
            ("sum(rate(nvcap_submissions_total[1m])), ms", f"{1e3 * self.query:.0f}", ""),
            ("nvcap serve: of one core, %", f"{100 * served.cpu:.2f}", "the same on each host"),
            ("nvcap serve: resident, MiB", f"{served.memory / mib:.0f}", "the same on each host"),
        ]
        return rows


def tell(measured):
    """One table: what was measured, and what the fleet would take by that, of each way."""
    seconds = max(one.seconds for one in measured.values())
    heads = [head for way in measured for head in (f"{way}: measured, {seconds:.0f} s", f"{way}: {FLEET_GPUS} GPUs")]
    print(f"| | {' | '.join(heads)} |\n|{' --- |' * (1 + len(heads))}")
    for rows in zip(*(one.rows() for one in measured.values())):
        print(f"| {rows[0][0]} | {' | '.join(f'{row[1]} | {row[2]}' for row in rows)} |")


def measured(args):
    done, failed_all = {}, ""
    try:
        served = serving(args.nvcap, args.softgpu, min(args.seconds, 30))
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                done[way] = Measured(args, served[way], Path(folder))
        tell(done)
    except Exception as e:
        failed_all = f"{type(e).__name__}: {e}"
    passed = failed = 0
    for way in WAYS:
        for test in TESTS:
            name = f"scale::{way}::{test}"
            try:
                assert way in done, failed_all
                getattr(done[way], test)()
                passed += 1
                print(f"test {name} ... ok")
            except Exception as e:
                failed += 1
                print(f"test {name} ... FAILED")
                for line in f"{type(e).__name__}: {e}".splitlines():
                    print(f"    {line}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser()
    for name in ("nvcap", "softgpu", "prometheus"):
        parser.add_argument(name, type=os.path.abspath)
    parser.add_argument("--hosts", type=int, default=500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--inside", action="store_true")
    args = parser.parse_args()
    os.environ["NVCAP_DEVICES_BY_NAME"] = "1"
    if args.inside:
        loopback_up()
        return measured(args)
    # A PID namespace: nvcap sees this test's processes alone, and all end with it. A network namespace: its ports are its own.
    own = ["unshare", "--pid", "--net", "--mount", "--fork", "--mount-proc", "--kill-child"]
    why = None
    if os.geteuid() != 0:
        why = "only root makes namespaces and looks into other processes"
    elif not shutil.which("unshare"):
        why = "unshare is not here; type: sudo apt-get install util-linux"
    elif (done := subprocess.run([*own, "true"], capture_output=True, text=True)).returncode != 0:
        why = f"namespaces cannot be made here: {done.stderr.strip()}"
    if why:
        for way in WAYS:
            for test in TESTS:
                print(f"NOT RUN scale::{way}::{test}: {why}")
        print(f"0 passed, 0 failed, {len(WAYS) * len(TESTS)} skipped")
        return 0
    return subprocess.run([*own, sys.executable, __file__, *sys.argv[1:], "--inside"]).returncode


if __name__ == "__main__":
    sys.exit(main())
