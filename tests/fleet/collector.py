"""What `nvcap serve --otlp` sends, received by TLS and read with Google's protobuf and OpenTelemetry's own messages.

usage: collector.py NVCAP SOFTGPU        as root, with opentelemetry-proto; needs openssl

Prints `test NAME ... ok` or `... FAILED` with the reason below it, and `N passed, N failed, N skipped` at the end.
"""

import gzip
import http.server
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import traceback
import urllib.request
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
from prometheus import GUARD, until  # noqa: E402

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (  # noqa: E402
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

TOKEN = "Bearer a-token,of=this test"
ENCODED = "authorization=Bearer%20a-token%2Cof%3Dthis%20test"
SUBMISSIONS = [3000, 700]
# So often a case is tried whose outcome is another where this program is not let run for ten seconds.
TRIES = 5


class Collector:
    """A server on this machine that keeps what it gets; `status` is what it answers."""

    def __init__(self, folder, port=0):
        self.got, self.status = [], 200
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body, status = self.rfile.read(int(self.headers["Content-Length"])), collector.status
                collector.got.append((self.path, dict(self.headers), body, status))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def newest(self):
        """The newest request that was taken."""
        taken = [body for _, _, body, status in self.got if status == 200]
        if not taken:
            return None
        request = ExportMetricsServiceRequest()
        request.ParseFromString(gzip.decompress(taken[-1]))
        return request

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def points(request, name):
    """The points of a metric: the attributes of its resource and its own, and the point."""
    for of in request.resource_metrics:
        resource = {kv.key: value_of(kv.value) for kv in of.resource.attributes}
        for scope in of.scope_metrics:
            for metric in scope.metrics:
                if metric.name == name:
                    data = getattr(metric, metric.WhichOneof("data"))
                    for point in data.data_points:
                        own = {kv.key: value_of(kv.value) for kv in point.attributes}
                        yield {**resource, **own}, point


def answer(address):
    """A page; nothing where nvcap is too busy for it (503)."""
    try:
        with urllib.request.urlopen(address, timeout=GUARD) as page:
            return page.read().decode()
    except OSError:
        return ""


def openssl(*words):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Tests:
    def __init__(self, nvcap, softgpu, folder):
        self.nvcap, self.softgpu, self.folder = nvcap, softgpu, folder
        self.started, self.failed, self.passed = [], 0, 0

    def check(self, name, test):
        try:
            test()
        except Exception as error:  # noqa: BLE001 - told, and counted
            self.failed += 1
            print(f"test {name} ... FAILED")
            said = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            print("    " + said.strip().replace("\n", "\n    "))
        else:
            self.passed += 1
            print(f"test {name} ... ok")

    def start(self, name, *words, **more):
        out = self.folder / f"{name}-{len(self.started)}.out"
        with open(out, "w") as file:
            process = subprocess.Popen([*map(str, words)], stdin=subprocess.DEVNULL, stdout=file, stderr=file, **more)
        self.started.append(process)
        return process, out

    def serve(self, port, authority="tls.crt", interval="1s"):
        words = ["serve", "--listen=127.0.0.1:0", "--interval=0.2", "--budget=50%", "--by-process"]
        words += [f"--otlp=https://localhost:{port}", f"--otlp-interval={interval}", f"--otlp-ca={self.folder / authority}"]
        # The software GPU's memory is that of files which are called as the driver's devices.
        variables = {"NVCAP_DEVICES_BY_NAME": "1", "OTEL_EXPORTER_OTLP_HEADERS": ENCODED, "OTEL_RESOURCE_ATTRIBUTES": "k8s.cluster.name=a%20b"}
        return self.start("serve", self.nvcap, *words, env={**os.environ, **variables})

    def sums(self):
        """What each process of these tests has submitted, as the newest request says."""
        request = self.collector.newest()
        all_points = points(request, "nvcap.submissions") if request else []
        return {labels.get("process.pid"): point.as_int for labels, point in all_points}

    def counts_are_sent(self):
        self.collector = Collector(self.folder)
        self.gpus = {}
        # Before the processes: what they submitted earlier would not count.
        self.server, self.said = self.serve(self.collector.port)
        until("nvcap serves", lambda: "serving" in self.said.read_text())
        for seed, submissions in enumerate(SUBMISSIONS):
            words = ["--files", "--gpus=1", "--channels=4", f"--submissions={submissions}", f"--seed={seed + 1}"]
            process, _ = self.start("softgpu", self.softgpu, *words, "--sleep-us=1000", "--linger-ms=3600000")
            self.gpus[process.pid] = submissions
        all_sent = lambda: all(self.sums().get(pid) == truth for pid, truth in self.gpus.items())  # noqa: E731
        try:
            until("all counts are sent", all_sent)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.sums()}, not {self.gpus}; {self.said.read_text()}") from error

    def as_the_protocol_says(self):
        path, headers, _, _ = self.collector.got[0]
        headers = {name.lower(): value for name, value in headers.items()}
        assert path == "/v1/metrics", path
        assert headers["content-type"] == "application/x-protobuf", headers
        assert headers["authorization"] == TOKEN, headers
        assert headers["user-agent"].startswith("nvcap/"), headers
        request = self.collector.newest()
        for labels, point in points(request, "nvcap.submissions"):
            assert labels["service.name"] == "nvcap" and labels["k8s.cluster.name"] == "a b", labels
            assert labels["host.name"] == os.uname().nodename, labels
            assert 0 < point.start_time_unix_nano <= point.time_unix_nano, point
        for of in request.resource_metrics:
            for metric in of.scope_metrics[0].metrics:
                assert metric.WhichOneof("data") in ("sum", "gauge") and metric.description, metric
                if metric.WhichOneof("data") == "sum":
                    assert metric.sum.is_monotonic and metric.sum.aggregation_temporality == 2, metric

    def a_collector_that_is_away(self):
        port = self.collector.port
        # Before, too, where this program had no processor for so long that nvcap gave a request up.
        told = lambda: self.said.read_text().count("took no metrics") - self.said.read_text().count("takes metrics again")  # noqa: E731
        self.collector.status = 400
        until("requests are refused", lambda: len([1 for *_, status in self.collector.got if status == 400]) > 2)
        assert told() == 1, self.said.read_text()
        self.collector.stop()
        self.collector = Collector(self.folder, port)
        until("the next collector gets all", lambda: self.sums() and all(self.sums().get(p) == n for p, n in self.gpus.items()))
        until("that is told", lambda: told() == 0)
        assert self.server.poll() is None

    def the_last_counts_are_sent(self):
        """Of a nvcap that would send the next time in an hour, and ends by a signal."""
        self.server.terminate()
        assert self.server.wait(GUARD) == 0, self.said.read_text()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nvcap waits for a collector for 12 s, and tells of it: this one may have had no processor for so long.
            for _ in range(TRIES):
                sums, pid, said = self.last_counts(number)
                if sums.get(pid) == 300 or "did not take the last counts" not in said:
                    break
            assert sums.get(pid) == 300, (number, sums, said)

    def last_counts(self, number):
        """What a new collector has at last of a nvcap that this signal ends; a process that has submitted 300; what nvcap said."""
        self.collector.stop()
        self.collector = Collector(self.folder)
        server, said = self.serve(self.collector.port, interval="1h")
        # Sent after the first reading of counts; what is submitted before that may be in it.
        until("the first counts are sent", lambda: self.collector.got)
        until("nvcap serves", lambda: "serving" in said.read_text())
        address = re.search(r"serving (http://\S+/metrics)", said.read_text())[1]
        words = ["--files", "--gpus=1", "--submissions=300", "--sleep-us=1000", "--linger-ms=3600000"]
        pid = self.start("softgpu", self.softgpu, *words)[0].pid
        truth = re.compile(rf'^nvcap_submissions_total{{[^}}]*pid="{pid}"[^}}]*}} 300$', re.MULTILINE)
        until("all submissions are counted", lambda: truth.search(answer(address)))
        assert pid not in self.sums(), self.sums()
        server.send_signal(number)
        assert server.wait(GUARD) == 0, said.read_text()
        return self.sums(), pid, said.read_text()

    def a_stranger_gets_nothing(self):
        self.collector.stop()
        self.collector = Collector(self.folder)
        for _ in range(TRIES):
            server, said = self.serve(self.collector.port, authority="other.crt")
            until("that it took nothing is told", lambda said=said: "took no metrics (" in said.read_text())
            assert not self.collector.got, "the metrics were sent"
            assert "a-token" not in said.read_text(), said.read_text()
            server.terminate()
            # As above: this program had no processor for the handshake.
            if "took no metrics (no answer" not in said.read_text():
                break
        assert "took no metrics (TLS" in said.read_text(), said.read_text()

    def run(self):
        for name in ("tls", "other"):
            openssl(
                "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
                "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                "-addext", "basicConstraints=critical,CA:FALSE",
                "-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.crt",
            )  # fmt: skip
        try:
            self.check("counts are sent to a collector, exactly", self.counts_are_sent)
            self.check("requests are as OTLP has them", self.as_the_protocol_says)
            self.check("a collector that was away gets all counts", self.a_collector_that_is_away)
            self.check("the last counts are sent at the end", self.the_last_counts_are_sent)
            self.check("a collector with another certificate gets nothing", self.a_stranger_gets_nothing)
        finally:
            for process in self.started:
                process.kill()
        print(f"{self.passed} passed, {self.failed} failed, 0 skipped")
        return 1 if self.failed else 0


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="nvcap-collector-") as folder:
        return Tests(*(Path(word).resolve() for word in sys.argv[1:]), Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main())
