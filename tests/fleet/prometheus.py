"""A Prometheus of one's own, with its files in a folder, and its answers; fleet.py and scale.py use it."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request


class Prometheus:
    """The server, from its start to `stop`."""

    def __init__(self, program, folder, config, port, *more):
        self.url = f"http://127.0.0.1:{port}"
        file = folder / "prometheus.yml"
        file.write_text(config)
        self.log = folder / "prometheus.log"
        options = [
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            # Debian's pages: they are not unpacked, and nobody looks at them here.
            f"--web.console.templates={folder}",
            f"--web.console.libraries={folder}",
            *more,
        ]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([program, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until("Prometheus is ready", self.is_ready)

    def is_ready(self):
        assert self.process.poll() is None, f"Prometheus ended: {self.log.read_text()[-2000:]}"
        try:
            return urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def get(self, path, **query):
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=GUARD) as answer:
            said = json.load(answer)
        assert said["status"] == "success", said
        return said["data"]

    def ask(self, query):
        """An instant query: the labels and the value of each series."""
        return [(one["metric"], float(one["value"][1])) for one in self.get("/api/v1/query", query=query)["result"]]

    def number(self, query):
        """The one value of a query; None where there is none."""
        answers = self.ask(query)
        assert len(answers) < 2, f"{query}: {answers}"
        return answers[0][1] if answers else None

    def samples(self, series, seconds=86_400):
        """What was scraped of the series within a day, each as it came: the values by their labels."""
        found = self.get("/api/v1/query", query=f"{series}[{seconds}s]")["result"]
        return [(one["metric"], [(float(t), float(v)) for t, v in one["values"]]) for one in found]

    def firing(self, alert):
        """The labels with which the alert is raised."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return [a["labels"] for a in alerts if a["state"] == "firing" and a["labels"]["alertname"] == alert]

    def own(self):
        """The server's own metrics, each the sum of its series."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=GUARD) as answer:
            lines = answer.read().decode().splitlines()
        sums = {}
        for line in lines:
            if line and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                name = series.split("{")[0]
                sums[name] = sums.get(name, 0) + float(value)
        return sums

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# Seconds after which a check is taken to hang. A busy machine takes long: nothing is judged by it.
GUARD = 600


def until(what, done):
    """Waits until it is so; what `done` says then. `what`: the words, or what says them."""
    end = time.monotonic() + GUARD
    while True:
        said = done()
        if said:
            return said
        if time.monotonic() > end:
            raise AssertionError(f"guard: not within {GUARD} s: {what() if callable(what) else what}")
        time.sleep(0.2)
