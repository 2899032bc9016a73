"""Every query of the dashboard, every alert's expression and every variable's question, asked of a Prometheus; fleet.py uses it.

What a panel shows depends on what goes on just then (a hang, a restart). So they are asked at several moments, and each must have had an answer at
one of them, but for those that a software GPU cannot give one to: they are listed here with the reason, and must have none.
"""

import json
import re
import time
from pathlib import Path

from prometheus import until

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"

# What a query has in place of a value; the times are this fleet's, which is scraped each second and lives for a minute.
GRAFANA = {"$__rate_interval": "15s", "$__range": "10m", "$instance": ".*", "$namespace": ".*", "$pod": ".*"}

# Those without an answer here. Panels: by a metric of the query; alerts and variables: by name.
NO_XID = "the driver of a software GPU writes no Xid"
NO_SHARES = "there is no driver here that records context switches (--shares)"
NO_POD = "no control group can be made here, so that no process is in a pod"
WITHOUT = {
    "panel": {
        "nvcap_channel_errors_total": NO_XID,
        "nvcap_graph_launches_total": "the software GPU's graphs are launched kernel by kernel",
        "nvcap_gpu_context_seconds_total": NO_SHARES,
        "nvcap_gpu_switch_seconds_total": NO_SHARES,
        "nvcap_gpu_unknown_context_seconds_total": NO_SHARES,
        "nvcap_gpu_switches_total": NO_SHARES,
        "nvcap_gpu_lost_switch_records_total": NO_SHARES,
    },
    "alert": {
        "NvcapChannelError": NO_XID,
        "NvcapGone": "this job has targets; promtool tests the alert",
    },
    "variable": {},
}
WITHOUT_PODS = {"namespace": NO_POD, "pod": NO_POD}
# These may have an answer: how much CPU time nvcap takes is the machine's business, and so is whether the tests take the ten minutes for which what
# ended keeps its series. Alerts by name, panels by a metric of the query.
MAY = ["NvcapOverBudget", "nvcap_ended_counters_total", "nvcap_ended_submissions_total"]


def filled(query):
    for variable, value in GRAFANA.items():
        query = query.replace(variable, value)
    assert "$" not in query, f"a variable is not known: {query}"
    return query


class Panels:
    """The queries, and which of them have been answered."""

    def __init__(self, prometheus, pods):
        self.prometheus = prometheus
        self.without = WITHOUT if pods else WITHOUT | {"variable": WITHOUT_PODS}
        self.dashboard = json.loads((PACKAGING / "grafana/nvcap.json").read_text())
        self.answered, self.asked = set(), {}

    def ask(self, alert=None):
        """Asks all of them once, as Grafana and Prometheus do: a graph's as a range, others for now. `alert` is raised: its own question until it is
        answered, for a scrape that comes too late on a busy machine leaves out what there is."""
        for panel in self.dashboard["panels"]:
            for target in panel.get("targets", []):
                query = filled(target["expr"])
                self.took(("panel", panel["title"], query), self.range(query) if panel["type"] == "timeseries" else self.prometheus.ask(query))
        for group in self.prometheus.get("/api/v1/rules")["groups"]:
            for rule in group["rules"]:
                assert rule["health"] in ("ok", "unknown"), f"{rule['name']}: {rule.get('lastError')}"
                asked = lambda query=rule["query"]: self.prometheus.ask(query)  # noqa: E731
                said = until(f"{alert} has an answer", asked) if rule["name"] == alert else asked()
                self.took(("alert", rule["name"], rule["query"]), said)
        for variable in self.dashboard["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
                self.took(("variable", variable["name"], series), self.prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": filled(series)}))

    def range(self, query):
        now = time.time()
        return self.prometheus.get("/api/v1/query_range", query=query, start=now - 30, end=now, step=1)["result"]

    def took(self, which, answer):
        self.asked[which] = None
        if answer:
            self.answered.add(which)

    def reason(self, which):
        kind, name, query = which
        if kind == "panel":
            return next((why for metric, why in self.without[kind].items() if metric in query), None)
        return self.without[kind].get(name)

    def verdict(self):
        """Fails where one that should have an answer never had one, or one has that is said to have none."""
        faults = []
        for which in self.asked:
            why, has = self.reason(which), which in self.answered
            may = any(word == which[1] or word in which[2] for word in MAY)
            if not may and has == bool(why):
                faults.append(f"{' '.join(which)}: " + (f"it has an answer, though {why}" if why else "it never had an answer"))
        assert not faults, "\n".join(faults)
        kinds = [which[0] for which in self.asked]
        assert {kind: kinds.count(kind) for kind in set(kinds)}.keys() == {"panel", "alert", "variable"}, kinds
