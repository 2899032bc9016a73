//! The commands for nvcap's developers: `cargo xtask COMMAND`. Dispatch and help; each command is a module.

mod api;
mod arch;
mod bench;
mod bpf;
mod browser;
mod build;
mod bundle;
mod check;
mod ci;
#[cfg(test)]
mod doc_comments;
mod facts;
mod install;
mod licences;
mod linker;
mod package;
#[cfg(test)]
mod pages;
mod paths;
mod python;
mod report;
mod run;
mod setup;
mod shell;
mod test;
mod toolchain;
mod tree;
mod vm;
mod watchpoint;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask",
    about = "Builds, runs and tests nvcap",
    disable_help_subcommand = true,
    after_help = "Examples:
  cargo xtask setup              install what a build needs, or say what to type
  cargo xtask run                build, then trace the GPU process that runs here, or the software GPU
  cargo xtask run -- -p 4711     build, then trace process 4711 (asks sudo for root)
  cargo xtask test               all tests, with a list of those that could not run"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install the BPF compiler and linker if they are lacking
    Setup {
        /// Only look: status 1 if something is lacking
        #[arg(long)]
        check: bool,
    },
    /// Compile the BPF programs into nvcap-ebpf/prebuilt/, which is committed
    #[command(
        after_help = "Needed after a change of nvcap-ebpf or nvcap-common alone; all else builds with what is there.
Installs the BPF toolchain where it is lacking (docs/building.md)."
    )]
    Bpf {
        /// Only compare: status 1 where the committed objects are not what the sources give, byte for byte
        #[arg(long)]
        check: bool,
    },
    /// Build nvcap
    #[command(after_help = "Examples:
  cargo xtask build             development build: target/debug/nvcap
  cargo xtask build --release   one static file for any distribution; its path is printed last
  cargo xtask build --release --target aarch64   the same for Grace, Jetson and other Arm machines")]
    Build {
        /// Optimised and, unless --dynamic is given, static
        #[arg(long)]
        release: bool,
        /// Without shared libraries, in any profile
        #[arg(long = "static", conflicts_with = "dynamic")]
        fixed: bool,
        /// Linked with this machine's glibc, in any profile
        #[arg(long)]
        dynamic: bool,
        /// For machines with this processor
        #[arg(long, value_name = "ARCH", value_enum, default_value_t = arch::Arch::HOST)]
        target: arch::Arch,
    },
    /// Build what a trace needs, become root by sudo, and trace
    #[command(
        after_help = "Without arguments a process that uses a GPU is traced for 10 seconds; where there is \
none, the software GPU is, to its end. With arguments, they are nvcap's own. The exit status is nvcap's.

Examples:
  cargo xtask run
  cargo xtask run -- -p 4711 --json
  cargo xtask run -- -- python3 train.py"
    )]
    Run {
        /// Arguments for nvcap, after `--`
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Check what needs no kernel, no GPU and no root, the cheapest first: the tree, format, documents, clippy, unit tests
    #[command(
        after_help = "Says within three minutes whether a change is worth the tests. What it touches is tested first."
    )]
    Check,
    /// Run every test that this machine can run, and name those that it cannot
    #[command(after_help = "Examples:
  cargo xtask test
  cargo xtask test --no-live --no-vm   without root and without virtual machines

The output of each step is kept in target/xtask-test/.")]
    Test {
        /// Leave the live tests out (they need root)
        #[arg(long)]
        no_live: bool,
        /// Leave the virtual machines out (they need Debian's packages: apt-get and a network)
        #[arg(long)]
        no_vm: bool,
    },
    /// Test on other kernels, in virtual machines, with a stand-in for nvidia.ko
    Vm(vm::Args),
    /// Fill DIR with all that a GPU machine without Rust needs to run the GPU tests
    #[command(after_help = "Example:
  cargo xtask gpu-bundle /tmp/bundle && scp -r /tmp/bundle gpu: && ssh gpu sudo bash bundle/run.sh")]
    GpuBundle {
        /// The folder to fill; it is created
        dir: PathBuf,
    },
    /// Build nvcap and pack it: deb, rpm, tarball, checksums
    #[command(after_help = "Example:
  cargo xtask package    the files are in target/package/, their paths are printed

A format whose tool is not here (dpkg-deb, rpmbuild) is left out, and it is said why.")]
    Package,
    /// Write the tables in nvcap/decode/facts/ from those in facts/
    Facts {
        /// Only compare: status 1 where a committed table is not what the facts give
        #[arg(long)]
        check: bool,
    },
    /// Write the lists of public interfaces: api.txt of nvcap-decode and nvcap-recording
    Api {
        /// Only compare: status 1 where the committed list is not what rustdoc shows
        #[arg(long)]
        check: bool,
    },
    /// Measure what tracing costs, or how fast decoding is
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Parts of the gate, as .ci/run calls them
    CiHelpers {
        #[command(subcommand)]
        part: ci::Part,
    },
}

fn main() -> ExitCode {
    match dispatch() {
        Ok(code) => code,
        Err(error) => {
            // One message, outermost first; a backtrace would bury what to type.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Setup { check } => setup::run(check)?,
        Command::Bpf { check: false } => bpf::make()?,
        Command::Bpf { check: true } => {
            let mut report = report::Report::default();
            bpf::check(&mut report)?;
            report.close()?;
        }
        Command::Check => check::run()?,
        Command::Build {
            release,
            fixed,
            dynamic,
            target,
        } => build::run(build::Profile {
            release,
            fixed: fixed || (release && !dynamic),
            arch: target,
        })?,
        Command::Run { args } => return run::run(&args),
        Command::Test { no_live, no_vm } => test::run(test::Options { no_live, no_vm })?,
        Command::Vm(args) => vm::run(args)?,
        Command::GpuBundle { dir } => bundle::run(&dir)?,
        Command::Package => package::run()?,
        Command::Facts { check } => facts::run(check)?,
        Command::Api { check } => api::run(check)?,
        Command::Bench { what } => bench::run(&what)?,
        Command::CiHelpers { part } => ci::run(&part)?,
    }
    Ok(ExitCode::SUCCESS)
}
