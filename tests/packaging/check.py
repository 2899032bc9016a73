"""Checks the recipes of packaging/ that have no checker of their own; `cargo xtask ci-helpers package` calls it.

usage: check.py options FOLDER NVCAP           needs PyYAML
       check.py kubernetes FOLDER            needs kubernetes-validate
       check.py prometheus FOLDER PROMTOOL   needs PyYAML
       check.py workflows FOLDER             needs PyYAML
       check.py collector FOLDER             needs PyYAML

Prints `test NAME ... ok` or `... FAILED` with the reason below it, and `N passed, N failed, N skipped` at the end.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

# What a panel's query has in place of a value.
GRAFANA = {"$__rate_interval": "5m", "$__range": "1h", "$instance": ".*", "$namespace": ".*", "$pod": ".*"}


def kustomized(folder):
    """The manifests that the kustomization names, each with its file."""
    top = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = set(top["resources"])
    there = {f.name for f in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == there, f"kustomization.yaml names {files}, the folder has {there}"
    version = re.search(r'^version = "(.*)"', (folder / "../../Cargo.toml").read_text(), re.M)[1]
    tags = {image["name"]: image["newTag"] for image in top["images"]}
    assert tags == {"nvcap": version}, f"the image is {tags}, the version {version}"
    for name in sorted(files):
        for manifest in yaml.safe_load_all((folder / name).read_text()):
            manifest["metadata"].setdefault("namespace", top["namespace"])
            yield name, manifest


# Each component that may be added, and the rights that it gives the pod beside those of `privileges`.
COMPONENT_RIGHTS = {"xid": {"privileged", "kmsg"}, "otlp": {"egress"}}


def patched(manifest, operations):
    """A manifest by JSON patch, of which the components use `add` at the end of lists and `replace`."""
    for operation in operations:
        assert operation.keys() == {"op", "path", "value"}, operation
        *way, last = operation["path"].strip("/").split("/")
        at = manifest
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        if operation["op"] == "add":
            assert last == "-" and isinstance(at, list), operation
            at.append(operation["value"])
        else:
            assert operation["op"] == "replace" and last in at, operation
            at[last] = operation["value"]
    return manifest


def with_component(folder, name):
    """The manifests with a component."""
    component = yaml.safe_load((folder / "components" / name / "kustomization.yaml").read_text())
    assert component["kind"] == "Component" and component.keys() == {"apiVersion", "kind", "patches"}, component.keys()
    manifests = [manifest for _, manifest in kustomized(folder)]
    for patch in component["patches"]:
        (meant,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])]
        patched(meant, yaml.safe_load(patch["patch"]))
    return manifests


def components_of_pods(folder):
    """Each component fits the schemas, is named in kustomization.yaml, and opens what it says and no more."""
    import kubernetes_validate

    assert {f.parent.name for f in folder.glob("components/*/kustomization.yaml")} == COMPONENT_RIGHTS.keys()
    for name, rights in COMPONENT_RIGHTS.items():
        assert f"#  - components/{name}" in (folder / "kustomization.yaml").read_text(), name
        manifests = with_component(folder, name)
        for manifest in manifests:
            for version in ("1.30", "1.37"):
                kubernetes_validate.validate(manifest, version, strict=True)
        by_kind = {m["kind"]: m for m in manifests}
        pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        context = container["securityContext"]
        has = {"privileged"} if context["privileged"] else set()
        assert context["privileged"] == context["allowPrivilegeEscalation"], "Kubernetes refuses such a pod"
        kmsg = [v["name"] for v in pod["volumes"] if v.get("hostPath", {}).get("path") == "/dev/kmsg"]
        has |= set(kmsg)
        for mount in container["volumeMounts"]:
            assert mount["name"] == "state" or mount["readOnly"], mount
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        has |= {"egress"} if by_kind["NetworkPolicy"]["spec"]["egress"] else set()
        assert has == rights, f"{name} gives {has}, not {rights}"
        # Who may send has a way to where it sends.
        otlp = [re.fullmatch(r"--otlp=https://[\w.-]+:(\d+)", arg) for arg in container["args"] if arg.startswith("--otlp=")]
        ports = [port["port"] for rule in by_kind["NetworkPolicy"]["spec"]["egress"] for port in rule["ports"]]
        assert bool(otlp) == ("egress" in has) and all(int(one[1]) in ports for one in otlp), (otlp, ports)


def schemas(folder):
    """Every manifest fits the schema of Kubernetes, without a field that the schema does not know."""
    import kubernetes_validate

    seen = 0
    for name, manifest in kustomized(folder):
        for version in ("1.30", "1.37"):
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as e:
                raise AssertionError(f"{name} does not fit {version}: {e}") from e
        seen += 1
    assert seen >= 5, seen


def privileges(folder):
    """The pod has what observing needs, and no more."""
    pod = next(m for _, m in kustomized(folder) if m["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    assert pod["hostPID"] and not pod.get("hostNetwork") and not pod.get("hostIPC"), "namespaces of the host"
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    context = container["securityContext"]
    assert context["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}, context
    assert not context["privileged"] and not context["allowPrivilegeEscalation"] and context["readOnlyRootFilesystem"]
    written = [mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert written == ["state"], f"mounted to be written: {written}"
    assert "emptyDir" in next(v for v in pod["volumes"] if v["name"] == "state")
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}, mounted
    assert container["resources"]["limits"].keys() == {"cpu", "memory"}
    assert not next(m for _, m in kustomized(folder) if m["kind"] == "NetworkPolicy")["spec"]["egress"], "it asks nobody"
    # nvcap sends once more when it is told to end.
    source = (folder / "../../nvcap/src/cli/serve/otlp.rs").read_text()
    last = int(re.search(r"const LAST: Duration = Duration::from_secs\((\d+)\);", source)[1])
    assert pod["terminationGracePeriodSeconds"] > last + 5, f"the last push may take {last} s"


def joined(folder):
    """Service, network policy and probes mean the pods and the port that there are."""
    by_kind = {m["kind"]: m for _, m in kustomized(folder)}
    template = by_kind["DaemonSet"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert by_kind["DaemonSet"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["spec"]["selector"] == labels
    assert by_kind["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    (port,) = by_kind["Service"]["spec"]["ports"]
    assert ports[port["targetPort"]] == port["port"]
    assert f"--listen=0.0.0.0:{ports['metrics']}" in container["args"], container["args"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports, probe
    assert template["spec"]["serviceAccountName"] == by_kind["ServiceAccount"]["metadata"]["name"]


def promtool(program, *args, cwd=None):
    done = subprocess.run([program, *args], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0 and "FAILED" not in done.stdout, (done.stdout + done.stderr).strip()


def config(folder, program):
    """The scrape configurations are ones."""
    promtool(program, "check", "config", "--syntax-only", "prometheus.yml", cwd=folder)
    # Debian's program is built without Kubernetes: another way to find targets stands in its place.
    pods = yaml.safe_load((folder / "prometheus-kubernetes.yml").read_text())
    for job in pods["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs"), job
        job["file_sd_configs"] = [{"files": ["x.json"]}]
    pods["rule_files"] = [str(folder / name) for name in pods["rule_files"]]
    with tempfile.TemporaryDirectory() as there:
        file = Path(there) / "prometheus.yml"
        file.write_text(yaml.safe_dump(pods))
        promtool(program, "check", "config", "--syntax-only", file)


def alerts(folder, program):
    """The alerts are raised when they must be, and each of them is tested."""
    rules = yaml.safe_load((folder / "nvcap.rules.yml").read_text())
    tests = yaml.safe_load((folder / "nvcap.rules.test.yml").read_text())
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    raised = {c["alertname"] for t in tests["tests"] for c in t["alert_rule_test"] if c.get("exp_alerts")}
    assert names == raised, f"no test raises {names - raised}"
    promtool(program, "check", "rules", "nvcap.rules.yml", cwd=folder)
    promtool(program, "test", "rules", "nvcap.rules.test.yml", cwd=folder)


def queries(dashboard):
    """Every query of every panel, with values for Grafana's variables."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for variable, value in GRAFANA.items():
                query = query.replace(variable, value)
            assert "$" not in query, f"{panel['title']}: a variable is not known: {query}"
            yield panel["title"], query


