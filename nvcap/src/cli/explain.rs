//! `nvcap explain`: what a number of the stream means.

use std::process::ExitCode;

use anyhow::bail;
use nvcap::output::filter::Field;

const EXAMPLES: &str = "\
Examples:
  nvcap explain c8b5 0300 00000182    a method write: class, method, data (all hex)
  nvcap explain c8b5 0300             a method and its fields
  nvcap explain c8b5                  a class
  nvcap explain qmd FILE              a QMD of 256 or 384 bytes, binary; - for standard input
  nvcap explain control 20801218      an RM control command
  nvcap explain status 0x57           an RM status
  nvcap explain filter                the fields of filter expressions (-e)";

/// What to explain.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// CLASS [METHOD [DATA]], or `qmd FILE`, `control NUMBER`, `status NUMBER`, `filter`
    #[arg(required = true, num_args = 1..=3, value_name = "WHAT")]
    pub what: Vec<String>,
}

/// The fields of filter expressions, with what each is.
fn filter_help() -> String {
    let mut text = String::from("Fields of filter expressions (-e):\n");
    for field in Field::all() {
        text.push_str(&format!("  {:<11} {}", field.name(), field.about()));
        if !field.choices().is_empty() {
            text.push_str(&format!(": {}", field.choices().join(", ")));
        }
        text.push('\n');
    }
    text
}

/// Explains.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.what.as_slice() == ["filter"] {
        print!("{}", filter_help());
        return Ok(ExitCode::SUCCESS);
    }
    bail!("not built yet: {:?}", args.what)
}
