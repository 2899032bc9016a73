//! The recipes of `packaging/`, checked by the programs that will read them: systemd, Prometheus, the schemas of Kubernetes.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{install, once, paths, python, report::Report, shell::Cmd};

/// Checks all of them. `program`: nvcap as it was built.
pub fn check(report: &mut Report, program: &Path) -> Result<()> {
    service(report);
    recipes(report, program)
}

/// The exposure of the service that `systemd-analyze security` may give at most, in tenths: 100 is a service without any bound.
const EXPOSURE: &str = "25";

/// systemd understands the service, and it is bounded as well as it was.
fn service(report: &mut Report) {
    const NAME: &str = "nvcap.service, by systemd-analyze";
    const TOOL: &str = "systemd-analyze";
    if paths::on_path(TOOL).is_none() && install::apt_allowed() && install::apt_offers("systemd") {
        let _ = install::apt(&["systemd"], NAME);
    }
    if paths::on_path(TOOL).is_none() {
        report.skip(NAME, "it is not here; type: sudo apt-get install systemd");
        return;
    }
    report.check(NAME, analysed(TOOL));
}

fn analysed(tool: &str) -> Result<()> {
    let folder = paths::target().join("package/systemd");
    fs::create_dir_all(&folder)?;
    let unit = folder.join("nvcap.service");
    let text = fs::read_to_string(paths::root().join("packaging/systemd/nvcap.service"))?;
    // The program is looked for, and is installed in no machine that tests.
    fs::write(&unit, text.replace("/usr/bin/nvcap", "/bin/true"))?;
    let cmd = Cmd::new(tool).args(["verify", "--man=no"]).arg(&unit);
    let out = cmd.command().output()?;
    let said = String::from_utf8_lossy(&out.stderr);
    // It ends with 0 for a directive that it does not know: each line about the unit is a fault.
    let faults: Vec<&str> = said
        .lines()
        .filter(|l| l.contains("nvcap.service"))
        .collect();
    ensure!(
        out.status.success() && faults.is_empty(),
        "{} said {said}",
        cmd.line()
    );
    let cmd = Cmd::new(tool)
        .args(["security", "--offline=true", "--threshold", EXPOSURE])
        .arg(&unit);
    let out = cmd.command().output()?;
    if !out.status.success() {
        bail!(
            "the service is exposed more than {EXPOSURE} tenths: {}",
            String::from_utf8_lossy(&out.stdout)
                .lines()
                .next_back()
                .unwrap_or_default()
        );
    }
    Ok(())
}

const MANIFESTS: &str = "manifests for Kubernetes";
const OPTIONS: &str = "options of nvcap serve";
const FLOWS: &str = "workflows";
const BOOK: &str = "the book";
const COLLECTOR: &str = "recipe for a Collector";
const METRICS: &str = "scrape configurations, alerts and dashboard";

/// The recipes that `tests/packaging/check.py` reads.
fn recipes(report: &mut Report, program: &Path) -> Result<()> {
    let script = paths::root().join("tests/packaging/check.py");
    let packaging = paths::root().join("packaging");
    match python::mdbook() {
        Ok(mdbook) => {
            let script = paths::root().join("tests/packaging/book.py");
            report.step(BOOK, &Cmd::new("python3").arg(script).arg(mdbook))?;
        }
        Err(error) => report.skip(BOOK, &format!("{error:#}")),
    }
    let python = match python::recipes() {
        Ok(python) => python,
        Err(error) => {
            for name in [MANIFESTS, OPTIONS, FLOWS, COLLECTOR, METRICS] {
                report.skip(name, &format!("{error:#}"));
            }
            return Ok(());
        }
    };
    let call = |what: &str, folder: PathBuf| Cmd::new(&python).arg(&script).arg(what).arg(folder);
    report.step(MANIFESTS, &call("kubernetes", packaging.join("kubernetes")))?;
    match serves(program) {
        true => report.step(OPTIONS, &call("options", packaging.clone()).arg(program))?,
        false => report.skip(OPTIONS, "nvcap was built without the feature `serve`"),
    }
    report.step(
        FLOWS,
        &call("workflows", paths::root().join(".github/workflows")),
    )?;
    report.step(COLLECTOR, &call("collector", packaging.join("otel")))?;
    match of_prometheus("promtool") {
        Ok(promtool) => report.step(
            METRICS,
            &call("prometheus", packaging.join("prometheus")).arg(promtool),
        ),
        Err(error) => {
            report.skip(METRICS, &format!("{error:#}"));
            Ok(())
        }
    }
}

/// Tells whether the program has the command.
pub fn serves(program: &Path) -> bool {
    Cmd::new(program).args(["serve", "--help"]).read().is_some()
}

