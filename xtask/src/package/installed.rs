//! Packages installed into a root with nothing but a shell, used there, and removed without a trace.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use super::{Made, contents::put, shells};
use crate::{
    install::{self, Root},
    paths::{self, sorted},
    report::Report,
    shell::Cmd,
};

/// The folder of the service's file.
const STATE: &str = "var/lib/private/nvcap";

/// Files that every package must have, below its root.
const FILES: [&str; 12] = [
    "bin/nvcap",
    "lib/systemd/system/nvcap.service",
    "share/bash-completion/completions/nvcap",
    "share/fish/vendor_completions.d/nvcap.fish",
    "share/man/man1/nvcap.1",
    "share/man/man1/nvcap-record.1",
    "share/man/man1/nvcap-export-perfetto.1",
    "share/nvcap/wireshark/nvcap.lua",
    "share/doc/nvcap/README.md",
    "share/doc/nvcap/docs/output.md",
    "share/doc/nvcap/examples/prometheus/nvcap.rules.yml",
    "share/doc/nvcap/examples/kubernetes/kustomization.yaml",
];

/// Commands that packages give systemd: they neither enable nor start anything.
const INSTALLED: &[&str] = &["daemon-reload"];
const UPGRADED: &[&str] = &["daemon-reload", "try-restart nvcap.service"];
const REMOVED: &[&str] = &[
    "stop nvcap.service",
    "--no-reload disable nvcap.service",
    "daemon-reload",
];

/// Checks Debian's package, and its service in between. `softgpu`: what the service counts.
pub fn deb(report: &mut Report, deb: &Path, softgpu: &Path) -> Result<()> {
    const NAME: &str = "deb, installed into a bare root and removed without a trace";
    const SERVICE: &str = "nvcap.service, started by systemd";
    if !may(report, NAME) {
        return Ok(());
    }
    let root = Bare::new("deb")?;
    let admin = root.path("var/lib/dpkg");
    for folder in ["info", "updates", "triggers"] {
        fs::create_dir_all(admin.join(folder))?;
    }
    for file in ["status", "available"] {
        put(&admin.join(file), b"", 0o644)?;
    }
    let dpkg = |what: &str, of: &Path| {
        let log = root.path("var/lib/dpkg/log");
        Cmd::new("dpkg")
            .arg(format!("--root={}", root.dir.display()))
            .arg(format!("--log={}", log.display()))
            .args(["--force-not-root", what])
            .arg(of)
            .run()
    };
    let before = root.listing()?;
    let installed = (|| {
        dpkg("--install", deb)?;
        root.is_complete(&["usr/share/zsh/vendor-completions/_nvcap"])?;
        ensure!(
            root.path("usr/share/doc/nvcap/copyright").is_file(),
            "it has no copyright file"
        );
        root.works()?;
        // Upgraded to itself: the scripts are called in their other way.
        dpkg("--install", deb)
    })();
    if let Err(error) = installed {
        report.check(NAME, Err(error));
        report.skip(SERVICE, "the package was not installed");
        return Ok(());
    }
    shells::check(report, &root.path("usr/share"));
    let script = paths::root().join("tests/packaging/service.py");
    let cmd = Cmd::new("python3").arg(script).arg(&root.dir).arg(softgpu);
    report.step(SERVICE, &cmd)?;
    let done = (|| {
        dpkg("--remove", Path::new("nvcap"))?;
        ensure!(
            root.path("etc/default/nvcap").is_file(),
            "dpkg --remove took the options of the service away, which are the user's"
        );
        root.has_served()?;
        dpkg("--purge", Path::new("nvcap"))?;
        root.is_as(&before)?;
        let wanted = [INSTALLED, UPGRADED, REMOVED].concat();
        root.has_told_systemd(&wanted)
    })();
    report.check(NAME, done);
    Ok(())
}

/// Folders that no package of a program owns.
const SHARED: [&str; 8] = [
    "etc/default",
    "usr/lib/systemd/system",
    "usr/share/bash-completion/completions",
    "usr/share/doc",
    "usr/share/fish/vendor_completions.d",
    "usr/share/licenses",
    "usr/share/man/man1",
    "usr/share/zsh/site-functions",
];

