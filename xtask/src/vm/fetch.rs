//! Stock Debian kernels with their headers, in target/vm/kernels/SERIES. `apt` gets the packages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{apt::Apt, bzimage, shell};
use crate::{arch::Arch, once, paths};

/// A kernel series that Debian packages.
pub struct Series {
    /// Its name here.
    pub name: &'static str,
    /// The processor that it is for.
    pub arch: Arch,
    /// Suites of the main archive and of the security archive.
    suites: [&'static str; 2],
    /// The package whose dependency names the newest kernel.
    meta: &'static str,
    /// The package with the kernel's build programs; `{}` stands for the version.
    kbuild: &'static str,
    /// Further packages; `{}` stands for the release.
    more: &'static [&'static str],
    /// True if it supports BTF of modules (since 5.11).
    module_btf: bool,
    /// Source of pahole and of the build programs' libraries.
    tools: Tools,
}

/// The environment of the build programs.
struct Tools {
    suites: [&'static str; 2],
    packages: &'static [&'static str],
    /// The programs may be newer than the host: they run with the libc among `packages`.
    wrapped: bool,
}

const BOOKWORM: Tools = Tools {
    suites: ["bookworm", "bookworm-security"],
    packages: &["pahole", "libbpf1", "libdw1", "libelf1"],
    wrapped: false,
};

/// All series.
pub const SERIES: &[Series] = &[
    Series {
        name: "5.10",
        arch: Arch::X86_64,
        suites: ["bullseye", "bullseye-security"],
        meta: "linux-image-cloud-amd64",
        kbuild: "linux-kbuild-5.10",
        more: &["linux-compiler-gcc-10-x86"],
        module_btf: false,
        tools: BOOKWORM,
    },
    Series {
        name: "6.1",
        arch: Arch::X86_64,
        suites: ["bookworm bookworm-updates", "bookworm-security"],
        meta: "linux-image-cloud-amd64",
        kbuild: "linux-kbuild-6.1",
        more: &["linux-compiler-gcc-12-x86"],
        module_btf: true,
        tools: BOOKWORM,
    },
    Series {
        name: "6.12",
        arch: Arch::X86_64,
        suites: ["bookworm bookworm-updates", "bookworm-security"],
        meta: "linux-image-6.12-cloud-amd64",
        kbuild: "linux-kbuild-{}",
        more: &[],
        module_btf: true,
        tools: BOOKWORM,
    },
    Series {
        name: "6.1-aarch64",
        arch: Arch::Aarch64,
        suites: ["bookworm bookworm-updates", "bookworm-security"],
        meta: "linux-image-cloud-arm64",
        kbuild: "linux-kbuild-6.1",
        more: &[],
        module_btf: false,
        tools: BOOKWORM,
    },
    Series {
        name: "6.12-aarch64",
        arch: Arch::Aarch64,
        suites: ["bookworm bookworm-updates", "bookworm-security"],
        meta: "linux-image-6.12-cloud-arm64",
        kbuild: "linux-kbuild-{}",
        more: &[],
        module_btf: false,
        tools: BOOKWORM,
    },
    // The newest in Debian's backports: 7.2 when this was written.
    Series {
        name: "backports",
        arch: Arch::X86_64,
        suites: ["trixie-backports", ""],
        meta: "linux-image-cloud-amd64",
        kbuild: "linux-kbuild-{}",
        more: &["linux-binary-{}"],
        module_btf: true,
        tools: Tools {
            suites: ["trixie", "trixie-security"],
            packages: &[
                "libc6",
                "libelf1t64",
                "libdw1t64",
                "libzstd1",
                "zlib1g",
                "liblzma5",
                "libbz2-1.0",
                "libssl3t64",
                "pahole",
                "libbpf1",
            ],
            wrapped: true,
        },
    },
];

/// A kernel that was fetched.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its folder.
    pub dir: PathBuf,
    /// Its release, as in uname -r.
    pub release: String,
    /// True if it supports BTF of modules.
    pub module_btf: bool,
    /// The processor that it is for.
    pub arch: Arch,
}

impl Kernel {
    /// The kernel that QEMU starts: on x86-64 the ELF kernel.
    pub fn image(&self) -> PathBuf {
        self.dir.join("vmlinux")
    }

    /// Its headers.
    pub fn headers(&self) -> PathBuf {
        self.dir
            .join("root/usr/src")
            .join(format!("linux-headers-{}", self.release))
    }

    /// Returns the folder in which its packages were unpacked.
    pub fn root(&self) -> PathBuf {
        self.dir.join("root")
    }
}

/// The series with this name.
pub fn series(name: &str) -> Result<&'static Series> {
    SERIES.iter().find(|s| s.name == name).with_context(|| {
        let names: Vec<_> = SERIES.iter().map(|s| s.name).collect();
        format!(
            "there is no kernel series {name}; there are {}",
            names.join(", ")
        )
    })
}

