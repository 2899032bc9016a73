//! `nvcap export csv` and `nvcap export parquet`: the tables against JSON, against their schema and its page, and read by DuckDB and
//! pyarrow; where files go; a full disk; the queries of docs/queries.md with their answers.
#![cfg(all(feature = "parquet", feature = "xz"))]

use crate::common::training;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::cli::{Folder, argument, interrupt_while_it_reads, nvcap, text};
use crate::common::files::{capture, fixture};
use serde_json::Value;

const TABLES: [&str; 10] = [
    "operations",
    "submissions",
    "kernels",
    "ioctls",
    "channels",
    "losses",
    "faults",
    "samples",
    "slices",
    "ledger",
];

fn mixed() -> String {
    argument(capture("h200-mixed.orc.xz").expect("xz is built in"))
}

fn cut() -> String {
    argument(fixture("h200-cut.orc"))
}

/// Exports; the status must be `status`. Returns what was said and what came on standard output.
fn export(args: &[&str], status: i32) -> (String, String) {
    let all: Vec<&str> = ["export"].iter().chain(args).copied().collect();
    let out = nvcap(&all);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{all:?}: {said}");
    (said, text(&out.stdout))
}

fn schema() -> Vec<Value> {
    serde_json::from_str(&text(&nvcap(&["schema", "--json"]).stdout)).unwrap()
}

/// The fields of CSV, line by line.
fn fields(csv: &str) -> Vec<Vec<String>> {
    let (mut lines, mut line, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut quoted, mut all) = (false, csv.chars().peekable());
    while let Some(c) = all.next() {
        match (quoted, c) {
            (true, '"') if all.next_if_eq(&'"').is_some() => field.push('"'),
            (_, '"') => quoted = !quoted,
            (false, ',') => line.push(std::mem::take(&mut field)),
            (false, '\n') => {
                line.push(std::mem::take(&mut field));
                lines.push(std::mem::take(&mut line));
            }
            (_, c) => field.push(c),
        }
    }
    assert!(!quoted && field.is_empty() && line.is_empty());
    lines
}

/// Rows by the names of columns.
fn rows(csv: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = fields(csv).into_iter();
    let names = lines.next().expect("a line with names");
    let row = |line: Vec<String>| {
        assert_eq!(line.len(), names.len());
        names.iter().cloned().zip(line).collect()
    };
    lines.map(row).collect()
}

fn table(file: &str, name: &str, more: &[&str], status: i32) -> Vec<BTreeMap<String, String>> {
    let args = [&["csv", file, "--table", name], more].concat();
    rows(&export(&args, status).1)
}

#[test]
fn the_fixture_is_what_its_program_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/training.pcapng");
    let made = training::recording();
    if std::env::var_os("NVCAP_WRITE_FIXTURES").is_some() {
        fs::write(&path, &made).unwrap();
    }
    assert!(
        fs::read(&path).unwrap() == made,
        "to write it anew: NVCAP_WRITE_FIXTURES=1 cargo test -p nvcap --test all tables::"
    );
}

#[test]
fn the_page_has_every_table_and_column() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tables.md");
    let page = fs::read_to_string(&path).unwrap();
    let mut expected = String::new();
    for table in schema() {
        let about = table["about"].as_str().unwrap();
        let (first, rest) = about.split_at(1);
        expected.push_str(&format!(
            "### {}\n\n{}{rest}.\n\n",
            table["name"].as_str().unwrap(),
            first.to_uppercase()
        ));
        expected.push_str("| column | type | unit | source | meaning |\n");
        expected.push_str("| --- | --- | --- | --- | --- |\n");
        for c in table["columns"].as_array().unwrap() {
            let word = |name: &str| c[name].as_str().unwrap_or("");
            let presence = if c["nullable"] == true { "?" } else { "" };
            expected.push_str(&format!(
                "| `{}` | {}{presence} | {} | {} | {} |\n",
                word("name"),
                word("type"),
                word("unit"),
                word("source"),
                word("about"),
            ));
        }
        expected.push('\n');
    }
    let there = page.split_once("### operations").expect("the tables").1;
    let there = format!("### operations{there}");
    if there.trim_end() != expected.trim_end() {
        let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tables.md");
        fs::write(&made, &expected).unwrap();
        panic!("the end of docs/tables.md is not as {} is", made.display());
    }
}