/// Checks the RPM package.
pub fn rpm(report: &mut Report, rpm: &Path) -> Result<()> {
    const NAME: &str = "rpm, installed into a bare root and removed without a trace";
    if !may(report, NAME) {
        return Ok(());
    }
    let root = Bare::new("rpm")?;
    let call = |args: &[&str]| {
        // Debian's rpm warns that packages are alien's business.
        Cmd::new("rpm")
            .args(["--root".as_ref(), root.dir.as_os_str()])
            .args(["--dbpath", "/var/lib/rpm", "--nosignature"])
            .args(args)
            .run()
    };
    let done = (|| {
        // Folders above a package's own files are those of Fedora's package `filesystem`: rpm leaves them.
        for folder in SHARED {
            fs::create_dir_all(root.path(folder))?;
        }
        let before = root.listing()?;
        call(&["--initdb"])?;
        let file = rpm.display().to_string();
        call(&["--install", "--force-debian", "--nodeps", &file])?;
        root.is_complete(&["usr/share/zsh/site-functions/_nvcap"])?;
        root.works()?;
        root.has_served()?;
        call(&["--erase", "nvcap"])?;
        root.is_as(&before)?;
        root.has_told_systemd(&[INSTALLED, REMOVED].concat())
    })();
    report.check(NAME, done);
    Ok(())
}

/// Checks the tarball and the checksums.
pub fn tarball(made: &Made) -> Result<()> {
    Cmd::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
        .dir(&made.dir)
        .run()?;
    let root = Bare::new("tarball")?;
    let local = root.path("usr");
    fs::create_dir_all(&local)?;
    Cmd::new("tar")
        .args(["--strip-components=1", "--no-same-owner", "-C"])
        .arg(&local)
        .arg("-xzf")
        .arg(&made.tarball)
        .run()?;
    root.is_complete(&["usr/share/zsh/site-functions/_nvcap"])?;
    let unit = fs::read_to_string(root.path("usr/lib/systemd/system/nvcap.service"))?;
    ensure!(
        unit.contains("ExecStart=/usr/local/bin/nvcap "),
        "the service of the tarball does not start the program where the tarball is to be unpacked"
    );
    root.completes()
}

/// Tells whether scripts of packages can be run in another root here.
fn may(report: &mut Report, name: &str) -> bool {
    let is_root = install::root() == Root::Already;
    if !is_root {
        report.skip(name, "only root may change the root of a script; type: sudo -E env PATH=\"$PATH\" cargo xtask ci-helpers package");
    }
    is_root
}

