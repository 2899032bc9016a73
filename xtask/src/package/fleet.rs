//! A fleet: several hosts of namespaces and software GPUs, scraped by the real Prometheus; what thousands cost; their tables in one
//! folder, asked by DuckDB and ClickHouse; metrics sent to a collector. The programs of `tests/fleet` do that; here they get what they need.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use anyhow::Result;

use super::deploy;
use crate::{install, paths, python, report::Report, shell::Cmd, test};

const HOSTS: &str = "three hosts, scraped by Prometheus";
const SCALE: &str = "scrapes of many hosts";
const COLLECTOR: &str = "metrics sent to a collector";
const MANY: &str = "more processes than have series";
const TABLES: &str = "tables of many hosts";

/// Options of the measurement: in the gate, and in its nightly form. docs/scale.md has a longer one.
fn scale() -> [&'static str; 6] {
    let hosts = if test::is_nightly() { "500" } else { "100" };
    ["--hosts", hosts, "--interval", "5", "--seconds", "15"]
}

/// Options of the test with more processes than have series of their own (1,000): in the gate, and in its nightly form.
fn many() -> [&'static str; 2] {
    let processes = if test::is_nightly() { "2000" } else { "1200" };
    ["--processes", processes]
}

/// Runs the tests; beside each other where they can be kept apart. `program`: nvcap as it was built, with the software GPU beside it.
pub fn check(report: &mut Report, program: &Path) -> Result<()> {
    let folder = paths::root().join("tests/fleet");
    let softgpu = program.with_file_name("softgpu");
    let call = |python: PathBuf, script: &str, more: &[&OsStr]| {
        apart(&python)
            .arg(folder.join(script))
            .arg(program)
            .arg(&softgpu)
            .args(more)
    };
    tools();
    let mut steps = Vec::new();
    if !deploy::serves(program) {
        for name in [COLLECTOR, MANY, HOSTS, SCALE] {
            report.skip(name, "nvcap was built without the feature `serve`");
        }
    } else {
        match deploy::of_prometheus("prometheus") {
            Ok(prometheus) => {
                let python = || PathBuf::from("python3");
                let prometheus = prometheus.as_os_str();
                let scale = scale();
                let [hosts, scale] = [vec![prometheus], with(prometheus, &scale)];
                steps.push((SCALE.to_owned(), call(python(), "scale.py", &scale)));
                steps.push((HOSTS.to_owned(), call(python(), "fleet.py", &hosts)));
            }
            Err(error) => {
                for name in [HOSTS, SCALE] {
                    report.skip(name, &format!("{error:#}"));
                }
            }
        }
        match python::collector() {
            Ok(python) => {
                let many = many().map(OsStr::new);
                // With what takes longest: these two begin.
                steps.insert(0, (MANY.to_owned(), call(python.clone(), "many.py", &many)));
                steps.push((COLLECTOR.to_owned(), call(python, "collector.py", &[])));
            }
            Err(error) => {
                for name in [COLLECTOR, MANY] {
                    report.skip(name, &format!("{error:#}"));
                }
            }
        }
    }
    match python::engines() {
        Ok(python) => steps.push((TABLES.to_owned(), call(python, "partitions.py", &[]))),
        Err(error) => report.skip(TABLES, &format!("{error:#}")),
    }
    if install::root() == install::Root::Already {
        return report.steps(steps);
    }
    for (name, cmd) in steps {
        report.step(&name, &cmd)?;
    }
    Ok(())
}

/// `first` and what follows it.
fn with<'a>(first: &'a OsStr, more: &'a [&'a str]) -> Vec<&'a OsStr> {
    let more = more.iter().map(OsStr::new);
    std::iter::once(first).chain(more).collect()
}

/// A command that begins with `program`; for root with processes, mounts and a network of its own: no test sees the processes of another, and each
/// may use the ports and addresses that it likes.
fn apart(program: &Path) -> Cmd {
    const OWN: [&str; 6] = [
        "--net",
        "--pid",
        "--mount",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ];
    const LOOPBACK: &str = "ip link set lo up && exec \"$@\"";
    match install::root() {
        install::Root::Already => Cmd::new("unshare")
            .args(OWN)
            .args(["sh", "-c", LOOPBACK, "sh"])
            .arg(program),
        _ => Cmd::new(program),
    }
}

/// Installs tools that make namespaces and certificates; where one lacks and may not be installed, the tests say so.
fn tools() {
    let lacking = [("ip", "iproute2"), ("openssl", "openssl")];
    for (tool, package) in lacking {
        if paths::on_path(tool).is_none() && install::apt_allowed() && install::apt_offers(package)
        {
            let _ = install::apt(&[package], HOSTS);
        }
    }
}
