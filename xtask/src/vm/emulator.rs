//! The QEMU that runs the machines: the host's, or Debian 12's with all of its libraries, unpacked into target/vm/qemu.
//!
//! Nothing is installed: on a host with backports apt might want to remove packages for its QEMU, and this way needs no
//! root. An unpacked QEMU runs with its own libc and its own firmware, so any host will do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use super::apt::Apt;
use super::shell;
use crate::{arch::Arch, once, paths};

/// The package, its program, and the machine type that the kernels boot on.
fn parts(arch: Arch) -> (&'static str, &'static str, &'static str) {
    match arch {
        Arch::X86_64 => ("qemu-system-x86", "qemu-system-x86_64", "microvm"),
        Arch::Aarch64 => ("qemu-system-arm", "qemu-system-aarch64", "virt"),
    }
}

const SUITES: [&str; 2] = ["bookworm bookworm-updates", "bookworm-security"];
/// Folders in which packages put libraries: some before the move to /usr, some after it.
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];
const LOADER: &str = "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";
const MODULES: &str = "usr/lib/x86_64-linux-gnu/qemu";
const FIRMWARE: [&str; 2] = ["usr/share/qemu", "usr/share/seabios"];

/// A QEMU that can be started.
#[derive(Debug)]
pub struct Emulator {
    /// The processor of its machines.
    pub arch: Arch,
    place: Place,
}

/// Place of a QEMU.
#[derive(Debug)]
enum Place {
    /// The host's.
    Host(PathBuf),
    /// Unpacked in this folder.
    Unpacked(PathBuf),
}

impl Emulator {
    /// The host's QEMU if it supports the machines, else the unpacked one, which is fetched if missing.
    pub fn get(arch: Arch) -> Result<Emulator> {
        let (package, name, _) = parts(arch);
        if let Some(program) = paths::on_path(name) {
            let place = Place::Host(program);
            let host = Emulator { arch, place };
            match host.check() {
                Ok(()) => return Ok(host),
                Err(error) => println!("vm: the host's QEMU will not do: {error:#}"),
            }
        }
        let dir = shell::cache().join(match arch {
            Arch::HOST => "qemu".to_owned(),
            other => format!("qemu-{}", other.name()),
        });
        let place = Place::Unpacked(dir.join("root"));
        let unpacked = Emulator { arch, place };
        let ready = dir.join("ready");
        let _alone = once::alone(package)?;
        if !ready.is_file() {
            println!("vm: fetching QEMU (once)");
            fs::remove_dir_all(&dir).ok();
            if let Err(error) = fetch(&dir, package).and_then(|()| unpacked.check()) {
                bail!(
                    "cannot unpack QEMU into {}: {error:#}\n\
                     If that cannot be mended, have a {name} on PATH by other means and type this again",
                    dir.display()
                );
            }
            fs::write(ready, "")?;
        }
        Ok(unpacked)
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        match &self.place {
            Place::Host(program) => Command::new(program),
            Place::Unpacked(root) => {
                let libraries = LIBRARIES.map(|at| root.join(at).display().to_string());
                let mut command = Command::new(root.join(LOADER));
                command
                    .arg("--library-path")
                    .arg(libraries.join(":"))
                    .arg(root.join("usr/bin").join(parts(self.arch).1))
                    .env("QEMU_MODULE_DIR", root.join(MODULES));
                for at in FIRMWARE {
                    command.arg("-L").arg(root.join(at));
                }
                command
            }
        }
    }

    /// Checks that it starts and supports the machine type that the kernels boot on.
    fn check(&self) -> Result<()> {
        let machines = shell::quiet(self.command().args(["-M", "help"]))?;
        let machine = parts(self.arch).2;
        let is_it = |line: &str| line.split_whitespace().next() == Some(machine);
        ensure!(machines.lines().any(is_it), "it has no machine {machine}");
        Ok(())
    }
}

fn fetch(dir: &Path, package: &str) -> Result<()> {
    let apt = Apt::new(dir, SUITES, Arch::HOST)?;
    let mut packages = apt.closure(package)?;
    packages.retain(|package| is_part(package));
    let debs = dir.join("debs");
    apt.unpack(&packages, &debs, &dir.join("root"))?;
    for spent in [dir.join("apt"), debs] {
        fs::remove_dir_all(spent)?;
    }
    Ok(())
}

/// Tells whether a package of the closure is needed by the running program. The others serve an installation, or bring programs
/// of their own, some of them set-user-ID.
fn is_part(package: &str) -> bool {
    let library = package.starts_with("lib") || package == "zlib1g";
    let beside = ["-bin", "-data", "-common"]
        .iter()
        .any(|end| package.ends_with(end));
    (library && !beside) || package.starts_with("qemu-system-") || package == "seabios"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_parts_are_told_from_installation_packages() {
        for part in [
            "libc6",
            "libstdc++6",
            "zlib1g",
            "qemu-system-x86",
            "qemu-system-common",
            "qemu-system-data",
            "seabios",
        ] {
            assert!(is_part(part), "{part}");
        }
        for other in [
            "passwd",
            "debconf",
            "libcap2-bin",
            "libpam-modules-bin",
            "iso-codes",
            "libdrm-common",
        ] {
            assert!(!is_part(other), "{other}");
        }
    }

    #[test]
    fn an_unpacked_qemu_runs_with_nothing_of_the_hosts() {
        let unpacked = |arch| Emulator {
            arch,
            place: Place::Unpacked("/x".into()),
        };
        let command = unpacked(Arch::X86_64).command();
        assert_eq!(
            command.get_program(),
            "/x/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
        );
        let args: Vec<_> = command
            .get_args()
            .map(|arg| arg.to_string_lossy())
            .collect();
        assert_eq!(
            args.join(" "),
            "--library-path /x/lib/x86_64-linux-gnu:/x/usr/lib/x86_64-linux-gnu /x/usr/bin/qemu-system-x86_64 \
             -L /x/usr/share/qemu -L /x/usr/share/seabios"
        );
        let modules = command
            .get_envs()
            .find(|(name, _)| *name == "QEMU_MODULE_DIR");
        assert_eq!(
            modules.and_then(|(_, value)| value),
            Some("/x/usr/lib/x86_64-linux-gnu/qemu".as_ref())
        );
    }
}
