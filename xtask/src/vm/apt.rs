//! Debian packages, unpacked without being installed: a private apt state, for this user, without root.
//!
//! Of the host's own sources only the archive's address is read. Packages that the host has installed, held back or pinned
//! are ignored, so that its backports, say, are in nobody's way. Knows nothing of the packages' purpose.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::shell;
use crate::{arch::Arch, paths};

/// The keys that Debian signs its archives with, from the package debian-archive-keyring.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// A private apt: its own lists, cache and sources, and instead of dpkg's an empty list of installed packages.
pub struct Apt {
    config: PathBuf,
}

impl Apt {
    /// A private apt in `dir`, for suites of the main archive and of the security archive, with packages of a processor.
    pub fn new(dir: &Path, suites: [&str; 2], arch: Arch) -> Result<Apt> {
        present()?;
        let apt = dir.join("apt");
        for folder in ["lists/partial", "cache/archives/partial", "preferences.d"] {
            fs::create_dir_all(apt.join(folder))?;
        }
        fs::write(apt.join("status"), "")?;
        let mut sources = String::new();
        for (uri, suite) in archives(&host_sources())
            .iter()
            .zip(suites)
            .filter(|(_, suite)| !suite.is_empty())
        {
            sources.push_str(&format!(
                "Types: deb\nURIs: {uri}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n\n"
            ));
        }
        fs::write(apt.join("vm.sources"), sources)?;
        // Without this option an update that reaches no archive is no error to apt-get.
        let config = apt.join("apt.conf");
        fs::write(
            &config,
            format!(
                "APT::Architecture \"{1}\";\nAPT::Architectures {{ \"{1}\"; }};\nDir::State::lists \"{0}/lists\";\nDir::State::status \"{0}/status\";\nDir::State::extended_states \
                 \"{0}/extended_states\";\nDir::Cache \"{0}/cache\";\nDir::Etc::sourcelist \"{0}/vm.sources\";\n\
                 Dir::Etc::sourceparts \"-\";\nDir::Etc::preferences \"{0}/preferences\";\n\
                 Dir::Etc::preferencesparts \"{0}/preferences.d\";\nAPT::Sandbox::User \"root\";\n\
                 APT::Update::Error-Mode \"any\";\nAcquire::Languages \"none\";\nAcquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
                apt.display(),
                arch.debian(),
            ),
        )?;
        let apt = Apt { config };
        shell::quiet(apt.command("apt-get").args(["-qq", "update"]))
            .context("cannot read the lists of Debian's archive; is there a network?")?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        // The host's configuration is read after the file above, for its proxy; but its default release must not apply
        // here.
        command.args(["-o", "APT::Default-Release="]);
        command
    }

    /// The dependencies of `package`, as apt prints them.
    pub fn depends(&self, package: &str) -> Result<String> {
        shell::quiet(self.command("apt-cache").args(["depends", package]))
    }

    /// `package` and all its dependencies, down to libc.
    pub fn closure(&self, package: &str) -> Result<Vec<String>> {
        let said = shell::quiet(self.command("apt-get").args([
            "-s",
            "--no-install-recommends",
            "install",
            package,
        ]))?;
        let packages = would_install(&said);
        if !packages.iter().any(|p| p == package) {
            bail!("apt-get -s install {package} names no {package}:\n{said}");
        }
        Ok(packages)
    }

    /// Downloads packages into `debs` and unpacks them into `root`.
    pub fn unpack(&self, packages: &[String], debs: &Path, root: &Path) -> Result<()> {
        fs::create_dir_all(debs)?;
        fs::create_dir_all(root)?;
        shell::quiet(
            self.command("apt-get")
                .args(["-qq", "download"])
                .args(packages)
                .current_dir(debs),
        )?;
        for deb in fs::read_dir(debs)? {
            shell::quiet(
                Command::new("dpkg-deb")
                    .arg("-x")
                    .arg(deb?.path())
                    .arg(root),
            )?;
        }
        Ok(())
    }
}

/// Checks that this host can unpack Debian packages at all. The tools cannot be installed: a host without them is another
/// distribution.
fn present() -> Result<()> {
    for program in ["apt-get", "apt-cache", "dpkg-deb"] {
        if paths::on_path(program).is_none() {
            bail!(
                "{program} is not on PATH, and the virtual machines are made of Debian's packages. Run this on Debian or \
                 Ubuntu (a container will do), or leave them out: cargo xtask test --no-vm"
            );
        }
    }
    if !Path::new(KEYRING).is_file() {
        bail!(
            "{KEYRING} is not there, so that Debian's packages could not be checked. Type:\n  \
             sudo apt-get install debian-archive-keyring"
        );
    }
    Ok(())
}

/// The packages that a simulated installation would install.
fn would_install(said: &str) -> Vec<String> {
    said.lines()
        .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The text of every list of sources on this host, in both of apt's forms.
fn host_sources() -> String {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    let parts = fs::read_dir("/etc/apt/sources.list.d");
    files.extend(parts.into_iter().flatten().flatten().map(|e| e.path()));
    files.retain(|file| {
        file.extension()
            .is_some_and(|e| e == "list" || e == "sources")
    });
    files.sort();
    files
        .iter()
        .map(|file| fs::read_to_string(file).unwrap_or_default() + "\n")
        .collect()
}

/// Addresses of the host's Debian archive and security archive, or Debian's own.
fn archives(sources: &str) -> [String; 2] {
    let mut found = [
        "http://deb.debian.org/debian".to_string(),
        "http://deb.debian.org/debian-security".to_string(),
    ];
    let uris = sources.lines().filter_map(|line| {
        line.strip_prefix("URIs:")
            .or_else(|| line.strip_prefix("deb "))
    });
    for uri in uris.flat_map(str::split_whitespace) {
        let place = uri.trim_end_matches('/');
        if place.contains("://") && place.ends_with("/debian-security") {
            found[1] = uri.into();
        } else if place.contains("://") && place.ends_with("/debian") {
            found[0] = uri.into();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_names_what_it_would_install() {
        let said = "Reading package lists...\nThe following NEW packages will be installed:\n  libc6 zlib1g\n\
                    Inst libgcc-s1 (12.2.0-14 Debian:12.15/oldstable [amd64]) []\n\
                    Inst libc6 (2.36-9 Debian:12.15/oldstable [amd64])\n\
                    Conf libgcc-s1 (12.2.0-14 Debian:12.15/oldstable [amd64])\nRemv other [1]\n";
        assert_eq!(would_install(said), ["libgcc-s1", "libc6"]);
    }

    #[test]
    fn the_hosts_archives_are_found_in_both_forms() {
        let new = "Types: deb\nURIs: http://a.example/debian/\nSuites: bookworm\n\nTypes: deb\n\
                   URIs: http://b.example/debian-security\n";
        assert_eq!(
            archives(new),
            [
                "http://a.example/debian/",
                "http://b.example/debian-security"
            ]
        );
        let old = "# deb http://no.example/debian sid main\n\
                   deb [arch=amd64] http://c.example/debian bookworm main\n\
                   deb http://d.example/ubuntu jammy main\n";
        assert_eq!(
            archives(old),
            [
                "http://c.example/debian",
                "http://deb.debian.org/debian-security"
            ]
        );
    }
}
