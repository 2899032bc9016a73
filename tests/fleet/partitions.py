"""Rotated recordings of two hosts as tables in one folder, and the queries of docs/scale.md on them by DuckDB and ClickHouse (chdb).

usage: partitions.py NVCAP SOFTGPU        as root, with duckdb, and chdb where it can be installed

A host is a PID namespace with a name of its own. On each, `nvcap record -a --rotate --tables` records processes of the software GPU.

Prints `test NAME ... ok` or `... FAILED` with the reason below it, `NOT RUN NAME: why` for what could not run, and
`N passed, N failed, N skipped` at the end.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Nothing is written beside the sources.
sys.dont_write_bytecode = True
from prometheus import GUARD, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TABLES = ["operations", "submissions", "kernels", "channels", "losses", "faults", "samples", "slices", "ledger"]
# What each host's processes submit.
WORK = {"gpu-a": [3000, 2000], "gpu-b": [4000]}
OWN = ["unshare", "--pid", "--uts", "--mount", "--fork", "--mount-proc", "--kill-child"]


def host(name, folder, nvcap, softgpu):
    """Inside of a host: records all processes until all that they submit is there, each file's tables while the next is written."""
    socket.sethostname(name)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
    (folder / name).mkdir()
    # By size: how many files there are is not for the machine's speed to say. Four at most: so many may wait for their tables.
    words = ["record", "-a", "--how=observe", "--rotate=1500K", "--keep=2", "-o", folder / name / "run.pcapng", "--tables", folder / "fleet"]
    log = folder / name / "record.log"
    with open(log, "w") as said:
        recorder = subprocess.Popen([nvcap, *map(str, words)], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    until("nvcap waits for processes", lambda: "waiting for those to come" in log.read_text())
    stay = folder / name / "stay"
    stay.touch()
    started = []
    for seed, submissions in enumerate(WORK[name]):
        # No channel makes more than its ring holds: nvcap may come as late as it likes, as long as the process is there.
        words = ["--files", "--gpus=1", "--channels=4", f"--submissions={submissions}", f"--seed={seed + 1}", "--kernels", "--threads=2"]
        words += ["--sleep-us=3000", f"--stay-while={stay}"]
        out = folder / name / f"softgpu-{seed}.out"
        with open(out, "w") as said:
            process = subprocess.Popen([softgpu, *words], stdin=subprocess.DEVNULL, stdout=said)
        started.append((process, out))
    for one, out in started:
        until("all is submitted", lambda one=one, out=out: "done image=0" in out.read_text() or one.poll() is not None)
        until("nvcap has its memory open", lambda one=one: reads(recorder.pid, one.pid) or one.poll() is not None)
    # As the user ends it: what is still there is read then, and all files are exported.
    recorder.send_signal(signal.SIGINT)
    status = recorder.wait(GUARD)
    assert status in (0, 3), f"nvcap record ended with {status}: {log.read_text()}"
    assert "no tables" not in log.read_text(), log.read_text()
    stay.unlink()
    for one, _ in started:
        assert one.wait(GUARD) == 0, "the software GPU failed"
    return 0


def reads(reader, pid):
    """Whether a process has the memory of another open."""
    for fd in Path(f"/proc/{reader}/fd").iterdir():
        try:
            if os.readlink(fd) == f"/proc/{pid}/mem":
                return True
        except OSError:
            continue
    return False


class Fleet:
    """The tests, in their order."""

    def __init__(self, nvcap, softgpu, folder):
        self.nvcap, self.folder, self.fleet = nvcap, folder, folder / "fleet"
        inside = [*OWN, sys.executable, os.path.abspath(__file__), "--host"]
        hosts = [subprocess.Popen([*inside, name, str(folder), nvcap, softgpu]) for name in WORK]
        for one in hosts:
            assert one.wait(GUARD) == 0, "a host failed"
        import duckdb

        os.chdir(folder)
        self.duckdb = duckdb.connect()

    def files(self):
        return sorted(self.fleet.rglob("*.parquet"))

    def written(self):
        """Files of each table for each part of the recording, whole, and their owner's alone."""
        assert not [f for f in self.fleet.iterdir() if f.name.startswith(".")], "something is left of an export"
        names = {table: {f.relative_to(self.fleet / table) for f in (self.fleet / table).rglob("*.parquet")} for table in TABLES}
        assert all(names[table] == names["ledger"] for table in TABLES), names
        for name in WORK:
            parts = [p for p in names["ledger"] if f"host={name}" in p.parts]
            assert len(parts) >= 3, f"{name} has {len(parts)} files: {parts}"
            # Recordings that were removed meanwhile have their tables all the same.
            assert len(list((self.folder / name).glob("run.*.pcapng"))) <= 2
        for part in names["ledger"]:
            assert re.fullmatch(r"date=\d{4}-\d\d-\d\d/hour=\d\d/host=gpu-[ab]/\d+-\d{5}\.parquet", str(part)), part
        for file in self.fleet.rglob("*"):
            mode = file.stat().st_mode & 0o777
            assert mode == (0o700 if file.is_dir() else 0o600), f"{file} has {mode:o}"

    def rows_are_the_truth(self):
        """Each submission is a row of its host, once."""
        tables = "SELECT host, count(*) FROM read_parquet('fleet/submissions/**/*.parquet', hive_partitioning = true) GROUP BY 1 ORDER BY 1"
        found = dict(self.duckdb.sql(tables).fetchall())
        assert found == {name: sum(work) for name, work in WORK.items()}, found

    def interrupted_exports_leave_none_half(self):
        """Killed at any time, an export leaves whole tables, and all of them where the ledger is there; once more, and all are."""
        recording = max((self.folder / "gpu-a").glob("run.*.pcapng"), key=lambda f: f.stat().st_size)
        other = self.folder / "interrupted"
        words = [self.nvcap, "export", "partitions", "-q", "--force", "--host=x", "-o", str(other), str(recording)]

        def took():
            """Seconds at least. The first has to read all programs and files, and a busy machine may take longer than usual."""
            times = []
            for _ in range(3):
                shutil.rmtree(other, ignore_errors=True)
                began = time.monotonic()
                subprocess.run(words, check=True)
                times.append(time.monotonic() - began)
            return min(times)

        whole = took()
        before = {f.relative_to(other): f.read_bytes() for f in other.rglob("*.parquet")}
        assert len(before) == len(TABLES), list(before)
        shutil.rmtree(other)
        cut, n, end = 0, 0, time.monotonic() + GUARD
        # Once more, where the machine was so busy when the time was taken that few were killed in time.
        while n % 40 or cut <= 5:
            assert time.monotonic() < end, f"guard: only {cut} of {n} were killed in time"
            if n and n % 40 == 0:
                whole = took()
                shutil.rmtree(other)
            export = subprocess.Popen(words)
            time.sleep(whole * (n % 40) / 40)
            export.kill()
            cut += export.wait() != 0
            there = {f.relative_to(other): f.read_bytes() for f in other.rglob("*.parquet") if not f.relative_to(other).parts[0].startswith(".")}
            assert all(before[name] == content for name, content in there.items()), f"cut at {n}: a table is there in part"
            ledger = [name for name in there if name.parts[0] == "ledger"]
            assert not ledger or len(there) == len(TABLES), f"cut at {n}: {list(there)}"
            if n % 8 == 7:
                shutil.rmtree(other, ignore_errors=True)
            n += 1
        subprocess.run(words, check=True)
        after = {f.relative_to(other): f.read_bytes() for f in other.rglob("*.parquet")}
        assert after == before and not [f for f in other.iterdir() if f.name.startswith(".")], list(after)

    # The queries of docs/scale.md.

    def blocks(self):
        """The views for each engine, and the queries for both."""
        text = (ROOT / "docs/scale.md").read_text()
        found = re.findall(r"^<!-- (duckdb|clickhouse|both) -->\n```sql\n(.*?)```", text, re.S | re.M)
        assert text.count("```sql") == len(found), "a query of docs/scale.md is for no engine"
        of = lambda engine: [block for name, block in found if name == engine]
        assert len(of("both")) >= 4 and of("duckdb") and of("clickhouse")
        return of

    def asked_of_duckdb(self):
        """DuckDB answers each query."""
        of = self.blocks()
        for block in of("duckdb"):
            self.duckdb.sql(block)
        self.answers = []
        for query in of("both"):
            rows = self.duckdb.sql(query).fetchall()
            assert rows, f"no answer: {query}"
            self.answers.append([tuple(map(as_text, row)) for row in rows])
        launched = self.duckdb.sql("SELECT count(*) FROM kernels").fetchone()[0]
        assert launched > 0 and launched == self.duckdb.sql("SELECT count(*) FROM operations WHERE op = 'launch'").fetchone()[0]

    def asked_of_clickhouse(self):
        """ClickHouse gives the same answers."""
        from chdb.session import Session

        of = self.blocks()
        session = Session()
        for block in of("clickhouse"):
            for statement in filter(str.strip, block.split(";")):
                session.query(statement)
        for query, expected in zip(of("both"), self.answers):
            said = str(session.query(query.strip().rstrip(";"), "TabSeparated"))
            rows = [tuple(map(as_text, line.split("\t"))) for line in said.splitlines()]
            assert rows == expected, f"{query}ClickHouse says {rows[:5]}, DuckDB {expected[:5]}"


def as_text(value):
    """A value as both engines are compared: whole numbers exactly, others to nine digits."""
    if value is None or value == "\\N":
        return "NULL"
    if isinstance(value, bool) or value in ("true", "false"):
        return str(value).lower()
    if re.fullmatch(r"-?\d+(\.0)?", str(value)):
        return str(value).removesuffix(".0")
    try:
        return f"{float(value):.9g}"
    except (TypeError, ValueError):
        return str(value)


TESTS = [
    Fleet.written,
    Fleet.rows_are_the_truth,
    Fleet.interrupted_exports_leave_none_half,
    Fleet.asked_of_duckdb,
    Fleet.asked_of_clickhouse,
]


def missing(package):
    try:
        __import__(package)
    except ImportError as e:
        return f"{package} is not here: {e}"
    return None


def refused():
    if os.geteuid() != 0:
        return "only root makes namespaces and looks into other processes"
    done = subprocess.run([*OWN, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], capture_output=True, text=True)
    if done.returncode != 0:
        return f"namespaces cannot be made here: {done.stderr.strip()}"
    return missing("duckdb")


def main():
    if sys.argv[1] == "--host":
        name, folder, *programs = sys.argv[2:]
        return host(name, Path(folder), *programs)
    programs = [os.path.abspath(p) for p in sys.argv[1:3]]
    os.environ["NVCAP_DEVICES_BY_NAME"] = "1"
    why = refused()
    no_clickhouse = why or missing("chdb")
    passed = failed = skipped = 0
    with tempfile.TemporaryDirectory() as folder:
        fleet = None
        for test in TESTS:
            name = f"partitions::{test.__name__}"
            unable = no_clickhouse if test is Fleet.asked_of_clickhouse else why
            if unable or failed:
                skipped += 1
                print(f"NOT RUN {name}: {unable or 'a test before it failed'}")
                continue
            try:
                fleet = fleet or Fleet(*programs, Path(folder))
                test(fleet)
                passed += 1
                print(f"test {name} ... ok")
            except Exception as e:
                failed += 1
                print(f"test {name} ... FAILED")
                for line in f"{type(e).__name__}: {e}".splitlines():
                    print(f"    {line}")
        os.chdir("/")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
