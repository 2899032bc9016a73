//! `nvcap export`: a trace as a file for other programs, with one module for each format.

mod copied;
mod exported;
mod kineto;
#[cfg(feature = "sqlite")]
mod nsys;
#[cfg(feature = "parquet")]
mod partitions;
mod pcapng;
mod perfetto;
mod tables;
mod wireshark;

use std::process::ExitCode;

use nvcap_show::export::tables::layout;

/// The formats.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    format: Format,
}

#[derive(clap::Subcommand, Debug)]
enum Format {
    /// A recording, which nvcap's other commands and programs for packets read
    Pcapng(pcapng::Args),
    /// A recording with what nvcap decodes of each packet, for Wireshark and tshark (nvcap wireshark install)
    Wireshark(wireshark::Args),
    /// For Perfetto: timelines of GPUs, channels and threads, for ui.perfetto.dev and trace processor
    Perfetto(Box<perfetto::Args>),
    /// The JSON that PyTorch's profiler writes (Kineto), a file a process: for HolisticTraceAnalysis and TensorBoard
    Kineto(Box<kineto::Args>),
    /// The tables that Nsight Systems exports (nsys export --type sqlite), for scripts that read those
    #[cfg(feature = "sqlite")]
    #[command(alias = "sqlite")]
    NsysSqlite(Box<nsys::Args>),
    /// Tables as CSV: operations, submissions, kernels, ioctls, and what is missing (nvcap schema lists the columns)
    Csv(Box<tables::Args>),
    /// The same tables as Parquet, for DuckDB, pandas, Polars and Spark
    #[cfg(feature = "parquet")]
    Parquet(Box<tables::Args>),
    /// Recordings as Parquet in one folder for many hosts, by day, hour and host
    #[cfg(feature = "parquet")]
    Partitions(partitions::Args),
}

impl Args {
    /// Returns the reason why the export must not begin: it would replace files.
    pub(super) fn refusal(&self) -> Option<String> {
        match &self.format {
            Format::Pcapng(args) => args.copy.refusal(),
            Format::Wireshark(args) => args.copy.refusal(),
            Format::Perfetto(args) => args.refusal(),
            Format::Kineto(args) => args.refusal(),
            #[cfg(feature = "sqlite")]
            Format::NsysSqlite(args) => args.refusal(),
            Format::Csv(args) => args.refusal(layout::Format::Csv),
            #[cfg(feature = "parquet")]
            Format::Parquet(args) => args.refusal(layout::Format::Parquet),
            #[cfg(feature = "parquet")]
            Format::Partitions(args) => args.refusal(),
        }
    }
}

/// Returns the export commands for clap: each without the options that have no meaning for it, and with its own help texts for the others.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = command
        .mut_subcommand("perfetto", perfetto::as_is)
        .mut_subcommand("kineto", kineto::as_is)
        .mut_subcommand("csv", tables::as_is);
    #[cfg(feature = "parquet")]
    let command = command.mut_subcommand("parquet", tables::as_is);
    #[cfg(feature = "sqlite")]
    let command = command.mut_subcommand("nsys-sqlite", nsys::as_is);
    command
}

/// Writes the export.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.format {
        Format::Pcapng(args) => pcapng::run(&args),
        Format::Wireshark(args) => wireshark::run(&args),
        Format::Perfetto(args) => perfetto::run(*args),
        Format::Kineto(args) => kineto::run(*args),
        #[cfg(feature = "sqlite")]
        Format::NsysSqlite(args) => nsys::run(*args),
        Format::Csv(args) => tables::run(*args, layout::Format::Csv),
        #[cfg(feature = "parquet")]
        Format::Parquet(args) => tables::run(*args, layout::Format::Parquet),
        #[cfg(feature = "parquet")]
        Format::Partitions(args) => partitions::run(&args),
    }
}
