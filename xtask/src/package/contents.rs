//! The files of a package, and where they lie in each format.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context, Result, ensure};

use super::third_party;
use crate::{
    linker,
    paths::{self, sorted},
    shell::Cmd,
};

/// Layout of a package format's files.
pub struct Layout {
    /// The folder of all but `/etc`.
    usr: &'static str,
    /// The folder for options of the service.
    etc: Option<&'static str>,
    /// Below `usr`: where zsh looks for functions of packages.
    zsh: &'static str,
    /// Below `usr`: the licences.
    licences: Licences,
    /// True if manual pages are compressed.
    compressed: bool,
    /// The program's path in the service.
    program: &'static str,
}

#[derive(PartialEq)]
enum Licences {
    /// One file `copyright`, which refers to the system's copies of texts.
    Debian,
    /// The texts, in this folder.
    In(&'static str),
}

impl Layout {
    /// Debian and its children.
    pub const DEB: Self = Self {
        usr: "usr",
        etc: Some("etc/default"),
        zsh: "share/zsh/vendor-completions",
        licences: Licences::Debian,
        compressed: true,
        program: "/usr/bin/nvcap",
    };
    /// Fedora, RHEL, openSUSE and their children.
    pub const RPM: Self = Self {
        usr: "usr",
        etc: Some("etc/default"),
        zsh: "share/zsh/site-functions",
        licences: Licences::In("share/licenses/nvcap"),
        compressed: true,
        program: "/usr/bin/nvcap",
    };
    /// To be unpacked in `/usr/local`.
    pub const TARBALL: Self = Self {
        usr: "",
        etc: None,
        zsh: "share/zsh/site-functions",
        licences: Licences::In("share/doc/nvcap"),
        compressed: false,
        program: "/usr/local/bin/nvcap",
    };
}

/// Material of packages.
pub struct Source {
    /// The stripped program.
    program: PathBuf,
    /// Folder with manual pages and completions, which the program has written.
    written: PathBuf,
    /// The licences of all crates.
    third_party: String,
    /// `0.1.0`.
    pub version: String,
    /// Homepage of the project.
    pub homepage: String,
    /// Seconds since 1970 that files in packages have: of the commit.
    pub epoch: String,
}

impl Source {
    /// From the program as it was built. Files are made in the folder `work`.
    pub fn of(built: &Path, work: &Path) -> Result<Self> {
        let program = work.join("nvcap");
        fs::copy(built, &program)?;
        if let Some(strip) = paths::on_path("strip").or_else(|| linker::llvm_tool("llvm-strip")) {
            Cmd::new(strip)
                .args(["--strip-all", "--remove-section=.comment"])
                .arg(&program)
                .run()?;
        }
        let run = |args: &[&str]| {
            let cmd = Cmd::new(&program).args(args);
            // Its output is a file: not trimmed.
            let out = cmd.command().output()?;
            ensure!(out.status.success(), "failed: {}", cmd.line());
            Ok(out.stdout)
        };
        let said = String::from_utf8(run(&["-V"])?)?;
        let version = said.split(' ').nth(1).context("nvcap -V has no version")?;
        let written = work.join("written");
        let man = written.join("man");
        run(&["man-pages", &man.display().to_string()])?;
        for shell in ["bash", "zsh", "fish"] {
            fs::write(written.join(shell), run(&["completions", shell])?)?;
        }
        let manifest = fs::read_to_string(paths::root().join("Cargo.toml"))?;
        let homepage = manifest
            .lines()
            .find_map(|line| line.strip_prefix("repository = "));
        Ok(Self {
            written,
            third_party: third_party::licences()?,
            version: version.to_owned(),
            homepage: homepage.unwrap_or_default().trim_matches('"').to_owned(),
            epoch: epoch(),
            program,
        })
    }

    /// A text of `packaging/` with what only a build knows.
    pub fn filled(&self, name: &str) -> Result<String> {
        let path = paths::root().join("packaging").join(name);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text
            .replace("@VERSION@", &self.version)
            .replace("@HOMEPAGE@", &self.homepage))
    }