/// A member of JSON as CSV has it; `None` where it has several values.
fn as_field(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Bool(b) => Some(b.to_string()),
        Value::Number(n) => Some(n.to_string()),
        Value::String(s) => Some(s.clone()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// Rows of a table against the objects of which it is made: a column with the name of a member has its value.
#[test]
fn columns_have_what_members_of_json_have() {
    let training = argument(fixture("training.pcapng"));
    let mut compared = BTreeMap::<String, usize>::new();
    for (file, status) in [(mixed(), 0), (cut(), 3), (training.clone(), 3)] {
        let decoded = text(&nvcap(&["decode", &file, "--json"]).stdout);
        let objects: Vec<Value> = decoded
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for (name, kind, op) in [
            ("operations", "operation", None),
            ("submissions", "submission", None),
            ("kernels", "operation", Some("launch")),
            ("ledger", "ledger", None),
        ] {
            let of = objects
                .iter()
                .filter(|o| o["type"] == kind && op.is_none_or(|op| o["op"] == op));
            let rows = table(&file, name, &[], status);
            assert_eq!(rows.len(), of.clone().count(), "{file} {name}");
            for (row, object) in rows.iter().zip(of) {
                for (column, field) in row {
                    let Some(value) = object.get(column).and_then(as_field) else {
                        continue;
                    };
                    assert_eq!(*field, value, "{file} {name}.{column}: {object}");
                    *compared.entry(format!("{name}.{column}")).or_default() += 1;
                }
            }
        }
        let ledger = objects.last().unwrap();
        let channels = table(&file, "channels", &[], status);
        let listed = ledger["channels"].as_array().unwrap();
        assert_eq!(channels.len(), listed.len());
        for (row, object) in channels.iter().zip(listed) {
            for (column, field) in row {
                assert_eq!(Some(field.clone()), object.get(column).and_then(as_field));
            }
        }
    }
    let log = text(&nvcap(&["ioctls", &training, "--json"]).stdout);
    let calls: Vec<Value> = { log.lines() }
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|o: &Value| o["type"] == "ioctl")
        .collect();
    let ioctls = table(&training, "ioctls", &[], 3);
    assert_eq!((calls.len(), ioctls.len()), (2, 2));
    for (row, object) in ioctls.iter().zip(&calls) {
        for (column, field) in row {
            let value = object.get(column).map_or(Some(String::new()), as_field);
            assert_eq!(Some(field.clone()), value, "ioctls.{column}: {object}");
        }
    }
    assert_eq!(ioctls[1]["ok"], "false");
    for column in [
        "operations.dst",
        "operations.direction",
        "operations.payload",
        "operations.gpu_ns",
        "operations.nodes",
        "submissions.bytes",
        "submissions.how",
        "kernels.registers",
        "kernels.args",
        "kernels.kernel_mangled",
        "kernels.queued_most_ns",
        "ledger.verdict",
    ] {
        assert!(compared.get(column).is_some_and(|n| *n > 0), "{column}");
    }
}

#[test]
fn what_is_missing_is_in_the_tables() {
    let training = argument(fixture("training.pcapng"));
    let losses = table(&training, "losses", &[], 3);
    let [loss] = &losses[..] else {
        panic!("one loss: {losses:?}")
    };
    assert_eq!((&*loss["what"], &*loss["count"]), ("entries", "3"));
    assert_eq!((&*loss["channel"], &*loss["position"]), ("2", "20"));
    let ledger = table(&training, "ledger", &[], 3);
    assert_eq!(ledger[0]["complete"], "false");
    assert_eq!(ledger[0]["exit_status"], "3");
    assert_eq!(ledger[0]["realtime_ns"], "1700000000000000000");
    let (_, whole) = export(&["csv", &mixed(), "--table", "losses"], 0);
    assert_eq!(whole, "what,pid,channel,token,position,count,why\n");
}

#[test]
fn files_are_their_owner_s_and_lie_where_they_are_told_to() {
    let folder = Folder::new("tables-files");
    let (to, file) = (folder.path("run"), mixed());
    let (said, out) = export(&["csv", &file, "-o", &to], 0);
    assert!(said.contains("complete: 600 submissions"), "{said}");
    assert!(said.contains("10 tables; nvcap schema"), "{said}");
    assert!(out.is_empty());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(Path::new(&to)), 0o700);
    for name in TABLES {
        assert_eq!(mode(&Path::new(&to).join(format!("{name}.csv"))), 0o600);
    }
    // The same rows, however they are asked for.
    let whole = fs::read_to_string(Path::new(&to).join("kernels.csv")).unwrap();
    let one = folder.path("kernels.csv");
    export(&["csv", &file, "--table", "kernels", "-o", &one], 0);
    assert!(fs::read_to_string(&one).unwrap() == whole);
    assert!(export(&["csv", &file, "--table", "kernels", "-o", "-"], 0).1 == whole);
    // Written again.
    export(&["csv", &file, "-o", &to, "--force"], 0);
    assert!(fs::read_to_string(Path::new(&to).join("kernels.csv")).unwrap() == whole);
    let engines = "op=copy && op!=inline,launch";
    let copies = table(&file, "operations", &["-e", engines], 0);
    assert!(!copies.is_empty() && copies.iter().all(|row| row["op"] == "copy"));
    // Text shows more as copies.
    let shown = table(&file, "operations", &["-e", "op=copy"], 0);
    assert!(shown.len() > copies.len() && shown.iter().any(|row| row["op"] == "inline"));
}