def dashboard(folder, program):
    """Each query of each panel is PromQL, panels do not overlap, and each has a query and a title."""
    shown = json.loads((folder / "../grafana/nvcap.json").read_text())
    wanted = [p["title"] for p in shown["panels"] if p["type"] != "row"]
    assert {title for title, _ in queries(shown)} == set(wanted) and len(wanted) > 10, wanted
    cells = set()
    for panel in shown["panels"]:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells and at["x"] + at["w"] <= 24, f"{panel['title']} lies on another panel"
        cells |= own
    ids = [panel["id"] for panel in shown["panels"]]
    assert len(set(ids)) == len(ids), "two panels have one id"
    rules = [{"record": f"panel:{n}", "expr": query} for n, (_, query) in enumerate(queries(shown))]
    with tempfile.TemporaryDirectory() as there:
        file = Path(there) / "dashboard.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        promtool(program, "check", "rules", file)


def exported():
    """The metrics of nvcap serve, with the endings that their kinds give them, from the source that writes them."""
    source = Path(__file__).resolve().parents[2] / "nvcap/monitor/src/serve"
    files = [source / "metrics.rs", *sorted((source / "metrics").glob("*.rs"))]
    written = "".join(file.read_text().split("#[cfg(test)]")[0] for file in files)
    names = {}
    ends = {"Count": "_total", "Counter": "_total", "Info": "_info", "Histogram": "_bucket"}
    for name, kind in re.findall(r'"nvcap_(\w+)",\s*Kind::(\w+)', written):
        names[name + ends.get(kind, "")] = kind
    names |= {f"{name}_total": "Counter" for name in re.findall(r'name: "nvcap_(\w+)"', written)}
    documented = set(re.findall(r"`nvcap_(\w+)`", (source / "../../../../docs/counts.md").read_text()))
    missing = {name.removesuffix("_bucket") for name in names} - documented
    assert len(names) >= 15 and not missing, f"docs/counts.md does not have {missing}"
    return set(names)


