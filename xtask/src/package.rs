//! `cargo xtask package`: nvcap as users install it: a deb, an rpm and a tarball, with their checksums.
//!
//! `contents` lays the files out; here the tools of each format pack them. What is packed is the static program of `build`.

pub mod check;
mod contents;
pub mod deploy;
mod fleet;
mod installed;
mod rights;
mod shells;
mod third_party;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    bpf,
    build::{self, Profile},
    install, paths,
    shell::Cmd,
};
use contents::{Layout, Source};

/// Packages that were made, in `target/package`. A format whose tool is not here is left out, with the reason.
pub struct Made {
    /// The folder with all of it.
    pub dir: PathBuf,
    /// The program as it was built.
    pub program: PathBuf,
    /// Debian's package.
    pub deb: std::result::Result<PathBuf, String>,
    /// The RPM package.
    pub rpm: std::result::Result<PathBuf, String>,
    /// The tarball.
    pub tarball: PathBuf,
}

/// Builds nvcap and packs it.
pub fn run() -> Result<()> {
    let made = make(Profile::RELEASE)?;
    for (name, why) in [("deb", &made.deb), ("rpm", &made.rpm)] {
        if let Err(why) = why {
            eprintln!("no {name}: {why}");
        }
    }
    for file in files(&made.dir)? {
        println!("{}", made.dir.join(file).display());
    }
    Ok(())
}

/// Builds nvcap in a static profile and packs it into a folder that is made anew.
pub fn make(profile: Profile) -> Result<Made> {
    bpf::fresh()?;
    // All programs, as the tests build them: with other packages cargo would choose other features, and build anew.
    let built = build::packages(&build::programs(), profile)?.join("nvcap");
    build::check_static(&built)?;
    let dir = paths::target().join("package");
    let work = dir.join("work");
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("cannot empty {}", dir.display()))?;
    }
    fs::create_dir_all(&work)?;
    let source = Source::of(&built, &work)?;
    let made = Made {
        deb: deb(&source, &work, &dir)?,
        rpm: rpm(&source, &work, &dir)?,
        tarball: tarball(&source, &work, &dir)?,
        dir: dir.clone(),
        program: built,
    };
    fs::remove_dir_all(&work)?;
    let sums = Cmd::new("sha256sum")
        .args(files(&dir)?)
        .dir(&dir)
        .read()
        .context("sha256sum failed")?;
    fs::write(dir.join("SHA256SUMS"), sums + "\n")?;
    Ok(made)
}

/// The names of the files in a folder.
fn files(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// A tool of a package format, installed where that may be done; else why not.
fn tool(program: &str, package: &str) -> std::result::Result<(), String> {
    if paths::on_path(program).is_none() && install::apt_allowed() && install::apt_offers(package) {
        let _ = install::apt(&[package], "packing nvcap");
    }
    match paths::on_path(program) {
        Some(_) => Ok(()),
        None => Err(format!(
            "{program} is not here; type: sudo apt-get install {package}"
        )),
    }
}

fn deb(source: &Source, work: &Path, to: &Path) -> Result<std::result::Result<PathBuf, String>> {
    if let Err(why) = tool("dpkg-deb", "dpkg") {
        return Ok(Err(why));
    }
    let root = work.join("deb");
    let size = source.lay_out(&root, &Layout::DEB)?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control)?;
    let text = source.filled("deb/control")?;
    let kib = size.div_ceil(1024).to_string();
    contents::put(
        &control.join("control"),
        text.replace("@SIZE@", &kib).as_bytes(),
        0o644,
    )?;
    contents::put(&control.join("conffiles"), b"/etc/default/nvcap\n", 0o644)?;
    for script in ["postinst", "prerm", "postrm"] {
        let text = source.filled(&format!("deb/{script}"))?;
        contents::put(&control.join(script), text.as_bytes(), 0o755)?;
    }
    let sums = Cmd::new("sh")
        .args(["-c", "find etc usr -type f | LC_ALL=C sort | xargs md5sum"])
        .dir(&root)
        .read()
        .context("md5sum failed")?;
    contents::put(
        &control.join("md5sums"),
        format!("{sums}\n").as_bytes(),
        0o644,
    )?;
    let file = to.join(format!("nvcap_{}-1_amd64.deb", source.version));
    Cmd::new("dpkg-deb")
        .args(["--root-owner-group", "-Zxz", "--build"])
        .args([&root, &file])
        .env("SOURCE_DATE_EPOCH", &source.epoch)
        .run()?;
    Ok(Ok(file))
}

fn rpm(source: &Source, work: &Path, to: &Path) -> Result<std::result::Result<PathBuf, String>> {
    if let Err(why) = tool("rpmbuild", "rpm") {
        return Ok(Err(why));
    }
    let root = work.join("rpm");
    source.lay_out(&root, &Layout::RPM)?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let shown = |path: PathBuf| path.display().to_string();
    let file = to.join(format!("nvcap-{}-1.x86_64.rpm", source.version));
    let mut cmd = Cmd::new("rpmbuild").args(["-bb", "--quiet", "--target", "x86_64-linux"]);
    for (name, value) in [
        ("_topdir", shown(work.join("rpmbuild"))),
        ("_rpmdir", shown(work.join("rpms"))),
        ("staged", shown(root)),
        ("version_of_nvcap", source.version.clone()),
        ("homepage", source.homepage.clone()),
        // The same package from the same sources, whatever machine makes it.
        ("_buildhost", "localhost".into()),
        ("use_source_date_epoch_as_buildtime", "1".into()),
        ("clamp_mtime_to_source_date_epoch", "1".into()),
        ("_binary_payload", "w6.xzdio".into()),
        ("_build_id_links", "none".into()),
    ] {
        cmd = cmd.args(define(name, &value));
    }
    cmd.arg(paths::root().join("packaging/rpm/nvcap.spec"))
        .env("SOURCE_DATE_EPOCH", &source.epoch)
        .run()?;
    let name = file.file_name().expect("it has a name");
    fs::copy(work.join("rpms/x86_64").join(name), &file)
        .context("rpmbuild has written no package of the expected name")?;
    Ok(Ok(file))
}

fn tarball(source: &Source, work: &Path, to: &Path) -> Result<PathBuf> {
    let name = format!("nvcap-{}-x86_64-linux", source.version);
    source.lay_out(&work.join(&name), &Layout::TARBALL)?;
    let file = to.join(format!("{name}.tar.gz"));
    let tar = work.join("nvcap.tar");
    Cmd::new("tar")
        .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
        .arg(format!("--mtime=@{}", source.epoch))
        .arg("-cf")
        .arg(&tar)
        .arg(&name)
        .dir(work)
        .run()?;
    Cmd::new("gzip").arg("-9n").arg(&tar).run()?;
    fs::rename(work.join("nvcap.tar.gz"), &file)?;
    Ok(file)
}