#[test]
fn parts_are_divided_by_value_and_by_rows() {
    let folder = Folder::new("tables-parts");
    let (to, file) = (folder.path("run"), mixed());
    let args = [
        "csv",
        &file,
        "-o",
        &to,
        "--partition",
        "channel",
        "--part-rows",
        "1000",
    ];
    export(&args, 0);
    let rows_of = |path: PathBuf| rows(&fs::read_to_string(path).unwrap());
    let mut found = 0;
    for entry in fs::read_dir(Path::new(&to).join("kernels")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        assert!(name.starts_with("channel="), "{name}");
        let count = fs::read_dir(entry.path()).unwrap().count();
        for part in 0..count {
            let rows = rows_of(entry.path().join(format!("part-{part}.csv")));
            assert!(part + 1 == count || rows.len() == 1000, "{name} {part}");
            assert!(rows.len() <= 1000 && !rows[0].contains_key("channel"));
            found += rows.len();
        }
    }
    assert_eq!(found, table(&file, "kernels", &[], 0).len());
    assert_eq!(rows_of(Path::new(&to).join("ledger/part-0.csv")).len(), 1);
    // They would be mixed: they stay, or go.
    let (said, _) = export(&args, 2);
    assert!(
        said.contains("is not empty, and its files would be taken"),
        "{said}"
    );
    let old = Path::new(&to).join("kernels/channel=4711");
    fs::create_dir(&old).unwrap();
    fs::write(old.join("part-0.csv"), "of yesterday").unwrap();
    export(&[&args[..], &["--force"]].concat(), 0);
    assert!(!old.exists());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (folder, file) = (Folder::new("tables-refused"), cut());
    let taken = folder.path("taken");
    fs::write(&taken, "x").unwrap();
    for (args, status, words) in [
        (
            vec!["csv", &*file],
            2,
            "10 tables have no place to go: name a folder with -o",
        ),
        (vec!["csv", &*file, "--json"], 2, "for another program"),
        (
            vec!["csv", &*file, "--table", "kernel"],
            2,
            "possible values: operations",
        ),
        (
            vec!["csv", &*file, "-o", &*taken],
            1,
            "it is a file: name a folder",
        ),
        (
            vec!["csv", &*file, "--table", "ledger", "--part-rows", "1"],
            2,
            "make several files",
        ),
        (
            vec!["csv", "--table", "ledger", "--", "true"],
            2,
            "standard output is the command's",
        ),
        (vec!["parquet"], 2, "nothing to trace"),
        (vec!["parquet", "--strict", "-p", "1"], 2, "of a FILE"),
    ] {
        let (said, _) = export(&args, status);
        assert!(said.contains(words), "{args:?}: {said}");
    }
    assert_eq!(fs::read_to_string(&taken).unwrap(), "x");
    let help = text(&nvcap(&["export", "parquet", "--help"]).stdout);
    assert!(
        help.contains("--part-rows") && !help.contains("--json"),
        "{help}"
    );
}