/// The kernel of a series: from the cache, or fetched.
pub fn kernel(name: &str) -> Result<Kernel> {
    let series = series(name)?;
    let dir = shell::cache().join("kernels").join(series.name);
    // Several machines of the matrix need the same kernel.
    let _alone = once::alone(&format!("kernel-{}", series.name))?;
    let kver = dir.join("kver");
    if let Ok(release) = fs::read_to_string(&kver) {
        return Ok(Kernel {
            dir,
            release: release.trim().into(),
            module_btf: series.module_btf,
            arch: series.arch,
        });
    }
    println!("vm: fetching kernel {} (once)", series.name);
    fs::remove_dir_all(&dir).ok();
    let release =
        fetch(series, &dir).with_context(|| format!("fetching kernel {}", series.name))?;
    fs::write(kver, &release)?;
    Ok(Kernel {
        dir,
        release,
        module_btf: series.module_btf,
        arch: series.arch,
    })
}

fn fetch(series: &Series, dir: &Path) -> Result<String> {
    fs::create_dir_all(dir)?;
    let apt = Apt::new(dir, series.suites, series.arch)?;
    let depends = apt.depends(series.meta)?;
    let flavour = format!("-cloud-{}", series.arch.debian());
    let Some(release) = depends.lines().find_map(|line| {
        let image = line.trim().strip_prefix("Depends: linux-image-")?;
        image.ends_with(&flavour).then(|| image.to_string())
    }) else {
        bail!("{} depends on no kernel:\n{depends}", series.meta);
    };
    let version = release.trim_end_matches(&flavour);
    let kbuild = series.kbuild.replace("{}", version);
    let mut packages = vec![
        format!("linux-image-{release}"),
        format!("linux-headers-{release}"),
        format!("linux-headers-{version}-common"),
    ];
    let mut host_packages: Vec<String> = series
        .tools
        .packages
        .iter()
        .map(|p| p.to_string())
        .collect();
    // The build's own programs run here, whatever the kernel is for.
    match series.arch {
        Arch::HOST => packages.push(kbuild),
        _ => host_packages.push(kbuild),
    }
    packages.extend(series.more.iter().map(|p| p.replace("{}", &release)));
    let root = dir.join("root");
    apt.unpack(&packages, &dir.join("debs"), &root)?;
    if series.tools.wrapped {
        // Before the tools' own programs and libraries are unpacked beside them.
        wrap(
            &root
                .join("usr/lib")
                .join(series.kbuild.replace("{}", version)),
            &root,
        )?;
    }
    let tools = Apt::new(&dir.join("tools"), series.tools.suites, Arch::HOST)?;
    tools.unpack(&host_packages, &dir.join("tools/debs"), &root)?;
    if series.tools.wrapped {
        wrap_one(&root.join("usr/bin/pahole"), &root)?;
    }
    let image = [
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ]
    .iter()
    .map(|at| root.join(at))
    .find(|at| at.is_file())
    .context("the packages hold no vmlinuz")?;
    match series.arch {
        Arch::X86_64 => bzimage::extract(&image, &dir.join("vmlinux"))?,
        Arch::Aarch64 => _ = fs::copy(&image, dir.join("vmlinux"))?,
    }
    absolute_paths(&root, &release)?;
    compiler(dir, series.arch)?;
    for spent in ["apt", "debs", "tools"] {
        fs::remove_dir_all(dir.join(spent))?;
    }
    Ok(release)
}

/// The headers' Makefile names other headers by their installation paths.
fn absolute_paths(root: &Path, release: &str) -> Result<()> {
    let makefile = root
        .join("usr/src")
        .join(format!("linux-headers-{release}"))
        .join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    let here = text.replace("/usr/src", &format!("{}/usr/src", root.display()));
    fs::write(&makefile, here)?;
    Ok(())
}

fn script(at: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::write(at, text).with_context(|| format!("cannot write {}", at.display()))?;
    fs::set_permissions(at, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// A compiler in place of the kernel's own, if the host lacks that: without options that only the other one knows.
fn compiler(dir: &Path, arch: Arch) -> Result<()> {
    let gcc = arch.tool("gcc").0;
    script(
        &dir.join("cc"),
        &format!(
            "#!/bin/sh\nfor arg; do\n  shift\n  case $arg in\n    \
             -fmin-function-alignment=*|-fzero-init-padding-bits=*) ;;\n    *) set -- \"$@\" \"$arg\" ;;\n  esac\ndone\n\
             exec {gcc} \"$@\"\n"
        ),
    )
}

/// Replaces a program by a script that runs it with the libraries in `root` instead of the host's.
fn wrap_one(program: &Path, root: &Path) -> Result<()> {
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let mut moved = program.as_os_str().to_owned();
    moved.push(".elf");
    fs::rename(program, &moved)?;
    script(
        program,
        &format!(
            "#!/bin/sh\nexec {0}/ld-linux-x86-64.so.2 --library-path {0} --argv0 \"$0\" \"$0.elf\" \"$@\"\n",
            libraries.display()
        ),
    )
}

/// Does the same with every program in a folder.
fn wrap(folder: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            wrap(&path, root)?;
        } else if kind.is_file()
            && paths::is_executable(&path)
            && fs::read(&path)?.starts_with(b"\x7fELF")
        {
            wrap_one(&path, root)?;
        }
    }
    Ok(())
}
