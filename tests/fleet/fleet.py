"""Three hosts, each with `nvcap serve` and processes of the software GPU, scraped by the real Prometheus with the shipped rules.

usage: fleet.py NVCAP SOFTGPU PROMETHEUS        as root; needs iproute2, util-linux and openssl

A host is a network namespace with a PID namespace of its own: its nvcap sees its own processes alone, as on a machine. It listens on the
host's address with TLS and a token, and Prometheus has the job `nvcap-hosts` of packaging/prometheus/prometheus.yml.

On one host nvcap runs as in its pod on Kubernetes, with the host's files below --host-root, where a made-up driver names the GPUs and made-up logs a pod;
a process is in that pod's control group (a folder of this machine's, which is removed at the end). A made-up dcgm-exporter has the same GPUs.

The rules are those of packaging/prometheus/nvcap.rules.yml with shorter times (SHORTER below), each named and replaced exactly once.

Everything runs in namespaces of this program, and ends with it. Prints `test NAME ... ok` or `... FAILED` with the reason below it,
`NOT RUN NAME: why` for what could not run, and `N passed, N failed, N skipped` at the end.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
from panels import Panels  # noqa: E402
from prometheus import GUARD, Prometheus, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ["host-a", "host-b", "host-c"]
PORT = 9837
# The host whose nvcap names processes: a panel of the dashboard asks for them.
BY_PROCESS = "host-a"
# The host whose nvcap has the host's files elsewhere; its GPUs; a pod there and its container.
IN_POD = "host-c"
UUIDS = [f"GPU-2d0c5d5a-6c2f-7a3d-9b4e-00000000000{n}" for n in range(2)]
POD = {"namespace": "training", "pod": "train-0", "container": "main"}
POD_UID = "0b6f6a1c-52bd-4b7e-8f6a-1c52bd4b7e8f"
CONTAINER_ID = "3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a"
# As kubelet and containerd name it, with systemd's driver.
POD_GROUP = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER_ID}.scope"
# What a process in the pod submits, and one whose kernels take a while.
OF_POD, TIMED = 640, 400
# Where this program may make control groups: a folder of its own.
GROUPS = "NVCAP_FLEET_CGROUPS"
DCGM_PORT = 9400

# What each host's processes submit: channels, GPUs, submissions, how long each stays then. None: until all of it is counted.
WORK = {
    "host-a": [(8, 2, 4000, 3600_000), (4, 1, 1500, None)],
    "host-b": [(4, 1, 3000, 3600_000), (2, 1, 700, 3600_000), (3, 1, 1111, 3600_000)],
    "host-c": [(6, 2, 2500, 3600_000)],
}
# Of host-c: while no nvcap runs there, and after the next one has begun.
UNSEEN, LATER = 900, 1300

# The alert, what its rule says, and what the copy for this test says instead.
SHORTER = [
    ("NvcapWorkStuck", "nvcap_oldest_pending_age_seconds > 60", "nvcap_oldest_pending_age_seconds > 3"),
    # Not a shorter time to look back: on a busy machine some time passes until the next nvcap is scraped. The two seconds of NvcapDown are enough.
    ("NvcapBlind", "rate(nvcap_blind_seconds_total{reason!=\"ended_idle\"}[5m]) > 0.01\n        for: 5m", "rate(nvcap_blind_seconds_total{reason!=\"ended_idle\"}[30m]) > 0.0005\n        for: 1s"),
    ("NvcapDown", 'up{job="nvcap"} == 0\n        for: 2m', 'up{job="nvcap"} == 0\n        for: 2s'),
]


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}".strip()
    return done.stdout


def child_of(parent):
    """The only child of a process: by its parent's number in /proc, which every kernel has."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                return int(entry.name)
    return None