#[test]
fn users_data_is_hidden() {
    let (file, training) = (mixed(), argument(fixture("training.pcapng")));
    let shown = table(&file, "kernels", &[], 0);
    let hidden = table(&file, "kernels", &["--redact"], 0);
    let with = |rows: &[BTreeMap<String, String>], name: &str| {
        rows.iter().filter(|row| !row[name].is_empty()).count()
    };
    assert!(with(&shown, "args") > 0 && with(&shown, "args_hash") == 0);
    assert_eq!(with(&hidden, "args"), 0);
    assert_eq!(with(&hidden, "args_hash"), with(&shown, "args"));
    assert_eq!(with(&hidden, "args_bytes"), with(&shown, "args_bytes"));
    let operations = table(&file, "operations", &["--redact"], 0);
    assert_eq!(with(&operations, "pattern") + with(&operations, "fill"), 0);
    assert!(with(&table(&file, "operations", &[], 0), "fill") > 0);
    // A recording without users' data is exported so.
    let folder = Folder::new("tables-redacted");
    let without = folder.path("without.pcapng");
    export(&["pcapng", &training, "--redact", "-o", &without], 3);
    assert_eq!(table(&without, "ledger", &[], 3)[0]["redacted"], "true");
}

#[test]
fn a_full_disk_is_counted_in_the_end() {
    for format in ["csv", "parquet"] {
        let args = [format, &mixed(), "--table", "operations", "-o", "-"];
        let out = Command::new(env!("CARGO_BIN_EXE_nvcap"))
            .arg("export")
            .args(args)
            .stdout(fs::File::options().write(true).open("/dev/full").unwrap())
            .output()
            .unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{said}");
        assert!(
            said.contains("15271 objects captured but not written out"),
            "{said}"
        );
    }
}

#[test]
fn tables_that_could_not_be_written_are_not_announced() {
    let folder = Folder::new("tables-short");
    let training = argument(fixture("training.pcapng"));
    for (format, file, room, is_whole) in [
        ("csv", &mixed(), 8, false),
        ("csv", &mixed(), 1 << 20, true),
        ("kineto", &training, 8, false),
        ("kineto", &training, 1 << 20, true),
    ] {
        let limit = format!("ulimit -f {room}; exec \"$@\"");
        let to = folder.path(&format!("{format}-{room}"));
        let out = Command::new("sh")
            .args([
                "-c",
                &limit,
                "sh",
                env!("CARGO_BIN_EXE_nvcap"),
                "export",
                format,
            ])
            .args([file, "-o", &to])
            .output()
            .unwrap();
        let said = text(&out.stderr);
        assert_eq!(said.contains("not written out"), !is_whole, "{said}");
        assert_eq!(said.contains(&format!("nvcap: {to}: ")), is_whole, "{said}");
    }
}

/// Python with DuckDB and pyarrow, which `cargo xtask test` installs beside what was built.
fn python(test: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let python = target.join("tables/venv/bin/python");
    if !python.exists() {
        println!(
            "NOT RUN {test}: no Python with DuckDB and pyarrow; cargo xtask test installs it where python3 and pip are there"
        );
        return None;
    }
    Some(python)
}

/// Runs tests/tables/check.py.
fn check(python: &Path, args: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tables/check.py");
    let out = Command::new(python)
        .arg(script)
        .args(args)
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{args:?}\n{}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    text(&out.stdout)
}