/// Prometheus or its promtool as it is installed, else unpacked: installed, Debian's package would start a server.
pub fn of_prometheus(tool: &str) -> Result<PathBuf> {
    match paths::on_path(tool) {
        Some(path) => Ok(path),
        None => {
            let folder = unpacked("prometheus", &["prometheus"], tool)?;
            Ok(folder.join("usr/bin").join(tool))
        }
    }
}

/// The image is built of the tarball, and its program starts in it.
pub fn image(report: &mut Report, tarball: &Path) {
    const NAME: &str = "image, built by buildah";
    if install::root() != install::Root::Already {
        report.skip(NAME, "its files are looked at by root alone");
        return;
    }
    match buildah() {
        Ok(buildah) => report.check(NAME, built(&buildah, tarball)),
        Err(error) => report.skip(NAME, &format!("{error:#}")),
    }
}

/// Unpacks what the checks need, for a run that needs it later: what cannot be had is said by whoever needs it.
pub fn fetch() {
    _ = of_prometheus("prometheus");
    _ = buildah();
}

/// buildah as it is installed, else unpacked, with its libraries.
fn buildah() -> Result<Cmd> {
    const TOOL: &str = "buildah";
    if paths::on_path(TOOL).is_some() {
        return Ok(Cmd::new(TOOL));
    }
    let packages = [TOOL, "libgpgme11", "libassuan0", "libdevmapper1.02.1"];
    let folder = unpacked(TOOL, &packages, TOOL)?;
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
    let libraries = libraries.map(|l| folder.join(l).display().to_string());
    let cmd =
        Cmd::new(folder.join("usr/bin").join(TOOL)).env("LD_LIBRARY_PATH", libraries.join(":"));
    cmd.clone().arg("--version").read().context(
        "buildah was unpacked from Debian's package and does not start; type: sudo apt-get install buildah",
    )?;
    Ok(cmd)
}

fn built(buildah: &Cmd, tarball: &Path) -> Result<()> {
    let folder = paths::target().join("package/image");
    let context = folder.join("context");
    fs::create_dir_all(&context)?;
    Cmd::new("tar")
        .args(["--strip-components=1", "-C"])
        .arg(&context)
        .arg("-xzf")
        .arg(tarball)
        .run()?;
    // Nothing is fetched: the image has no base.
    let policy = folder.join("policy.json");
    fs::write(&policy, r#"{"default":[{"type":"reject"}]}"#)?;
    let buildah = |args: &[&str]| {
        buildah
            .clone()
            .arg("--root")
            .arg(folder.join("storage"))
            .arg("--runroot")
            .arg(folder.join("run"))
            .args(["--storage-driver", "vfs"])
            .args(args)
    };
    buildah(&["build", "--isolation", "chroot", "--tag", "nvcap:test"])
        .arg("--signature-policy")
        .arg(&policy)
        .arg("--file")
        .arg(paths::root().join("packaging/oci/Containerfile"))
        .arg(&context)
        .run()?;
    let read = |cmd: Cmd| {
        cmd.read()
            .with_context(|| format!("failed: {}", cmd.line()))
    };
    // Its own image is trusted.
    fs::write(
        &policy,
        r#"{"default":[{"type":"insecureAcceptAnything"}]}"#,
    )?;
    let container = read(
        buildah(&["from", "--signature-policy"])
            .arg(&policy)
            .arg("localhost/nvcap:test"),
    )?;
    let root = read(buildah(&["mount", &container]))?;
    let said = read(Cmd::new("chroot").args([&root, "/usr/bin/nvcap", "--version"]));
    buildah(&["umount", &container]).read();
    ensure!(
        said?.starts_with("nvcap "),
        "the image's program does not say its version"
    );
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Debian's packages unpacked into a folder below target/ that has the program `tool` then: nothing is installed.
fn unpacked(name: &str, packages: &[&str], tool: &str) -> Result<PathBuf> {
    let folder = paths::target().join(name);
    let _alone = once::alone(name)?;
    if folder.join("usr/bin").join(tool).is_file() {
        return Ok(folder);
    }
    if paths::on_path("apt-get").is_none() || !install::apt_offers(name) {
        bail!("{tool} is not here; type: sudo apt-get install {name}");
    }
    fs::create_dir_all(&folder)?;
    // What is not used of them is removed.
    const UNPACK: &str = "rm -f *.deb; apt-get -qq download \"$@\" || exit; \
        for deb in *.deb; do dpkg-deb -x \"$deb\" . || exit; done; \
        find . -type f ! -path './usr/bin/*' ! -name '*.so*' -delete";
    Cmd::new("sh")
        .args(["-c", UNPACK, "sh"])
        .args(packages)
        .dir(&folder)
        .run()
        .with_context(|| {
            format!(
                "Debian's packages {} were not unpacked",
                packages.join(", ")
            )
        })?;
    Ok(folder)
}
