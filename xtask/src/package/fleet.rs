//! A fleet: several hosts of namespaces and software GPUs, scraped by the real Prometheus; what thousands cost; their tables in one
//! folder, asked by DuckDB and ClickHouse; metrics sent to a collector. The programs of `tests/fleet` do that; here they get what they need.

use std::path::{Path, PathBuf};

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

/// Runs the tests. `program`: nvcap as it was built, with the software GPU beside it.
pub fn check(report: &mut Report, program: &Path) -> Result<()> {
    let folder = paths::root().join("tests/fleet");
    let softgpu = program.with_file_name("softgpu");
    let call = |python: PathBuf, script: &str| {
        let cmd = Cmd::new(python).arg(folder.join(script));
        cmd.arg(program).arg(&softgpu)
    };
    if !deploy::serves(program) {
        for name in [COLLECTOR, MANY, HOSTS, SCALE] {
            report.skip(name, "nvcap was built without the feature `serve`");
        }
    } else {
        tools();
        match python::collector() {
            Ok(python) => {
                report.step(COLLECTOR, &call(python.clone(), "collector.py"))?;
                report.step(MANY, &call(python, "many.py").args(many()))?;
            }
            Err(error) => {
                for name in [COLLECTOR, MANY] {
                    report.skip(name, &format!("{error:#}"));
                }
            }
        }
        match deploy::of_prometheus("prometheus") {
            Ok(prometheus) => {
                let call = |script| call("python3".into(), script).arg(&prometheus);
                report.step(HOSTS, &call("fleet.py"))?;
                report.step(SCALE, &call("scale.py").args(scale()))?;
            }
            Err(error) => {
                for name in [HOSTS, SCALE] {
                    report.skip(name, &format!("{error:#}"));
                }
            }
        }
    }
    match python::engines() {
        Ok(python) => report.step(TABLES, &call(python, "partitions.py")),
        Err(error) => {
            report.skip(TABLES, &format!("{error:#}"));
            Ok(())
        }
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