    /// Writes all files of a package below `root`, and returns their size in bytes.
    pub fn lay_out(&self, root: &Path, layout: &Layout) -> Result<u64> {
        let usr = root.join(layout.usr);
        let tree = paths::root();
        put(&usr.join("bin/nvcap"), &fs::read(&self.program)?, 0o755)?;
        for (shell, to) in [
            ("bash", "share/bash-completion/completions/nvcap".to_owned()),
            ("zsh", format!("{}/_nvcap", layout.zsh)),
            ("fish", "share/fish/vendor_completions.d/nvcap.fish".into()),
        ] {
            put(&usr.join(to), &fs::read(self.written.join(shell))?, 0o644)?;
        }
        for page in sorted(&self.written.join("man"))? {
            let name = page.file_name().expect("a page has a name");
            let to = usr.join("share/man/man1").join(name);
            put(&to, &fs::read(&page)?, 0o644)?;
            if layout.compressed {
                gzip(&to)?;
            }
        }
        let unit = self.filled("systemd/nvcap.service")?;
        let unit = unit.replace("/usr/bin/nvcap", layout.program);
        put(
            &usr.join("lib/systemd/system/nvcap.service"),
            unit.as_bytes(),
            0o644,
        )?;
        if let Some(etc) = layout.etc {
            let options = self.filled("systemd/nvcap.default")?;
            put(&root.join(etc).join("nvcap"), options.as_bytes(), 0o644)?;
        }
        let doc = usr.join("share/doc/nvcap");
        for page in ["README.md", "ARCHITECTURE.md", "SECURITY.md"] {
            put(&doc.join(page), &fs::read(tree.join(page))?, 0o644)?;
        }
        copy(&tree.join("docs"), &doc.join("docs"))?;
        let examples = doc.join("examples");
        for what in ["prometheus", "grafana", "kubernetes", "oci", "otel"] {
            copy(&tree.join("packaging").join(what), &examples.join(what))?;
        }
        let xid = self.filled("systemd/xid.conf")?;
        put(&examples.join("systemd/xid.conf"), xid.as_bytes(), 0o644)?;
        copy(
            &tree.join("nvcap/wireshark"),
            &usr.join("share/nvcap/wireshark"),
        )?;
        self.put_licences(&usr, &layout.licences)?;
        Cmd::new("find")
            .arg(root)
            .args(["-exec", "touch", "-h", "-d"])
            .arg(format!("@{}", self.epoch))
            .args(["{}", "+"])
            .read()
            .context("touch failed")?;
        size(root)
    }

    /// The time of the commit as Debian writes times.
    fn date(&self) -> Result<String> {
        Cmd::new("date")
            .args(["-u", "-R", "-d", &format!("@{}", self.epoch)])
            .env("LC_ALL", "C")
            .read()
            .context("date failed")
    }

    /// Writes the licences, and the changes where the format has them.
    fn put_licences(&self, usr: &Path, licences: &Licences) -> Result<()> {
        let tree = paths::root();
        let own = ["LICENSE-MIT", "LICENSE-APACHE"];
        let folder = match licences {
            Licences::Debian => usr.join("share/doc/nvcap"),
            Licences::In(folder) => usr.join(folder),
        };
        if *licences == Licences::Debian {
            let mit = fs::read_to_string(tree.join(own[0]))?;
            let mit: Vec<String> = mit
                .lines()
                .map(|line| match line {
                    "" => " .".to_owned(),
                    line => format!(" {line}"),
                })
                .collect();
            let text = self
                .filled("deb/copyright")?
                .replace("@MIT@", &mit.join("\n"));
            put(&folder.join("copyright"), text.as_bytes(), 0o644)?;
            let changes = fs::read(tree.join("CHANGELOG.md"))?;
            let log = self
                .filled("deb/changelog")?
                .replace("@DATE@", &self.date()?);
            for (name, bytes) in [
                ("changelog", &*changes),
                ("changelog.Debian", log.as_bytes()),
            ] {
                put(&folder.join(name), bytes, 0o644)?;
                gzip(&folder.join(name))?;
            }
        } else {
            for name in own {
                put(&folder.join(name), &fs::read(tree.join(name))?, 0o644)?;
            }
            let changes = usr.join("share/doc/nvcap/CHANGELOG.md");
            put(&changes, &fs::read(tree.join("CHANGELOG.md"))?, 0o644)?;
        }
        let others = folder.join("THIRD-PARTY");
        put(&others, self.third_party.as_bytes(), 0o644)?;
        if *licences == Licences::Debian {
            gzip(&others)?;
        }
        Ok(())
    }
}

/// The time of the commit; of an archive that is no checkout, now.
fn epoch() -> String {
    let given = env::var("SOURCE_DATE_EPOCH").ok();
    let of_commit = || {
        Cmd::new("git")
            .args(["log", "-1", "--format=%ct"])
            .dir(paths::root())
            .read()
    };
    given.or_else(of_commit).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default().as_secs().to_string()
    })
}

/// Writes a file and the folders above it, with modes that do not depend on the umask.
pub fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut folders: Vec<&Path> = path
        .ancestors()
        .skip(1)
        .take_while(|folder| !folder.exists())
        .collect();
    folders.reverse();
    for folder in folders {
        fs::create_dir(folder).with_context(cannot)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::write(path, bytes).with_context(cannot)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(cannot)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    for path in sorted(from)? {
        let target = to.join(path.file_name().expect("it has a name"));
        if path.is_dir() {
            copy(&path, &target)?;
        } else {
            put(&target, &fs::read(&path)?, 0o644)?;
        }
    }
    Ok(())
}

fn gzip(file: &Path) -> Result<()> {
    Cmd::new("gzip")
        .arg("-9n")
        .arg(file)
        .read()
        .map(drop)
        .with_context(|| format!("gzip failed for {}", file.display()))
}

fn size(dir: &Path) -> Result<u64> {
    let mut all = 0;
    for path in sorted(dir)? {
        all += match path.is_dir() {
            true => size(&path)?,
            false => path.metadata()?.len(),
        };
    }
    Ok(all)
}
