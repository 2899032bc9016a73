//! The commands for nvcap's developers: `cargo xtask COMMAND`. Dispatch; `cli` has their words, and each command is a module.

mod api;
mod arch;
mod bench;
mod bpf;
mod browser;
mod build;
mod bundle;
mod check;
mod ci;
mod cli;
#[cfg(test)]
mod doc_comments;
mod facts;
mod help;
mod install;
mod licences;
mod linker;
mod once;
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
mod tour;
mod tree;
#[cfg(test)]
mod typed;
mod vm;
mod watchpoint;

use std::process::ExitCode;

use cli::Command;

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
    let Some(command) = cli::typed() else {
        cli::command().print_help()?;
        return Ok(ExitCode::SUCCESS);
    };
    match command {
        Command::Setup { check } => setup::run(check)?,
        Command::Bpf { check: false } => bpf::make()?,
        Command::Bpf { check: true } => {
            let mut report = report::Report::default();
            bpf::check(&mut report)?;
            report.close()?;
        }
        Command::Check { before_tests } => check::run(before_tests)?,
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
        Command::Run { tour: true, .. } => return tour::run(),
        Command::Run { args, .. } => return run::run(&args),
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
