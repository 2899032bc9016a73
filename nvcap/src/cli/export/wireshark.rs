//! `nvcap export wireshark`: a recording with the decoder's account of each packet.

use std::process::ExitCode;

use super::copied::CopyArgs;
use nvcap_show::output::wireshark::Packets;

const EXAMPLES: &str = "\
Examples:
  nvcap wireshark install                               what Wireshark needs for it, once
  nvcap export wireshark run.pcapng -o run.ws.pcapng
  tshark -r run.ws.pcapng -Y 'nvcap.op == \"launch\"'

Users' data is in it as in FILE. Exit status: as nvcap decode.";

/// Arguments of `nvcap export wireshark`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// File that is read, and file that is written.
    #[command(flatten)]
    pub(super) copy: CopyArgs,
}

/// Makes the export.
pub(in crate::cli) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.copy.copy(false, |recorder, trace| {
        let driver = trace.and_then(|t| t.driver.as_deref()?.parse().ok());
        Box::new(Packets::new(recorder, driver, Box::new(|| true)))
    })
}