def metrics(folder, _program):
    """Alerts and dashboard ask for metrics that there are, and the dashboard shows all of them."""
    rules = (folder / "nvcap.rules.yml").read_text()
    shown = json.loads((folder / "../grafana/nvcap.json").read_text())
    asked = " ".join(query for _, query in queries(shown))
    # Not the values of the label `metric`, which are names, too.
    named = set(re.findall(r'(?<!")\bnvcap_(\w+)', asked))
    there = exported()
    assert named == there, f"not shown or not known: {named ^ there}"
    exprs = [rule["expr"] for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]]
    unknown = set(re.findall(r"\bnvcap_(\w+)", " ".join(exprs))) - there
    assert not unknown, unknown


def empty_panels(folder, _program):
    """docs/install.md lists the panels that are empty without the options that nvcap.service does not have."""
    shown = json.loads((folder / "../grafana/nvcap.json").read_text())
    source = Path(__file__).resolve().parents[2] / "nvcap/monitor/src/serve/metrics"
    named = lambda file: set(re.findall(r'"(nvcap_\w+)"', (source / file).read_text().split("#[cfg(test)]")[0]))  # noqa: E731
    of_samples = named("sampled.rs") - {"nvcap_ended_counters"}
    needs = {"--sample": of_samples, "--shares": named("shares.rs"), "--by-process": {"nvcap_process"}, "the kernel's log": {"nvcap_channel_errors"}}
    page = (folder / "../../docs/install.md").read_text()
    for option, metrics in needs.items():
        asks = re.compile(rf"\b(?:{'|'.join(sorted(metrics))})(?:_total|_info|_bucket)?\b")
        # Of a panel with a query that needs nothing of it, something is shown.
        of_panel = lambda panel: [bool(asks.search(target["expr"])) for target in panel.get("targets", [])]  # noqa: E731
        empty = {panel["title"] for panel in shown["panels"] if of_panel(panel) and all(of_panel(panel))}
        row = re.search(rf"^\| `?{option}`? \| (.*?)(?:;.*)? \|$", page, re.M)
        assert row and set(row[1].split(", ")) == empty, f"{option}: {empty}, docs/install.md has {row and row[1]}"


def workflows(folder):
    """Each workflow has the least rights, and calls the gate before it packs."""
    files = sorted(folder.glob("*.yml"))
    assert files, "no workflow"
    for file in files:
        flow = yaml.safe_load(file.read_text())
        assert flow["permissions"] == {"contents": "read"}, f"{file.name}: rights for all jobs"
        for name, job in flow["jobs"].items():
            assert job["runs-on"].startswith("ubuntu-"), f"{file.name}: {name}"
            for need in [job.get("needs", [])]:
                assert set([need] if isinstance(need, str) else need) <= flow["jobs"].keys(), f"{file.name}: {name}"
            steps = job["steps"]
            assert all(("run" in step) != ("uses" in step) for step in steps), f"{file.name}: {name}"
            runs = [step.get("run", "") for step in steps]
            if "cargo xtask package" in runs:
                assert "bash .ci/run" in runs[: runs.index("cargo xtask package")], f"{file.name}: {name} packs untested"