#[test]
#[ignore = "needs Python with DuckDB and pyarrow: cargo xtask test runs it where it is"]
fn duckdb_and_pyarrow_read_what_the_schema_says() {
    let Some(python) = python("duckdb_and_pyarrow_read_what_the_schema_says") else {
        return;
    };
    let folder = Folder::new("tables-read");
    let schema = folder.path("schema.json");
    fs::write(&schema, nvcap(&["schema", "--json"]).stdout).unwrap();
    let training = argument(fixture("training.pcapng"));
    for (name, file, status, key) in [
        ("mixed", mixed(), 0, "channel"),
        ("training", training, 3, "pid"),
    ] {
        let (csv, parquet) = (folder.path(&format!("{name}.csv")), folder.path(name));
        let parts = folder.path(&format!("{name}.parts"));
        export(&["csv", &file, "-o", &csv], status);
        export(&["parquet", &file, "-o", &parquet], status);
        check(&python, &["same", &parquet, &csv, &schema]);
        let divided = ["--partition", key, "--part-rows", "500"];
        export(
            &[&["parquet", &file, "-o", &parts], &divided[..]].concat(),
            status,
        );
        check(&python, &["parts", &parts, &parquet, key]);
    }
}

/// A file in several groups of rows, and what is there of it when the disk is full behind the first.
#[test]
#[ignore = "needs Python with DuckDB and pyarrow: cargo xtask test runs it where it is"]
fn parquet_files_are_whole_on_a_full_disk() {
    let Some(python) = python("parquet_files_are_whole_on_a_full_disk") else {
        return;
    };
    let folder = Folder::new("tables-full");
    let (long, whole, part) = (
        folder.path("long.orc"),
        folder.path("whole"),
        folder.path("part"),
    );
    let unpacked = Command::new("xz").args(["-dc", &mixed()]).output();
    let Some(once) = unpacked.ok().filter(|o| o.status.success()) else {
        println!("NOT RUN parquet_files_are_whole_on_a_full_disk: no xz");
        return;
    };
    // Entries that come again are a contradiction, and operations all the same.
    fs::write(&long, once.stdout.repeat(12)).unwrap();
    export(&["parquet", &long, "-o", &whole], 3);
    let operations = "operations.parquet";
    let size = fs::metadata(Path::new(&whole).join(operations))
        .unwrap()
        .len();
    let limit = format!("ulimit -f {}; exec \"$@\"", size * 3 / 4 / 512);
    let out = Command::new("sh")
        .args([
            "-c",
            &limit,
            "sh",
            env!("CARGO_BIN_EXE_nvcap"),
            "export",
            "parquet",
        ])
        .args([&long, "-o", &part])
        .output()
        .unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("captured but not written out"), "{said}");
    let join = |folder: &str| argument(Path::new(folder).join(operations));
    check(&python, &["begin", &join(&part), &join(&whole)]);
}

/// Ctrl-C while a file is read ends the tables: all rows so far are there, and that the rest is missing.
#[test]
#[ignore = "needs Python with DuckDB and pyarrow: cargo xtask test runs it where it is"]
fn an_interrupted_export_leaves_whole_files() {
    let Some(python) = python("an_interrupted_export_leaves_whole_files") else {
        return;
    };
    let folder = Folder::new("tables-interrupted");
    let (whole, to, file) = (folder.path("whole"), folder.path("run"), cut());
    export(&["parquet", &file, "-o", &whole], 3);
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["export", "parquet", "-", "-o", &to])
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Standard input stays open: nothing but the signal ends it.
    let mut input = child.stdin.take().unwrap();
    input.write_all(&fs::read(&file).unwrap()).unwrap();
    interrupt_while_it_reads(&child);
    let out = child.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("reading was interrupted"), "{said}");
    for name in ["operations", "submissions", "kernels", "channels"] {
        let path = |folder: &str| argument(Path::new(folder).join(format!("{name}.parquet")));
        check(&python, &["equal", &path(&to), &path(&whole)]);
    }
    drop(input);
}

#[test]
#[ignore = "needs Python with DuckDB and pyarrow: cargo xtask test runs it where it is"]
fn the_queries_have_the_answers_of_their_page() {
    let Some(python) = python("the_queries_have_the_answers_of_their_page") else {
        return;
    };
    let folder = Folder::new("tables-queries");
    let repository = argument(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    let work = argument(folder.0.clone());
    let said = check(
        &python,
        &["queries", &repository, env!("CARGO_BIN_EXE_nvcap"), &work],
    );
    assert!(said.contains("11 queries"), "{said}");
}