class Host:
    """A network namespace and a PID namespace, joined to the bridge."""

    def __init__(self, number, name, folder):
        self.name, self.folder, self.number = name, folder / name, number
        self.folder.mkdir()
        self.address = f"10.77.0.{number + 11}"
        self.started = []
        self.truth = 0
        holder = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "infinity"]
        self.holder = subprocess.Popen(holder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.first = until(f"{name} begins", lambda: child_of(self.holder.pid))
        until(f"{name} has namespaces", lambda: os.readlink(f"/proc/{self.first}/ns/net") != os.readlink("/proc/self/ns/net"))
        # The second is there when the program in it is another: its namespaces and its /proc are made by then.
        until(f"{name} has its /proc", lambda: "sleep" in Path(f"/proc/{self.first}/comm").read_text())
        run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "name", "eth0", "netns", self.first)
        run("ip", "link", "set", f"veth{number}", "master", "br0", "up")
        for words in ("link set lo up", f"addr add {self.address}/24 dev eth0", "link set eth0 up"):
            run(*self.inside("ip", *words.split()))
        # The software GPU's files are named after its process, whose number another host has too.
        run(*self.inside("mount", "-t", "tmpfs", "tmpfs", "/dev/shm"))

    def inside(self, *words):
        return ["nsenter", f"--target={self.first}", "--net", "--pid", "--mount", *map(str, words)]

    def start(self, what, *words):
        """Starts a program in it; its output goes to a file. The starter, and the program's number here."""
        out = self.folder / f"{what}-{len(self.started)}.out"
        with open(out, "w") as file:
            starter = subprocess.Popen(self.inside(*words), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.started.append((what, starter, out))
        pid = until(f"{what} on {self.name}", lambda: child_of(starter.pid) or starter.poll() is not None)
        assert starter.poll() is None, f"{what} on {self.name} ended: {out.read_text()}"
        return starter, pid, out

    def serve(self, nvcap):
        files = self.folder
        self.server, self.serving, out = self.start(
            "serve", nvcap, "serve", f"--listen={self.address}:{PORT}", "--interval=0.2", "--budget=50%", "--sample=5%",
            *(["--by-process"] if self.name == BY_PROCESS else []),
            *([f"--host-root={files / 'root'}"] if self.name == IN_POD else []),
            f"--tls-cert={files / 'tls.crt'}", f"--tls-key={files / 'tls.key'}",
            f"--token-file={files.parent / 'token'}", f"--state={files / 'alive'}",
        )  # fmt: skip
        until(f"{self.name} serves", lambda: "serving https" in out.read_text())

    def submit(self, softgpu, channels, gpus, submissions, linger, *more, group=None):
        """A process of the software GPU, in a control group; what it will have submitted counts as the truth once it says so."""
        seed = 100 * self.number + len(self.started)
        words = [softgpu, "--files", f"--gpus={gpus}", f"--channels={channels}", f"--submissions={submissions}"]
        words += [f"--seed={seed}", "--sleep-us=1000", f"--linger-ms={linger}", *more]
        if group:
            # In it before it is another program.
            words = ["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *words]
        _, pid, out = self.start("softgpu", *words)
        return pid, out

    def submitted(self, out, submissions):
        """Waits until the process says that it has submitted all, and how many that were."""
        done = until(f"{out.name} on {self.name} is done", lambda: re.search(r"done image=0 .*submissions=(\d+)", out.read_text()))
        assert int(done[1]) == submissions, f"asked for {submissions}: {done[0]}"
        return submissions


def made_up_host(root):
    """The files of a host as they are mounted into nvcap's pod: what the driver says of its GPUs, and the folders of containers' logs."""
    for minor, uuid in enumerate(UUIDS):
        gpu = root / f"proc/driver/nvidia/gpus/0000:c{minor}:00.0"
        gpu.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nBus Location: \t 0000:c{minor}:00.0\nDevice Minor: \t {minor}\n"
        (gpu / "information").write_text(text)
    logs = root / "var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"{POD['pod']}_{POD['namespace']}_{POD['container']}-{CONTAINER_ID}.log").touch()


class Dcgm(BaseHTTPRequestHandler):
    """A metric of dcgm-exporter, with its labels."""

    def do_GET(self):
        lines = ["# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).", "# TYPE DCGM_FI_DEV_GPU_UTIL gauge"]
        for minor, uuid in enumerate(UUIDS):
            labels = f'gpu="{minor}",UUID="{uuid}",device="nvidia{minor}",modelName="NVIDIA H200",Hostname="{IN_POD}"'
            lines.append(f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {5 + minor}")
        body = "".join(f"{line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def certificates(folder):
    """An authority, a certificate for each host, and the token."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    run(*new, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=fleet test")
    for name in HOSTS:
        files = folder / name
        own = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-addext", "basicConstraints=critical,CA:FALSE"]
        signed = ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key"]
        run(*new, "-keyout", files / "tls.key", "-out", files / "tls.crt", *own, *signed)
    token = folder / "token"
    token.touch(0o600)
    token.write_text(run("openssl", "rand", "-hex", "32"))


def shorter(rules):
    """The shipped rules with the times of SHORTER."""
    for alert, there, instead in SHORTER:
        assert rules.count(there) == 1, f"{alert}: its rule is another now: {there}"
        rules = rules.replace(there, instead)
    return rules


def configuration(folder):
    """The shipped configuration with this fleet's names, of the job for hosts alone; every second."""
    text = (ROOT / "packaging/prometheus/prometheus.yml").read_text()
    head, rest = text.split("scrape_configs:\n")
    job = rest[rest.index("  - job_name: nvcap-hosts") :]
    shipped = '"gpu-1.example.net:9837", "gpu-2.example.net:9837"'
    for there, instead in [
        (shipped, ", ".join(f'"{name}:{PORT}"' for name in HOSTS)),
        ("/etc/prometheus/nvcap/ca.crt", str(folder / "ca.crt")),
        ("/etc/prometheus/nvcap/token", str(folder / "token")),
    ]:
        assert job.count(there) == 1, f"the shipped configuration has no {there} any more"
        job = job.replace(there, instead)
    (folder / "nvcap.rules.yml").write_text(shorter((ROOT / "packaging/prometheus/nvcap.rules.yml").read_text()))
    dcgm = f'  - job_name: dcgm\n    static_configs:\n      - targets: ["10.77.0.1:{DCGM_PORT}"]\n'
    return f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n{head}scrape_configs:\n{job}{dcgm}"


class NotHere(Exception):
    """What a test needs is not here."""


class Fleet:
    """The tests, in their order: each goes on where the one before has ended."""

    def __init__(self, nvcap, softgpu, prometheus, folder):
        self.nvcap, self.softgpu, self.program, self.folder = nvcap, softgpu, prometheus, folder
        run("ip", "link", "set", "lo", "up")
        run("ip", "link", "add", "br0", "type", "bridge")
        run("ip", "addr", "add", "10.77.0.1/24", "dev", "br0")
        run("ip", "link", "set", "br0", "up")
        self.hosts = {name: Host(n, name, folder) for n, name in enumerate(HOSTS)}
        names = folder / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{h.address} {h.name}\n" for h in self.hosts.values()))
        # This program's mounts are its own: nobody else sees these names.
        run("mount", "--bind", names, "/etc/hosts")
        certificates(folder)
        made_up_host(folder / IN_POD / "root")
        threading.Thread(target=ThreadingHTTPServer(("10.77.0.1", DCGM_PORT), Dcgm).serve_forever, daemon=True).start()
        for host in self.hosts.values():
            host.serve(nvcap)
        self.prometheus = Prometheus(prometheus, folder, configuration(folder), 9090)
        self.groups = os.environ.get(GROUPS)
        self.panels = Panels(self.prometheus, pods=bool(self.groups))

    def counted(self, name):
        """All that is counted of a host: what has series, and what had."""
        return self.prometheus.number(self.counts_of(name))

    def counts_of(self, name):
        own = f'instance="{name}:{PORT}"'
        return f'sum({{__name__=~"nvcap_(ended_)?submissions_total", {own}}})'

    def wait_for(self, query, truth):
        """Waits until the query's number is the truth: a late scrape leaves series out for a moment. More than the truth is wrong at once."""

        def is_there():
            number = self.prometheus.number(query)
            assert number is None or number <= truth, f"{query}: {number}, more than {truth}"
            return number == truth

        until(lambda: f"{query}: {self.prometheus.number(query)}, not {truth}", is_there)

    def wait_for_counted(self, name):
        self.wait_for(self.counts_of(name), self.hosts[name].truth)

    def more_than_truth(self, host):
        """What is counted of a host once it is more than the truth so far: what a process that hung submitted is counted."""
        more = lambda: (said := self.counted(host.name) or 0) > host.truth and said  # noqa: E731
        return until("what the process that hung submitted is counted", more)

    def wait_for_truth(self):
        for name in self.hosts:
            self.wait_for_counted(name)
        # Not for a moment alone.
        time.sleep(2)
        for name in self.hosts:
            self.wait_for_counted(name)

    def scraped(self):
        """Every host answers with TLS and the token, and without the token none does."""
        until("three hosts are up", lambda: self.prometheus.number('sum(up{job="nvcap"})') == len(HOSTS))
        without = ["openssl", "s_client", "-quiet", "-CAfile", self.folder / "ca.crt", "-verify_return_error"]
        without += ["-connect", f"host-a:{PORT}", "-verify_hostname", "host-a"]
        asked = b"GET /metrics HTTP/1.1\r\nHost: host-a\r\nConnection: close\r\n\r\n"
        said = subprocess.run(list(map(str, without)), input=asked, capture_output=True, timeout=GUARD)
        assert b" 401 " in said.stdout, said.stdout[:200] + said.stderr[-500:]

    def sums_are_the_truth(self):
        """Each host's sum is what its processes submitted, of ended ones too; and the fleet's sum is that of all."""
        began, stay = [], self.folder / "stay"
        stay.touch()
        for host in self.hosts.values():
            for channels, gpus, submissions, linger in WORK[host.name]:
                until_counted = [] if linger else [f"--stay-while={stay}"]
                _, out = host.submit(self.softgpu, channels, gpus, submissions, linger or 0, *until_counted)
                began.append((host, out, submissions, until_counted))
        for host, out, submissions, _ in began:
            host.truth += host.submitted(out, submissions)
        ((host, out, submissions, _),) = [one for one in began if one[-1]]
        own, pid = f'instance="{host.name}:{PORT}"', re.search(r"^pid (\d+)$", out.read_text(), re.M)[1]
        self.wait_for(f'sum(nvcap_submissions_total{{{own},pid="{pid}"}})', submissions)
        # Idle and all of it found: from its last reading to its end nothing is unseen.
        self.wait_for(f'nvcap_watching_ratio{{{own},how="exact"}}', 1)
        stay.unlink()
        ended = [s for h in self.hosts.values() for what, s, _ in h.started if what == "softgpu"]
        until("the process that ends has ended", lambda: any(s.poll() == 0 for s in ended))
        self.wait_for_truth()
        all_of_them = sum(host.truth for host in self.hosts.values())
        assert all_of_them == sum(w[2] for ws in WORK.values() for w in ws)
        self.wait_for("sum(nvcap_submissions_total)", all_of_them)
        for reason in ("unreadable", "not_running"):
            query = f'sum(nvcap_blind_seconds_total{{reason="{reason}"}})'
            ((_, blind),) = until(f"a number of {reason}", lambda query=query: self.prometheus.ask(query))
            assert blind == 0, f"blind for {blind} s: {reason}"
        raised = lambda *alerts: [a for a in alerts if self.prometheus.firing(a)]  # noqa: E731
        # A busy machine may have given a reason for these: a scrape that took more than a second, a process that got no processor in the middle of it.
        until(lambda: f"nothing is raised without a reason: {raised('NvcapWorkStuck', 'NvcapDown')}", lambda: not raised("NvcapWorkStuck", "NvcapDown"))
        assert not raised("NvcapBlind", "NvcapLost"), f"raised without a reason: {raised('NvcapBlind', 'NvcapLost')}"
        self.panels.ask()

    def pods_have_names(self):
        """What a process in a pod submits has the pod's labels, from its control group and the names of the logs."""
        if not self.groups:
            raise NotHere("no control group can be made here")
        group = Path(self.groups) / POD_GROUP
        group.mkdir(parents=True, exist_ok=True)
        host = self.hosts[IN_POD]
        _, out = host.submit(self.softgpu, 2, 1, OF_POD, 3600_000, group=group)
        host.truth += host.submitted(out, OF_POD)
        labels = ",".join(f'{name}="{value}"' for name, value in POD.items())
        series = f'nvcap_submissions_total{{instance="{IN_POD}:{PORT}",UUID="{UUIDS[0]}",gpu="0",{labels}}}'
        until(lambda: f"{series}: {self.prometheus.ask(series)}", lambda: self.prometheus.number(series) == OF_POD)
        # The host's other processes are in no pod.
        self.wait_for(f'count(nvcap_submissions_total{{pod!="",{labels}}})', 1)
        self.wait_for_truth()

    def gpus_join_those_of_dcgm(self):
        """The queries of docs/counts.md that join dcgm-exporter's metrics have rows, of the GPUs that both have."""
        host = self.hosts[IN_POD]
        # At work for so long that moments of samples meet it; another one where nvcap got no processor meanwhile.
        timed = ["--timed", "--timed-kernel-us=5000", "--timed-burst=4", "--timed-pause-us=10000"]
        busy, end = f'count(nvcap_gpu_busy_ratio{{instance="{IN_POD}:{PORT}",engine="any"}})', time.monotonic() + GUARD
        while not self.prometheus.number(busy):
            assert time.monotonic() < end, "guard: nvcap sees no GPU at work"
            _, out = host.submit(self.softgpu, 2, 1, TIMED, 3600_000, *timed)
            host.truth += host.submitted(out, TIMED)
            self.wait_for_counted(IN_POD)
        page = (ROOT / "docs/counts.md").read_text()
        queries = re.findall(r"^    (.*DCGM_FI_DEV_GPU_UTIL.*?)\s*(?:#.*)?$", page, re.M)
        assert len(queries) == 2, queries
        for query in queries:
            # A query that multiplies has no row of a GPU of which one of the two metrics has none at the moment.
            of_gpus = lambda query=query: {labels.get("UUID") for labels, _ in self.prometheus.ask(query)}  # noqa: E731
            until(f"it has a row of the busy GPU: {query}", lambda of_gpus=of_gpus: UUIDS[0] in of_gpus())
            assert of_gpus() <= set(UUIDS), of_gpus()
        self.wait_for_truth()
        self.panels.ask()

    def native_histograms(self):
        """A Prometheus that takes native histograms gets them, by its own format, and all else as the other one has it by text."""
        folder = self.folder / "native"
        folder.mkdir()
        config = re.sub(r"^rule_files:\n(?:  .*\n)+", "", configuration(self.folder), flags=re.M)
        native = Prometheus(self.program, folder, config, 9091, "--enable-feature=native-histograms")
        try:
            until("three hosts are up", lambda: native.number('sum(up{job="nvcap"})') == len(HOSTS))
            delays = "nvcap_completion_delay_seconds"
            for query, of_text in [
                ('sum({__name__=~"nvcap_(ended_)?submissions_total"})', None),
                ('count({__name__=~"nvcap_.+(_total|_info|_ratio|_age_seconds)"})', None),
                ("count(nvcap_submissions_total)", None),
                (f"sum(histogram_count({delays}))", f"sum({delays}_count)"),
            ]:
                both = lambda query=query, of_text=of_text: (native.number(query), self.prometheus.number(of_text or query))  # noqa: E731
                until(lambda: f"{query}: {both()}", lambda: both()[0] and both()[0] == both()[1])
            half, most = (until("a quantile", lambda q=q: native.number(f"histogram_quantile({q}, sum({delays}))")) for q in (0.5, 1))
            assert 0 < half < most < 600, (half, most)
            assert not native.ask(f"{delays}_bucket"), "it has a classic histogram, too"
        finally:
            native.stop()

    def hang_raises_the_alert(self):
        """Work that is never done raises the alert of its host alone; the alert goes when the process is gone."""
        host = self.hosts["host-b"]
        pid, out = host.submit(self.softgpu, 4, 1, 40, 3600_000, "--hang=spin")
        until("the software GPU hangs", lambda: "hung" in out.read_text())
        raised = until("the alert is raised", lambda: self.prometheus.firing("NvcapWorkStuck"))
        assert {a["instance"] for a in raised} == {f"host-b:{PORT}"} and raised[0]["severity"] == "critical", raised
        self.panels.ask("NvcapWorkStuck")
        os.kill(pid, signal.SIGKILL)
        until("the alert is over", lambda: not self.prometheus.firing("NvcapWorkStuck"))
        # What the hang itself submitted is no number that was asked for: from here on the host counts from this.
        host.truth = self.more_than_truth(host)

    def lost_work_raises_the_alert(self):
        """A process that is killed with work pending: nobody saw what became of it. The alert has its labels alone."""
        host = self.hosts[BY_PROCESS]
        pid, out = host.submit(self.softgpu, 4, 1, 40, 3600_000, "--hang=spin")
        until("the software GPU hangs", lambda: "hung" in out.read_text())
        own = f'instance="{host.name}:{PORT}"'
        waiting = f"topk(1, sum by (pid) (nvcap_pending_submissions{{{own}}}) > 0)"
        ((labels, _),) = until("its work is pending", lambda: self.prometheus.ask(waiting))
        os.kill(pid, signal.SIGKILL)
        # The one that hung before has its host's, once what that host submitted is more than five minutes ago.
        of_host = lambda: [a for a in self.prometheus.firing("NvcapLost") if a["instance"] == f"{host.name}:{PORT}"]  # noqa: E731
        raised = until("the alert is raised", of_host)
        assert [a["pid"] for a in raised] == [labels["pid"]], raised
        self.panels.ask("NvcapLost")
        until("nothing is stuck", lambda: not self.prometheus.firing("NvcapWorkStuck"))
        host.truth = self.more_than_truth(host)

    def killed_nvcap_is_blind(self):
        """A killed nvcap: down, no number at all instead of 0, and the others' numbers as before."""
        host = self.hosts["host-c"]
        os.kill(host.serving, signal.SIGKILL)
        host.server.wait(GUARD)
        self.gone_at = time.time()
        down = lambda: [a["instance"] for a in self.prometheus.firing("NvcapDown")]  # noqa: E731
        # Of this host alone: another one that was scraped too late on a busy machine is up again.
        until(lambda: f"the alert is raised: {down()}", lambda: down() == [f"host-c:{PORT}"])
        self.panels.ask("NvcapDown")
        assert self.prometheus.ask(f'{{__name__=~"nvcap_.*", instance="host-c:{PORT}"}}') == []
        assert not self.prometheus.firing("NvcapWorkStuck")
        for name in ("host-a", "host-b"):
            self.wait_for_counted(name)
        _, out = host.submit(self.softgpu, 2, 1, UNSEEN, 3600_000)
        host.submitted(out, UNSEEN)

    def restarted_nvcap_says_how_long(self):
        """The next nvcap counts on, and says for how long there was none."""
        host = self.hosts["host-c"]
        # When the one before said so for the last time; the next one says so at once.
        alive, self.back_at = int((host.folder / "alive").read_text().split()[-1]), time.time()
        host.serve(self.nvcap)
        least, most = self.back_at - alive, time.time() - alive
        own = f'instance="host-c:{PORT}"'
        until("it is up again", lambda: self.prometheus.number(f"up{{{own}}}") == 1 and not self.prometheus.firing("NvcapDown"))
        series = f'nvcap_blind_seconds_total{{{own}, reason="not_running"}}'
        blind = until("it was blind", lambda: self.prometheus.number(series))
        assert least - 0.01 <= blind <= most + 0.01, f"blind for {blind} s, gone for {least:.2f} s to {most:.2f} s"
        until("the alert is raised", lambda: f"host-c:{PORT}" in [a["instance"] for a in self.prometheus.firing("NvcapBlind")])
        self.panels.ask("NvcapBlind")
        _, out = host.submit(self.softgpu, 4, 1, LATER, 3600_000)
        host.submitted(out, LATER)
        until(f"{LATER} are counted", lambda: self.counted("host-c") == LATER)

    def every_panel_and_alert_has_an_answer(self):
        """Each query of the dashboard, of its variables and of the alerts had data at some moment; panels.py lists those that cannot here, and why."""
        self.panels.verdict()

    def history_has_no_zero(self):
        """As it was scraped: no number went back but by the restart, no host's sum was 0 then, and all together is the truth."""
        seen = {name: 0 for name in HOSTS}
        for labels, values in self.prometheus.samples("nvcap_submissions_total"):
            name = labels["instance"].split(":")[0]
            numbers = [0] + [number for _, number in values]
            backs = [(a, b) for a, b in zip(numbers, numbers[1:]) if b < a]
            assert len(backs) <= (name == "host-c"), f"{name} went back: {backs}"
            # A counter that begins again is added to what it had, as increase() does it.
            seen[name] += sum(b - a if b >= a else b for a, b in zip(numbers, numbers[1:]))
        host = self.hosts["host-c"]
        expected = {name: self.hosts[name].truth for name in HOSTS} | {"host-c": host.truth + LATER}
        assert seen == expected, f"{seen}, not {expected}"
        # Not where it was scraped too late before and after. Prometheus may round its times up by some milliseconds.
        ups = self.prometheus.samples(f'up{{instance="host-c:{PORT}"}}')
        down = [t for _, values in ups for t, up in values if up == 0 and self.gone_at + 0.1 <= t <= self.back_at]
        assert down, "it was never down"
        for _, values in self.prometheus.samples(f'nvcap_submissions_total{{instance="host-c:{PORT}"}}'):
            within = [v for t, v in values if down[0] <= t <= down[-1]]
            assert not within, f"numbers of a host that nobody looked at: {within}"
        since = down[0]
        step = self.prometheus.get("/api/v1/query_range", query="sum(nvcap_submissions_total)", start=since, end=time.time(), step=0.5)
        sums = [float(v) for _, v in step["result"][0]["values"]]
        assert min(sums) > 0 and len(sums) > 10, sums


TESTS = [
    Fleet.scraped,
    Fleet.sums_are_the_truth,
    Fleet.pods_have_names,
    Fleet.gpus_join_those_of_dcgm,
    Fleet.native_histograms,
    Fleet.hang_raises_the_alert,
    Fleet.lost_work_raises_the_alert,
    Fleet.killed_nvcap_is_blind,
    Fleet.restarted_nvcap_says_how_long,
    Fleet.every_panel_and_alert_has_an_answer,
    Fleet.history_has_no_zero,
]


def refused():
    """Why this cannot run here; None if it can."""
    if os.geteuid() != 0:
        return "only root makes namespaces and looks into other processes"
    for tool, package in [("ip", "iproute2"), ("nsenter", "util-linux"), ("unshare", "util-linux"), ("openssl", "openssl")]:
        if not shutil.which(tool):
            return f"{tool} is not here; type: sudo apt-get install {package}"
    # What this program does, and all that it may be refused: in a container without rights, or a kernel without bridges.
    probe = "ip link add br0 type bridge && ip link add veth0 type veth peer name veth1 && mount -t tmpfs tmpfs /dev/shm"
    done = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", probe], capture_output=True, text=True)
    if done.returncode != 0:
        return f"namespaces with a bridge cannot be made here: {done.stderr.strip()}"
    return None


def control_groups():
    """A folder of its own in a hierarchy of control groups, of version 2 if there is one; None where none can be made or entered."""
    mounts = [line.split(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    kinds = [(right.split()[0], left.split()[4]) for left, right in mounts]
    for _, mount in sorted((kind != "cgroup2", mount) for kind, mount in kinds if kind.startswith("cgroup")):
        group = Path(mount) / f"nvcap-fleet-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if subprocess.run(["sh", "-c", 'echo $$ >"$0/cgroup.procs"', group], capture_output=True).returncode == 0:
            return group
        group.rmdir()
    return None


def remove(group):
    """Removes control groups, when their last processes are gone."""
    for folder, _, _ in os.walk(group, topdown=False):
        for _ in range(100):
            try:
                os.rmdir(folder)
                break
            except OSError:
                time.sleep(0.1)


def tell(why):
    for test in TESTS:
        print(f"NOT RUN fleet::{test.__name__}: {why}")
    print(f"0 passed, 0 failed, {len(TESTS)} skipped")


def tests(folder, programs):
    passed = failed = skipped = 0
    fleet = None
    for test in TESTS:
        name = f"fleet::{test.__name__}"
        if failed:
            # Each needs what the ones before it have left.
            skipped += 1
            print(f"NOT RUN {name}: a test before it failed")
            continue
        began = time.monotonic()
        try:
            fleet = fleet or Fleet(*programs, folder)
            test(fleet)
            passed += 1
            print(f"test {name} ... ok")
        except NotHere as why:
            skipped += 1
            print(f"NOT RUN {name}: {why}")
        except Exception as e:
            failed += 1
            print(f"test {name} ... FAILED")
            for line in f"{type(e).__name__}: {e}".splitlines():
                print(f"    {line}")
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


def main():
    inside = sys.argv[1] == "--inside"
    programs = [os.path.abspath(p) for p in sys.argv[-3:]]
    os.environ["NVCAP_DEVICES_BY_NAME"] = "1"
    if inside:
        with tempfile.TemporaryDirectory() as folder:
            return tests(Path(folder), programs)
    why = refused()
    if why:
        tell(why)
        return 0
    # Namespaces of its own: whatever happens here, nothing of it is left behind.
    own = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    group = control_groups()
    if group:
        os.environ[GROUPS] = str(group)
    try:
        return subprocess.run([*own, sys.executable, __file__, "--inside", *programs]).returncode
    finally:
        if group:
            remove(group)


if __name__ == "__main__":
    sys.exit(main())
