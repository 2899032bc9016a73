#!/usr/bin/env python3
"""Reads tables of `nvcap export` by DuckDB and pyarrow. Status 1 and words on standard error where something is wrong.

    check.py same PARQUET CSV SCHEMA   two folders have the same rows, of the types of `nvcap schema --json`
    check.py parts FOLDER WHOLE COLUMN a folder with partitions has the rows of one without
    check.py begin PART WHOLE          the rows of a file are the first ones of another
    check.py equal FILE FILE           two files have the same rows
    check.py live FOLDER SUBMISSIONS LAUNCHES COPIES
                                       a folder has so many rows, all that is in them fits together, and some is timed
    check.py queries REPOSITORY NVCAP WORK [--write]
                                       the queries of docs/queries.md give the answers that stand there; --write puts them there
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

TYPES = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "bytes": pa.binary(),
}


def wrong(words):
    sys.exit(words)


def as_csv(value):
    """A value as CSV has it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def rows(table):
    return [tuple(row.values()) for row in table.to_pylist()]


def same(parquet, csv, schema):
    """Both formats against the schema, and against each other; both readers of Parquet against each other."""
    import csv as reader

    for table in json.loads(Path(schema).read_text()):
        name = table["name"]
        path = f"{parquet}/{name}.parquet"
        read = pq.read_table(path)
        expected = [(c["name"], TYPES[c["type"]], c["nullable"]) for c in table["columns"]]
        found = [(f.name, f.type, f.nullable) for f in read.schema]
        if found != expected:
            wrong(f"{path} has {found}, not {expected}")
        with open(f"{csv}/{name}.csv", newline="") as file:
            lines = list(reader.reader(file))
        if lines[0] != [c[0] for c in expected]:
            wrong(f"{name}.csv has the columns {lines[0]}")
        values = rows(read)
        if [[as_csv(v) for v in row] for row in values] != lines[1:]:
            wrong(f"{name}: CSV and Parquet differ")
        if duckdb.sql(f"SELECT * FROM '{path}'").fetchall() != values:
            wrong(f"{name}: DuckDB reads other rows than pyarrow")
        meta = pq.ParquetFile(path).metadata
        for group in range(meta.num_row_groups):
            for at in range(meta.num_columns):
                column = meta.row_group(group).column(at)
                of = read.column(at)
                stored = column.statistics
                if stored.null_count != of.null_count:
                    wrong(f"{path}.{column.path_in_schema}: {stored.null_count} of {of.null_count} nulls")
                if stored.has_min_max and meta.num_row_groups == 1:
                    known = [v for v in of.to_pylist() if v is not None]
                    if isinstance(known[0], (str, bytes)):
                        # Long ones are stored as bounds: the first bytes, of the largest with the last one raised.
                        right = stored.min <= min(known) and max(known) <= stored.max
                    else:
                        right = (stored.min, stored.max) == (min(known), max(known))
                    if not right:
                        wrong(f"{path}.{column.path_in_schema}: {stored.min} to {stored.max}")


def parts(folder, whole, key):
    """Partitions as DuckDB and pyarrow find them."""
    import pyarrow.dataset as ds

    for name in ["operations", "submissions", "kernels"]:
        path = f"{whole}/{name}.parquet"
        query = f"SELECT {key}, count(*), sum(serial) FROM {{}} GROUP BY {key} ORDER BY {key}"
        divided = f"read_parquet('{folder}/{name}/**/*.parquet', hive_partitioning = true)"
        found, expected = (duckdb.sql(query.format(of)).fetchall() for of in (divided, f"'{path}'"))
        if found != expected:
            wrong(f"{name}: {found}, not {expected}")
        rows = ds.dataset(f"{folder}/{name}", format="parquet", partitioning="hive").count_rows()
        if rows != pq.read_metadata(path).num_rows:
            wrong(f"{name}: pyarrow finds {rows} rows")


def begin(part, whole):
    groups = pq.read_metadata(whole).num_row_groups
    some, all_rows = pq.read_table(part), pq.read_table(whole)
    if groups < 2 or not 0 < some.num_rows < all_rows.num_rows:
        wrong(f"{some.num_rows} of {all_rows.num_rows} rows in {groups} groups")
    if not some.equals(all_rows.slice(0, some.num_rows)):
        wrong("other rows")
    if duckdb.sql(f"SELECT count(*) FROM '{part}'").fetchall() != [(some.num_rows,)]:
        wrong("DuckDB finds other rows")


def equal(one, other):
    if not pq.read_table(one).equals(pq.read_table(other)):
        wrong(f"{one} and {other} have other rows")


def live(folder, submissions, launches, copies):
    def one(query):
        return duckdb.sql(query.replace("'@", f"'{folder}/").replace("@'", ".parquet'")).fetchone()

    found = one(
        "SELECT (SELECT count(*) FROM '@submissions@'), (SELECT count(*) FROM '@kernels@'), "
        "(SELECT count(*) FROM '@operations@' WHERE op = 'copy' AND src IS NOT NULL)"
    )
    if found != (int(submissions), int(launches), int(copies)):
        wrong(f"{found} submissions, launches and copies")
    lone = one("SELECT count(*) FROM '@operations@' ANTI JOIN '@submissions@' USING (serial, channel, pid, time_ns)")
    if lone != (0,):
        wrong(f"{lone} operations without a submission")
    ledger = one("SELECT complete, exit_status, submissions, unshown FROM '@ledger@'")
    if ledger != (True, 0, int(submissions), 0):
        wrong(f"the ledger is {ledger}")
    timed = one("SELECT count(gpu_ns) FROM '@operations@' WHERE gpu_start_ns >= time_ns AND queued_least_ns <= queued_most_ns")
    if timed[0] == 0:
        wrong("nothing is timed")
    channels = one("SELECT sum(submissions), bool_and(complete) FROM '@channels@'")
    if channels != (int(submissions), True):
        wrong(f"channels have {channels}")


BLOCK = re.compile(r"```sql\n(.*?)```\n\n((?:\|[^\n]*\n)*)", re.S)


def answer(query):
    """The answer as a table of Markdown."""
    found = duckdb.sql(query)

    def cell(value):
        return "" if value is None else str(value).replace("|", "\\|")

    lines = [found.columns, ["---"] * len(found.columns)]
    lines += [[cell(value) for value in row] for row in found.fetchall()]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def queries(repository, nvcap, work, *write):
    page = Path(repository, "docs/queries.md").resolve()
    text = page.read_text()
    os.chdir(work)
    if not Path("tests").exists():
        Path("tests").symlink_to(Path(repository, "tests").resolve())
    commands = re.findall(r"^    (nvcap export .*)$", text, re.M)
    for command in commands:
        words = shlex.split(command, comments=True)
        # A fixture that lacks something ends with 3.
        if subprocess.run([nvcap, *words[1:]], stderr=subprocess.DEVNULL).returncode not in (0, 3):
            wrong(f"{command} failed")
    bad = []

    def fill(block):
        query, stands = block.groups()
        found = answer(query)
        if found != stands:
            bad.append(f"{query}stands as\n{stands}and is\n{found}")
        return f"```sql\n{query}```\n\n{found}"

    filled = BLOCK.sub(fill, text)
    count = len(BLOCK.findall(text))
    if text.count("```sql") != count or not commands:
        wrong("docs/queries.md has queries without answers, or no command")
    if write:
        page.write_text(filled)
    elif bad:
        wrong("\n".join(bad))
    print(f"{count} queries")


if __name__ == "__main__":
    checks = [same, parts, begin, equal, live, queries]
    {check.__name__: check for check in checks}[sys.argv[1]](*sys.argv[2:])