/// A root with `/bin/sh`, `/bin/rm` and the libraries that they need, as a bare container has them, and a stand-in for systemctl that writes down
/// what it is told.
struct Bare {
    dir: PathBuf,
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Bare {
    fn new(name: &str) -> Result<Self> {
        let dir = paths::target().join("package").join(format!("root-{name}"));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        let bare = Self { dir };
        let programs = ["/bin/sh", "/bin/rm"];
        let needed = Cmd::new("ldd").args(programs).read().unwrap_or_default();
        // `/bin/sh:` is the heading of a program's libraries.
        let libraries = needed
            .split_whitespace()
            .filter(|word| word.starts_with('/') && !word.ends_with(':'));
        for file in programs.into_iter().chain(libraries) {
            let bytes = fs::read(file).with_context(|| format!("cannot read {file}"))?;
            put(&bare.path(file.trim_start_matches('/')), &bytes, 0o755)?;
        }
        fs::create_dir_all(bare.path("run/systemd/system"))?;
        fs::create_dir_all(bare.path("var"))?;
        let systemctl = "#!/bin/sh\necho \"$@\" >> /var/systemctl\n";
        put(&bare.path("usr/bin/systemctl"), systemctl.as_bytes(), 0o755)?;
        Ok(bare)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Every file and folder with its mode and, of a file, its bytes' number; without the package manager's own.
    fn listing(&self) -> Result<BTreeMap<PathBuf, (u32, u64)>> {
        let mut all = BTreeMap::new();
        self.list(&self.dir, &mut all)?;
        Ok(all)
    }

    fn list(&self, dir: &Path, all: &mut BTreeMap<PathBuf, (u32, u64)>) -> Result<()> {
        for path in sorted(dir)? {
            let name = path.strip_prefix(&self.dir)?.to_owned();
            // What the manager keeps of its own, with the folders above it.
            if name.starts_with("var") {
                continue;
            }
            let meta = path.symlink_metadata()?;
            let size = if meta.is_file() { meta.len() } else { 0 };
            all.insert(name, (meta.permissions().mode(), size));
            if meta.is_dir() {
                self.list(&path, all)?;
            }
        }
        Ok(())
    }

    /// Makes the state that the service leaves, in systemd's place for it, if the service was not started in this root.
    fn has_served(&self) -> Result<()> {
        let file = self.path(STATE).join("alive");
        if file.is_file() {
            return Ok(());
        }
        put(&file, b"1", 0o600)?;
        std::os::unix::fs::symlink("private/nvcap", self.path("var/lib/nvcap"))?;
        Ok(())
    }

    fn is_as(&self, before: &BTreeMap<PathBuf, (u32, u64)>) -> Result<()> {
        let now = self.listing()?;
        let left: Vec<String> = now
            .iter()
            .filter(|(path, what)| before.get(*path) != Some(what))
            .map(|(path, _)| path.display().to_string())
            .collect();
        ensure!(left.is_empty(), "it left {}", left.join(", "));
        let lost: Vec<String> = before
            .keys()
            .filter(|path| !now.contains_key(*path))
            .map(|path| path.display().to_string())
            .collect();
        ensure!(lost.is_empty(), "it took away {}", lost.join(", "));
        for file in [STATE, "var/lib/nvcap"] {
            let is_there = self.path(file).symlink_metadata().is_ok();
            ensure!(!is_there, "it left {file}");
        }
        Ok(())
    }

    fn has_told_systemd(&self, wanted: &[&str]) -> Result<()> {
        let said = fs::read_to_string(self.path("var/systemctl")).unwrap_or_default();
        let said: Vec<&str> = said.lines().collect();
        ensure!(said == wanted, "systemd was told {said:?}, not {wanted:?}");
        Ok(())
    }

    /// Every file of `FILES` and of `more` is there; a manual page may be compressed.
    fn is_complete(&self, more: &[&str]) -> Result<()> {
        let wanted = FILES.iter().map(|file| format!("usr/{file}"));
        for file in wanted.chain(more.iter().map(|file| (*file).to_owned())) {
            let there = [self.path(&file), self.path(&format!("{file}.gz"))];
            let size = there
                .iter()
                .find_map(|f| f.metadata().ok())
                .map(|m| m.len());
            ensure!(size.is_some_and(|s| s > 0), "{file} is not in it");
        }
        Ok(())
    }

    /// The program starts in this root, and its files are of use.
    fn works(&self) -> Result<()> {
        let cmd = Cmd::new("chroot")
            .arg(&self.dir)
            .args(["/usr/bin/nvcap", "--version"]);
        let said = cmd
            .read()
            .with_context(|| format!("failed: {}", cmd.line()))?;
        ensure!(
            said.starts_with("nvcap "),
            "`nvcap --version` printed {said:?}"
        );
        for page in sorted(&self.path("usr/share/man/man1"))? {
            let cmd = Cmd::new("gzip").arg("-t").arg(&page);
            cmd.read()
                .with_context(|| format!("failed: {}", cmd.line()))?;
        }
        self.completes()
    }

    /// bash completes commands and words of options by the installed file.
    fn completes(&self) -> Result<()> {
        const SCRIPT: &str = "source \"$1\"; COMP_CWORD=$2; COMP_WORDS=(\"${@:3}\"); \
            _nvcap nvcap \"${COMP_WORDS[$COMP_CWORD]}\" \"${COMP_WORDS[$((COMP_CWORD-1))]}\" && echo \"${COMPREPLY[*]}\"";
        let file = self.path("usr/share/bash-completion/completions/nvcap");
        for (words, wanted) in [
            (&["nvcap", "dum"][..], "dump"),
            (&["nvcap", "export", "perf"], "perfetto"),
            (&["nvcap", "--how", "obs"], "observe"),
        ] {
            let last = (words.len() - 1).to_string();
            let cmd = Cmd::new("bash").args(["--norc", "-c", SCRIPT, "bash"]);
            let cmd = cmd.arg(&file).arg(last).args(words);
            let said = cmd.read().unwrap_or_default();
            ensure!(
                said == wanted,
                "`{}` is completed to {said:?}, not to {wanted}",
                words.join(" ")
            );
        }
        Ok(())
    }
}