# Of components of the Collector's distribution otelcol-contrib, the keys that the recipe may use, as their documentation has them. No Collector runs
# here (it is in no registry that the gate uses), so this list is what finds a misspelt one.
COMPONENTS = {
    "extensions": {"bearertokenauth": {"scheme", "filename"}},
    "receivers": {"otlp": {"protocols"}},
    "processors": {"memory_limiter": {"check_interval", "limit_mib", "spike_limit_mib"}, "batch": {"timeout", "send_batch_size"}},
    "exporters": {
        "clickhouse": {
            "endpoint", "database", "username", "password", "create_schema", "ttl", "compress", "timeout", "sending_queue", "retry_on_failure",
        },
    },
}  # fmt: skip


def components(folder):
    """Each component of the recipe is known, with known keys, and used; the pipeline takes metrics as nvcap sends them, and asks for a token over TLS."""
    recipe = yaml.safe_load((folder / "collector.yaml").read_text())
    assert recipe.keys() == COMPONENTS.keys() | {"service"}, recipe.keys()
    pipeline = recipe["service"]["pipelines"]["metrics"]
    used = pipeline | {"extensions": recipe["service"]["extensions"]}
    for kind, known in COMPONENTS.items():
        assert set(used[kind]) == set(recipe[kind]), f"{kind}: {used[kind]} are used, {list(recipe[kind])} are there"
        for name, keys in recipe[kind].items():
            unknown = set(keys) - known[name.split("/")[0]]
            assert not unknown, f"{kind}: {name} has no {unknown}"
    assert pipeline["processors"][0] == "memory_limiter", pipeline
    http = recipe["receivers"]["otlp"]["protocols"]["http"]
    assert http["auth"]["authenticator"] in recipe["extensions"] and http["tls"].keys() == {"cert_file", "key_file"}, http
    pages = (folder / "../../docs/counts.md").read_text()
    port = http["endpoint"].split(":")[1]
    assert f"--otlp https://collector:{port} " in pages, f"docs/counts.md does not send to port {port}"


def options(packaging, nvcap):
    """`nvcap serve` takes every option that the service, the pods and the page for users give it."""
    given = {}
    unit = (packaging / "systemd/nvcap.service").read_text()
    given["nvcap.service"] = re.search(r"^ExecStart=\S+ serve (.*)", unit, re.M)[1]
    pod = next(m for _, m in kustomized(packaging / "kubernetes") if m["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    given["daemonset.yaml"] = " ".join(pod["containers"][0]["args"])
    for name in COMPONENT_RIGHTS:
        pods = next(m for m in with_component(packaging / "kubernetes", name) if m["kind"] == "DaemonSet")
        given[f"components/{name}"] = " ".join(pods["spec"]["template"]["spec"]["containers"][0]["args"])
    page = (packaging / "../docs/install.md").read_text()
    given["install.md"] = re.search(r'NVCAP_SERVE_OPTIONS="(.*)"', page)[1]
    done = subprocess.run([nvcap, "serve", "--help"], capture_output=True, text=True)
    taken = set(re.findall(r"--[a-z-]+", done.stdout))
    for where, words in given.items():
        unknown = set(re.findall(r"--[a-z-]+", words)) - taken
        assert not unknown, f"{where}: nvcap serve does not take {unknown}"


def main():
    what, folder, *rest = sys.argv[1:]
    tests = {"kubernetes": [schemas, privileges, joined, components_of_pods], "prometheus": [config, alerts, dashboard, metrics, empty_panels], "workflows": [workflows], "collector": [components], "options": [options]}[what]
    passed = failed = 0
    for test in tests:
        try:
            test(Path(folder).resolve(), *[os.path.abspath(r) for r in rest])
            passed += 1
            print(f"test {what}::{test.__name__} ... ok")
        except Exception as e:
            failed += 1
            print(f"test {what}::{test.__name__} ... FAILED")
            for line in f"{type(e).__name__}: {e}".splitlines():
                print(f"    {line}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
